"""The suite can fail: each planted fault moves a value out of its accepted interval."""

import dataclasses
import math

import numpy as np
import pytest

from sequester import accounting as acc
from sequester.accounting import accountant, discretise, lower, parts, pld, tilted

A = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.1)), 4000)
I = acc.SelfComposed(acc.PoissonSampled(1e-4, acc.Gaussian(0.3)), 1_000_000)  # noqa: E741
FIXED = acc.SelfComposed(acc.FixedSizeSampled(256, 64, acc.Gaussian(4.84)), 30)
INTERVALS = {
    "A": (A, 1e-6, "add-or-remove", 3.533445512807858, 3.53415927022896),
    "A small": (A, 1e-14, "add-or-remove", 6.0621688763999995, 6.0642907416),
    "I": (I, 1e-9, "add-or-remove", 97.43268689045189, 97.48159819709349),
    "A replace": (A, 1e-6, "replace-one", 6.065, 6.068),
    "fixed size": (FIXED, 1e-5, "replace-one", 2.64, 5.8409),
}


@pytest.fixture(autouse=True)
def _no_memory():
    def forget() -> None:
        accountant._epsilon.cache_clear()

    forget()
    yield
    forget()


def fails(name: str) -> bool:
    event, delta, adjacency, low, high = INTERVALS[name]
    return not low <= acc.epsilon(event, delta, adjacency=adjacency) <= high


@pytest.mark.parametrize("name", INTERVALS)
def test_unmutated_passes(name: str) -> None:
    assert not fails(name)


def test_without_tilt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tilted.compose
    monkeypatch.setattr(pld, "compose", lambda pmfs, theta, span: real(pmfs, 1e-6, span))
    assert fails("A small")


def test_without_tilt_nor_error_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # What other libraries do: the answer falls below the truth, or is noise.
    real = tilted.compose

    def plain(pmfs, theta, span):
        return real(pmfs, 1e-6, span)

    monkeypatch.setattr(pld, "compose", plain)
    monkeypatch.setattr(tilted, "_STAGE", 0.0)
    monkeypatch.setattr(tilted, "EPS", 0.0)
    assert fails("A small")


def test_add_and_remove_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = parts.SampledGaussianPart.pairs
    monkeypatch.setattr(parts.SampledGaussianPart, "pairs", lambda self: (real(self)[1],) * 2)
    assert fails("A")


def test_replacement_with_single_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    real = parts.FixedSizePart
    monkeypatch.setattr(lower.parts, "FixedSizePart", lambda q, sigma: real(q, 2.0 * sigma))
    assert fails("fixed size")


def test_opposite_shift_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = parts.MixturePart
    monkeypatch.setattr(
        lower.parts, "MixturePart", lambda shifts, sigma, opposed: real(shifts, sigma, False)
    )
    assert fails("A replace")


def test_rounding_down(monkeypatch: pytest.MonkeyPatch) -> None:
    real = discretise.discretise

    def optimistic(pair, step, tail):
        pmf = real(pair, step, tail)
        return dataclasses.replace(pmf, first=pmf.first - 1)

    monkeypatch.setattr(pld, "discretise", optimistic)
    assert fails("A")


def test_composing_one_step_less_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lower.lower

    def fewer(event, adjacency):
        return tuple((part, count - 40) for part, count in real(event, adjacency))

    monkeypatch.setattr(accountant, "lower", fewer)
    assert fails("A")


def test_losing_what_wraps_around(monkeypatch: pytest.MonkeyPatch) -> None:
    real = tilted.window

    def narrow(summaries, theta, level, least):
        bottom, top, beyond = real(summaries, theta, level, least)
        middle = 0.7 * bottom + 0.3 * top
        return middle, middle + 0.3 * (top - bottom), beyond

    monkeypatch.setattr(pld, "window", narrow)
    assert fails("A")


def test_the_error_bound_of_the_transform_holds() -> None:
    # Against the same sums in exact long arithmetic: w itself is off by less than claimed.
    from fractions import Fraction

    rng = np.random.default_rng(3)
    size, count, theta, step = 64, 4, 1.0, 0.25
    mass = rng.random(size)
    mass /= mass.sum()
    from sequester.accounting.pmf import Pmf

    pmf = Pmf(-20, mass, 0.0, step)
    exact = [Fraction(float(x)) for x in mass]
    total = [Fraction(1)]
    for _ in range(count):
        grown = [Fraction(0)] * (len(total) + size - 1)
        for i, a in enumerate(total):
            for j, b in enumerate(exact):
                grown[i + j] += a * b
        total = grown
    losses = [(-20 * count + k) * step for k in range(len(total))]
    span = (losses[0] - 1.0, losses[-1] + 1.0, -700.0)
    ours = tilted.compose([(pmf, count)], theta, span)
    for epsilon in (0.0, 3.1, 9.7, 20.3, 35.0):
        true = sum(
            float(m) * -math.expm1(epsilon - loss)
            for m, loss in zip(total, losses, strict=True)
            if loss > epsilon
        )
        claimed = float(ours.delta(np.array([epsilon]))[0])
        assert true <= claimed, (epsilon, true, claimed)
        if epsilon == 35.0:  # near this tilt's saddle it is tight as well
            assert claimed <= true * (1 + 1e-6)
