"""The corpus of bad inputs, row by row: the name of each test says which row it is.

The corpus is `reference/bad_inputs.md` beside the checkout; the last test compares the list. Rows
that another room answers for are named in ELSEWHERE with the test that does.
"""

import ast
import json
import os
import re
import struct
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from sequester.core.errors import SequesterError, UsageError
from sequester.sequences import Features, Layout, People, Query, Range, Schema, Time, erased
from sequester.sequences.figure import inspection_svg
from sequester.sequences.inspection import inspect
from sequester.sequences.pictures import inspection_html
from sequester.training import resume, train
from tests.sequences.test_bad_inputs import CANARY, frame, refused, stamps, values_of, write
from tests.shared import needs_shared, shared
from tests.training.population import people as population
from tests.training.population import study
from tests.training.test_resume import interrupt_at

ROOT = Path(__file__).resolve().parents[2]
V = Schema(numeric=("v",))

ELSEWHERE = {
    45: "tests/ledger/test_ledger.py::test_budgets_are_made_once",
    46: "tests/ledger/test_ledger.py::test_budgets_are_made_once",
    47: "tests/core/test_core.py::test_names_that_leave_the_folder_are_refused",
    60: "tests/house/leaks/test_leaks.py",
    65: "tests/ledger/test_faults.py::test_a_full_disk",
}


def text(folder: Path, content: str | bytes, name: str = "data.csv", schema: Schema = V) -> People:
    return People.read(write(folder, content, name), schema)


def test_row_1_an_empty_file(tmp_path: Path) -> None:
    refused(107, lambda: text(tmp_path, b""))


def test_row_2_a_header_only(tmp_path: Path) -> None:
    refused(107, lambda: text(tmp_path, "person,time,v\n"))


def test_row_3_a_missing_column(tmp_path: Path) -> None:
    assert "'v'" in refused(102, lambda: text(tmp_path, "person,time\na,1\n"))


def test_row_4_an_unknown_column(tmp_path: Path) -> None:
    assert "'more'" in refused(103, lambda: text(tmp_path, "person,time,v,more\na,1,2,3\n"))
    schema = Schema(numeric=("v",), ignore=("more",))
    assert text(tmp_path, "person,time,v,more\na,1,2,3\n", schema=schema).columns == ("v",)


def test_row_5_a_column_name_twice(tmp_path: Path) -> None:
    said = refused(104, lambda: text(tmp_path, "person,time,v,v\na,1,2,3\n"))
    assert "columns 3 and 4" in said


def test_row_6_a_ragged_row(tmp_path: Path) -> None:
    words = refused(105, lambda: text(tmp_path, f"person,time,v\na,1,2\n{CANARY},1,2,3\n"))
    assert "row 3" in words


def test_row_7_a_truncated_last_row(tmp_path: Path) -> None:
    assert "row 3" in refused(105, lambda: text(tmp_path, f"person,time,v\na,1,2\n{CANARY},1"))


def test_row_8_text_where_a_number_is_due(tmp_path: Path) -> None:
    content = f"person,time,v\na,1,{CANARY}\na,2,3\nb,1,4\n"
    assert "row 2" in refused(109, lambda: text(tmp_path, content))
    dropped = text(tmp_path, content, schema=Schema(numeric=("v",), bad_values="drop-person"))
    assert dropped.counts.tolist() == [0, 1]


@pytest.mark.parametrize(
    "cell", ["nan", "inf", "-inf", "1e400", "5e-324"], ids=["row-9", "row-10", "-inf", "row-11",
                                                          "row-12"]
)  # fmt: skip
def test_rows_9_10_11_12_nan_infinite_overflowing_and_denormal(cell: str, tmp_path: Path) -> None:
    people, _ = values_of(tmp_path, "1", cell, bad_values="mask")
    cut = people.windows(2, features=Features(numeric={"v": Range(0, 10)}))
    assert np.isfinite(cut.x).all()
    assert np.abs(cut.x).max() <= 1


def test_row_13_identifiers_beyond_int64(tmp_path: Path) -> None:
    ids = [str(2**63), str(2**63 + 1), str(2**64 + 5)]
    content = "person,time,v\n" + "".join(f"{name},1,2\n" for name in ids)
    assert text(tmp_path, content)._ids.to_pylist() == sorted(ids)


def test_row_14_floating_identifiers() -> None:
    refused(108, lambda: People.read(pd.DataFrame({"person": [1.0, np.nan], "time": [1, 2]})))


def test_row_15_leading_zeros(tmp_path: Path) -> None:
    assert len(text(tmp_path, "person,time,v\n007,1,2\n07,1,2\n7,1,2\n")) == 3


def test_row_16_na_and_null_are_names_and_an_empty_one_is_none(tmp_path: Path) -> None:
    assert len(text(tmp_path, "person,time,v\nNA,1,2\nnull,1,2\nnan,1,2\n")) == 3
    refused(108, lambda: text(tmp_path, "person,time,v\n,1,2\n"))


def test_row_17_composed_and_decomposed_letters() -> None:
    names = ["Zoë", unicodedata.normalize("NFD", "Zoë")]
    assert len(People.read(frame(names))) == 1


def test_row_18_trailing_blanks_and_zero_width_letters() -> None:
    assert len(People.read(frame(["bob", "bob ", "\u3000bob"]))) == 1
    refused(108, lambda: People.read(frame(["bob", "bob\u200b"])))


def test_row_19_case_as_declared() -> None:
    assert len(People.read(frame(["Bob", "bob"]))) == 2
    assert len(People.read(frame(["Bob", "bob"]), Schema(fold_case=True))) == 1


def test_row_20_every_script_and_emoji() -> None:
    names = ["李雷", "نور", "👩‍👩‍👧‍👦", "🇩🇪"]
    assert set(People.read(frame(names))._ids.to_pylist()) == set(names)


def test_row_21_an_identifier_of_10_megabytes() -> None:
    refused(115, lambda: People.read(frame(["a", "x" * (10 << 20)])))


def test_row_22_nul_in_an_identifier(tmp_path: Path) -> None:
    refused(106, lambda: text(tmp_path, b"person,time,v\na\x00,1,2\n"))
    refused(106, lambda: People.read(frame(["a\x00"])))


def test_row_23_repeated_times() -> None:
    table = frame(["a", "a"], time=[1, 1], v=[1.0, 3.0])
    assert People.read(table).column("v").to_pylist() == [1.0, 3.0]
    merged = People.read(table, Schema(numeric=("v",), repeats="mean"))
    assert merged.column("v").to_pylist() == [2.0]


def test_row_24_unsorted_rows() -> None:
    assert People.read(frame(["a"] * 3, time=[3, 1, 2])).time.tolist() == [1, 2, 3]


def test_row_25_identical_rows_are_kept_and_counted() -> None:
    people = People.read(frame(["a", "a"], time=[1, 1], v=[1.0, 1.0]))
    assert (people.records, people.facts.repeated_records) == (2, 1)
    assert people.facts.conflicted_people == 0


def test_row_26_offsets_and_none_in_one_column() -> None:
    refused(112, lambda: stamps("2024-05-01T12:00:00+02:00", "2024-05-01T12:00:00"))


def test_row_27_naive_times_are_said_to_be_so() -> None:
    people = People.read(frame(["a"], time=["2024-05-01 12:00"]))
    assert any("no zone is declared" in note for note in people.facts.notes)


def test_row_28_hours_skipped_or_lived_twice() -> None:
    for hour in ("2024-03-31 02:30", "2024-10-27 02:30"):
        refused(110, lambda hour=hour: stamps("2024-07-01 12:00", hour, zone="Europe/Berlin"))


def test_row_29_seconds_and_milliseconds_in_one_column() -> None:
    table = frame(["a", "a"], time=[1_700_000_000, 1_700_000_000_000])
    refused(113, lambda: People.read(table))
    refused(110, lambda: People.read(table, Schema(time=Time(kind="absolute", unit="s"))))


@pytest.mark.parametrize("year", ["1677-01-01", "2262-04-12", "9999-12-31"])
def test_row_30_years_no_study_has(year: str) -> None:
    refused(110, lambda: stamps("2024-01-01", year))
    assert stamps("2024-01-01", "1850-06-01", earliest="1800-01-01")[0].astype(str)[:4] == "1850"


def test_row_31_a_day_that_could_be_a_month() -> None:
    words = refused(111, lambda: stamps("13/04/2024", "04/13/2024", "01/02/2024"))
    assert "66.7 %" in words


def test_row_32_a_leap_second() -> None:
    refused(110, lambda: stamps("2024-01-01 00:00:00", "2016-12-31 23:59:60"))


def test_row_33_a_negative_duration_is_refused_and_a_zero_one_is_clipped() -> None:
    for unit, times in (("s", [-1.0, 2.0]), ("h", ["-0.5", "3"])):
        schema = Schema(time=Time(kind="elapsed", unit=unit))
        refused(110, lambda s=schema, t=times: People.read(frame(["a", "a"], time=t), s))
    negative = pa.array([-5, 5], pa.duration("s"))
    refused(110, lambda: People.read(frame(["a", "a"], time=negative)))
    zero = People.read(
        frame(["a", "a"], time=["00:05", "00:05"]), Schema(time=Time(kind="elapsed"))
    )
    cut = zero.windows(2, features=Features(gap=Range(1, 60)))
    assert cut.x[0, 1, 0] == -1.0  # as short as the public range allows


def test_row_34_a_gap_of_ten_years_is_clipped() -> None:
    people = People.read(frame(["a", "a"], time=["2000-01-01", "2010-01-01"]))
    assert people.windows(2, features=Features(gap=Range(0, 86400))).x[0, 1, 0] == 1.0


def test_row_35_one_person_with_nearly_all_rows() -> None:
    table = frame(["big"] * 9_900 + [f"p{i}" for i in range(100)], v=np.ones(10_000))
    people = People.read(table)
    assert people.bounded(7, b"k" * 16).counts.max() == 7
    assert np.bincount(people.windows(10, 10, 3, key=b"k" * 16).owner).max() == 3


def test_row_36_a_person_larger_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One person's rows pass through in stretches: none is ever held whole."""
    from sequester.sequences import assemble, spill

    monkeypatch.setattr(spill, "MOST_ROWS", 500)
    most, original = [0], assemble.Settler.take

    def take(self: object, owner: np.ndarray, *rest: object) -> object:
        most[0] = max(most[0], len(owner))
        return original(self, owner, *rest)

    monkeypatch.setattr(assemble.Settler, "take", take)
    table = frame(["one"] * 20_000, time=np.arange(20_000)[::-1], v=np.arange(20_000.0))
    people = People.read(table, Schema(time=Time(kind="step"), numeric=("v",)),
                         memory=256 << 20, spill=tmp_path)  # fmt: skip
    assert people.counts.tolist() == [20_000]
    assert most[0] < 5_000
    assert people.bounded(5, b"k" * 16).records == 5


def test_row_37_people_of_one_record() -> None:
    people = People.read(frame([f"p{i}" for i in range(50)], v=np.ones(50)))
    cut = people.windows(4, features=Features(numeric={"v": Range(0, 2)}))
    assert (len(cut), cut.mask.sum()) == (50, 50)


def test_row_38_a_person_without_a_record_still_counts() -> None:
    static = pa.table({"person": ["silent", "a"], "age": [1.0, 2.0]})
    schema = Schema(numeric=("v", "age"), static=("age",))
    people = People.read(frame(["a"], v=[1.0]), schema, static=static)
    assert (len(people), people.counts.tolist()) == (2, [1, 0])
    assert people.windows(2).person_count == 2


def test_rows_39_40_one_person_alone_and_fewer_than_the_minimum() -> None:
    people = People.read(frame(["a"]))
    refused(122, lambda: people.require(20))


def test_row_41_a_column_that_gives_the_label_away() -> None:
    """By its name, and by a noisy verdict: tests/audit/test_leakage.py has the second."""
    table = frame(["a", "b"], v=[1.0, 2.0], row=[0.0, 1.0])
    assert any("'row'" in words for words in inspect(People.read(table), {}).warnings)
    assert (ROOT / "tests/audit/test_leakage.py").exists()


def test_row_42_a_person_on_two_sides_or_back_after_erasure(tmp_path: Path) -> None:
    people = People.read(frame([f"p{i}" for i in range(200)], site=["x", "y"] * 100), Schema(
        site="site"))  # fmt: skip
    for by, held in (("person", 0.3), ("site", ["y"])):
        names = [set(part._ids.to_pylist()) for part in people.split(by, held_out=held)]
        assert not names[0] & names[1]
        assert all(names)
    two = frame(["p1", "p1"], site=["x", "y"])
    refused(127, lambda: People.read(two, Schema(site="site", ignore=("*",))))
    register, key = tmp_path / "erased.txt", tmp_path / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o600)
    erased.register(register, erased.read_key(key), ["Zoë", CANARY])
    assert CANARY not in register.read_text()
    schema = Schema(erased=str(register), erased_key=str(key))
    assert len(People.read(frame(["p1", "p2"]), schema)) == 2
    back = frame(["p1", unicodedata.normalize("NFD", "Zoë") + " ", CANARY])
    for memory in (None, 256 << 20):
        declared = Schema(erased=str(register), erased_key=str(key), numeric=("time2",)) if (
            memory) else schema  # fmt: skip
        source = back.append_column("time2", pa.array([1.0, 2.0, 3.0])) if memory else back
        words = refused(121, lambda s=source, d=declared, m=memory: People.read(s, d, memory=m))
        assert words.startswith("SQ-121 2 people")
    erased.register(register, erased.read_key(key), ["１7", "zoe"], fold_case=True)
    erased.register(register, erased.read_key(key), ["44"])
    refused(121, lambda: People.read(frame(["17"]), schema))
    refused(121, lambda: People.read(frame(["p1", "４4"]), schema))
    folded = replace(schema, fold_case=True)
    for name in ("ＺＯＥ", "ℨoe", "𝟏𝟕"):
        refused(121, lambda n=name: People.read(frame(["p1", n]), folded))
    refused(108, lambda: People.read(frame(["h", "ℌ"]), replace(folded, erased="", erased_key="")))
    key.chmod(0o644)
    refused(121, lambda: People.read(frame(["p1"]), schema))
    key.chmod(0o600)
    register.write_text("not a hash\n")
    refused(121, lambda: People.read(frame(["p1"]), schema))
    refused(124, lambda: Schema(erased="x"))


def test_row_43_formulas_in_names() -> None:
    from sequester.ledger.export import safe_cell

    for cell in ("=1", "+1", "-1", "@x", "\t=1", "\r=1"):
        assert safe_cell(cell).startswith("'")
    assert len(People.read(frame(["=cmd|' /C calc'!A0", "@SUM(A1)"]))) == 2


def test_row_44_scripts_in_column_names() -> None:
    names = ["<script>alert(1)</script>", "javascript:x", "{{7*7}}", "<svg onload=x>"]
    people = People.read(frame(["a"], **{name: [1.0] for name in names}))
    found = inspect(people, {"1": 1.0}, names[0])
    for drawn in (inspection_html(found, names[3]), inspection_svg(found, names[3])):
        assert "<script" not in drawn
        assert "<svg onload" not in drawn
        assert "&lt;script&gt;" in drawn
    assert "default-src 'none'" in inspection_html(found, names[3])


def test_row_48_bombs(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.parquet"
    column = pa.array(np.zeros(4_000_000, np.int8))
    pq.write_table(pa.table({"person": column, "time": column}), bomb, compression="zstd")
    refused(115, lambda: People.read(bomb))


def test_row_49_nested_depth(tmp_path: Path) -> None:
    refused(105, lambda: text(tmp_path, "[" * 100_000, "data.jsonl"))
    refused(105, lambda: text(tmp_path, '{"person": {"a": 1}}', "data.jsonl"))


def test_row_50_a_million_columns(tmp_path: Path) -> None:
    header = "person,time," + ",".join(f"c{i}" for i in range(100_000))
    refused(115, lambda: text(tmp_path, header + "\n"))


def test_row_51_an_endless_field(tmp_path: Path) -> None:
    for size in (2 << 20, 9 << 20):
        refused(115, lambda size=size: text(tmp_path, "person,time,v\na,1," + "x" * size + "\n"))
    line = '{"person": "a", "v": "' + "x" * (17 << 20)
    refused(115, lambda: text(tmp_path, line, "data.jsonl"))


def test_row_52_damaged_parquet_and_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = frame([CANARY] * 900, v=np.random.default_rng(0).normal(size=900))
    pq.write_table(table, path, write_page_checksum=True, compression="none")
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    refused(126, lambda: People.read(path))
    path.write_bytes(raw[:4000] + bytes([raw[4000] ^ 1]) + raw[4001:])
    refused(126, lambda: People.read(path))
    content = "person,time,v\nMüller,1,2\n"
    for encoding in ("utf-16", "latin-1"):
        refused(106, lambda e=encoding: text(tmp_path, content.encode(e)))
        schema = Schema(numeric=("v",), layout=Layout(encoding=encoding))
        people = text(tmp_path, content.encode(encoding), schema=schema)
        assert people._ids.to_pylist() == ["Müller"]
    assert len(text(tmp_path, content.encode("utf-8-sig"))) == 1


# ------------------------------------------------------------------ what could run code


class Boom:
    """What a pickle would call when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


def pickled(mark: Path) -> bytes:
    import pickle  # to build the attack; nothing of ours reads it

    return pickle.dumps(Boom(mark))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = train(study(), out=tmp_path_factory.mktemp("run"), people=population(),
                watch=interrupt_at(6))  # fmt: skip
    return run.folder.path


def resumed_with(run: Path, raw: bytes) -> str:
    file = run / "checkpoints" / "state.safetensors"
    good = file.read_bytes()
    try:
        file.write_bytes(raw)
        return refused(503, lambda: resume(run, people=population()))
    finally:
        file.write_bytes(good)


def test_rows_53_56_a_pickle_even_disguised(interrupted: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    raw = pickled(mark)
    resumed_with(interrupted, raw)
    torch.save({"x": Boom(mark)}, tmp_path / "state.pt")
    resumed_with(interrupted, (tmp_path / "state.pt").read_bytes())
    for name in ("data.pkl", "data.csv", "data.parquet", "data.arrow", "data.jsonl", "data.pt"):
        with pytest.raises(SequesterError):
            text(tmp_path, raw, name)
    assert not mark.exists()


def test_row_54_a_tensor_of_a_billion_from_a_few_bytes(interrupted: Path, tmp_path: Path) -> None:
    torch.save(torch.zeros(1).expand(10**9), tmp_path / "wide.pt")
    assert (tmp_path / "wide.pt").stat().st_size < 3000
    resumed_with(interrupted, (tmp_path / "wide.pt").read_bytes())


def test_row_55_headers_that_lie_and_tensors_of_another_form(interrupted: Path) -> None:
    file = interrupted / "checkpoints" / "state.safetensors"
    good = file.read_bytes()
    resumed_with(interrupted, struct.pack("<Q", 2**62) + good[8:])
    resumed_with(interrupted, struct.pack("<Q", 2**20) + good[8:])
    header = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])
    tensors = load_file(file)
    first = next(name for name in tensors if name.startswith("model."))
    for changed in (tensors[first].double(), tensors[first].flatten()[:1]):
        altered = interrupted / "altered"
        save_file(tensors | {first: changed.contiguous()}, altered, header["__metadata__"])
        assert "other tensors" in resumed_with(interrupted, altered.read_bytes())


def test_rows_57_58_59_npy_yaml_and_joblib(interrupted: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    np.save(tmp_path / "a.npy", np.array([Boom(mark)], dtype=object), allow_pickle=True)
    yaml = f"!!python/object/apply:os.mkdir ['{mark}']\n".encode()
    for raw in ((tmp_path / "a.npy").read_bytes(), yaml, b"\x78\x9c" + pickled(mark)):
        resumed_with(interrupted, raw)
        for name in ("a.npy", "a.yaml", "a.joblib"):
            with pytest.raises(SequesterError):
                text(tmp_path, raw, name)
    assert not mark.exists()


# ------------------------------------------------------------------ what could show somebody


def test_row_61_identifiers_in_errors_representations_and_temporary_files(tmp_path: Path) -> None:
    """Reading alone, on disk too; whole runs are searched in tests/house/leaks."""
    table = frame([f"{CANARY}-{i}" for i in range(1000)], v=[31337.25] * 1000)
    people = People.read(table, V, memory=256 << 20, spill=tmp_path)
    shown = [repr(people), str(people), repr(people.facts), repr(people.windows(1))]
    for schema in (
        Schema(person="v"),
        Schema(text=("w",)),
        Schema(numeric=("person",), person="v"),
    ):
        with pytest.raises(UsageError) as refusal:
            People.read(table, schema)
        shown.append(str(refusal.value))
    assert not any(CANARY in words or "31337" in words for words in shown)
    assert not list(tmp_path.rglob("*"))
    assert "secret" not in repr(Query("SELECT 1", "postgresql://u:secret@h/d"))


def test_row_62_two_claims_that_differ_by_a_person(tmp_path: Path) -> None:
    """Nothing that may be shown counts people: the claims of n and of n - 1 people are the same."""
    told = []
    for n in (90, 89):
        run = train(study(), out=tmp_path / str(n), people=population(n))
        claim = json.loads(run.folder.claim.read_text())
        told.append({k: v for k, v in claim.items() if k not in {"run", "made", "time", "ledger"}})
    assert str(len(population(90))) not in json.dumps(told[0].get("sampling", ""))
    assert told[0]["epsilon"] == told[1]["epsilon"]
    assert told[0]["events"] == told[1]["events"]


def test_row_63_what_stops_a_run_is_decided_before_it(tmp_path: Path) -> None:
    """A value that cannot be read stops reading, not training; a declared rule stops nothing."""
    content = "person,time,v\n" + "".join(f"p{i},{t},1\n" for i in range(5) for t in range(3))
    strict = Schema(numeric=("v",), time=Time(unit="s"))
    masked = Schema(numeric=("v",), time=Time(unit="s"), bad_values="mask")
    features = Features(numeric={"v": Range(0, 2)})
    without = text(tmp_path, content, schema=masked).windows(3, features=features)
    for odd, code in (("x,1,inf\n", 109), ("x,1,oops\n", 109), ("x,never,1\n", 110)):
        refused(code, lambda odd=odd: text(tmp_path, content + odd, schema=strict))
        cut = text(tmp_path, content + odd, schema=masked).windows(3, features=features)
        assert (cut.x[cut.owner < 5] == without.x).all()
    # A key that is too short is refused although nobody has more than the bound.
    refused(118, lambda: People.read(frame(["a"])).windows(1, max_per_person=1, key=b""))
    refused(118, lambda: People.read(frame(["a"])).bounded(1, b""))


def test_row_64_hashes_of_identifiers_need_a_key() -> None:
    people = People.read(frame(["a", "b"]))
    one, other = (people.keyed_hashes(bytes([k]) * 16, "x") for k in (1, 2))
    assert not set(one) & set(other)  # a new key is a new space
    refused(118, lambda: people.keyed_hashes(b"short", "x"))


# ------------------------------------------------------------------ nothing is left out


@pytest.mark.parametrize("row", ELSEWHERE)
def test_the_row_has_a_test_elsewhere(row: int) -> None:
    file, _, name = ELSEWHERE[row].partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert not name or name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


@needs_shared("reference", "bad_inputs.md")
def test_every_row_of_the_corpus_has_a_test() -> None:
    lines = shared("reference", "bad_inputs.md").read_text().splitlines()
    rows: set[int] = set()
    for line in lines:
        if numbers := re.match(r"\| (\d+)(?:-(\d+))? ", line):
            rows |= set(range(int(numbers[1]), int(numbers[2] or numbers[1]) + 1))
            rows |= {int(n) for n in re.findall(r"[,/] (\d+) (?=[^|]*\|[^|]*\|$)", line)}
    here = ast.parse(Path(__file__).read_text())
    tested = set(ELSEWHERE)
    for function in here.body:
        if isinstance(function, ast.FunctionDef):
            if named := re.match(r"test_rows?_((?:\d+_)+)", function.name):
                tested |= {int(n) for n in named[1].strip("_").split("_")}
    assert max(rows) == 65
    assert sorted(set(range(1, 66)) - tested) == []
    assert rows <= tested
