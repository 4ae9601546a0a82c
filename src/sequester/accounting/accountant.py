"""The accountant's front door: ε of an event at δ, δ at ε, Rényi curve. Upper bounds only."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sequester.accounting import checks, gaussian, pld, renyi
from sequester.accounting.events import Event
from sequester.accounting.lower import Parts, lower
from sequester.accounting.parts import GaussianPart
from sequester.core.errors import UsageError
from sequester.core.values import check_epsilon


def epsilon(
    event: Event,
    delta: float,
    *,
    adjacency: str = "add-or-remove",
    accountant: str = "pld",
) -> float:
    """Certified upper bound on ε at `delta`.

    Args:
        event: What touched the data.
        delta: δ in [0, 1); 0 asks for pure differential privacy, mostly ∞.
        adjacency: "add-or-remove", "zero-out" or "replace-one".
        accountant: "pld" takes the best of all bounds; "rdp" only the Rényi bound.

    Raises:
        UsageError: SQ-201, 210, 211 or 213.
    """
    checks.delta_or_zero(delta)
    checks.accountant(accountant)
    parts = lower(event, checks.adjacency(adjacency))
    return _epsilon(parts, float(delta), accountant)


@lru_cache(maxsize=4096)
def _epsilon(parts: Parts, delta: float, accountant: str) -> float:
    if not parts:
        return 0.0
    if accountant == "pld" and (mu := only_gaussian(parts)) is not None:
        return gaussian.epsilon(delta, mu)
    rough = renyi_epsilon(parts, delta) if delta > 0.0 else math.inf
    if accountant == "rdp" or delta == 0.0:
        return rough
    tight = pld.epsilon(parts, delta, rough)
    return rough if tight is None else min(rough, tight)


def rdp_curve(event: Event, orders: object, *, adjacency: str = "add-or-remove") -> np.ndarray:
    """Upper bound on the Rényi divergence at each of `orders`, shape `(orders,)`.

    Raises:
        UsageError: SQ-210, 211 or 216; SQ-213 if the event has no curve, because its guarantee
            holds only outside a small probability.
    """
    parts = lower(event, checks.adjacency(adjacency))
    if any(part.slack > 0.0 for part, _ in parts):
        raise UsageError(
            213,
            "this event has no Rényi curve: with a small probability its loss is infinite. Ask "
            "for its epsilon at a delta instead, which counts that probability",
        )
    return renyi.total([(part.renyi, n) for part, n in parts], orders)


def renyi_epsilon(parts: Parts, delta: float) -> float:
    """ε at `delta` by the Rényi bound, minimised over real orders."""
    return best_order(parts, delta)[1]


def best_order(parts: Parts, delta: float) -> tuple[float, float]:
    """(order, ε) of the best Rényi bound at `delta`."""
    left = delta - _slack(parts)
    if left <= 0.0:
        return 2.0, math.inf
    return renyi.minimise(lambda order: renyi.epsilon_at(order, _renyi(parts, order), left))


def _renyi(parts: Parts, order: float) -> float:
    return sum(n * part.renyi(order) for part, n in parts)


def _slack(parts: Parts) -> float:
    """Upper bound on the probability that any part meets an infinite loss."""
    kept = sum(n * math.log1p(-part.slack) for part, n in parts if part.slack > 0.0)
    return -math.expm1(kept) * (1.0 + 1e-12)


def only_gaussian(parts: Parts) -> float | None:
    """μ if the composition is one Gaussian, else None."""
    if len(parts) == 1 and isinstance(parts[0][0], GaussianPart):
        return parts[0][0].mu
    return None


def delta(
    event: Event,
    epsilon: float,
    *,
    adjacency: str = "add-or-remove",
    accountant: str = "pld",
) -> float:
    """Certified upper bound on δ at `epsilon`.

    Raises:
        UsageError: SQ-202, also for ε = ∞, which every mechanism has; SQ-210, 211 or 213.
    """
    if math.isinf(check_epsilon(epsilon)):
        raise UsageError(202, "delta is asked for at a finite epsilon, got inf")
    checks.accountant(accountant)
    parts = lower(event, checks.adjacency(adjacency))
    if not parts:
        return 0.0
    if accountant == "pld" and (mu := only_gaussian(parts)) is not None:
        return gaussian.delta(epsilon, mu)
    rough = renyi_delta(parts, epsilon)
    if accountant == "rdp" or rough == 0.0:
        return rough
    tight = pld.delta(parts, epsilon, rough)
    return rough if tight is None else min(rough, tight)


def renyi_delta(parts: Parts, epsilon: float) -> float:
    """δ at `epsilon` by the Rényi bound."""
    slack = _slack(parts)
    _, log_delta = renyi.minimise(
        lambda order: renyi.log_delta_at(order, _renyi(parts, order), epsilon)
    )
    return min(1.0, slack + math.exp(log_delta))
