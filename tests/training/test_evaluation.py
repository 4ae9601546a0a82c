"""A privatised figure hides also whether anybody was held out, and is none where it is noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sequester.cli.studies import crowd
from sequester.ledger import Ledger
from sequester.mechanism import NoiseStream
from sequester.models import Binary, Classes, Forecast, Task
from sequester.report import write_card
from sequester.sampling import Lot
from sequester.training import LedgerSection, train
from sequester.training.evaluation import FEWEST, private_figure, public_figures, too_few
from tests.training.population import people, study

TASKS = [Binary(), Binary(threshold_free=False), Classes(outputs=3), Forecast()]


class Echo(nn.Module):
    """Answers with the window's first number, in as many outputs as asked."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, x, mask, categorical=None):  # type: ignore[no-untyped-def]
        """`(windows, outputs)`."""
        if not len(x):
            raise AssertionError("recurrent networks refuse no windows")
        return x[:, 0, :1].repeat(1, self.outputs)


def lot(answers: list[float], task: Task, *, persons: int | None = None) -> Lot:
    """One window of one person for each answer; Echo's logits are ±1 like the answers."""
    target = torch.tensor(answers, dtype=torch.float32)
    if isinstance(task, Classes):
        target = torch.where(target.isnan(), -1.0, target).to(torch.int64)
    count = len(answers)
    return Lot(
        x=torch.tensor(answers, dtype=torch.float32).reshape(count, 1, 1) * 2.0 - 1.0,
        mask=torch.ones(count, 1, dtype=torch.bool),
        target=target,
        owner=torch.arange(count),
        people=count if persons is None else persons,
    )


def figure(task: Task, held_out: Lot, seed: int = 0) -> float | None:
    """The privatised figure; exactly one draw is made for it."""
    stream = NoiseStream.from_test_seed(seed, "figure")
    told = private_figure(task, Echo(task.outputs), held_out, multiplier=1.0, stream=stream)
    assert stream.draws == 1
    return told.value


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("persons", [0, 5])
def test_nobody_to_judge_draws_noise_and_has_no_figure(task: Task, persons: int) -> None:
    values = [figure(task, lot([], task, persons=persons), seed) for seed in range(40)]
    assert values.count(None) >= 38


@pytest.mark.parametrize("answer", [0.0, 1.0])
def test_one_class_has_no_area(answer: float) -> None:
    values = [figure(Binary(), lot([answer] * 500, Binary()), seed) for seed in range(40)]
    assert values.count(None) >= 38


def test_enough_people_have_a_figure() -> None:
    both = [0.0, 1.0] * 300
    assert figure(Binary(), lot(both, Binary())) == pytest.approx(1.0, abs=0.05)
    assert figure(TASKS[1], lot(both, TASKS[1])) == pytest.approx(1.0, abs=0.05)
    assert figure(Forecast(), lot(both, Forecast())) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("task", TASKS)
def test_an_overflow_of_one_person_stays_that_persons_share(task: Task) -> None:
    held_out = lot([0.0, 1.0] * 300, task)
    before = figure(task, held_out)
    held_out.x[7] = np.nan
    after = figure(task, held_out)
    assert before is not None
    assert after == pytest.approx(before, abs=0.02)


def test_an_empty_protected_hold_out_is_not_told_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    with Ledger.create(url) as ledger:
        ledger.create_budget("town", "tiny", 60.0, 1e-3)
        ledger.create_budget("judges", "tiny-held-out", 9.0, 1e-3)
    held = type(study().data.holdout)(column="part", value="nobody", protection="privatised")
    section = LedgerSection(url=url, budget="town", holdout_budget="judges")
    run = train(
        study(data__holdout=held, ledger=section, training__steps=2),
        out=tmp_path / "runs",
        people=people(),
    )
    facts = json.loads(run.folder.facts.read_text())
    assert [told["protection"] for told in facts["utility"]] == ["privatised"]
    assert run.claim is not None
    assert any("Held-out people were used" in said for said in run.claim.fields["assumptions"])
    assert "Nobody was held out" not in write_card(run.folder.path).read_text()


def scored(yes: list[float], no: list[float], each: int = 1) -> tuple[Binary, Echo, Lot]:
    """Held-out people by the score that Echo repeats, each with `each` windows of one answer."""
    scores = torch.tensor(yes + no).repeat_interleave(each)
    answers = torch.tensor([1.0] * len(yes) + [0.0] * len(no)).repeat_interleave(each)
    count = len(yes) + len(no)
    return (
        Binary(),
        Echo(1),
        Lot(
            x=scores.reshape(-1, 1, 1),
            mask=torch.ones(len(scores), 1, dtype=torch.bool),
            target=answers,
            owner=torch.arange(count).repeat_interleave(each),
            people=count,
        ),
    )


@pytest.mark.parametrize("free", [True, False], ids=["auc", "accuracy"])
@pytest.mark.parametrize(("yes", "no"), [(1, 1), (2, 40), (40, 2), (30, 30), (3, 3000)])
@pytest.mark.parametrize("shift", [-50.0, -2.0, 0.0, 1.0, 2.0, 3.0, 50.0])
def test_an_interval_stays_between_0_and_1_and_is_never_a_point(
    free: bool, yes: int, no: int, shift: float
) -> None:
    rng = np.random.default_rng(yes + no)
    up, down = (rng.normal(size=yes) + shift).tolist(), (rng.normal(size=no) - shift).tolist()
    task, model, held = scored(up, down)
    (told,) = public_figures(replace(task, threshold_free=free), model, held)
    assert told.value is not None
    assert told.interval is not None
    low, high = told.interval
    assert 0.0 <= low <= told.value <= high <= 1.0
    judged = min(yes, no) if free else yes + no
    assert high - low > 0.5 / judged


@pytest.mark.parametrize("people", [30, 400])
@pytest.mark.parametrize("each", [1, 6])
@pytest.mark.parametrize("shift", [0.3, 1.5])
def test_an_interval_of_people_holds_the_truth_as_often_as_it_says(
    people: int, each: int, shift: float
) -> None:
    """Predictions of one person count as one person: repeating them tells nothing more."""
    rng = np.random.default_rng(3)
    truth = 0.5 * (1.0 + math.erf(shift / math.sqrt(2.0)))  # curves `shift`·√2 apart
    held, runs = 0, 200
    for _ in range(runs):
        yes = (rng.normal(size=people // 3) + shift * math.sqrt(2.0)).tolist()
        task, model, lots = scored(yes, rng.normal(size=people - people // 3).tolist(), each)
        (told,) = public_figures(task, model, lots)
        assert told.interval is not None
        held += told.interval[0] <= truth <= told.interval[1]
    assert 0.90 <= held / runs <= 0.995


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("answered", [0, 1, 5, FEWEST - 1, FEWEST])
def test_few_people_have_no_figure_without_noise(task: Task, answered: int) -> None:
    """However many are held out, and however many windows each of them has."""
    answers = [0.0] * answered + [math.nan] * (2 * FEWEST)
    held_out = lot(answers, task, persons=3 * FEWEST)
    if answered:  # the first has many windows
        at = torch.tensor([0] * FEWEST + [*range(len(answers))])
        held_out = replace(
            held_out,
            x=held_out.x[at],
            mask=held_out.mask[at],
            target=held_out.target[at],
            owner=held_out.owner[at],
        )
    told = too_few(task, held_out)
    if answered == FEWEST:
        assert told is None
        return
    assert told is not None
    assert (told.value, told.people, told.interval) == (None, None, None)
    assert str(FEWEST) in told.reason


@pytest.mark.parametrize(("count", "shown"), [(24, False), (120, True)])
def test_the_card_and_facts_say_why_there_is_no_figure(
    tmp_path: Path, count: int, *, shown: bool
) -> None:
    run = train(study(training__steps=2), out=tmp_path, people=people(count))
    (told,) = json.loads(run.folder.facts.read_text())["utility"]
    page = write_card(run.folder.path).read_text()
    assert (told["value"] is not None) == shown
    assert ("not told: fewer than 20" in page) != shown
    assert shown or told["people"] is None


@pytest.mark.parametrize(
    ("declared", "word"), [(1000, "warning"), (80, ""), (72, ""), (60, "WARNING"), (10, "WARNING")]
)
def test_a_population_far_from_the_people_is_remarked(declared: int, word: str) -> None:
    said = crowd(study(data__population=declared), people(90))  # of whom 72 are trained on
    assert said.partition(":")[0] == word
