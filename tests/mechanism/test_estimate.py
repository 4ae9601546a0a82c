"""Private ranges, means and vocabularies: near the truth, and bounded per person."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from sequester.core.errors import UsageError
from sequester.mechanism import NoiseStream, estimate
from sequester.mechanism.estimate import Column, means, noisy, ranges, threshold, vocabulary

PEOPLE = 4000


def column(seed: int = 0, **changes: object) -> Column:
    generator = np.random.default_rng(seed)
    owner = np.sort(generator.integers(0, PEOPLE, 12_000))
    values = generator.normal(70.0, 10.0, len(owner))
    values[::50] = np.nan
    return Column(**({"values": values, "owner": owner, "lower": 0.0, "upper": 640.0} | changes))


def stream(seed: int = 0) -> NoiseStream:
    return NoiseStream.from_test_seed(seed, "setup")


def test_ranges_hold_nearly_all_the_mass_and_little_else():
    found = ranges(
        {"a": column(), "b": column(1, upper=1280.0)},
        people=PEOPLE,
        multiplier=10.0,
        stream=stream(),
        step=0,
    )
    for lower, upper in found.values():
        assert 20.0 <= lower <= 60.0
        assert 80.0 <= upper <= 130.0


def test_ranges_under_hopeless_noise_stay_the_public_ones():
    found = ranges({"a": column()}, people=PEOPLE, multiplier=1e6, stream=stream(), step=0)
    assert found["a"] == (0.0, 640.0)


def test_log_ranges_are_found_on_the_log_scale():
    values = np.random.default_rng(0).lognormal(2.0, 0.5, 5000)
    logged = Column(values, np.arange(5000), 0.0, 1e6, log=True)
    lower, upper = ranges({"a": logged}, people=5000, multiplier=5.0, stream=stream(), step=0)["a"]
    assert 0.5 < lower < 4.0
    assert 15.0 < upper < 50.0


@pytest.mark.parametrize("records", [1, 5, 1000])
def test_one_person_moves_a_histogram_by_at_most_one(records: int):
    from sequester.mechanism.estimate import _histogram

    generator = np.random.default_rng(records)
    extra = generator.uniform(-50, 900, records)
    base = column()
    owner = np.concatenate([base.owner, np.full(records, PEOPLE)])
    more = column(values=np.concatenate([base.values, extra]), owner=owner)
    moved = _histogram(more, PEOPLE + 1) - _histogram(base, PEOPLE + 1)
    assert np.linalg.norm(moved) <= 1.0 + 1e-9


def test_means_are_close_and_bounded():
    found = means(
        {"a": column(upper=140.0)},
        people=PEOPLE,
        multiplier=3.0,
        stream=stream(),
        step=0,
        population=PEOPLE,
    )
    assert found["a"] == pytest.approx(70.0, abs=1.5)


def test_a_vocabulary_keeps_common_words_and_hides_one_persons_word():
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(500), 3)
    words = [str(w) for w in generator.choice(["home", "work", "gym"], len(owner))]
    words[0] = "a-secret-place"
    hits = 0
    for seed in range(200):
        found = vocabulary(words, owner, multiplier=3.0, failure=1e-3, stream=stream(seed), step=0)
        hits += "a-secret-place" in found
        assert {"home", "work", "gym"} <= set(found)
    # Probability at most 1e-3 each time; three or more of 200 has probability 1e-3.
    assert hits < 3


def test_one_person_with_a_thousand_words_releases_none():
    words = [f"word-{k:04d}" for k in range(1000)]
    assert (
        vocabulary(
            words, np.zeros(1000, dtype=int), multiplier=2.0, failure=1e-6, stream=stream(), step=0
        )
        == ()
    )


def test_the_threshold_keeps_its_promise():
    std, failure, most = 2.0, 1e-3, 8
    limit = threshold(std, failure, most)
    for k in range(1, most + 1):
        below = stats.norm.cdf((limit - 1 / math.sqrt(k)) / std) ** k
        assert 1 - below <= failure * (1 + 1e-6)


def test_impossible_promises_are_refused():
    with pytest.raises(UsageError, match="SQ-239"):
        vocabulary([], np.zeros(0, dtype=int), multiplier=1.0, failure=0.0, stream=stream(), step=0)


# What one person can move a release by, and the noise that it gets, exactly.

NOISE = 3.0
RECORDS = (np.array([0.0]), np.array([1.0]), np.array([-9.0, 9.0]), np.array([np.nan]),
           np.linspace(0, 1, 7), np.full(5, 0.5), np.array([1.0, np.nan]))  # fmt: skip


class Ones(NoiseStream):
    """Noise of one deviation everywhere: what is added is the deviation."""

    def draw(self, step: int, count: int, *, meets: bytes) -> torch.Tensor:
        assert meets
        return torch.ones(count, dtype=torch.float64)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Pairs of what is rounded and exact, and what was released, of every release inside."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    original = estimate.add_noise

    def watch(counts: np.ndarray, grid: float, *rest: Any, **named: Any) -> np.ndarray:
        released = original(counts, grid, *rest, **named)
        seen.append((counts * grid, released.copy()))
        return released

    with monkeypatch.context() as patch:
        patch.setattr(estimate, "add_noise", watch)
        yield seen


def columns_of(people: list[tuple[np.ndarray, ...]], log: bool) -> dict[str, Column]:
    """Column k of everybody, who has the same number of records in each."""
    found = {}
    for k in range(len(people[0])):
        values = np.concatenate([person[k] for person in people])
        owner = np.repeat(np.arange(len(people)), [len(person[k]) for person in people])
        found[f"c{k}"] = Column(values, owner, 0.0, 1.0, log)
    return found


def asked(kind: str, people: list[tuple[np.ndarray, ...]], log: bool = False) -> None:
    options = {"population": 7} if kind == "means" else {}
    getattr(estimate, kind)(
        columns_of(people, log),
        people=len(people),
        multiplier=NOISE,
        stream=Ones(b"k" * 32, "run"),
        step=0,
        **options,
    )


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["ranges", "means"])
def test_the_noise_is_that_of_the_largest_step_a_person_can_make(
    monkeypatch: pytest.MonkeyPatch, kind: str, columns: int, log: bool
):
    others = [(np.array([0.3, 0.9]),) * columns, (np.array([0.1]),) * columns]
    choices = (
        product(RECORDS, repeat=columns) if columns < 3 else zip(*[RECORDS] * columns, strict=True)
    )
    with watched(monkeypatch) as seen:
        asked(kind, others, log)
        for person in choices:
            asked(kind, [*others, person], log)
    (without, released), *rest = seen
    noise = released - without
    steps = [float(np.linalg.norm(exact - without)) for exact, _ in rest]
    largest = max(steps)
    assert noise == pytest.approx(noise.flat[0], rel=1e-6)
    # Not less than needed, and but for the rounding not more.
    assert NOISE * largest <= noise.flat[0] * (1 + 1e-7)
    assert noise.flat[0] == pytest.approx(NOISE * largest, rel=1e-6)
    for exact, with_noise in rest:  # whoever is there, it is the same
        assert with_noise - exact == pytest.approx(noise, rel=1e-9)


def test_a_vocabulary_gets_the_noise_of_a_person_with_any_number_of_words(
    monkeypatch: pytest.MonkeyPatch,
):
    def ask(words: list[str], owner: list[int]) -> None:
        vocabulary(
            words,
            np.array(owner, dtype=int),
            multiplier=NOISE,
            failure=1e-6,
            stream=Ones(b"k" * 32, "run"),
            step=0,
        )

    everything = [f"w{k:03d}" for k in range(40)]
    for count in range(1, 41):
        with watched(monkeypatch) as seen:
            ask(everything, [0] * 40)
            ask(everything + everything[:count] * 2, [0] * 40 + [1] * (2 * count))
        (without, released), (exact, _) = seen
        weights = np.zeros(len(exact))
        weights[: len(without)] = without
        step = float(np.linalg.norm(exact - weights))
        assert 1 - 1e-6 <= step <= 1.0
        assert released - without == pytest.approx(NOISE, rel=1e-7)


@pytest.mark.parametrize("size", [1, 2, 64, 256])
def test_rounding_to_the_grid_is_part_of_the_step(monkeypatch: pytest.MonkeyPatch, size: int):
    sensitivity = 1.0
    grid = sensitivity * 2.0**-24
    # Every coordinate moves by the same whole number of grid steps and a bit, and rounds up.
    steps = math.floor(sensitivity / math.sqrt(size) / grid - 0.1) + 0.02
    few = np.full(size, 0.49 * grid)
    assert np.linalg.norm(np.full(size, steps * grid)) <= sensitivity
    with watched(monkeypatch) as seen:
        for sums in (few, few + steps * grid):
            noisy(sums, sensitivity, NOISE, Ones(b"k" * 32, "run"), 0)
    (before, released), (after, _) = seen
    needed = NOISE * float(np.linalg.norm(after - before))
    given = float((released - before)[0])
    assert needed <= given + 0.5 * grid
    assert given == pytest.approx(
        NOISE * (sensitivity + grid * math.sqrt(size)), abs=0.6 * grid, rel=0
    )


BASE = [(np.array([0.3, 0.9]),) * 2, (np.array([0.1]),) * 2]
MORE = [*BASE, (np.array([0.8]),) * 2]


def _columns(kind: str, people: list[Any], stream: NoiseStream, name: str = "c", **bounds: Any):
    columns = {
        f"{name}{key}": replace(column, **bounds)
        for key, column in columns_of(people, log=False).items()
    }
    options = {"population": 7} if kind == "means" else {}
    getattr(estimate, kind)(
        columns, people=len(people), multiplier=NOISE, stream=stream, step=0, **options
    )


def _words(words: list[str], stream: NoiseStream) -> None:
    owner = np.arange(len(words))
    vocabulary(words, owner, multiplier=NOISE, failure=1e-6, stream=stream, step=0)


QUESTIONS = {
    "ranges of other people": [partial(_columns, "ranges", p) for p in (BASE, MORE)],
    "means of other people": [partial(_columns, "means", p) for p in (BASE, MORE)],
    "words of other people": [partial(_words, w) for w in (["a", "b"], ["a", "b", "a"])],
    "another column": [partial(_columns, "means", BASE, name=n) for n in "cd"],
    "other bounds": [
        partial(_columns, "means", [(np.array([np.nan]),)], upper=u) for u in (1.0, 2.0)
    ],
    "another scale": [
        partial(_columns, "ranges", [(np.array([0.0]),)], log=log) for log in (True, False)
    ],
    "other words": [partial(_words, [w]) for w in "ab"],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_noise_of_one_question_never_meets_another(
    monkeypatch: pytest.MonkeyPatch, question: str
):
    """As after a crash that lost the answers: the same key, run and step again."""
    seen: list[np.ndarray] = []
    original = NoiseStream.draw

    def watch(self: NoiseStream, *which: int, **named: Any) -> torch.Tensor:
        drawn = original(self, *which, **named)
        seen.append(drawn.numpy().copy())
        return drawn

    monkeypatch.setattr(NoiseStream, "draw", watch)
    one, other = QUESTIONS[question]
    for ask in (one, other, one):
        ask(NoiseStream(b"k" * 32, "run/setup"))
    first, second, again = seen
    assert np.array_equal(first, again)
    assert not set(first) & set(second)
