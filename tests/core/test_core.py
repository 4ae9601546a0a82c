"""Errors, values that round up, canonical JSON, keystreams, files."""

import math
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from sequester.core import canonical, files, values
from sequester.core.errors import LedgerRefusal, SequesterError, UsageError, VerificationError
from sequester.core.rng import Keystream, fresh_key, key_from_test_seed


def test_an_error_reads_number_message_place() -> None:
    error = UsageError(214, "noise_multiplier must be > 0, got -1.0").at("study.toml, line 12")
    assert str(error) == "SQ-214 noise_multiplier must be > 0, got -1.0 (study.toml, line 12)"
    kinds = (SequesterError, UsageError, LedgerRefusal, VerificationError)
    assert [kind.exit_code for kind in kinds] == [1, 2, 3, 4]


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(1, 12))
def test_rounding_never_understates(value: float, digits: int) -> None:
    rounded = values.round_up(value, digits)
    assert rounded >= value
    assert Decimal(rounded) <= Decimal(value) * (1 + Decimal(10) ** (1 - digits)) * (
        1 + Decimal("1e-15")
    )


@pytest.mark.parametrize("delta", [math.nan, 0.0, 1.0, -1e-5, 2.0, math.inf])
def test_delta_outside_the_unit_interval_is_refused(delta: float) -> None:
    with pytest.raises(UsageError, match="SQ-201"):
        values.check_delta(delta)


@pytest.mark.parametrize("epsilon", [math.nan, -0.1, -math.inf])
def test_epsilon_below_zero_is_refused(epsilon: float) -> None:
    with pytest.raises(UsageError, match="SQ-202"):
        values.check_epsilon(epsilon)


def test_canonical_json_is_one_string_for_one_value() -> None:
    assert canonical.dumps({"b": (1, 2.5), "a": math.inf}) == '{"a":"inf","b":[1,2.5]}'
    with pytest.raises(ValueError, match="NaN"):
        canonical.dumps({"a": [math.nan]})
    assert canonical.digest({"a": 1}) == (
        "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    )


def test_a_keystream_is_aes_256_ctr_of_zeros_under_the_address_key() -> None:
    import hashlib

    key = key_from_test_seed(7)
    stream = Keystream(key, "run", "noise")
    derived = hashlib.blake2b(b"3:run|5:noise|2|9", key=key, digest_size=32).digest()
    cipher = Cipher(algorithms.AES(derived), modes.CTR(b"\x00" * 16)).encryptor()
    expected = cipher.update(b"\x00" * 100)
    assert stream.bytes(9, 100, rank=2) == expected
    for size in (1, 16, 17, 99, 100, 1000):
        pieces = [bytes(piece) for piece in stream.pieces(9, 100, size=size, rank=2)]
        assert {len(piece) for piece in pieces[:-1]} <= {size}
        assert b"".join(pieces) == expected


def test_no_address_shares_a_block_with_another() -> None:
    key = fresh_key()
    blocks = {
        Keystream(key, run, purpose).bytes(step, 16, rank=rank)
        for run in ("a", "ab", "a|5")
        for purpose in ("noise", "sampling", "b|noise")
        for step in range(12)
        for rank in range(3)
    }
    assert len(blocks) == 3 * 3 * 12 * 3


def test_uniforms_are_uniform() -> None:
    from scipy.stats import kstest

    draws = Keystream(key_from_test_seed(1), "run", "sampling").uniforms(0, 200_000)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert kstest(draws, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.02


def test_a_forked_child_cannot_repeat_its_parents_noise() -> None:
    stream = Keystream(fresh_key(), "run", "noise")
    stream._process = os.getpid() + 1  # What the field holds in a child.
    with pytest.raises(SequesterError, match="SQ-204"):
        stream.bytes(0, 1)
    with pytest.raises(SequesterError, match="SQ-204"):
        next(stream.pieces(0, 1, size=1))


def test_the_key_is_never_shown() -> None:
    key = fresh_key()
    assert key.hex() not in repr(Keystream(key, "r", "p"))
    assert repr(key) not in repr(Keystream(key, "r", "p"))


def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "claim.json"
    files.write_atomic(path, "old", private=True)
    assert path.stat().st_mode & 0o777 == 0o600

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["claim.json"]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".hidden", "a/b", "a\x00b", "C:x"])
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="SQ-901"):
        files.check_name(name, "the run")
