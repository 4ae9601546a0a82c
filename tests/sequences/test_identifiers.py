"""Identifiers that a spreadsheet, a data frame or a keyboard changed are refused, not counted."""

import unicodedata
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester.cli.main import cli
from sequester.core.errors import UsageError
from sequester.sequences import People, Schema


def read(*names: str, fold_case: bool = False) -> People:
    return People.read(
        pa.table({"person": names, "time": range(len(names))}), Schema(fold_case=fold_case)
    )


def refusal(*names: str, fold_case: bool = False) -> str:
    with pytest.raises(UsageError) as refused:
        read(*names, fold_case=fold_case)
    assert refused.value.code == 108
    assert not any(name in str(refused.value) for name in names if len(name) > 2)
    return str(refused.value)


@pytest.mark.parametrize(
    "name",
    "1.46223E+12|1.46223e+12|1E+12|1e16|1.46223E12|1,46223E+12|-4.5E+9|1.0E7|2.0|2.00|"
    "1462230000000.0|2,0|-7.0| 2.0 |\uff12.\uff10".split("|"),
)
def test_what_is_left_of_a_number_is_no_identifier(name: str) -> None:
    assert "of 1 people or more" in refusal("ana", name)


@pytest.mark.parametrize(
    "name",
    "007|9007199254740993|1.2.0|v2.0|2.5|12.0a|1e3|1e234567|a1e5|12e5|5E-12|E12|1E|.0|2.|"
    "10.1000/x.0|NA|m\u00b2|\uff21".split("|"),
)
def test_names_that_are_only_like_numbers_survive(name: str) -> None:
    assert set(read("ana", name)._ids.to_pylist()) == {"ana", name}


@settings(max_examples=60, deadline=None)
@given(st.integers(2**53, 2**62))
def test_whatever_a_float_writes_is_refused(number: int) -> None:
    """Forms written by others: Python, C's printf and pandas."""
    wide = float(number)
    frame = pd.DataFrame({"person": [wide]}).to_csv(index=False).split()[1]
    for name in (repr(wide), f"{wide:.5E}", f"{wide:g}", f"{wide:.1f}", frame):
        refusal(name)


def unseen() -> list[str]:
    """What Unicode 15.1 lists as Default_Ignorable_Code_Point, and signs with a blank picture."""
    listed = (
        "00AD 034F 061C 115F..1160 17B4..17B5 180B..180F 200B..200F 202A..202E 2060..206F 3164 "
        "FE00..FE0F FEFF FFA0 FFF0..FFF8 1BCA0..1BCA3 1D173..1D17A E0000..E0FFF "
        "2800 16FE4 13441..13442 1D159"
    )
    found = []
    for entry in listed.split():
        first, _, last = entry.partition("..")
        found += [chr(code) for code in range(int(first, 16), int(last or first, 16) + 1)]
    return found


@pytest.mark.parametrize("shape", ["bob{}", "b{}ob", "{}bob", "Zoë{}", "👍{}"])
def test_no_invisible_sign_makes_a_second_person(shape: str) -> None:
    """Every one of them is refused or put away; none is kept."""
    for sign in unseen():
        assert "hold invisible characters" in refusal("bob", shape.format(sign)), hex(ord(sign))


BLANKS = [chr(code) for code in range(0x110000) if chr(code).isspace()]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(BLANKS), min_size=1, max_size=4), st.booleans())
def test_white_space_of_any_kind_and_length_is_one_blank(blanks: list[str], fold: bool) -> None:
    for first, last in (("ann", "lee"), ("Zoë", "李雷")):
        spelled = [f"{first} {last}", f"{first}{''.join(blanks)}{last}", f"\u3000{first}  {last}\t"]
        assert read(*spelled, fold_case=fold)._ids.to_pylist() == [
            spelled[0].casefold() if fold else spelled[0]
        ]


def test_people_are_counted_and_not_rows() -> None:
    assert "of 2 people or more" in refusal("2.0", "2.0", "3.0", "ana")


@pytest.mark.parametrize("pair", [("1", "\uff11"), ("Ann", "\uff21nn"), ("fi", "\ufb01")])
def test_two_forms_of_one_name_are_refused(pair: tuple[str, str]) -> None:
    assert unicodedata.normalize("NFKC", pair[1]) == pair[0]
    assert refusal(*pair, "zo\u00eb").startswith("SQ-108 2 people")


def test_forms_meet_across_case_and_across_sources() -> None:
    refusal("a", "\uff21", fold_case=True)
    records = pa.table({"person": ["1"], "time": [1]})
    static = pa.table({"person": ["\uff11"], "age": [40.0]})
    with pytest.raises(UsageError, match="SQ-108 2 people"):
        People.read(records, Schema(static=("age",)), static=static)


def test_forms_meet_in_data_larger_than_memory(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("person,time,v\n" + "1,1,2\n" * 100 + "\uff11,1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="SQ-108 2 people"):
        People.read(source, Schema(numeric=("v",)), memory=256 << 20)


def test_inspect_refuses_a_spreadsheets_damage(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("person,time,v\n1.46223E+12,2024-01-15,1\n2.0,2024-01-16,2\n")
    said = CliRunner().invoke(cli, ["inspect", str(source)])
    assert isinstance(said.exception, UsageError)
    assert said.exception.code == 108
    assert "as text" in str(said.exception)
    assert "1.46" not in str(said.exception)
