"""What must hold in every private step; checked in production, never switched off.

A failure is a defect of sequester or of the user's module, not of the data: the run stops
before anything of the step is released.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sequester.accounting import Event, Gaussian
from sequester.core.errors import SequesterError
from sequester.mechanism.plan import Plan

_DEVIATIONS = 9.0  # a true Gaussian or binomial passes this with probability below 1e-18
_LOWEST = 0 if sys.byteorder == "little" else 3  # of a double's four 16-bit parts


def check_noise(normals: Tensor) -> None:
    """Noise is double precision, uses its low bits and has variance 1.

    Raises:
        SequesterError: SQ-240.
    """
    if normals.dtype != torch.float64:
        _fail(f"noise must be float64, got {normals.dtype}")
    count = len(normals)
    if count < 64:
        return
    normals = normals.detach().contiguous()
    if not normals.numpy().view(np.int16)[_LOWEST::4].any():
        _fail("the low bits of the noise are all zero: it was made in a smaller precision")
    # A sum of `count` squares of standard normals has mean `count` and variance `2·count`.
    excess = abs(float(normals.dot(normals)) - count) / math.sqrt(2.0 * count)
    if not excess <= _DEVIATIONS + 40.0 / math.sqrt(count):  # nor where one is no number
        _fail(f"the noise's variance is off by {excess:.1f} standard deviations")


class Sampler(Protocol):
    """Draws lots, and issues the event of what it does."""

    def event(self, mechanism: Event) -> Event:
        """What `mechanism` amounts to when applied to its lots."""
        ...


def check_sampler(sampler: Sampler, plan: Plan) -> None:
    """The sampler at work is the one whose event is charged, at the same rate.

    Raises:
        SequesterError: SQ-240.
    """
    noisy = plan.mechanism or Gaussian(plan.noise_multiplier)
    if sampler.event(noisy) != plan.step_event():
        _fail("the sampler that draws the lots is not the one that the plan charges for")


def check_lot_size(drawn: int, people: int, rate: float) -> None:
    """The lot's size is one that independent coins of this rate can give.

    Raises:
        SequesterError: SQ-240.
    """
    deviation = math.sqrt(people * rate * (1.0 - rate))
    if abs(drawn - people * rate) > _DEVIATIONS * deviation + 25.0 * (rate < 1.0):
        _fail("the lot's size does not fit Poisson sampling at the planned rate")


def check_sensitivity(
    with_person: Mapping[str, Tensor], without: Mapping[str, Tensor], bound: float
) -> None:
    """Taking one unit out of the lot moves the clipped sum by no more than `bound`.

    Raises:
        SequesterError: SQ-240.
    """
    square = sum(
        float((with_person[name].double() - without[name].double()).square().sum())
        for name in with_person
    )
    if not math.sqrt(square) <= bound:
        _fail("one unit moved the clipped sum by more than the clipping bound")


def check_draws(draws: int, charged: int) -> None:
    """Every charged step drew noise once, and nothing else did.

    Raises:
        SequesterError: SQ-240.
    """
    if draws != charged:
        _fail(f"{draws} draws of noise were made but {charged} steps are charged")


def _fail(what: str) -> None:
    raise SequesterError(
        240,
        f"a privacy invariant does not hold: {what}; nothing of this step was released. This is "
        "a defect of the program or of a custom module, please report it",
    )
