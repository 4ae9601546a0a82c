"""The noise stream: its distribution, its secrecy of position, and what it refuses."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from sequester.core.errors import SequesterError
from sequester.core.rng import Keystream, key_from_test_seed
from sequester.mechanism import NoiseStream, Position
from sequester.mechanism.invariants import check_noise
from sequester.mechanism.noise import _PAIRS_PER_BLOCK as BLOCK
from sequester.mechanism.noise import box_muller

KEY = key_from_test_seed(11)


def normals(raw: bytes) -> np.ndarray:
    out = torch.empty(len(raw) // 8, dtype=torch.float64)
    box_muller(bytearray(raw), out, torch.empty(2, len(raw) // 16, dtype=torch.float64))
    return out.numpy()


def test_normals_match_the_normal_distribution_in_body_and_tail():
    drawn = NoiseStream(KEY, "run").draw(0, 2_000_000, meets=b"").numpy()
    assert drawn.dtype == np.float64
    assert stats.kstest(drawn, "norm").pvalue > 1e-4
    assert abs(drawn.std() - 1) < 5 / np.sqrt(2 * len(drawn))
    # Beyond 4.5 deviations 13.6 draws are expected; Poisson limits at 1e-6.
    assert 1 <= (np.abs(drawn) > 4.5).sum() <= 40
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / np.sqrt(len(drawn))
    # The two halves of a Box-Muller pair are independent, in squares too.
    half = 1 << 14
    first, second = drawn[:half] ** 2, drawn[half : 2 * half] ** 2
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(half)


def test_box_muller_agrees_with_numpy_on_the_same_bits():
    raw = Keystream(KEY, "run", "noise").bytes(3, 16 * 1000)
    words = np.frombuffer(raw, dtype="<i8").astype(np.float64)
    radius = np.sqrt(-2 * np.log(np.maximum(np.abs(words[:1000]) * 2.0**-63, 2.0**-64)))
    angle = np.pi * words[1000:] * 2.0**-63
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    assert np.allclose(normals(raw), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("count", [0, 1, 2, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 3, 5 * BLOCK])
def test_a_draw_is_the_box_muller_transform_of_the_keystream_block_by_block(count: int):
    pairs = (count + 1) // 2
    raw = Keystream(KEY, "run", "noise").bytes(4, 16 * pairs)
    blocks = [normals(raw[k : k + 16 * BLOCK]) for k in range(0, len(raw), 16 * BLOCK)]
    expected = np.concatenate([np.zeros(0), *blocks])[:count]
    drawn = NoiseStream(KEY, "run").draw(4, count, meets=b"").numpy()
    assert drawn.tobytes() == expected.tobytes()


def test_extreme_words_stay_finite():
    words = np.array([0, -(2**63), 2**63 - 1, 1, 0, -(2**63), 2**63 - 1, 1], dtype="<i8")
    assert bool(torch.isfinite(torch.from_numpy(normals(words.tobytes()))).all())


def test_no_step_is_drawn_twice(tmp_path: Path):
    stream = NoiseStream(KEY, "run", position=Position(tmp_path / "position"))
    stream.draw(0, 10, meets=b"")
    stream.draw(1, 10, meets=b"")
    with pytest.raises(SequesterError, match="SQ-232"):
        stream.draw(1, 10, meets=b"")
    again = NoiseStream(KEY, "run", position=Position(tmp_path / "position"))
    assert again.next_step == 2
    with pytest.raises(SequesterError, match="SQ-232"):
        again.draw(0, 10, meets=b"")


def test_the_position_is_on_disk_before_the_noise_exists(tmp_path: Path, monkeypatch):
    file = tmp_path / "position"
    stream = NoiseStream(KEY, "run", position=Position(file))

    def look(*_: object, **__: object) -> bytes:
        assert int.from_bytes(file.read_bytes(), "little") == 5
        raise KeyboardInterrupt

    monkeypatch.setattr(Keystream, "pieces", look)
    with pytest.raises(KeyboardInterrupt):
        stream.draw(4, 10, meets=b"")
    assert Position(file).next == 5


def test_runs_steps_and_purposes_share_no_noise():
    draws = [
        NoiseStream(KEY, run).draw(step, 64, meets=b"") for run in ("a", "b") for step in (0, 1)
    ]
    bits = torch.stack(draws).view(torch.int64)
    assert len(bits.unique()) == bits.numel()


def test_a_forked_child_cannot_repeat_its_parents_noise():
    stream = NoiseStream(KEY, "run")
    child = os.fork()
    if child == 0:
        try:
            stream.draw(0, 4, meets=b"")
        except SequesterError as refusal:
            os._exit(0 if refusal.code == 204 else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_system_key_is_private_and_never_shown():
    stream = NoiseStream.from_system("run")
    assert stream.private
    assert not NoiseStream.from_test_seed(1, "run").private
    assert "key" not in repr(stream._keystream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_noise_made_in_a_smaller_precision_is_caught(dtype: torch.dtype):
    drawn = NoiseStream(KEY, "run").draw(0, 4096, meets=b"")
    check_noise(drawn)
    with pytest.raises(SequesterError, match="SQ-240"):
        check_noise(drawn.to(dtype))
    with pytest.raises(SequesterError, match="SQ-240"):
        check_noise(drawn.to(dtype).double())


def test_noise_that_is_no_number_is_caught_wherever_it_lies():
    drawn = NoiseStream(KEY, "run").draw(0, 4096, meets=b"")
    check_noise(drawn.view(64, 64).t().reshape(-1)[::2])
    for place in (0, 2000, 4095):
        broken = drawn.clone()
        broken[place] = math.nan
        with pytest.raises(SequesterError, match="SQ-240"):
            check_noise(broken)


def test_noise_five_percent_too_small_is_caught():
    drawn = NoiseStream(KEY, "run").draw(0, 40_000, meets=b"")
    with pytest.raises(SequesterError, match="variance"):
        check_noise(drawn * 0.95)


def test_a_position_prepared_is_on_disk_before_the_noise(tmp_path):
    file = tmp_path / "position"
    stream = NoiseStream(KEY, "run", position=Position(file))
    stream.prepare(3)
    stream.draw(3, 4, meets=b"")
    assert Position(file).next == 4
    stream.prepare(4)
    stream.draw(6, 4, meets=b"")  # another step than the one prepared
    assert Position(file).next == 7
    with pytest.raises(SequesterError, match="SQ-232"):
        stream.prepare(6)


def test_a_position_that_cannot_be_written_early_stops_the_draw(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    stream = NoiseStream(KEY, "run", position=Position(folder / "position"))
    (folder / "position").unlink()
    folder.rmdir()
    stream.prepare(0)
    with pytest.raises(FileNotFoundError):
        stream.draw(0, 4, meets=b"")
    assert stream.draws == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_does_not_wait_for_its_parents_thread(tmp_path):
    position = Position(tmp_path / "position")
    position.prepare(0)
    child = os.fork()
    if child == 0:
        position.prepare(0)
        position.advance(0)
        os._exit(0 if Position(tmp_path / "position").next == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
