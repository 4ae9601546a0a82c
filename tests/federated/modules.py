"""Modules of users for tests: some draw numbers, some keep what they saw."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

SEEN = [0.0]


class Base(nn.Module):
    """A small network over each step; `body` is what differs."""

    def __init__(self, shape):
        super().__init__()
        self.inner, self.head = nn.Linear(shape.features, 8), nn.Linear(8, shape.outputs)
        self.each_step = shape.pool == "none"

    def forward(self, x, mask=None, codes=None):
        answers = self.head(self.body(torch.tanh(self.inner(x)), x))
        return answers if self.each_step else answers.mean(1)


class Plain(Base):
    def body(self, hidden, x):
        return hidden


class Dropout(Base):
    def body(self, hidden, x):
        return nn.functional.dropout(hidden, 0.5, training=self.training)


class Noise(Base):
    def body(self, hidden, x):
        return hidden + torch.randn_like(hidden)


class OneMask(Base):
    def body(self, hidden, x):
        return hidden * torch.rand(hidden.shape[-1])


class Elsewhere(Base):
    def body(self, hidden, x):
        return hidden * (np.random.rand() + random.random())


class Attribute(Base):
    def __init__(self, shape):
        super().__init__(shape)
        self.total = 0.0

    def body(self, hidden, x):
        self.total = self.total + float(x.sum())
        return torch.tanh(hidden + self.total)


class InPlace(Attribute):
    def __init__(self, shape):
        super().__init__(shape)
        self.seen = [0.0]

    def body(self, hidden, x):
        self.seen[0] += float(x.sum()) + 1.0
        return torch.tanh(hidden + self.seen[0])


class Tensors(Base):
    def __init__(self, shape):
        super().__init__(shape)
        self.seen = {"sum": torch.zeros(1)}

    def body(self, hidden, x):
        self.seen["sum"] += x.sum().detach() + 1.0
        return torch.tanh(hidden + self.seen["sum"])


class Buffer(Base):
    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("mean", torch.zeros(8))

    def body(self, hidden, x):
        self.mean.mul_(0.9).add_(hidden.detach().mean((0, 1)) + 0.1)
        return hidden - self.mean


class Global(Base):
    """What no look into the module finds."""

    def body(self, hidden, x):
        SEEN[0] += float(x.sum()) + 1.0
        return torch.tanh(hidden + 0.1 * SEEN[0])


class InClass(Base):
    """In an attribute of its class."""

    seen = 0.0

    def body(self, hidden, x):
        InClass.seen += float(x.sum()) + 1.0
        return torch.tanh(hidden + 0.1 * InClass.seen)


class InDefault(Base):
    """In a function's default."""

    def body(self, hidden, x, seen=[0.0]):  # noqa: B006
        seen[0] += float(x.sum()) + 1.0
        return torch.tanh(hidden + 0.1 * seen[0])


DRAW = (Dropout, Noise, OneMask, Elsewhere)
KEEP = (Attribute, InPlace, Tensors, Buffer, Global)
BESIDE = (Global, InClass, InDefault)
