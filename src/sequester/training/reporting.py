"""The end of a run: weights, claim and facts, all from what ran."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import msgspec
from safetensors.torch import save
from torch import nn

from sequester import accounting
from sequester.accounting import Event
from sequester.core.files import write_atomic
from sequester.gradients import checks
from sequester.mechanism import Claim, Conditions, Plan
from sequester.models import KINDS
from sequester.training.charging import Charge, evaluation_plan
from sequester.training.dataset import each_step
from sequester.training.evaluation import Utility, private_figure, public_figures, too_few
from sequester.training.session import Session
from sequester.training.study import Study

_CURVE_POINTS = 24


def epsilon_of(plan: Plan | None, ran: Event | None) -> float:
    """ε of what ran, ∞ without privacy."""
    if plan is None or ran is None:
        return math.inf
    return accounting.epsilon(ran, plan.delta, adjacency=plan.adjacency)


Amend = Callable[[Claim, dict[str, Any]], None]


def finish(
    session: Session, charge: Charge, amend: Amend | None = None
) -> tuple[Claim, tuple[Utility, ...]]:
    """Release the weights; settle the charge; write facts and, last, the claim.

    Args:
        session: At the end of its steps.
        charge: Its reservation.
        amend: Adds what another way of training takes for granted, to claim and facts, before
            either is written: a claim on disk is whole.
    """
    state, study, folder = session.state, session.study, session.folder
    state.average.write_into(state.model)
    if study.privacy.mode == "dp":  # other engines than the clipped sum's may have run the model
        checks.refuse_written(state.model, session.constant, trainable=False)
    weights = save({k: v.detach().contiguous() for k, v in state.model.state_dict().items()})
    write_atomic(folder.weights, weights)
    # A server of distant sites holds nobody, and judges nobody. Whether a protected hold-out holds
    # anybody is itself protected.
    protected = study.data.holdout.protection == "privatised"
    judged = protected or session.prepared.held_out.people > 0
    judge = session.judged
    figures = () if judge is None or not judged else _evaluate(session, judge)
    ran = session.ran()
    row = charge.commit(ran)
    bounded = study.unit.kind != "person" and study.data.max_per_person > 0
    conditions = Conditions(
        data=source_name(study),
        fingerprint=session.begun.data,
        private=study.privacy.insecure_test_seed is None,
        max_per_person=study.data.max_per_person if bounded else None,
        ledger=row,
        assumptions=_assumptions(study, judged=bool(figures)),
        not_evidenced=_not_evidenced(study, charged=row is not None),
    )
    if session.plan is None or ran is None:
        claim = Claim.without_privacy(study.data.population, study.privacy.delta, conditions)
    else:
        claim = Claim.of(session.plan, ran, conditions)
    facts = _facts(session, figures)
    if amend is not None:
        amend(claim, facts)
    write_atomic(folder.facts, msgspec.json.format(msgspec.json.encode(facts), indent=1))
    claim.write(folder.claim)
    return claim, figures


def _evaluate(session: Session, model: nn.Module) -> tuple[Utility, ...]:
    study, prepared = session.study, session.prepared
    held = study.data.holdout
    if held.protection == "public":
        few = None if study.data.simulated else too_few(prepared.task, prepared.held_out)
        if few is not None:
            return (few,)
        return public_figures(prepared.task, model, prepared.held_out)
    figure = private_figure(
        prepared.task,
        model,
        prepared.held_out,
        multiplier=evaluation_plan(study).release.noise_multiplier,
        stream=session.stream("evaluation"),
    )
    return (figure,)


_OWN_MODULE = (
    "The user's own module keeps nothing of one person for another; what it holds and what its "
    "code reaches was compared, and a few people were taken in two orders, now and then."
)

_TUNED = {
    "public": ("The settings were chosen on public or simulated people, as the study declares.",),
    "charged": (
        "The settings were chosen in trials charged to the ledger, as the study declares.",
    ),
}


def _assumptions(study: Study, *, judged: bool) -> tuple[str, ...]:
    held = study.data.holdout
    if not judged:
        about = "No figure of merit was computed."
    elif held.protection == "privatised":
        proviso = "" if study.privacy.insecure_test_seed is None else ", were its noise secret"
        about = (
            f"Held-out people were used for one noisy figure only, (ε = {held.epsilon:g}, "
            f"δ = {study.privacy.delta:g}{proviso}) for each of them; no training person was held "
            "out."
        )
    else:
        about = (
            "The figure of merit was computed on held-out people without protection: they are "
            "outside this claim. Who is held out is decided for each person alone."
        )
    unit = study.unit.kind
    units = (
        ()
        if unit == "person"
        else (
            f"Neighbouring data differ in one {unit} that training used, after at most "
            f"{study.data.max_per_person or 'all'} of each person were kept.",
        )
    )
    own = () if study.model.kind in KINDS else (_OWN_MODULE,)
    return (about, *units, *own, *_TUNED.get(study.privacy.tuned_on, ()))


def _not_evidenced(study: Study, *, charged: bool) -> tuple[str, ...]:
    said: tuple[str, ...] = () if charged else ("A ledger: none was declared for this run.",)
    if study.privacy.tuned_on == "private":
        said += ("What the choice of settings reveals: uncharged trials on these people, it says.",)
    return said


def _facts(session: Session, figures: tuple[Utility, ...]) -> dict[str, Any]:
    """`facts.json`: declarations, plan and curves that are public; see its schema."""
    study, data = session.study, session.study.data
    declared: dict[str, Any] = {
        "population": data.population,
        "features": ", ".join(
            f"{name} [{f.lower:g}, {f.upper:g}]" for name, f in data.features.items()
        ),
        "categories": ", ".join(
            f"{name} ({len(c.values)} values)" for name, c in data.categories.items()
        ),
        "window": f"{data.window} steps, every {data.stride}",
        "windows per person": str(data.max_per_person) if data.max_per_person else "all",
        "hold-out": _holdout_words(study),
    }
    parameters = sum(p.numel() for p in session.state.model.parameters())
    return {
        "schema": "sequester/facts/1",
        "status": "private" if study.protects else "NOT PRIVATE",
        "study": study.name,
        "title": study.title or study.name,
        "task": task_words(study),
        "data": {
            "description": data.description or f"People's records from {source_name(study)}.",
            "simulated": data.simulated,
            "source": source_name(study),
            **({"licence": data.licence} if data.licence else {}),
            "declared": {name: value for name, value in declared.items() if value},
        },
        "model": {"name": study.model.kind, "parameters": parameters},
        "plan": _plan_words(session),
        "curves": _curves(session),
        "utility": [
            {
                "metric": utility.metric,
                "value": utility.value,
                "people": utility.people,
                "interval": list(utility.interval) if utility.interval else None,
                "baseline": utility.baseline,
                "baseline_name": utility.baseline_name,
                "protection": "simulated" if data.simulated else utility.protection,
                **({"reason": utility.reason} if utility.reason else {}),
            }
            for utility in figures
        ],
    }


def source_name(study: Study) -> str:
    """The source without its folders, which name the operator's machine."""
    return PurePath(study.data.source).name


def _holdout_words(study: Study) -> str:
    held = study.data.holdout
    return f"{held.column} = {held.value}" if held.column else f"{held.share:.0%} of people"


def task_words(study: Study) -> str:
    """What the model predicts, in a sentence."""
    data = study.data
    ahead = "next" if data.horizon == 1 else f"{data.horizon} records ahead"
    if data.task == "next":
        return f"Predict the {ahead} “{data.label}” of a person."
    if data.task == "forecast":
        return f"Forecast “{data.label}”, {ahead}."
    where = "at every record" if each_step(data) else f"for each {data.level}"
    return f"Predict “{data.label}” (yes or no) {where}."


def _plan_words(session: Session) -> dict[str, Any]:
    plan, training = session.plan, session.study.training
    shared: dict[str, Any] = {
        "steps": session.state.step,
        "sampling rate": training.sampling_rate,
        "optimiser": training.optimizer,
        "learning rate": training.learning_rate,
        "average of weights": training.average,
    }
    if plan is None:
        return {**shared, "noise": "none"}
    return {
        **shared,
        "expected lot": plan.expected_lot,
        "clipping": session.study.privacy.clipping,
        "first clip": plan.clip,
        "noise multiplier": plan.noise_multiplier,
        "noise on the gradient": plan.gradient_noise_multiplier,
        "set-up releases": len(plan.setup),
    }


def _curves(session: Session) -> list[dict[str, Any]]:
    """Curves that follow from public numbers alone, or from charged outputs."""
    plan = session.plan
    if plan is None:
        return []
    steps = _knots(session.state.step)
    spent = [accounting.epsilon(plan.event(n), plan.delta, adjacency=plan.adjacency) for n in steps]
    curves = [
        {
            "title": "ε spent" if session.study.protects else "ε spent, were the noise secret",
            "x_label": "step",
            "y_label": f"ε at δ = {plan.delta:g}",
            "x": steps,
            "y": spent,
            "limit": session.study.privacy.epsilon,
            "protection": "public",
        }
    ]
    # The bound of a step is a declared constant, or a noisy output that was charged.
    clips = {m.step: m.clip for m in session.monitor.measures}
    shown = [n - 1 for n in steps if n - 1 in clips]
    if shown:
        curves.append(
            {
                "title": "Noise on the sum of gradients",
                "x_label": "step",
                "y_label": "standard deviation",
                "x": shown,
                "y": [plan.gradient_noise_multiplier * plan.sensitivity(clips[n]) for n in shown],
                "limit": None,
                "protection": "privatised" if session.study.privacy.adaptive else "public",
            }
        )
    return [*curves, *_clipped(session, plan, steps)]


def _clipped(session: Session, plan: Plan, steps: list[int]) -> list[dict[str, Any]]:
    """The noisy share of people clipped, which every step paid for; averaged between knots."""
    released = {m.step: m.clipped_released for m in session.monitor.measures}
    counted = [(n, share) for n, share in released.items() if share is not None]
    if plan.adaptive is None or not counted:
        return []
    x, y, fewest = [], [], len(counted)
    for before, knot in pairwise([0, *steps]):
        if shares := [share for n, share in counted if before <= n < knot]:
            x.append(knot - 1)
            y.append(min(1.0, max(0.0, sum(shares) / len(shares))))
            fewest = min(fewest, len(shares))
    deviation = plan.adaptive.count_noise / plan.expected_lot / math.sqrt(fewest)
    return [
        {
            "title": f"People clipped: noisy counts, charged; standard deviation {deviation:.2g}",
            "x_label": "step",
            "y_label": "share of the expected lot",
            "x": x,
            "y": y,
            "limit": None,
            "protection": "privatised",
        }
    ]


def _knots(steps: int) -> list[int]:
    """About `_CURVE_POINTS` step numbers from 1 to `steps`, the last one among them."""
    stride = max(1, steps // _CURVE_POINTS)
    return sorted({*range(stride, steps + 1, stride), steps} - {0})
