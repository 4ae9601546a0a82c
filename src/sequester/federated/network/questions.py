"""Questions about a round: whether they are what was agreed, and how answers are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from sequester import __version__
from sequester.core.errors import UsageError
from sequester.federated import round as machine
from sequester.federated.clients import COUNTS, Devices, Silos
from sequester.federated.messages import Layout, Update, Vector, version_of
from sequester.federated.network.frames import Answers, Arrays, Ask, Enrol, Request
from sequester.federated.network.module import check_module
from sequester.federated.network.site import Corrected, Recorder, by_people, layout_for
from sequester.federated.settings import Federated, settings_of
from sequester.mechanism import Plan
from sequester.training.resumption import Begun
from sequester.training.study import Study

KIND = "flower"
"""Of a run across machines."""


@dataclass(frozen=True)
class Terms:
    """What a study amounts to at this node.

    Attributes:
        study: On this node's own file.
        begun: What the run decided at its start.
        layout: Of updates.
        plan: None without privacy.
        persons: Whether clients are people.
    """

    study: Study
    begun: Begun
    layout: Layout
    plan: Plan | None
    persons: bool


def terms_of(study: Study, run: str, decisions: str) -> Terms:
    """What a study, on this node's own file, and a run's decisions come to.

    Raises:
        UsageError: SQ-641 for decisions that are none of this run, SQ-635 or SQ-658 for a network
            that is not the server's or cannot be trained.
    """
    try:
        begun = msgspec.json.decode(decisions.encode(), type=Begun)
    except msgspec.MsgspecError:
        raise UsageError(641, "the run's decisions cannot be read") from None
    settings = settings_of(study)
    check_decisions(begun, run, settings)
    check_module(study, begun)
    layout = layout_for(study, settings)
    inner = layout.size - (len(COUNTS) if layout.dtype == "float64" else 0)
    plan = begun.plan(study, parameters=inner)
    return Terms(study, begun, layout, plan, by_people(settings))


def check_server(asked: Enrol, limit: int) -> None:
    """Refuse a server of another version, or one whose messages are larger than this node takes.

    Raises:
        UsageError: SQ-630 or SQ-635; both sides' are named.
    """
    if asked.version != __version__:
        raise UsageError(
            635,
            f"the server runs sequester {asked.version} and this node {__version__}; install "
            "one version everywhere",
        )
    if asked.limit > limit:
        raise UsageError(
            630,
            f"the server's messages have up to {asked.limit} bytes and this node takes "
            f"{limit}; give the node limit-mb = {-(-asked.limit >> 20) or 1} or more, or "
            "lower the app's limit-mb",
        )


def check_decisions(begun: Begun, run: str, settings: Federated) -> None:
    """Refuse decisions under which less would be charged than happens here.

    Raises:
        UsageError: SQ-641.
    """
    if begun.run != run or begun.steps < 1:
        raise UsageError(641, "the run's decisions are another run's, or name no round")
    shares = settings.secagg is not None and settings.secagg.noise != "none"
    if begun.kind != KIND or begun.setup or (begun.mechanism and not shares):
        raise UsageError(641, "the run's decisions count on noise that nobody adds here")


def in_secret(terms: Terms) -> bool:
    """Whether updates are summed in secret."""
    return settings_of(terms.study).secagg is not None


def check_round(ask: Request, terms: Terms) -> None:
    """Refuse a question that is not what was agreed.

    Raises:
        UsageError: SQ-635 for another layout, SQ-641 for a round or bound that is not the plan's.
    """
    plan, layout = terms.plan, terms.layout.digest()
    if ask.layout != layout:
        raise UsageError(635, f"the question has layout {ask.layout}, this node's is {layout}")
    if not 0 <= ask.round < terms.begun.steps:
        raise UsageError(641, f"round {ask.round} lies outside the {terms.begun.steps} agreed to")
    if not (ask.clip > 0 or plan is None) or not np.isfinite(ask.clip):
        raise UsageError(641, f"the bound must be > 0, got {ask.clip}")
    if plan is not None and plan.adaptive is None and ask.clip != plan.clip:
        raise UsageError(641, f"the bound is {plan.clip} in this study, asked for {ask.clip}")


def model_of(ask: Request, tensors: Arrays, layout: Layout) -> Vector:
    """The model that was sent.

    Raises:
        UsageError: SQ-641 without one, SQ-635 with both versions for another one.
    """
    model = tensors.get("model")
    if model is None or model.dtype != np.float32 or model.ndim != 1:
        raise UsageError(641, "this question holds no model")
    size = layout.size - (len(COUNTS) if layout.dtype == "float64" else 0)
    version = version_of(layout, model) if len(model) == size else f"of {len(model)} numbers"
    if version != ask.version:
        raise UsageError(
            635, f"the question is about model {ask.version}, but holds model {version}"
        )
    return model


def correct(crowd: Devices, ask: Ask, tensors: Arrays) -> None:
    """Hand the clients the corrections that came with the question.

    Raises:
        UsageError: SQ-641 for corrections of another shape.
    """
    inner = crowd.algorithm.inner if isinstance(crowd.algorithm, Corrected) else crowd.algorithm
    crowd.algorithm = inner  # corrections of an earlier question are over
    rows = tensors.get("correction")
    if rows is None:
        return
    if rows.shape != (len(ask.clients), crowd.layout.size) or rows.dtype != np.float32:
        raise UsageError(641, "the question's corrections have another shape than its clients")
    corrections = {client: rows[place] for place, client in enumerate(ask.clients)}
    crowd.algorithm = Corrected(inner, corrections)


def counts_of(update: Update, terms: Terms) -> tuple[int, float]:
    """Steps and weight that leave: with a guarantee, no more than the server's sum depends on.

    How many windows a person has is private; only a weighting with a public cap asks for it.
    """
    if terms.plan is None:
        return update.steps, update.weight
    settings = settings_of(terms.study)
    return 1, min(update.weight, settings.weight_cap) if settings.weighting == "capped" else 1.0


def answers_of(
    ask: Ask, events: Sequence[machine.Event], crowd: Devices | Silos, terms: Terms
) -> tuple[Answers, Arrays]:
    """Pack what the clients did, in the order they were asked."""
    reasons: list[str] = []
    updates: list[Update] = []
    for event in events:
        if isinstance(event, machine.Arrived):
            updates.append(event.update)
            reasons.append("")
        elif isinstance(event, machine.Lost):
            reasons.append(str(event.reason))
    tensors: dict[str, np.ndarray] = {}
    sizes: list[int] = []
    recorder = crowd.feedback if isinstance(crowd, Devices) else None
    if isinstance(recorder, Recorder):
        codes = [recorder.made[update.client] for update in updates]
        sizes = [len(code) for code in codes]
        tensors["codes"] = np.frombuffer(b"".join(codes), dtype=np.uint8)
    else:
        layout = crowd.layout
        rows = [layout.flatten(update.tensors) for update in updates]
        shape = (len(rows), layout.size)
        tensors["deltas"] = np.stack(rows) if rows else np.zeros(shape, dtype=layout.dtype)
    counts = [counts_of(update, terms) for update in updates]
    header = Answers(
        run=ask.run,
        round=ask.round,
        version=ask.version,
        clients=ask.clients,
        nonces=ask.nonces,
        reasons=tuple(reasons),
        steps=tuple(steps for steps, _ in counts),
        weights=tuple(weight for _, weight in counts),
        sizes=tuple(sizes),
        ticket=ask.ticket,
    )
    return header, tensors
