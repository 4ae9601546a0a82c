"""Every bad input that has been seen: refused with a number, or read right; never an id shown."""

import gzip
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sequester.core.errors import SequesterError, UsageError
from sequester.sequences import Layout, People, Range, Schema, Time, parts
from sequester.sequences.sources import Query

CANARY = "kanarienvogel-4711"


def write(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(code: int, read: Callable[[], object]) -> str:
    with pytest.raises(SequesterError) as refusal:
        read()
    assert refusal.value.code == code, refusal.value
    words = str(refusal.value)
    assert CANARY not in words
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None
    return words


def frame(ids: object, **more: object) -> pa.Table:
    column = ids if isinstance(ids, pa.Array) else pa.array(ids)
    times = more.pop("time", list(range(len(column))))
    return pa.table({"person": column, "time": times} | {n: pa.array(v) for n, v in more.items()})


# ------------------------------------------------------------------ 1–7: the file's form

FORMS = {
    "empty": (b"", 107, ""),
    "blank": (b"\n\n  \n", 107, ""),
    "header only": (b"person,time,v\n", 107, ""),
    "missing column": (b"who,time,v\na,1,2\n", 102, "'person'"),
    "duplicate column": (b"person,time,v,v\na,1,2,3\n", 104, "columns 3 and 4"),
    "ragged row": (f"person,time,v\na,1,2\n{CANARY},1,2,3\nb,1,2\n".encode(), 105, "row 3"),
    "truncated last row": (f"person,time,v\na,1,2\nb,1,2\n{CANARY},1".encode(), 105, "row 4"),
    "open quote": (f'person,time,v\na,1,2\nb,1,"{CANARY}\nc,1,2\n'.encode(), 105, "row 3"),
    "open quote at the end": (f'person,time,v\na,1,2\nb,1,"{CANARY}\n'.encode(), 105, "row 3"),
    "utf-16": (f"person,time,v\n{CANARY},1,2\n".encode("utf-16"), 106, "utf-16"),
    "latin-1": ("person,time,v\na,1,2\nMüller,1,2\n".encode("latin-1"), 106, "line 3"),
    "NUL": (b"person,time,v\na,1,\x00\n", 106, "NUL"),
    "NUL in an identifier": (b"person,time,v\na\x00,1,2\n", 106, "NUL"),
    "text in a number": (f"person,time,v\na,1,2\nb,1,{CANARY}\n".encode(), 109, "row 3"),
    "no such time": (f"person,time,v\na,2024-01-01,2\nb,{CANARY},3\n".encode(), 110, "row 3"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_broken_file_is_refused_with_its_place(form: str, tmp_path: Path) -> None:
    content, code, hint = FORMS[form]
    schema = Schema(numeric=("v",))
    assert hint in refused(code, lambda: People.read(write(tmp_path, content), schema))


def test_extra_columns_are_ignored_only_if_declared(tmp_path: Path) -> None:
    path = write(tmp_path, "person,time,v,secret\na,1,2,3\n")
    assert "'secret'" in refused(103, lambda: People.read(path, Schema(numeric=("v",))))
    kept = People.read(path, Schema(numeric=("v",), ignore=("secret",)))
    assert kept.columns == ("v",)
    assert People.read(path, Schema(numeric=("v",), ignore=("*",))).columns == ("v",)


def test_encodings_are_declared_and_a_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    text = "person,time,v\nMüller,1,2\n"
    for encoding in ("latin-1", "utf-16", "utf-8-sig", "cp1252"):
        path = write(tmp_path, text.encode(encoding))
        layout = Layout(encoding=encoding)
        people = People.read(path, Schema(numeric=("v",), layout=layout))
        assert people._ids.to_pylist() == ["Müller"]
    marked = write(tmp_path, text.encode("utf-8-sig"))
    assert len(People.read(marked, Schema(numeric=("v",)))) == 1


def test_a_quoted_field_may_span_lines_only_if_declared(tmp_path: Path) -> None:
    path = write(tmp_path, 'person,time,note\na,1,"two\nlines"\n')
    refused(105, lambda: People.read(path, Schema(text=("note",))))
    people = People.read(path, Schema(text=("note",), layout=Layout(multiline=True)))
    assert people.text("note").to_pylist() == ["two\nlines"]
    unclosed = write(tmp_path, 'person,time,note\na,1,"two\nlines\nb,2,three\n')
    layout = Layout(multiline=True)
    refused(105, lambda: People.read(unclosed, Schema(text=("note",), layout=layout)))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"person": "a", "time": 1, "v": 2', 105),
        ('{"person": "a", "person": "b", "time": 1}', 104),
        ('{"person": "a", "time": 1, "v": [1, 2]}', 105),
        ("[" * 100_000, 105),
        ("", 107),
    ],
    ids=["cut off", "twice", "nested", "deep", "empty"],
)
def test_broken_json_lines_are_refused(line: str, code: int, tmp_path: Path) -> None:
    path = write(tmp_path, line, "data.jsonl")
    refused(code, lambda: People.read(path, Schema(numeric=("v",))))


# ------------------------------------------------------------------ 8–12: values


def values_of(tmp_path: Path, *cells: str, **rules: object) -> tuple[People, list[float | None]]:
    rows = "".join(f"a,{i},{cell}\n" for i, cell in enumerate(cells))
    people = People.read(write(tmp_path, f"person,time,v\n{rows}"), Schema(numeric=("v",), **rules))
    return people, people.column("v").to_pylist()


def test_infinite_and_absurd_numbers_never_arrive(tmp_path: Path) -> None:
    for cell in ("inf", "-Infinity", "1e400"):
        refused(109, lambda cell=cell: values_of(tmp_path, "1", cell))
        people, values = values_of(tmp_path, "1", cell, bad_values="mask")
        assert values == [1.0, None]
        assert sum(people.facts.masked.values()) == 1
    _, values = values_of(tmp_path, "nan", "5e-324", "", "  ", "1_000.5".replace("_", ""))
    assert values == [None, 5e-324, None, None, 1000.5]
    refused(109, lambda: values_of(tmp_path, "1_000"))
    huge = frame(["a", "a"], v=[1e308, -1e308])
    windows = People.read(huge).windows(2, features=features(Range(0, 1)))
    assert np.isfinite(windows.x).all()
    assert np.abs(windows.x).max() <= 1


def features(bounds: Range) -> object:
    from sequester.sequences import Features

    return Features(numeric={"v": bounds})


def test_typed_infinities_and_nans_are_treated_alike() -> None:
    table = frame(["a"] * 3, v=[1.0, float("inf"), float("nan")])
    refused(109, lambda: People.read(table))
    people = People.read(table, Schema(numeric=("v",), bad_values="mask"))
    values, mask = people.values(["v"])
    assert mask[:, 0].tolist() == [True, False, False]
    assert values[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_bad_values_drop_the_row_or_the_person_as_declared(tmp_path: Path) -> None:
    content = "person,time,v\na,1,1\na,2,oops\nb,1,3\n"
    path = write(tmp_path, content)
    by_row = People.read(path, Schema(numeric=("v",), bad_values="drop-row"))
    assert by_row.counts.tolist() == [1, 1]
    by_person = People.read(path, Schema(numeric=("v",), bad_values="drop-person"))
    assert by_person.counts.tolist() == [0, 1]  # the person still counts
    assert sum(by_person.facts.dropped.values()) == 2


def test_sentinels_follow_the_declared_rule_only(tmp_path: Path) -> None:
    cells = ("-1", "-777", "-999.0", "Low", "NA", "7")
    missing = {"v": ("-777", "-999"), "*": ("NA",)}
    _, values = values_of(tmp_path, *cells, missing=missing, replace={"v": {"Low": 40.0}})
    assert values == [-1.0, None, None, 40.0, None, 7.0]
    refused(109, lambda: values_of(tmp_path, *cells, missing=missing))
    words = frame(["a", "a"], w=["NA", "x"])
    kept = People.read(words, Schema(categorical=("w",)))
    assert kept.text("w").to_pylist() == ["NA", "x"]
    masked = People.read(words, Schema(categorical=("w",), missing={"*": ("NA",)}))
    assert masked.text("w").to_pylist() == [None, "x"]


# ------------------------------------------------------------------ 13–22: identifiers


def test_long_numbers_and_leading_zeros_stay_different_people(tmp_path: Path) -> None:
    ids = ["9007199254740992", "9007199254740993", "18446744073709551616", "007", "7", "NA", "null"]
    ids += ["1e3", "1000", "True"]
    rows = "".join(f"{name},{i},1\n" for i, name in enumerate(ids))
    people = People.read(write(tmp_path, f"person,time,v\n{rows}"), Schema(numeric=("v",)))
    assert people._ids.to_pylist() == sorted(ids, key=str.encode)
    lines = "".join(json.dumps({"person": name, "time": 1, "v": 1}) + "\n" for name in ids)
    assert len(People.read(write(tmp_path, lines, "data.jsonl"), Schema(numeric=("v",)))) == 10
    bare = '{"person": 9007199254740993, "time": 1}\n{"person": 9007199254740992, "time": 1}\n'
    assert len(People.read(write(tmp_path, bare, "bare.jsonl"))) == 2


def test_typed_integers_survive_beyond_int64() -> None:
    wide = pa.array([2**63, 2**63 + 1], pa.uint64())
    assert People.read(frame(wide))._ids.to_pylist() == [str(2**63), str(2**63 + 1)]
    people = People.read(pd.DataFrame({"person": [2**53, 2**53 + 1], "time": [1, 1]}))
    assert len(people) == 2


def test_floating_identifiers_are_refused_however_they_come() -> None:
    refused(108, lambda: People.read(frame(pa.array([1.0, 2.0]))))
    with_gap = pd.DataFrame({"person": [9007199254740993, None], "time": [1, 2]})
    refused(108, lambda: People.read(with_gap))
    refused(108, lambda: People.read(pl.DataFrame({"person": [1.5], "time": [1]})))


@pytest.mark.parametrize(
    "name",
    ["", " ", "\t", f"{CANARY}\u200b", f"{CANARY}\x00", f"{CANARY}\u202e", "\u2060", "x" * 1025],
    ids=["empty", "blank", "tab", "zero width", "NUL", "override", "joiner", "endless"],
)
def test_what_cannot_be_seen_is_no_identifier(name: str) -> None:
    code = 106 if "\x00" in name else 108
    words = refused(code, lambda: People.read(frame(["fine", name])))
    assert code == 106 or words.startswith("SQ-108 1 identifiers")


def test_a_missing_identifier_is_refused_and_so_is_a_giant_one() -> None:
    refused(108, lambda: People.read(frame(pa.array(["a", None]))))
    refused(115, lambda: People.read(frame(["a", "x" * (10 << 20)])))


def test_one_person_never_becomes_two() -> None:
    spelled = ["Zoë", unicodedata.normalize("NFD", "Zoë"), " Zoë", "Zoë \t"]
    assert len(People.read(frame(spelled))) == 1
    assert len(People.read(frame(["Bob", "bob"]))) == 2
    assert len(People.read(frame(["Bob", "bob"]), Schema(fold_case=True))) == 1
    assert len(People.read(frame(["STRASSE", "straße"]), Schema(fold_case=True))) == 1


def test_names_in_every_script_survive() -> None:
    names = ["李雷", "نور", "👩‍👩‍👧‍👦", "🇩🇪", "Ångström", "👍🏽", "a b"]
    people = People.read(frame(names))
    assert set(people._ids.to_pylist()) == {unicodedata.normalize("NFC", name) for name in names}


# ------------------------------------------------------------------ 23–34: time


def stamps(*texts: str, **more: object) -> np.ndarray:
    people = People.read(frame(["a"] * len(texts), time=list(texts)), Schema(time=Time(**more)))
    return people.time.astype("datetime64[us]")


def test_repeats_unsorted_rows_and_identical_rows_are_kept_and_counted() -> None:
    table = frame(["a", "b", "a", "a"], time=[3, 1, 1, 3], v=[30.0, 1.0, 10.0, 31.0])
    people = People.read(table)
    assert people.column("v").to_pylist() == [10.0, 30.0, 31.0, 1.0]
    assert (people.facts.repeated_records, people.facts.conflicted_people) == (1, 1)
    refused(120, lambda: People.read(table, Schema(numeric=("v",), repeats="refuse")))
    for rule, value in (("first", 30.0), ("last", 31.0), ("mean", 30.5)):
        merged = People.read(table, Schema(numeric=("v",), repeats=rule))
        assert merged.column("v").to_pylist() == [10.0, value, 1.0]
    same = frame(["a", "a"], time=[1, 1], v=[2.0, 2.0])
    facts = People.read(same).facts
    assert (facts.repeated_records, facts.conflicted_people) == (1, 0)


def test_offsets_are_obeyed_and_mixing_them_with_none_is_refused() -> None:
    there = stamps("2024-05-01T12:00:00+02:00", "2024-05-01T10:00:00Z", "2024-05-01 05:00-0500")
    assert (there == np.datetime64("2024-05-01T10:00")).all()
    refused(112, lambda: stamps("2024-05-01T12:00:00+02:00", "2024-05-01T12:00:00"))
    refused(112, lambda: stamps("2024-05-01 12:00", zone="Mars/Olympus"))


def test_hours_that_clocks_skip_or_live_twice_are_refused() -> None:
    good = stamps("2024-07-01 12:00", zone="Europe/Berlin")
    assert good[0] == np.datetime64("2024-07-01T10:00")
    for hour in ("2024-03-31 02:30", "2024-10-27 02:30"):
        refused(110, lambda hour=hour: stamps("2024-07-01 12:00", hour, zone="Europe/Berlin"))
        assert stamps(hour)[0] == np.datetime64(hour)  # as the wall clock showed it


def test_epochs_need_a_unit_and_a_wrong_unit_is_out_of_bounds() -> None:
    seconds = 1_700_000_000
    table = frame(["a", "a"], time=[seconds, seconds * 1000])
    refused(113, lambda: People.read(table))
    mixed = Schema(time=Time(kind="absolute", unit="s"))
    refused(110, lambda: People.read(table, mixed))
    alone = frame(["a"], time=[seconds])
    assert str(People.read(alone, mixed).time.astype("datetime64[us]")[0])[:4] == "2023"
    for unit, factor in (("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        schema = Schema(time=Time(kind="absolute", unit=unit))
        people = People.read(frame(["a"], time=[seconds * factor]), schema)
        assert people.time[0] == seconds * 10**6
    refused(110, lambda: People.read(frame(["a"], time=[1700000000000.0]), mixed))


FAR = ["1677-01-01", "2262-04-12", "9999-12-31"]
IMPOSSIBLE = ["2023-02-29", "2016-12-31 23:59:60", "2024-13-01", "2024-04-31 10:00"]


@pytest.mark.parametrize("moment", [*FAR, *IMPOSSIBLE])
def test_impossible_and_far_away_dates_are_reported_not_coerced(moment: str) -> None:
    refused(110, lambda: stamps("2024-01-01", moment))
    table = frame(["a", "a"], time=["2024-01-01", moment])
    people = People.read(table, Schema(bad_values="drop-row"))
    assert people.records == 1
    assert sum(people.facts.dropped.values()) == 1


def test_day_and_month_are_never_guessed() -> None:
    refused(111, lambda: stamps("03/04/2024", "05/06/2024"))
    mixed = refused(111, lambda: stamps("13/04/2024", "04/13/2024", "01/02/2024"))
    assert "66.7 %" in mixed
    assert stamps("13/04/2024", "01/02/2024")[0] == np.datetime64("2024-02-01")
    assert stamps("04/13/2024", "01/02/2024")[0] == np.datetime64("2024-01-02")
    assert stamps("05/05/2024")[0] == np.datetime64("2024-05-05")
    declared = stamps("03/04/2024", formats=("%d/%m/%Y",))
    assert declared[0] == np.datetime64("2024-04-03")


def test_a_clock_wraps_at_midnight_and_a_step_back_is_no_wrap() -> None:
    def read(*clock: str) -> list[int]:
        table = frame(["a"] * len(clock), time=list(clock))
        people = People.read(table, Schema(time=Time(kind="clock")))
        return (people.time // 60_000_000).tolist()

    assert read("23:50", "23:55", "00:00", "12:30", "00:01") == [1430, 1435, 1440, 2190, 2881]
    refused(123, lambda: read("10:00", "09:00"))
    refused(110, lambda: read("24:00"))
    refused(113, lambda: People.read(frame(["a"], time=["10:00"])))


def test_steps_and_durations() -> None:
    people = People.read(frame(["a", "a"], time=[2, 1]))
    assert (people.time_kind, people.time.tolist()) == ("step", [1, 2])
    elapsed = People.read(frame(["a"], time=["47:59"]), Schema(time=Time(kind="elapsed")))
    assert elapsed.time[0] == (47 * 60 + 59) * 60_000_000
    days = Schema(time=Time(kind="elapsed", unit="d"))
    assert People.read(frame(["a"], time=[1.5]), days).time[0] == 36 * 3600 * 10**6
    refused(110, lambda: People.read(frame(["a"], time=[1.5]), Schema(time=Time(kind="step"))))
    far = People.read(frame(["a", "a"], time=["2000-01-01", "2010-01-01"]))
    from sequester.sequences.windows import Features

    gap = far.windows(2, features=Features(gap=Range(0, 86400, log=True)))
    assert gap.x[0, :, 0].tolist() == [-1.0, 1.0]  # ten years, clipped to the public bound


# ------------------------------------------------------------------ 35–42: people


def test_extreme_contributions_are_bounded_and_the_empty_still_count() -> None:
    table = frame(["big"] * 9_900 + [f"p{i}" for i in range(100)], v=np.ones(10_000))
    people = People.read(table)
    bounded = people.bounded(7, b"k" * 16)
    assert bounded.counts.max() == 7
    assert len(bounded) == 101
    windows = people.windows(10, 10, 3, key=b"k" * 16)
    assert np.bincount(windows.owner).max() == 3
    static = pa.table({"person": ["silent", "p1"], "age": [1.0, 2.0]})
    with_silent = People.read(table, Schema(numeric=("v", "age"), static=("age",)), static=static)
    assert len(with_silent) == 102
    assert (with_silent.counts == 0).sum() == 1


def test_one_person_alone_is_too_few_to_report_on() -> None:
    people = People.read(frame(["a", "a"]))
    assert people.require(1) is people
    refused(122, lambda: people.require(20))


def test_a_static_column_with_two_values_and_a_person_at_two_sites_are_refused() -> None:
    table = frame(["a", "a", "b"], age=[1.0, 2.0, 3.0], place=["x", "y", "x"])
    refused(
        127, lambda: People.read(table, Schema(numeric=("age",), static=("age",), ignore=("*",)))
    )
    refused(127, lambda: People.read(table, Schema(numeric=("age",), site="place")))
    twice = pa.table({"person": ["a", "a"], "age": [1.0, 2.0]})
    schema = Schema(numeric=("age",), static=("age",), ignore=("*",))
    refused(127, lambda: People.read(frame(["a"]), schema, static=twice))


# ------------------------------------------------------------------ 45–52: hostile files


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    odd = [
        "=cmd|' /C calc'!A0",
        "'; DROP TABLE people; --",
        "<script>alert(1)</script>",
        "%s",
        "{{7*7}}",
    ]
    people = People.read(frame(odd, **{"'; DROP TABLE x": [1.0] * 5, '"quoted"': [2.0] * 5}))
    assert len(people) == 5
    schema = Schema(time=Time(unit="s"), numeric=("'; DROP TABLE x", '"quoted"'))
    table = frame(odd, **{"'; DROP TABLE x": [1.0] * 5, '"quoted"': [2.0] * 5})
    spilled = People.read(table, schema, memory=256 << 20, spill=tmp_path)
    assert spilled.fingerprint() == People.read(table, schema).fingerprint()


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path, "time,v\n1,2\n", "outside.csv")
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, "time,v\n1,2\n", "a.csv")
    (folder / "b.csv").symlink_to(outside)
    assert len(People.read(f"{folder}/{{person}}.csv", Schema(numeric=("v",)))) == 1


def test_bombs_are_refused_before_memory_is_spent(tmp_path: Path) -> None:
    rows = 20_000_000
    bomb = tmp_path / "bomb.parquet"
    schema = pa.schema([("person", pa.int8()), ("time", pa.int8())])
    with pq.ParquetWriter(bomb, schema, compression="zstd", use_dictionary=True) as writer:
        block = pa.table(
            {
                "person": pa.array(np.zeros(rows // 10, np.int8)),
                "time": pa.array(np.zeros(rows // 10, np.int8)),
            }
        )
        for _ in range(10):
            writer.write_table(block)
    assert rows > parts.MOST_ROWS_PER_BYTE * bomb.stat().st_size
    assert "20,000,000" in refused(115, lambda: People.read(bomb))
    inflated = tmp_path / "bomb.csv.gz"
    with gzip.open(inflated, "wb") as stream:
        stream.write(b"person,time,v\n")
        for _ in range(100):
            stream.write(b"a,1,2\n" * 200_000)
    refused(115, lambda: People.read(inflated, Schema(numeric=("v",))))


def test_too_many_columns_and_too_long_fields_are_refused(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(20_000))
    wide = write(tmp_path, f"person,time,{names}\n")
    refused(115, lambda: People.read(wide))
    long = write(tmp_path, "person,time,note\na,1," + "x" * (2 << 20) + "\n")
    refused(115, lambda: People.read(long, Schema(text=("note",))))
    longer = write(tmp_path, "person,time,note\na,1," + "x" * (40 << 20) + "\n")
    refused(115, lambda: People.read(longer, Schema(text=("note",))))


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    rng = np.random.default_rng(0)
    table = frame([CANARY] * 5000, v=rng.normal(size=5000))
    pq.write_table(table, path, write_page_checksum=True, compression="none")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-8], b"PAR1" + whole[200:], b"not parquet"):
        path.write_bytes(damaged)
        refused(126, lambda: People.read(path))
    for at in (len(whole) // 4, len(whole) // 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        refused(126, lambda: People.read(path))
    write(tmp_path, b"ARROW1\x00\x00junk", "data.arrow")
    refused(126, lambda: People.read(tmp_path / "data.arrow"))


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    for nothing in (42, None, object(), [1, 2], {"person": [1]}):
        refused(101, lambda nothing=nothing: People.read(nothing))
    refused(101, lambda: People.read(tmp_path / "absent.csv"))
    refused(101, lambda: People.read(str(tmp_path / "{person}.csv")))
    refused(101, lambda: People.read(Query("SELECT 1", "mysql://x")))
    refused(101, lambda: People.read(Query("SELEKT 1")))
    mixed = pd.DataFrame({"person": ["a", 1], "time": [1, 2]})
    refused(101, lambda: People.read(mixed))
    assert "secret" not in repr(Query("SELECT 1", "postgresql://u:secret@host/db"))


# ------------------------------------------------------------------ 61: nothing is shown


def test_no_identifier_or_value_is_in_any_representation() -> None:
    table = frame([CANARY, "b"], v=[31337.25, 2.0], w=[CANARY, "y"])
    people = People.read(table, Schema(numeric=("v",), categorical=("w",)))
    windows = people.windows(1)
    for shown in (repr(people), str(people), repr(windows), repr(people.facts)):
        assert CANARY not in shown
        assert "31337" not in shown
    with pytest.raises(UsageError) as refusal:
        people.codes("w", [CANARY, CANARY])
    assert CANARY not in str(refusal.value)


# ------------------------------------------------------------------ corners of time and form


def test_typed_stamps_of_every_unit_and_beyond() -> None:
    moment = np.datetime64("2024-05-01T10:00:00.123456789", "ns")
    for unit in ("s", "ms", "us", "ns"):
        column = pa.array([moment]).cast(pa.timestamp(unit), safe=False)
        people = People.read(frame(["a"], time=column))
        assert people.time[0] // 10**6 == moment.astype("datetime64[s]").astype(np.int64)
    dates = frame(["a"], time=pa.array([19_844], pa.date32()))
    assert People.read(dates).time[0] == 19_844 * 86_400 * 10**6
    for far in (2**62, -(2**62), 2**55):
        wild = pa.array([0, far], pa.int64()).cast(pa.timestamp("s"))
        refused(110, lambda wild=wild: People.read(frame(["a", "a"], time=wild)))
    zoned = pa.array([moment]).cast(pa.timestamp("us"), safe=False)
    berlin = Schema(time=Time(zone="Europe/Berlin"))
    assert People.read(frame(["a"], time=zoned), berlin).time[0] // 10**6 == (
        moment.astype("datetime64[s]").astype(np.int64) - 7200
    )


def test_nanoseconds_survive_as_text(tmp_path: Path) -> None:
    path = write(tmp_path, "person,time\na,1700000000123456789\na,1700000000123457789\n")
    schema = Schema(time=Time(kind="absolute", unit="ns"), ignore=("*",))
    assert np.diff(People.read(path, schema).time).tolist() == [1]


@pytest.mark.parametrize("text", ["1e400", "+5", ".5", "5.", "99999999999999999999999"])
def test_odd_numbers_as_time_are_read_or_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"person,time\na,{text}\na,1\n")
    seconds = Schema(time=Time(unit="s"), ignore=("*",), bad_values="drop-row")
    records = 1 if "e400" in text or "999" in text else 2
    assert People.read(path, seconds).records == records


def test_rows_without_a_time_count_within_their_person() -> None:
    one = People.read(pa.table({"person": ["b", "a", "b"], "v": [1.0, 2.0, 3.0]}), time="")
    other = People.read(pa.table({"person": ["a", "b", "b"], "v": [2.0, 1.0, 3.0]}), time="")
    assert one.time.tolist() == [0, 0, 1]
    assert one.fingerprint() == other.fingerprint()


def test_a_person_whose_rows_are_all_dropped_keeps_a_site(tmp_path: Path) -> None:
    content = "person,time,v,town\na,1,1,x\nb,oops,2,y\n"
    schema = Schema(numeric=("v",), site="town", bad_values="drop-row", time=Time(unit="s"))
    path = write(tmp_path, content)
    for memory in (None, 256 << 20):
        people = People.read(path, schema, memory=memory, spill=tmp_path)
        assert people.counts.tolist() == [1, 0]
        assert [people.site_names[at] for at in people.site] == ["x", "y"]


def test_impossible_layouts_are_refused() -> None:
    for layout in (
        {"delimiter": ""},
        {"delimiter": "::"},
        {"encoding": "klingon"},
        {"skip_lines": -1},
    ):
        refused(124, lambda layout=layout: Layout(**layout))
