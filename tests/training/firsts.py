"""Modules of users that fill something at first use: what never depends on anybody, and what does.

Globals and caches here are filled for the whole process: each test loads this file anew.
"""

from __future__ import annotations

import functools
import random

import numpy as np
import torch
from torch import nn

REGISTRY: dict[type, object] = {}
MASKS: dict[int, torch.Tensor] = {}
TABLE: torch.Tensor | None = None
SEEN: dict[str, object] = {}
VALUES: dict[float, float] = {}
FIRST: torch.Tensor | None = None
SIZES: dict[int, torch.Tensor] = {}


class Base(nn.Module):
    """A small network over each step; `body` is what differs."""

    def __init__(self, shape):
        super().__init__()
        self.inner, self.head = nn.Linear(shape.features, 8), nn.Linear(8, shape.outputs)
        self.each_step = shape.pool == "none"

    def forward(self, x, mask=None, codes=None):
        answers = self.head(self.body(torch.tanh(self.inner(x)), x))
        return answers if self.each_step else answers.mean(1)


def decay(steps):
    return torch.arange(1, steps + 1, dtype=torch.float32).reciprocal()[:, None]


class Backend:
    """As libraries find the framework of a tensor when they first meet one."""

    framework_name = "torch"

    def __init__(self):
        self.joined = None

    def join(self, parts):
        if self.joined is None:
            self.joined = "cat"
        return torch.cat(parts, -1)


def backend_of(tensor):
    found = REGISTRY.get(type(tensor))
    if found is None:
        REGISTRY[type(tensor)] = found = Backend()
    return found


class Registry(Base):
    def body(self, hidden, x):
        return backend_of(hidden).join([hidden[..., :3], hidden[..., 3:]])


@functools.lru_cache
def causal(steps):
    return torch.ones(steps, steps).tril() / steps


class LengthCache(Base):
    def body(self, hidden, x):
        return causal(x.shape[1]) @ hidden


class GlobalMasks(Base):
    def body(self, hidden, x):
        steps = x.shape[1]
        if steps not in MASKS:
            MASKS[steps] = decay(steps)
        return hidden * MASKS[steps]


class GlobalName(Base):
    def body(self, hidden, x):
        global TABLE
        if TABLE is None:
            TABLE = decay(x.shape[1])
        return hidden * TABLE


class OfClass(Base):
    table = None

    def body(self, hidden, x):
        if OfClass.table is None:
            OfClass.table = decay(x.shape[1])
        return hidden * OfClass.table


class Rotary(Base):
    def __init__(self, shape):
        super().__init__(shape)
        self.cos = None

    def body(self, hidden, x):
        if self.cos is None or len(self.cos) < x.shape[1]:
            self.cos = decay(x.shape[1]).cos().to(hidden.dtype)
        return hidden * self.cos[: x.shape[1]]


class Passing(Base):
    """A buffer that does not leave with the model."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("table", None, persistent=False)

    def body(self, hidden, x):
        if self.table is None:
            self.table = decay(x.shape[1])
        return hidden * self.table


class Inside(Base):
    """In an object that the module holds."""

    def __init__(self, shape):
        super().__init__(shape)
        self.tables = {"by steps": {}}

    def body(self, hidden, x):
        return hidden * self.tables["by steps"].setdefault(x.shape[1], decay(x.shape[1]))


class OfFeatures(Base):
    """Of numbers drawn when it was made, which are no weights."""

    def __init__(self, shape):
        super().__init__(shape)
        self.drawn, self.waves = torch.randn(8), None

    def body(self, hidden, x):
        if self.waves is None:
            self.waves = self.drawn.cos()
        return hidden + self.waves


class Dropped(Rotary):
    """Draws numbers from everywhere."""

    def body(self, hidden, x):
        hidden = super().body(hidden, x) * (np.random.rand() + random.random())
        return nn.functional.dropout(hidden, 0.5, training=self.training)


CONSTANT = (Registry, LengthCache, GlobalMasks, GlobalName, OfClass, Rotary, Passing, Inside,
            OfFeatures, Dropped)  # fmt: skip


class FirstMean(Base):
    def __init__(self, shape):
        super().__init__(shape)
        self.mean = None

    def body(self, hidden, x):
        if self.mean is None:
            self.mean = x.mean((0, 1)).sum()
        return hidden - self.mean


class FirstNumber(FirstMean):
    def body(self, hidden, x):
        if self.mean is None:
            self.mean = float(x.mean())
        return hidden - self.mean


class FirstShift(FirstMean):
    """At the first pass nothing is added, later what was seen then."""

    def body(self, hidden, x):
        was = 0.0 if self.mean is None else self.mean
        self.mean = self.mean if self.mean is not None else x.detach().sum()
        return hidden + was


class FirstInGlobal(Base):
    def body(self, hidden, x):
        return hidden - SEEN.setdefault("mean", x.mean())


class FirstInGlobalName(Base):
    def body(self, hidden, x):
        global FIRST
        if FIRST is None:
            FIRST = x.std()
        return hidden * FIRST


class FirstInClass(Base):
    first = None

    def body(self, hidden, x):
        if FirstInClass.first is None:
            FirstInClass.first = float(x.sum())
        return hidden * FirstInClass.first


class FirstInDefault(Base):
    def body(self, hidden, x, kept={}):  # noqa: B006
        return hidden * kept.setdefault(0, x.detach().mean())


class FirstInFunction(Base):
    def body(self, hidden, x):
        return hidden * first_of(x)


def first_of(x):
    if not hasattr(first_of, "kept"):
        first_of.kept = x.mean()
    return first_of.kept


class FirstInPassing(Passing):
    def body(self, hidden, x):
        if self.table is None:
            self.table = x.mean((0, 1)).sum()
        return hidden * self.table


class FirstInBuffer(Base):
    """A buffer that would leave with the model."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("centre", None)

    def body(self, hidden, x):
        if self.centre is None:
            self.centre = torch.zeros(8)
        return hidden - self.centre


class FirstScale(Base):
    """Weights set by the first batch, as ActNorm sets them."""

    def __init__(self, shape):
        super().__init__(shape)
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("ready", torch.zeros(()))

    def body(self, hidden, x):
        if not self.ready:
            self.scale.data = 1 / (hidden.detach().std((0, 1)) + 1)
            self.ready.fill_(1.0)
        return hidden * self.scale


class ByContent(Base):
    def body(self, hidden, x):
        return hidden * VALUES.setdefault(float(x.sum()), float(x.mean()))


@functools.lru_cache
def shifted(number):
    return number + 1.0


class CacheByContent(Base):
    def body(self, hidden, x):
        return hidden * shifted(float(x.mean()))


class ByWindows(Base):
    def body(self, hidden, x):
        windows = len(x)
        return hidden * SIZES.setdefault(windows, torch.ones(windows, 1, 1))


class OfWeights(Base):
    """What training would leave behind."""

    def __init__(self, shape):
        super().__init__(shape)
        self.product = None

    def body(self, hidden, x):
        if self.product is None:
            self.product = self.inner.weight.sum()
        return hidden * self.product


class Last(FirstMean):
    def body(self, hidden, x):
        was, self.mean = self.mean, x.detach().mean()
        return hidden if was is None else hidden - was


class Spectral(Base):
    """Whose vectors move at every pass in training."""

    def __init__(self, shape):
        super().__init__(shape)
        self.mix = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))

    def body(self, hidden, x):
        return self.mix(hidden)


DEPENDING = (
    FirstMean, FirstNumber, FirstShift, FirstInGlobal, FirstInGlobalName, FirstInClass,
    FirstInDefault, FirstInFunction, FirstInPassing, FirstInBuffer, FirstScale, ByContent,
    CacheByContent, ByWindows, OfWeights, Last,
)  # fmt: skip
