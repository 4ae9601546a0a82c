"""What the operator is told about a run is what its figures say."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from sequester.training.monitor import Measure, Monitor, measure

CALM = Measure(
    step=0, people=100, loss=0.5, clip=1.0, clipped=0.4, norms=[0.2, 0.9, 2.0],
    signal_to_noise=0.5, nonfinite=0, groups={},
)  # fmt: skip


def advice(folder: Path, measures: list[Measure]) -> str:
    monitor = Monitor(folder)
    for measured in measures:
        monitor.add(measured)
    return " | ".join(monitor.advice())


def run(steps: int = 40, **changes: object) -> list[Measure]:
    return [msgspec.structs.replace(CALM, step=i, **changes) for i in range(steps)]


def test_a_calm_run_needs_no_advice(tmp_path: Path) -> None:
    assert advice(tmp_path, run()) == ""
    assert Monitor(tmp_path / "nothing").advice() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clipped": 0.71}, "raise privacy.clip"),
        ({"clipped": 0.01}, "lower privacy.clip"),
        ({"groups": {"north": 0.3, "south": 0.71}}, "in group south 71% of people are clipped"),
        ({"signal_to_noise": 0.05}, "larger lots"),
        ({"nonfinite": 1}, "40 gradients were inf or NaN"),
    ],
)
def test_each_trouble_has_its_advice_alone(tmp_path: Path, changes: dict, words: str) -> None:
    said = advice(tmp_path, run(**changes))
    assert words in said
    assert " | " not in said
    assert "north" not in said


@pytest.mark.parametrize("clipped", [0.69, 0.03])
def test_near_the_edges_it_is_calm(tmp_path: Path, clipped: float) -> None:
    assert advice(tmp_path, run(clipped=clipped)) == ""


def test_a_loss_that_still_falls_is_told_and_one_that_has_settled_is_not(tmp_path: Path) -> None:
    for name, losses, told in (
        ("falling", np.linspace(1.0, 0.3, 40), True),
        ("settled", 0.3 + 0.7 * np.exp(-np.arange(40.0)), False),
        ("rising", np.linspace(0.3, 1.0, 40), False),
    ):
        folder = tmp_path / name
        folder.mkdir()
        measures = [
            msgspec.structs.replace(CALM, step=i, loss=float(v)) for i, v in enumerate(losses)
        ]
        assert ("before convergence" in advice(folder, measures)) == told, name


def test_a_resumed_run_reads_what_came_before_but_a_torn_line(tmp_path: Path) -> None:
    advice(tmp_path, run(5))
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert [m.step for m in Monitor(tmp_path).measures] == [0, 1, 2, 3]
    assert file.stat().st_mode & 0o077 == 0


def test_a_lot_is_measured_as_it_was() -> None:
    norms = torch.tensor([0.5, 1.0, 2.0, float("inf"), float("nan")], dtype=torch.float64)
    groups = np.array(["a", "a", "b", "b", "b"])
    found = measure(3, norms, clip=1.0, loss=None, groups=groups)
    assert (found.people, found.nonfinite) == (5, 2)
    assert found.clipped == pytest.approx(3 / 5)  # what is not finite is above any bound
    assert found.groups == {"a": 0.0, "b": 1.0}
    assert found.norms == pytest.approx(list(np.quantile([0.5, 1.0, 2.0], [0.1, 0.5, 0.9])))
    empty = measure(4, norms[:0], clip=1.0, loss=None, groups=None)
    assert (empty.people, empty.clipped, empty.norms) == (0, 0.0, [])
