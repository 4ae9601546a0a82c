"""Ranges, vocabularies and sizes are declared or privatised: nothing takes them from the records.

Two ways to see it: what one person has changes nothing about anybody else, or about any size; and
the places in the package that touch raw values are few, listed, and each has its reason.
"""

import ast
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sequester.core.errors import UsageError
from sequester.sequences import Features, People, Range, Schema, Target, Time
from sequester.training import Category, Feature
from sequester.training.dataset import prepare
from tests.training.population import people as population
from tests.training.population import study

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "sequester"
KEY = b"k" * 32
SCHEMA = Schema(
    time=Time(kind="step"), numeric=("v", "age"), categorical=("w", "place"), static=("place",)
)
FEATURES = Features(
    numeric={"v": Range(-10, 10), "age": Range(0, 100, log=True)},
    categorical={"w": ("home", "work"), "place": ("north", "south")},
    missing_flags=True,
    gap=Range(0, 100, log=True),
)
TARGETS = (
    Target("w", kind="word", ahead=1, vocabulary=("home", "work"), shortest=1),
    Target("v", ahead=0, each_step=True),
)
ODD = st.tuples(
    st.integers(-(10**6), 10**6),
    st.sampled_from([None, 0.0, 1e308, -1e308, 5e-324, 31337.25]),
    st.sampled_from([None, "home", "casino", "kanarienvogel"]),
)


def table(rows: list[tuple]) -> pa.Table:
    person, time, v, w, place = map(list, zip(*rows, strict=True))
    return pa.table(
        {
            "person": person,
            "time": pa.array(time, pa.int64()),
            "v": pa.array(v, pa.float64()),
            "age": pa.array([abs(x or 0.0) % 90 for x in v]),
            "w": pa.array(w, pa.string()),
            "place": place,
        }
    )


def town() -> list[tuple]:
    rng = np.random.default_rng(0)
    return [
        (f"p{i:02d}", t, float(rng.normal()), ["home", "work", "gym"][rng.integers(3)], "north")
        for i in range(12)
        for t in range(int(rng.integers(1, 9)))
    ]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ODD, min_size=1, max_size=40), st.sampled_from(["", "zz"]))
def test_one_more_person_changes_nobody_else_and_no_size(odd: list[tuple], late: str) -> None:
    """Extreme values, unknown words, a long sequence, first or last in order: all are invisible."""
    name = late + "newcomer"  # before or after the others in order
    schema = Schema(time=SCHEMA.time, numeric=("v", "age"), categorical=("w", "place"))
    before = People.read(table(town()), schema)
    after = People.read(table(town() + [(name, t, v, w, "?") for t, v, w in odd]), schema)
    at = after._ids.to_pylist().index(name)
    for target in TARGETS:
        one, two = (
            people.windows(4, 2, 2, features=FEATURES, target=target, key=KEY)
            for people in (before, after)
        )
        others = two.owner != at
        assert two.x.shape[1:] == one.x.shape[1:]
        assert two.categorical.shape[1:] == one.categorical.shape[1:]
        assert two.feature_names == one.feature_names
        for field in ("x", "mask", "categorical", "target", "target_mask"):
            ours, theirs = getattr(one, field), getattr(two, field)[others]
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs), field
        assert np.abs(two.x).max(initial=0.0) <= 1.0
        assert two.categorical.max(initial=0) <= 3  # any word that was not declared is one code


def test_a_study_has_the_same_sizes_with_and_without_any_person() -> None:
    asked = study(
        data__categories={"town": Category(values=("north",))},
        data__features={"signal": Feature(-5, 15), "other": Feature(-3, 3)},
    )
    whole = population(60)
    shapes = []
    for gone in (None, 0, 31, 59):
        kept = whole if gone is None else whole.select(np.delete(np.arange(60), gone))
        ready = prepare(asked, kept, key=KEY)
        shapes.append((ready.shape, type(ready.task), ready.train.x.shape[1:]))
    assert all(shape == shapes[0] for shape in shapes)


def test_what_is_not_declared_cannot_be_a_feature() -> None:
    people = People.read(table(town()), SCHEMA)
    for features in (
        {"numeric": ("v",)},  # no range
        {"numeric": {"v": None}},
        {"numeric": {"v": (0, 1)}},
        {"categorical": ("w",)},  # no vocabulary
        {"categorical": {"w": ()}},
        {"categorical": {"w": "home"}},
        {"gap": 5.0},
    ):
        with pytest.raises(UsageError, match="SQ-117"):
            Features(**features)
    with pytest.raises(UsageError, match="SQ-117"):
        people.codes("w", ())
    for bounds in ((1, 1), (2, 1), (float("nan"), 1), (0, float("inf"))):
        with pytest.raises(UsageError, match="SQ-117"):
            Range(*bounds)
    with pytest.raises(UsageError):
        People.read(table(town()).rename_columns([*"abcdef"]), Schema(
            person="a", parameter="b", value="c"))  # fmt: skip


# Who may touch raw values outside this room, and why that is not "reading them silently".
RAW = {
    "column": {
        "audit/leakage.py": "noisy sums over people, of which the verdict alone is shown",
        "training/labels.py": "which records have an answer: a refusal with a count of people",
    },
    "text": {
        "training/setup.py": "a vocabulary found privately and charged",
        "training/dataset.py": "groups of people for the private folder",
        "federated/homes.py": "people at several sites: a refusal with counts",
    },
    "per_person": {
        "training/dataset.py": "groups of people for the private folder",
        "federated/homes.py": "people at several sites: a refusal with counts",
    },
    "values": {
        "training/setup.py": "ranges and means found privately and charged",
        "training/labels.py": "labels that cannot be learnt: a refusal with a count of people",
        "audit/uniqueness/places.py": "who is picked out: shown to the data's holder alone",
    },
}
ROOM = {"sequences"}


def calls(path: Path) -> set[str]:
    """Raw accessors of People that a file calls: `values` with names, not with ranges."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, arguments = node.func.attr, node.args
            if name in {"column", "text", "per_person"} and arguments:
                found.add(name)
            if name == "values" and arguments and not isinstance(arguments[0], ast.Dict):
                found.add(name)
    return found


def test_raw_values_are_touched_only_where_it_is_said_why() -> None:
    for path in sorted(SOURCES.rglob("*.py")):
        relative = path.relative_to(SOURCES).as_posix()
        if relative.split("/")[0] in ROOM:
            continue
        if "sequences" not in path.read_text():
            continue  # it has no People in its hands by name
        for name in calls(path):
            assert relative in RAW[name], f"{relative} reads raw values by `{name}`: why?"


def test_an_inspection_feeds_nothing() -> None:
    """Exact figures go to the person at the terminal: no other room can take them up."""
    users = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if "sequences.inspection" in path.read_text()
    }
    assert users <= {"cli/inspect.py", "sequences/pictures.py", "sequences/figure.py"}


def test_no_call_of_people_gives_a_bound_or_the_words_of_a_column() -> None:
    """The public face is known; whatever is added must be thought about here."""
    assert {name for name in dir(People) if not name.startswith("_")} == {
        "batches", "bounded", "codes", "column", "columns", "counts", "fingerprint",
        "is_static", "keep_records", "keyed_hashes", "owner", "per_person", "read",
        "records", "require", "select", "split", "stretches", "text", "values", "windows",
    }  # fmt: skip


def test_what_people_show_cannot_be_written_to(tmp_path: Path) -> None:
    at_once = People.read(table(town()), SCHEMA)
    spilled = People.read(table(town()), SCHEMA, memory=256 << 20, spill=tmp_path)
    for people in (at_once, spilled, at_once.select(np.array([1, 3])),
                   at_once.bounded(2, KEY), at_once.split(held_out=0.5)[0]):  # fmt: skip
        before = people.fingerprint()
        for name in ("offsets", "time", "site", "owner", "counts"):
            array = getattr(people, name)
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                array.setflags(write=True)
            with pytest.raises(AttributeError):
                setattr(people, name, array)
        numbers = people.column("v").to_numpy(zero_copy_only=False)
        if not numbers.flags.writeable:
            with pytest.raises(ValueError, match="read-only"):
                numbers[:] = 0
        with pytest.raises(TypeError):
            people.kinds["v"] = "text"
        values, _ = people.values(["v"])
        values[:] = 7.0  # a copy, for the caller
        assert people.fingerprint() == before
