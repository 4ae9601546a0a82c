"""Labels that cannot be learnt are refused before anything is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sequester.core.errors import LedgerRefusal, UsageError
from sequester.federated.run import federate
from sequester.ledger import Ledger
from sequester.report import write_card
from sequester.sequences import People
from sequester.training import LedgerSection, Study, train
from sequester.training.dataset import lot_of
from sequester.training.labels import _answered, _in_windows
from sequester.training.study import Category, Training
from tests.training.population import SCHEMA, study, table

SECRET = 0.4375


def relabelled(change: str) -> People:
    """The invented population with its answers changed."""
    made = table(200)
    label, held = made["label"].to_numpy().copy(), np.array(made["part"].to_pylist()) == "test"
    if change in ("one and two", "all one", "all missing"):
        label = {"one and two": label + 1, "all one": label * 0 + 1}.get(change, label * np.nan)
    elif change == "one between":
        label[np.flatnonzero(~held)[3]] = SECRET
    elif change == "one two, held out":
        label[np.flatnonzero(held)[3]] = 2.0
    elif change == "missing in training":
        label[~held] = np.nan
    elif change == "same in training":
        label[~held] = 0.0
    elif change == "one class held out":
        label[held] = 1.0
    elif change == "missing held out":
        label[held] = np.nan
    at = made.column_names.index("label")
    return People.read(made.set_column(at, "label", pa.array(label)), SCHEMA)


def budgeted(tmp_path: Path, **changes: Any) -> Study:
    """A study with a ledger whose ceiling is far away."""
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 60.0, 1e-3)
    section = LedgerSection(url=url, budget="town")
    return study(
        **{
            "ledger": section,
            "training__average": 0.0,
            "training__steps": 2,
            "data__level": "window",
            **changes,
        }
    )


def spent(tmp_path: Path) -> float:
    """ε spent and reserved."""
    with Ledger.open(f"sqlite:///{tmp_path / 'budget.db'}") as ledger:
        (standing,) = ledger.budgets()
        return float(standing.spent)


def in_rounds(asked: Study, **where: Any) -> object:
    """Federate the study, without what belongs to central training alone."""
    training = Training(steps=asked.training.steps, sampling_rate=asked.training.sampling_rate)
    return federate(msgspec.structs.replace(asked, training=training), **where)


REFUSED = {
    "one and two": r"^SQ-277 .*neither 0 nor 1",
    "one between": r"^SQ-277 .*records of 1 people",
    "one two, held out": r"^SQ-277 .*records of 1 people",
    "all one": r"^SQ-277 .*same for everybody",
    "same in training": r"^SQ-277 .*same for everybody",
    "all missing": r"^SQ-506 .*'label'",
    "missing in training": r"^SQ-506 .*'label'",
}


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
@pytest.mark.parametrize("change", REFUSED)
def test_labels_that_cannot_be_learnt_cost_nothing(change: str, way: Any, tmp_path: Path) -> None:
    asked = budgeted(tmp_path)
    with pytest.raises(UsageError, match=REFUSED[change]) as refused:
        way(asked, out=tmp_path / "runs", people=relabelled(change))
    assert str(SECRET) not in str(refused.value)
    assert spent(tmp_path) == 0.0
    assert not list((tmp_path / "runs").glob("**/*"))


@pytest.mark.parametrize("change", ["one class held out", "missing held out"])
@pytest.mark.parametrize("level", ["window", "step"])
def test_a_figure_that_is_not_defined_is_told_as_such(
    change: str, level: str, tmp_path: Path
) -> None:
    run = train(
        budgeted(tmp_path, data__level=level), out=tmp_path / "runs", people=relabelled(change)
    )
    assert run.claim is not None
    assert spent(tmp_path) > 0.0
    assert all(figure.value is None for figure in run.figures)
    facts = json.loads(run.folder.facts.read_text())
    assert [figure["value"] for figure in facts["utility"]] == [None for _ in run.figures]
    card = write_card(run.folder.path).read_text()
    assert ("not defined" in card) == bool(run.figures)
    assert "nan" not in card.lower().split()


def test_classes_outside_the_vocabulary_are_no_answers(tmp_path: Path) -> None:
    asked = budgeted(
        tmp_path,
        data__task="next",
        data__label="town",
        data__horizon=1,
        data__categories={"town": Category(values=("harbour", "hill"))},
    )
    with pytest.raises(UsageError, match=r"^SQ-506 .*'town'"):
        train(asked, out=tmp_path / "runs", people=relabelled("none"))
    assert spent(tmp_path) == 0.0
    assert not list((tmp_path / "runs").glob("**/*"))


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
def test_a_run_that_the_ledger_refuses_leaves_no_folder(way: Any, tmp_path: Path) -> None:
    asked = budgeted(tmp_path, privacy__epsilon=None, privacy__noise_multiplier=0.05)
    with pytest.raises(LedgerRefusal, match=r"^SQ-312 "):
        way(asked, out=tmp_path / "runs", people=relabelled("none"))
    assert spent(tmp_path) == 0.0
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"data__task": "forecast", "data__window": 1000}, "signal"),
        ({"data__task": "forecast", "data__window": 1, "data__horizon": 1000}, "signal"),
        ({"data__task": "next", "data__horizon": 1000}, "town"),
    ],
)
def test_windows_without_answers_cost_nothing(
    way: Any, changes: dict[str, Any], label: str, tmp_path: Path
) -> None:
    towns = {"town": Category(values=("harbour", "hill"))}
    asked = budgeted(tmp_path, data__label=label, data__categories=towns, **changes)
    with pytest.raises(UsageError, match=rf"^SQ-506 .*'{label}'.*data\.window"):
        way(asked, out=tmp_path / "runs", people=relabelled("none"))
    assert spent(tmp_path) == 0.0
    assert not list((tmp_path / "runs").glob("**/*"))


@pytest.mark.parametrize("each", ["label", "forecast", "next"])
@pytest.mark.parametrize(("window", "stride"), [(1, 3), (3, 2), (9, 1)])
def test_the_answers_looked_for_are_those_that_windows_have(
    each: str, window: int, stride: int
) -> None:
    """One person at a time: refused exactly if the lot would be empty."""
    named = {"label": "label", "forecast": "signal", "next": "town"}[each]
    made = study(
        data__task=each,
        data__label=named,
        data__level="window",
        data__horizon=2,
        data__window=window,
        data__stride=stride,
        data__categories={"town": Category(values=("a", "b"))},
    ).data
    rng = np.random.default_rng(window)
    seen = set()
    for number in range(40):
        count = int(rng.integers(1, 15))
        numbers = [pa.array(np.where(rng.random(count) < 0.6, np.nan, 1.0)) for _ in range(3)]
        towns = pa.array(np.where(rng.random(count) < 0.6, "", "a"))
        names = ("person", "time", "signal", "other", "label", "town", "part")
        columns = (pa.array(["p"] * count), pa.array(range(count)), *numbers, towns, towns)
        people = People.read(pa.table(dict(zip(names, columns, strict=True))), SCHEMA)
        empty = not len(lot_of(people, made, key=bytes(16)).owner)
        assert empty != _in_windows(made, people, _answered(made, people)), number
        seen.add(empty)
    assert seen == {True, False}
