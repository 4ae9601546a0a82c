"""Studies: every mistake names its number, its file and its line; what is read is what ran."""

import tomllib
from pathlib import Path

import pytest

from sequester.core.errors import UsageError
from sequester.training import (
    Adaptive,
    Baseline,
    Data,
    Holdout,
    LedgerSection,
    Model,
    Privacy,
    Training,
    Unit,
    demos,
    read_study,
    to_toml,
)
from sequester.training.study_file import decode, line_of
from tests.training.population import study

GOOD = """\
name = "visits"

[data]
source = "visits.csv"
population = 4000
window = 12

[data.features.pain]
lower = 0
upper = 10

[privacy]
epsilon = 1.0
delta = 1e-5
clip = 0.5

[training]
steps = 30
"""


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return file


def test_a_good_study_is_read_with_its_defaults(tmp_path: Path):
    found = read_study(write(tmp_path, GOOD))
    assert found.unit.kind == "person"
    assert found.training.steps == 30
    assert found.data.features["pain"].upper == 10


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "words"),
    [
        ("clip = 0.5", "clip = -1.0", 234, 15, "privacy.clip"),
        ("epsilon = 1.0", "noise_multiplier = -1.0", 214, 13, "calibrate"),
        ("epsilon = 1.0", "epsilon = 0.0", 202, 13, "privacy.epsilon"),
        ("epsilon = 1.0", "", 265, 12, "usual start"),
        ("delta = 1e-5", "delta = 1e-3", 266, 14, "1/population"),
        ("delta = 1e-5", "delta = 2.0", 201, 14, "between 0 and 1"),
        ("steps = 30", "steps = 0", 263, 18, "training.steps"),
        ("steps = 30", "steps = 1.5", 261, 18, "int"),
        ("steps = 30", "stepps = 30", 261, 18, "stepps"),
        ("upper = 10", "upper = 0", 264, 8, "publicly known"),
        ("population = 4000", "population = 0", 262, 5, "data.population"),
        ("population = 4000", "", 261, 3, "population"),
        ("window = 12", "window = 'twelve'", 261, 6, "int"),
        ("window = 12", "[data.categories.town]", 264, 6, "never read silently"),
        ("steps = 30", "steps = ", 260, 18, "TOML"),
    ],
)
def test_mistakes_name_their_line(
    tmp_path: Path, old: str, new: str, code: int, line: int, words: str
):
    with pytest.raises(UsageError) as refused:
        read_study(write(tmp_path, GOOD.replace(old, new)))
    assert refused.value.code == code
    assert words in str(refused.value)
    assert f"line {line}" in str(refused.value), str(refused.value)


def test_a_small_population_does_not_excuse_a_large_delta(tmp_path: Path):
    text = GOOD.replace("4000", "26").replace("1e-5", "0.028")
    with pytest.raises(UsageError, match="SQ-266"):
        read_study(write(tmp_path, text))


def test_delta_is_judged_by_the_units_it_is_about(tmp_path: Path):
    text = GOOD.replace("window = 12", "window = 12\nmax_per_person = 50")
    read_study(write(tmp_path, text))
    with pytest.raises(UsageError, match=r"SQ-266.*one window"):
        read_study(write(tmp_path, text + '\n[unit]\nkind = "window"\n'))


def test_a_missing_file_and_a_huge_one_are_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="SQ-260"):
        read_study(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="SQ-260"):
        read_study(write(tmp_path, "# " + "x" * (1 << 20)))


@pytest.mark.parametrize("made", [study(), demos.randhie(), demos.town()])
def test_what_is_written_is_read_back(made):
    again = decode(tomllib.loads(to_toml(made)))
    assert to_toml(again) == to_toml(decode(tomllib.loads(to_toml(again))))
    assert again.data.features.keys() == made.data.features.keys()
    assert again.privacy == made.privacy


def test_odd_names_and_values_survive(tmp_path: Path):
    made = study(title='"quoted" \\ ümlaut\nline', data__description="a = [b]\t#c")
    again = decode(tomllib.loads(to_toml(made)))
    assert again.title == made.title
    assert again.data.description == made.data.description


def test_lines_are_found_in_inline_and_nested_tables():
    text = 'name = "x"\n[data]\nsource = "y"\n[data.features]\nHR = {lower = 1, upper = 0}\n'
    assert line_of(text, "data.features.HR") == 5
    assert line_of(text, "data.source") == 3
    assert line_of(text, "privacy.epsilon") is None


def test_private_estimates_belong_to_the_unit_person(tmp_path: Path):
    # A person's vote is bounded as a whole; one window more can move it by up to the root of two.
    text = GOOD.replace("upper = 10", "upper = 10\nestimate = true")
    assert read_study(write(tmp_path, text)).data.features["pain"].estimate
    with pytest.raises(UsageError, match="SQ-274"):
        read_study(write(tmp_path, text + '\n[unit]\nkind = "window"\n'))


STEP = """
[unit]
kind = "step"
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("window = 1", "window = 2"),
        ("stride = 1", "stride = 2"),
        ("window = 1", 'window = 1\ntask = "forecast"\nlabel = "pain"'),
        ("window = 1", 'window = 1\nlevel = "person"'),
        ("window = 1", "window = 1\nlags = [2]"),
        ("window = 1", "window = 1\ngap = 3.0"),
        ("window = 1", "window = 1\nhabits = 2"),
    ],
)
def test_a_step_is_a_unit_only_where_nothing_joins_it_to_others(tmp_path: Path, old: str, new: str):
    text = GOOD.replace("window = 12", "stride = 1\nwindow = 1") + STEP
    assert read_study(write(tmp_path, text)).unit.kind == "step"
    with pytest.raises(UsageError, match="SQ-275"):
        read_study(write(tmp_path, text.replace(old, new)))


def test_a_privatised_figure_needs_somebody_to_charge(tmp_path: Path):
    text = GOOD + '\n[data.holdout]\nprotection = "privatised"\n'
    with pytest.raises(UsageError, match=r"SQ-273.*line 21"):
        read_study(write(tmp_path, text))
    ledger = '\n[ledger]\nurl = "sqlite:///b.db"\nbudget = "b"\n'
    with pytest.raises(UsageError, match=r"SQ-273.*line 23"):
        read_study(write(tmp_path, text + ledger))
    read_study(write(tmp_path, text + ledger + 'holdout_budget = "h"\n'))


def test_a_centre_lies_in_its_range(tmp_path: Path):
    text = GOOD.replace("upper = 10", "upper = 10\ncentre = 11")
    with pytest.raises(UsageError, match=r"SQ-264.*line 11"):
        read_study(write(tmp_path, text))


def test_one_network_has_one_name(tmp_path: Path):
    own = '\n[model]\nmodule = "mine:Net"\n'
    assert read_study(write(tmp_path, GOOD + own)).model.kind == "mine:Net"
    again = to_toml(read_study(write(tmp_path, GOOD + own)))
    assert read_study(write(tmp_path, again)).model.module == "mine:Net"
    with pytest.raises(UsageError, match=r"SQ-261.*not both"):
        read_study(write(tmp_path, GOOD + own + 'kind = "lstm"\n'))


SECTIONS = (Data, Holdout, Baseline, Unit, Model, Privacy, Adaptive, Training, LedgerSection)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_documented(section: type):
    page = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text()
    name = {"Holdout": "data.holdout", "Baseline": "data.baseline", "Adaptive": "privacy.adaptive"}
    prefix = name.get(section.__name__, section.__name__.removesuffix("Section").lower())
    for field in section.__struct_fields__:
        assert f"`{prefix}.{field}" in page or f"`{field}`" in page, f"{prefix}.{field}"
