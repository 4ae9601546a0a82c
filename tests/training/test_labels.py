"""Labels that cannot be learnt are refused before anything is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from sequester.core.errors import LedgerRefusal, SequesterError, UsageError
from sequester.federated.run import federate
from sequester.ledger import Ledger
from sequester.report import write_card
from sequester.sequences import People, Schema, Time, room
from sequester.training import Feature, Holdout, LedgerSection, Model, Study, read_study, train
from sequester.training.dataset import lot_of, schema_of, split
from sequester.training.labels import _answered, _in_windows
from sequester.training.study import Category, Training
from tests.training.population import SCHEMA, people, study, table

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
        return sum(float(standing.spent) for standing in ledger.budgets())


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
    assert ("not defined" in card or "not told: fewer" in card) == bool(run.figures)
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


PRIVATISED = Holdout(column="part", value="test", protection="privatised")
LEDGERS = {  # what is wrong, and the number of the refusal
    "no ledger": (LedgerSection(url="sqlite:///{}/none.db", budget="town"), 301),
    "no such kind": (LedgerSection(url="mysql://{}", budget="town"), 300),
    "no ledger in the file": (LedgerSection(url="sqlite:///{}/text.db", budget="town"), 331),
    "no budget": (LedgerSection(url="sqlite:///{}/budget.db", budget="city"), 310),
    "small budget": (LedgerSection(url="sqlite:///{}/budget.db", budget="small"), 312),
    "other data": (LedgerSection(url="sqlite:///{}/budget.db", budget="used"), 322),
    "no budget of held-out people": (
        LedgerSection(url="sqlite:///{}/budget.db", budget="town", holdout_budget="city"),
        310,
    ),
    "held-out people's is enough, training's is not": (
        LedgerSection(url="sqlite:///{}/budget.db", budget="small", holdout_budget="town"),
        312,
    ),
}


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
@pytest.mark.parametrize("wrong", LEDGERS)
def test_a_run_that_the_ledger_refuses_leaves_no_folder(
    wrong: str, way: Any, tmp_path: Path
) -> None:
    asked = budgeted(tmp_path, privacy__insecure_test_seed=None)
    (tmp_path / "text.db").write_text("no ledger")
    with Ledger.open(f"sqlite:///{tmp_path / 'budget.db'}") as ledger:
        ledger.create_budget("small", "small", 0.001, 1e-3)
        ledger.create_budget("used", "used", 60.0, 1e-3)
    used = msgspec.structs.replace(asked, ledger=LedgerSection(asked.ledger.url, "used"))
    train(used, out=tmp_path / "before", people=people(40, seed=9))
    section, number = LEDGERS[wrong]
    section = msgspec.structs.replace(section, url=section.url.format(tmp_path))
    if section.holdout_budget:
        asked = msgspec.structs.replace(
            asked, data=msgspec.structs.replace(asked.data, holdout=PRIVATISED)
        )
    before = spent(tmp_path)
    with pytest.raises(SequesterError, match=rf"^SQ-{number} "):
        way(
            msgspec.structs.replace(asked, ledger=section),
            out=tmp_path / "runs",
            people=relabelled("none"),
        )
    assert spent(tmp_path) == before
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("public", [(), ("north",), ("hamlet",)])
def test_the_words_to_predict_may_be_found_privately(
    public: tuple[str, ...], tmp_path: Path
) -> None:
    asked = budgeted(
        tmp_path,
        data__task="next",
        data__label="town",
        data__window=2,
        data__stride=1,
        data__categories={"town": Category(values=public, estimate=True)},
        privacy__epsilon=50.0,
        model=Model(kind="linear"),
    )
    run = train(asked, out=tmp_path / "runs", people=relabelled("none"))
    found = read_study(run.folder.study).data.categories["town"].values
    assert set(found) == {"north", "south", "east", *public}
    assert found[: len(public)] == public


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
def test_a_run_whose_charge_may_be_there_keeps_its_folder(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(*_: object, **__: object) -> None:
        raise LedgerRefusal(303, "the server went away")

    monkeypatch.setattr(Ledger, "reserve", vanish)
    with pytest.raises(LedgerRefusal, match=r"^SQ-303 "):
        way(budgeted(tmp_path), out=tmp_path / "runs", people=relabelled("none"))
    assert len(list((tmp_path / "runs").glob("*/checkpoints/begun.json"))) == 1


def inputs(kind: str, label: np.ndarray, signal: np.ndarray, next_town: np.ndarray) -> pa.Array:
    """An input that is the answer, in one form or nearly."""
    almost = label.copy()
    almost[-1] = 1 - almost[-1]  # of somebody in training
    made: dict[str, Any] = {
        "the label": label,
        "its opposite": 1 - label,
        "two numbers": np.where(label > 0, 7.0, 3.0),
        "two words": np.where(label > 0, "seen", "unseen"),
        "a word only with yes": np.where(label > 0, "seen", ""),
        "all but one": almost,
        "the signal": signal,
        "one word": np.where(label > 0, "seen", "seen"),
        "next signal": np.append(signal[1:], 0.0),
        "present signal": signal,
        "next town": next_town,
    }
    return pa.array(made[kind])


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
@pytest.mark.parametrize(
    ("task", "kind", "refused"),
    [
        ("label", "the label", True),
        ("label", "its opposite", True),
        ("label", "two numbers", True),
        ("label", "two words", True),
        ("label", "a word only with yes", True),
        ("label", "all but one", False),
        ("label", "the signal", False),
        ("label", "one word", False),
        ("forecast", "next signal", True),
        ("forecast", "present signal", False),
        ("next", "next town", True),
    ],
)
def test_an_input_that_is_the_answer_is_refused(
    way: Any, task: str, kind: str, refused: bool, tmp_path: Path
) -> None:
    made = table(200)
    rng = np.random.default_rng(5)
    towns = np.array(["north", "south", "east"])[rng.integers(0, 3, len(made))]
    made = made.set_column(made.column_names.index("town"), "town", pa.array(towns))
    label, signal = made["label"].to_numpy(), made["signal"].to_numpy()
    given = inputs(kind, label, signal, np.append(towns[1:], "north"))
    word = pa.types.is_string(given.type) or pa.types.is_large_string(given.type)
    made = made.append_column("given", given)
    read = Schema(
        person="person",
        time=Time(column="time", kind="step"),
        numeric=("signal", "other", "label", *(() if word else ("given",))),
        categorical=("town", "part", *(("given",) if word else ())),
    )
    words = Category(values=("north", "south", "east") if task == "next" else ("seen", "unseen"))
    categories = {"given": words} if word else {}
    if task == "next":
        categories["town"] = words
    features = {"signal": Feature(-3, 3)} | ({} if word else {"given": Feature(-3, 7)})
    asked = budgeted(
        tmp_path,
        data__task=task,
        data__label={"label": "label", "forecast": "signal", "next": "town"}[task],
        data__features=features,
        data__categories=categories,
        data__level="step",
        data__window=2,
        data__stride=1,
        model=Model(kind="linear"),
    )
    if not refused:
        assert way(asked, out=tmp_path / "runs", people=People.read(made, read)) is not None
        return
    with pytest.raises(UsageError, match=r"^SQ-278 .*'given' tells"):
        way(asked, out=tmp_path / "runs", people=People.read(made, read))
    assert spent(tmp_path) == 0.0
    assert not list((tmp_path / "runs").glob("**/*"))


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
@pytest.mark.parametrize(
    ("held", "refused"),
    [
        (Holdout(column="part", value="tset"), True),
        (Holdout(column="part", value=""), True),
        (Holdout(column="town", value="test"), True),
        (Holdout(column="house", value="test"), True),
        (Holdout(column="part", value="test"), False),
        (Holdout(column="house", value="south"), False),
    ],
    ids=str,
)
def test_a_holdout_is_somebody(way: Any, held: Holdout, refused: bool, tmp_path: Path) -> None:
    asked = budgeted(
        tmp_path, data__holdout=held, data__read={"site": "house"}, data__group="house"
    )
    made = table(200).append_column("house", table(200)["town"])
    everybody = People.read(made, schema_of(asked.data))
    if refused:
        with pytest.raises(UsageError, match=rf"^SQ-279 .* 0 of 200 people .*'{held.column}'"):
            way(asked, out=tmp_path / "runs", people=everybody)
        assert spent(tmp_path) == 0.0
        assert not list((tmp_path / "runs").glob("**/*"))
        return
    way(asked, out=tmp_path / "runs", people=everybody)
    out, inside = (len(part) for part in split(everybody, asked.data))
    assert out + inside == 200
    assert 0 < inside < 100


def test_whether_a_privatised_holdout_is_empty_shows_nowhere(tmp_path: Path) -> None:
    asked = budgeted(tmp_path)
    section = msgspec.structs.replace(asked.ledger, holdout_budget="town")
    nobody = Holdout(column="part", value="tset", protection="privatised")
    asked = msgspec.structs.replace(
        asked, ledger=section, data=msgspec.structs.replace(asked.data, holdout=nobody)
    )
    run = train(asked, out=tmp_path / "runs", people=relabelled("none"))
    assert [figure.value for figure in run.figures] == [None]


@pytest.mark.parametrize("way", [train, in_rounds], ids=["train", "federate"])
@pytest.mark.parametrize("window", [10**7, 10**9, 10**12])
def test_windows_beyond_memory_are_refused_with_numbers(
    way: Any, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "available", lambda: 3 << 30)
    asked = budgeted(tmp_path, data__window=window)
    with pytest.raises(UsageError, match=r"^SQ-131 200 windows .* MiB .* 3,072 MiB are free"):
        way(asked, out=tmp_path / "runs", people=relabelled("none"))
    assert spent(tmp_path) == 0.0
    assert not list((tmp_path / "runs").glob("**/*"))


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
