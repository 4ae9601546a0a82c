"""Clipping rules: how much of a person's gradient may enter the sum.

A rule turns a person's group norms into group factors such that the clipped gradient's L2
norm never exceeds `sensitivity()`. Rules see one person at a time, so no person's factor
depends on another person.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sequester.core.errors import UsageError

# Factors are shrunk by this much, so that float32 rounding in a norm never lifts a
# clipped gradient above its bound.
MARGIN = 2.0**-21


@runtime_checkable
class ClippingRule(Protocol):
    """A clipping rule is a frozen value."""

    def sensitivity(self) -> float:
        """The largest L2 norm one person can add to the sum."""
        ...

    def groups(self, names: Sequence[str]) -> list[int]:
        """The group of each parameter, numbered from 0."""
        ...

    def factors(self, norms: Tensor) -> Tensor:
        """Factors for `norms`, both `(people, groups)` float64."""
        ...


def _positive(value: float, what: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(402, f"{what} must be a finite number > 0, got {value}")


@dataclass(frozen=True)
class Flat:
    """One norm over all parameters: `g · min(1, C / ‖g‖)` (Abadi et al. 2016, algorithm 1)."""

    limit: float

    def __post_init__(self) -> None:
        """Check the limit."""
        _positive(self.limit, "clip")

    def sensitivity(self) -> float:
        """`C`."""
        return self.limit

    def groups(self, names: Sequence[str]) -> list[int]:
        """Every parameter in group 0."""
        return [0] * len(names)

    def factors(self, norms: Tensor) -> Tensor:
        """`min(1, C / ‖g‖)`, where a zero gradient keeps factor 1."""
        scale = self.limit * (1.0 - MARGIN) / norms
        return torch.where(norms > self.limit * (1.0 - MARGIN), scale, torch.ones_like(norms))


@dataclass(frozen=True)
class Automatic:
    """Normalised gradients: `g · C / (‖g‖ + γ)` (Bu et al. 2023, "Automatic Clipping").

    The limit then only scales the learning rate, so there is nothing to tune on private data.
    """

    limit: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        """Check both numbers."""
        _positive(self.limit, "clip")
        _positive(self.stability, "stability")

    def sensitivity(self) -> float:
        """`C`: the factor times the norm stays below it."""
        return self.limit

    def groups(self, names: Sequence[str]) -> list[int]:
        """Every parameter in group 0."""
        return [0] * len(names)

    def factors(self, norms: Tensor) -> Tensor:
        """`C / (‖g‖ + γ)`."""
        return self.limit * (1.0 - MARGIN) / (norms + self.stability)


@dataclass(frozen=True)
class PerLayer:
    """A norm and a limit per group of parameters; sensitivity `√(Σ limits²)`.

    Attributes:
        limit: The total; each group gets `limit / √groups` unless `limits` says otherwise.
        limits: Prefix of parameter names to that group's own limit, for example
            `{"rnn": 1.0, "head": 0.5}`. Every parameter must match exactly one prefix.
        layers: Prefixes of equal share, used when `limits` is empty.
    """

    limit: float = 1.0
    limits: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the limits and that there are groups."""
        _positive(self.limit, "clip")
        for prefix, value in self.limits.items():
            _positive(value, f"the clip of {prefix!r}")
        if bool(self.limits) == bool(self.layers):
            raise UsageError(
                402,
                "per-layer clipping needs either limits={prefix: limit} or layers=(prefix, …); "
                "PerLayer.of(model, limit) takes every layer with parameters",
            )

    @classmethod
    def of(cls, model: torch.nn.Module, limit: float) -> PerLayer:
        """One group for each module that owns trainable parameters itself."""
        owners = [
            path
            for path, module in model.named_modules()
            if any(p.requires_grad for p in module.parameters(recurse=False))
        ]
        return cls(limit=limit, layers=tuple(owners))

    def _limits(self) -> list[float]:
        if self.limits:
            return list(self.limits.values())
        return [self.limit / math.sqrt(len(self.layers))] * len(self.layers)

    def sensitivity(self) -> float:
        """`√(Σ limits²)`, since the groups are orthogonal."""
        return math.hypot(*self._limits())

    def groups(self, names: Sequence[str]) -> list[int]:
        """The longest matching prefix of each name.

        Raises:
            UsageError: SQ-402 for a parameter that no prefix covers.
        """
        prefixes = list(self.limits) if self.limits else list(self.layers)
        found = []
        for name in names:
            matching = [p for p in prefixes if not p or name == p or name.startswith(p + ".")]
            if not matching:
                raise UsageError(
                    402, f"no clip is given for parameter {name!r}; the prefixes are {prefixes}"
                )
            found.append(prefixes.index(max(matching, key=len)))
        return found

    def factors(self, norms: Tensor) -> Tensor:
        """`min(1, C_group / ‖g_group‖)`."""
        # The last groups may have no parameter: a tied one counts where its first name is.
        limits = norms.new_tensor(self._limits()[: norms.shape[1]]) * (1.0 - MARGIN)
        return torch.where(norms > limits, limits / norms, torch.ones_like(norms))


def as_rule(clip: float | ClippingRule) -> ClippingRule:
    """A number means one norm over all parameters.

    Raises:
        UsageError: SQ-402 for anything that is neither a positive number nor a rule.
    """
    if isinstance(clip, bool) or not isinstance(clip, int | float | ClippingRule):
        raise UsageError(
            402, f"clip must be a number > 0 or a clipping rule, got {type(clip).__name__}"
        )
    return Flat(float(clip)) if isinstance(clip, int | float) else clip
