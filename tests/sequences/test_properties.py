"""What must hold for any people: checked on generated ones, against a slow and obvious model."""

import csv
import io
import re
import tempfile
import unicodedata
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequester.core.errors import SequesterError, UsageError
from sequester.sequences import Features, People, Range, Schema, Target, Time, prf
from tests.sequences.test_identifiers import unseen

KEY = b"k" * 32
INVISIBLE = frozenset(unseen())
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=6
).filter(  # `0.0` and `1E+5` are refused: test_identifiers.py
    lambda name: (
        unicodedata.is_normalized("NFKC", name)
        and not INVISIBLE.intersection(name)
        and (name.isdigit() or not re.fullmatch(r"[0-9.,eE+-]+", name))
    )
)
RECORD = st.tuples(
    st.sampled_from(["ana", "bo", "çelik", "dora", "李"]),
    st.integers(-5, 20),
    st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    st.one_of(st.none(), st.sampled_from(["home", "work", "gym"])),
)
RECORDS = st.lists(RECORD, min_size=1, max_size=60)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def table(rows: list[tuple]) -> pa.Table:
    person, time, v, w = zip(*rows, strict=True)
    return pa.table(
        {
            "person": pa.array(person, pa.string()),
            "time": pa.array(time, pa.int64()),
            "v": pa.array(v, pa.float64()),
            "w": pa.array(w, pa.string()),
        }
    )


def read(rows: list[tuple]) -> People:
    schema = Schema(time=Time(kind="step"), numeric=("v",), categorical=("w",))
    return People.read(table(rows), schema)


def by_person(rows: list[tuple]) -> dict[str, list[tuple]]:
    """The obvious model: a stable sort in a dictionary."""
    found: dict[str, list[tuple]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return {
        name: sorted(found[name], key=lambda row: row[1])
        for name in sorted(found, key=lambda name: name.encode())
    }


@quick
@given(RECORDS)
def test_records_and_owners_agree_with_a_dictionary(rows: list[tuple]) -> None:
    people, model = read(rows), by_person(rows)
    assert people._ids.to_pylist() == list(model)
    assert people.counts.tolist() == [len(part) for part in model.values()]
    flat = [row for part in model.values() for row in part]
    assert people.time.tolist() == [row[1] for row in flat]
    assert people.column("v").to_pylist() == [row[2] for row in flat]
    assert people.text("w").to_pylist() == [row[3] for row in flat]
    assert people.owner.tolist() == [i for i, part in enumerate(model.values()) for _ in part]


@quick
@given(RECORDS, st.randoms(use_true_random=False))
def test_fingerprint_ignores_order_and_sees_every_change(rows: list[tuple], order: object) -> None:
    people = read(rows)
    shuffled = list(rows)
    order.shuffle(shuffled)
    assert read(shuffled).fingerprint() == people.fingerprint()
    assert people.fingerprint(KEY) != people.fingerprint()
    assert read([*rows, rows[0]]).fingerprint() != people.fingerprint()
    person, time, v, w = rows[0]
    others = [
        (person + "x", time, v, w),
        (person, time + 100, v, w),
        (person, time, 0.125 if v != 0.125 else 0.25, w),
        (person, time, v, "elsewhere"),
    ]
    for other in others:
        assert read([other, *rows[1:]]).fingerprint() != people.fingerprint()


@quick
@given(RECORDS)
def test_fingerprint_is_the_same_through_csv(rows: list[tuple]) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["person", "time", "v", "w"])
    for person, time, v, w in rows:
        writer.writerow([person, time, "" if v is None else repr(v), w or ""])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(stream.getvalue(), encoding="utf-8")
        schema = Schema(time=Time(kind="step"), numeric=("v",), categorical=("w",))
        assert People.read(path, schema).fingerprint() == read(rows).fingerprint()


@quick
@given(RECORDS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_windows_agree_with_slices(
    rows: list[tuple], length: int, stride: int, shortest: int
) -> None:
    people = read(rows)
    features = Features(numeric={"v": Range(-10, 10)}, categorical={"w": ("home", "work")})
    target = Target("w", kind="word", ahead=1, vocabulary=("home", "work"), shortest=shortest)
    cut = people.windows(length, stride, features=features, target=target)
    expected = []
    for owner, part in enumerate(by_person(rows).values()):
        first = min(shortest, len(part))
        for stop in range(first, len(part) + 1, stride):
            if stop < len(part) and part[stop][3] in ("home", "work"):
                window = part[max(0, stop - length) : stop]
                expected.append((owner, window, ["home", "work"].index(part[stop][3])))
    assert cut.owner.tolist() == [owner for owner, _, _ in expected]
    assert cut.target.tolist() == [answer for _, _, answer in expected]
    for i, (_, window, _) in enumerate(expected):
        assert cut.mask[i].tolist() == [j < len(window) for j in range(length)]
        for j, (_, _, v, w) in enumerate(window):
            scaled = 0.0 if v is None else np.clip(v, -10, 10) / 10
            assert cut.x[i, j, 0] == pytest.approx(scaled, abs=1e-6)
            assert cut.categorical[i, j, 0] == {None: 0, "home": 1, "work": 2, "gym": 3}[w]
        assert not cut.x[i, len(window) :].any()
        assert not cut.categorical[i, len(window) :].any()


@quick
@given(RECORDS, st.integers(1, 4))
def test_bounds_hold_and_removing_a_person_changes_nobody_else(
    rows: list[tuple], most: int
) -> None:
    people = read(rows)
    bounded = people.bounded(most, KEY)
    assert bounded.counts.max() <= most
    assert bounded.counts.tolist() == np.minimum(people.counts, most).tolist()
    for gone in range(len(people)):
        others = np.delete(np.arange(len(people)), gone)
        if len(others):
            alone = people.select(others).bounded(most, KEY)
            assert alone.fingerprint() == bounded.select(others).fingerprint()


@quick
@given(RECORDS, st.floats(0.05, 0.95))
def test_a_split_by_person_never_divides_one(rows: list[tuple], share: float) -> None:
    people = read(rows)
    rest, out = people.split("person", held_out=share)
    names = [set(part._ids.to_pylist()) for part in (rest, out)]
    assert not names[0] & names[1]
    assert names[0] | names[1] == set(people._ids.to_pylist())
    assert rest.records + out.records == people.records
    fewer = people.select(np.arange(len(people) - 1)) if len(people) > 1 else people
    again = set(fewer.split("person", held_out=share)[1]._ids.to_pylist())
    assert again <= names[1]  # a person's side depends on nobody else


@quick
@given(RECORDS)
def test_a_split_by_time_keeps_every_record_once(rows: list[tuple]) -> None:
    people = read(rows)
    before, after = people.split("time", held_out=5)
    assert len(before) == len(after) == len(people)
    assert before.records + after.records == people.records
    assert before.time.max(initial=-99) < 5 <= after.time.min(initial=99)


@quick
@given(RECORDS)
def test_a_split_by_region_sends_people_home(rows: list[tuple]) -> None:
    people = read(rows)
    rest, out = people.split("region", held_out=["gym"], column="w")
    expected = set()
    for name, part in by_person(rows).items():
        words = [row[3] for row in part if row[3]]
        if words and sorted(set(words), key=lambda w: (-words.count(w), w))[0] == "gym":
            expected.add(name)
    assert set(out._ids.to_pylist()) == expected
    assert len(rest) + len(out) == len(people)


@quick
@given(st.lists(NAMES, min_size=1, max_size=20))
def test_any_visible_name_survives_and_names_stay_apart(names: list[str]) -> None:
    people = People.read(pa.table({"person": names, "time": range(len(names))}))
    assert set(people._ids.to_pylist()) == {name.strip() for name in names}


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """Nothing but a numbered refusal ever comes out of reading a file."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.csv", "a.jsonl", "a.parquet", "a.arrow"):
            path = Path(folder) / name
            path.write_bytes(raw)
            try:
                People.read(path)
            except SequesterError:
                pass


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet='person,time"\n\r ab1é\t', max_size=120))
def test_any_near_csv_is_read_or_refused(tail: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text("person,time\n" + tail, encoding="utf-8", newline="")
        try:
            people = People.read(path)
        except SequesterError:
            return
        # newline="": a lone carriage return ends a row too, for the oracle as for us.
        oracle = csv.reader(io.StringIO("person,time\n" + tail, newline=""))
        parsed = [row for row in oracle if row][1:]
        assert people.records == len(parsed)


def test_choices_are_uniform() -> None:
    """Each of 10 items is kept in 3 of 10 cases: χ² with 9 degrees of freedom, p > 1e-6."""
    kept = np.zeros(10)
    draws = 4000
    for i in range(draws):
        kept[prf.choose(KEY, "test", str(i), 10, 3)] += 1
    expected = draws * 0.3
    # Without replacement the counts vary less: the variance is n·p·(1−p)·(10/9 of χ²'s scale).
    chi2 = ((kept - expected) ** 2 / (expected * 0.7)).sum() * 9 / 10
    assert chi2 < 45
    assert kept.sum() == draws * 3
    sides = np.mean([prf.uniform(KEY, "split", str(i)) < 0.2 for i in range(draws)])
    assert abs(sides - 0.2) < 5 * np.sqrt(0.2 * 0.8 / draws)


def test_split_by_site_holds_out_whole_sites() -> None:
    rows = pa.table({"person": list("aabbcc"), "time": range(6), "site": list("xxyyzz")})
    people = People.read(rows, Schema(site="site"))
    rest, out = people.split("site", held_out=["y", "z"])
    assert (rest._ids.to_pylist(), out._ids.to_pylist()) == (["a"], ["b", "c"])
    with pytest.raises(UsageError, match="SQ-119"):
        people.split("site", held_out=["nowhere"])


def test_public_declarations_are_needed_and_unknown_words_stay_unknown() -> None:
    rows = [("a", 0, 1.0, "home"), ("a", 1, None, "casino"), ("b", 0, -3.0, None)]
    people = read(rows)
    assert people.codes("w", ("work", "home")).tolist() == [2, 3, 0]
    scaled, mask = people.values({"v": Range(0, 2)})
    assert scaled[:, 0].tolist() == [0.0, 0.0, -1.0]
    assert mask[:, 0].tolist() == [True, False, True]
    with pytest.raises(UsageError, match="SQ-117"):
        people.codes("w", ())
    with pytest.raises(UsageError, match="SQ-117"):
        Range(1, 1)
    with pytest.raises(UsageError, match="SQ-125"):
        people.values(["w"])
    with pytest.raises(UsageError, match="SQ-102"):
        people.codes("v2", ("a",))
