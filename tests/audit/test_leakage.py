"""Columns that give the answer away are found by a verdict that hides each person."""

import math

import numpy as np
import pyarrow as pa
import pytest

from sequester.accounting.gaussian import delta as gaussian_delta
from sequester.audit import leakage as module
from sequester.audit.leakage import THRESHOLDS, leakage
from sequester.core.errors import UsageError
from sequester.mechanism.noise import NoiseStream
from sequester.sequences import People, Schema, Time, datasets


def population(people: int = 6000, records: int = 4) -> pa.Table:
    """Visits of each year; the label is three or more in the next one."""
    rng = np.random.default_rng(3)
    habit = rng.gamma(1.0, 2.5, people)
    visits = rng.poisson(habit[:, None], (people, records + 1))
    following, label = visits[:, 1:], visits[:, 1:] >= 3
    flat = {
        "visits": visits[:, :-1],
        "after": following,  # known only afterwards
        "copy": label,
        "opposite": ~label,
        "half": np.where(rng.random((people, records)) < 0.5, label, np.nan),
        "noise": rng.normal(size=(people, records)),
        "same": np.ones((people, records)),
        "label": label,
    }
    columns = {name: values.astype(float).ravel() for name, values in flat.items()}
    who = np.repeat(np.arange(people), records)
    return pa.table({"person": who, "time": np.tile(np.arange(records), people)} | columns)


@pytest.fixture(scope="module")
def people() -> People:
    names = ("visits", "after", "copy", "opposite", "half", "noise", "same", "label")
    return People.read(population(), Schema(time=Time(kind="step"), numeric=names))


def test_what_gives_the_label_away_is_found_and_nothing_else(people: People) -> None:
    for seed in range(5):
        found = leakage(people, "label", stream=NoiseStream.from_test_seed(seed, "leak"))
        assert found.told
        assert found.columns == ("after", "copy", "opposite")


def test_the_embedded_data_have_no_leak() -> None:
    found = leakage(datasets.randhie(), "label", stream=NoiseStream.from_test_seed(1, "leak"))
    assert found.told
    assert found.columns == ()


def test_a_column_of_words_that_is_the_next_place_is_found() -> None:
    rng = np.random.default_rng(4)
    place = rng.integers(0, 5, (2000, 6))
    table = pa.table(
        {
            "person": np.repeat(np.arange(2000), 5),
            "time": np.tile(np.arange(5), 2000),
            "place": [f"p{i}" for i in place[:, :-1].ravel()],
            "coming": [f"p{i}" for i in place[:, 1:].ravel()],
            "other": [f"p{i}" for i in rng.integers(0, 5, 10_000)],
        }
    )
    people = People.read(table, Schema(categorical=("place", "coming", "other")))
    found = leakage(people, "place", stream=NoiseStream.from_test_seed(0, "leak"))
    assert (found.told, found.columns) == (True, ("coming",))


def test_few_people_are_told_nothing(people: People) -> None:
    few = people.select(np.arange(150))
    found = leakage(few, "label")
    assert (found.told, found.columns) == (False, ())


def test_one_person_changes_each_sum_by_at_most_one(people: People) -> None:
    """The sensitivity that the noise is made for, on people with many and with odd records."""
    rng = np.random.default_rng(5)
    rows = [("a", t, rng.normal(), float(rng.random() < 0.5)) for t in range(300)]
    rows += [("b", 0, math.nan, 1.0), ("c", 0, 1e300, math.nan), ("d", 1, -5.0, 0.0)]
    rows += [(f"e{i}", t, float(i), float(t % 2)) for i in range(9) for t in range(i + 1)]
    names = ("person", "time", "v", "label")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    small = People.read(table, Schema(time=Time(kind="step"), numeric=("v", "label")))

    def sums(of: People) -> np.ndarray:
        answers = module._Answers(of, "label")
        return np.array([*answers.kinds(), *(errs for errs, _ in answers.rules("v"))])

    whole = sums(small)
    assert len(whole) == 4 + 2 + 2 * len(THRESHOLDS)
    for gone in range(len(small)):
        rest = small.select(np.delete(np.arange(len(small)), gone))
        assert np.abs(whole - sums(rest)).max() <= 1.0 + 1e-9


def test_the_noise_is_what_epsilon_asks_for(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, float, float]] = []
    original = module.noisy

    def noisy(sums: np.ndarray, sensitivity: float, multiplier: float, *rest: object) -> object:
        asked.append((len(sums), sensitivity, multiplier))
        return original(sums, sensitivity, multiplier, *rest)

    monkeypatch.setattr(module, "noisy", noisy)
    leakage(people, "label", epsilon=0.5, delta=1e-7)
    ((count, sensitivity, multiplier),) = asked
    assert sensitivity == math.sqrt(count)
    assert gaussian_delta(0.5, 1.0 / multiplier) <= 1e-7 * (1 + 1e-6)


def test_an_unknown_label_is_refused(people: People) -> None:
    with pytest.raises(UsageError, match="SQ-102"):
        leakage(people, "nothing")
