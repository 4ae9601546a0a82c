"""How identifying points are and how long gaps are: right, and at a memory records do not move."""

import itertools
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from sequester.audit import leakage as leakage_module
from sequester.audit.leakage import leakage
from sequester.mechanism.noise import NoiseStream
from sequester.sequences import People, Schema, Time, datasets, singling
from sequester.sequences import gaps as gaps_module
from sequester.sequences.gaps import Gaps
from sequester.sequences.inspection import inspect
from sequester.sequences.points import Points
from sequester.sequences.singling import singled_out
from sequester.sequences.windows import gaps

SCHEMA = Schema(
    time=Time(kind="step"), numeric=("number", "age"), categorical=("word",), text=("text",),
    static=("age",),
)  # fmt: skip


def people(counts: list[int], *, kinds: int = 6, seed: int = 0, step: int = 1) -> People:
    """People with so many records, over a few different words and numbers."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(counts)), counts)
    word = rng.integers(0, kinds, len(owner))
    number = np.where(rng.random(len(owner)) < 0.2, np.nan, rng.integers(0, 3, len(owner)) / 2)
    return People.read(
        pa.table(
            {
                "person": [f"p{i:05d}" for i in owner],
                "time": np.concatenate([np.cumsum(rng.integers(0, step + 1, n)) for n in counts]),
                "number": pa.array(number, mask=np.isnan(number)),
                "age": owner % 4 + 30.0,
                "word": [f"w{i}" for i in word],
                "text": [f"t{i}" for i in word],
            }
        ),
        SCHEMA,
    )


def exact(people: People, names: tuple[str, ...]) -> dict[str, float | None]:
    """Every ordered choice of every person against everybody's sets, with Python's own sets."""
    columns = [people.column(name).to_pylist() for name in names]
    sets: list[set] = [set() for _ in range(len(people))]
    for who, *parts in zip(people.owner.tolist(), *columns, strict=True):
        if None not in parts:
            sets[who].add(tuple(parts))
    shares: dict[str, float | None] = {}
    for k in range(1, 5):
        per_person = []
        for mine in sets:
            if len(mine) >= k:
                alone = [
                    sum(set(choice) <= other for other in sets) == 1
                    for choice in itertools.combinations(mine, k)
                ]
                per_person.append(np.mean(alone))
        shares[str(k)] = float(np.mean(per_person)) if per_person else None
    return shares


POPULATIONS = {
    "even": [5] * 40,
    "skewed": [0, 1, 2, 200, 3, 7, 0, 4, 1, 9] * 3,
    "few": [3, 3],
    "alone": [4],
    "nobody has four": [1, 2, 3] * 10,
}


@pytest.mark.parametrize("names", [("word",), ("word", "number"), ("text", "age"), ("number",)])
@pytest.mark.parametrize("counts", POPULATIONS.values(), ids=POPULATIONS)
def test_shares_are_those_of_all_choices(counts: list[int], names: tuple[str, ...]) -> None:
    made = people(counts, kinds=9)
    points = Points(made, dict.fromkeys(names, 0.0), "none")
    found, wanted = singled_out(points, draws=1000), exact(made, names)
    assert found.keys() == wanted.keys()
    for k, share in wanted.items():
        assert found[k] == (None if share is None else pytest.approx(share, abs=0.02)), k


def test_both_ways_of_looking_and_all_stretches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    made = people([4, 30, 1, 90, 2, 60] * 8, kinds=40)
    points = Points(made, {"word": 0.0, "number": 0.5}, "none")
    whole = singled_out(points, draws=20)
    assert any(share not in (0.0, 1.0, None) for share in whole.values())
    for size in (17, 300):
        monkeypatch.setattr(
            singling,
            "_stretches",
            lambda records, size=size: (
                (i, min(i + size, records)) for i in range(0, records, size)
            ),
        )
        for most, candidates in ((0, 5), (1 << 23, 64), (1 << 23, 1 << 21)):
            monkeypatch.setattr(singling, "_MOST_WORDS", most)
            monkeypatch.setattr(singling, "_CANDIDATES", candidates)
            assert singled_out(points, draws=20) == whole, (size, most)


def test_of_many_points_any_are_kept() -> None:
    """One has ten times the points that are kept of a person, and shares three quarters."""
    mine = np.arange(10 * singling.KEPT)
    shared = mine[mine % 4 > 0]
    table = pa.table(
        {"person": ["a"] * len(mine) + ["b"] * len(shared),
         "time": np.concatenate([mine, np.arange(len(shared))]),
         "number": np.concatenate([mine, shared]).astype(float)}
    )  # fmt: skip
    read = People.read(table, Schema(time=Time(kind="step"), numeric=("number",)))
    found = [
        singled_out(Points(read, {"number": 0.0}, "none"), draws=1000, seed=seed)["1"]
        for seed in range(3)
    ]
    assert np.mean(found) == pytest.approx((0.25 + 0.0) / 2, abs=0.04)


def test_a_large_population_is_judged_by_some_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = people([6] * 400, kinds=30)
    points = Points(made, {"word": 0.0, "number": 0.0}, "none")
    everybody = singled_out(points)
    monkeypatch.setattr(singling, "DRAWN", 100)
    for k, share in singled_out(points, draws=400).items():
        assert share == pytest.approx(everybody[k], abs=0.12), k


def test_points_do_not_depend_on_the_form_of_the_source() -> None:
    """A word is the same point whatever the other words are, and in whatever order they came."""
    made = people([6] * 50)
    codes = Points(made, {"word": 0.0}, "none").of(0, made.records)[1]
    for part in (made.select(np.arange(10, 30)), made.select(np.array([3, 8]))):
        owner, code = Points(part, {"word": 0.0}, "none").of(0, part.records)
        assert set(code) <= set(codes)
        assert len(set(code)) == len(set(part.column("word").to_pylist()))
        assert (owner == part.owner).all()


@pytest.mark.parametrize("step", [0, 1, 50, 10**12])
@pytest.mark.parametrize("stretch", [1 << 20, 5])
def test_gaps_are_numpys(step: int, stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps_module, "_STRETCH", stretch)
    for counts in ([3, 0, 1, 40, 2], [1, 1, 0], [2], [90]):
        made = people(counts, step=step, seed=step % 97)
        wanted = gaps(made)
        wanted = wanted[np.isfinite(wanted)]
        found = Gaps(made)
        assert found.count == len(wanted)
        assert np.array_equal(np.concatenate([[], *found]), wanted)
        for share in (0.0, 0.5, 0.95, 0.3, 1.0):
            value = found.quantile(share)
            assert value == (
                None if not len(wanted) else pytest.approx(np.quantile(wanted, share), rel=1e-12)
            )
        assert found.most == (wanted.max() if len(wanted) else None)


def test_memory_does_not_grow_with_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaps_module, "_STRETCH", 4096)
    monkeypatch.setattr(singling, "_STRETCH", 4096)
    peaks = []
    for records in (300, 3000):
        made = people([records] * 60, kinds=20_000)
        points = Points(made, {"word": 0.0, "age": 0.0}, "none")
        tracemalloc.start()
        inspect(made, singled_out(points, draws=20))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert peaks[-1] < 8e6
    assert peaks[1] < 1.3 * peaks[0]


def test_a_label_is_looked_for_in_stretches_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = leakage_module.noisy
    monkeypatch.setattr(leakage_module, "noisy", lambda s, *r: asked.append(s) or real(s, *r))
    for stretch in (1 << 18, 1000):
        monkeypatch.setattr(leakage_module, "_STRETCH", stretch)
        leakage(datasets.randhie(), "label", stream=NoiseStream.from_test_seed(1, "leak"))
    assert len(asked[0]) > 100
    np.testing.assert_allclose(asked[0], asked[1], rtol=1e-9)
