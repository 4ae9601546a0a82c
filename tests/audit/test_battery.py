"""The battery on synthetic noise: silent on true noise, loud on each kind of false noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from sequester.audit.mechanism.battery import run_battery
from sequester.audit.mechanism.trace import Trace

STEPS, PEOPLE, RATE = 40, 120, 0.2
TENSORS = {"cell": (0, 900), "gate": (900, 1400), "head": (1400, 1500)}


def true_trace(seed: int, *, rate: float = RATE) -> Trace:
    rng = np.random.Generator(np.random.Philox(seed))
    return Trace(
        residual=rng.normal(size=(STEPS, 1500)),
        tensors=TENSORS,
        signal=rng.normal(size=STEPS),
        presence=rng.normal(size=STEPS),
        drawn=rng.random((STEPS, PEOPLE)) < rate,
        rate=rate,
        steps_charged=STEPS,
        steps_released=STEPS,
        count=rng.normal(size=STEPS),
    )


def failed(trace: Trace) -> set[str]:
    return {check.name for check in run_battery(trace).failed}


def scaled(trace: Trace, factor: float) -> Trace:
    return replace(trace, residual=trace.residual * factor)


@pytest.mark.parametrize("steps", [1, 5])
def test_the_smallest_error_is_found_four_times_in_five_and_half_of_it_is_not(steps):
    traces = [true_trace(seed) for seed in range(100, 112)]
    traces = [replace(t, residual=t.residual[:steps]) for t in traces]
    smallest = run_battery(traces[0]).smallest
    assert smallest < (0.05 if steps == 5 else 0.12)

    def found(error):
        return np.mean(["variance" in str(failed(scaled(t, 1 - error))) for t in traces])

    assert 0.5 <= found(smallest)
    assert found(smallest / 2) < 0.5
    assert found(2 * smallest) == 1.0


def quiet_tensor(trace: Trace) -> Trace:
    noise = trace.residual.copy()
    noise[:, 1400:] = 0
    return replace(trace, residual=noise)


def shuffled(trace: Trace) -> Trace:
    rng = np.random.Generator(np.random.Philox(9))
    drawn = np.zeros((STEPS, PEOPLE), bool)
    size = int(PEOPLE * RATE)
    for epoch in range(0, STEPS, PEOPLE // size):
        order = rng.permutation(PEOPLE).reshape(-1, size)
        for step, members in enumerate(order[: STEPS - epoch]):
            drawn[epoch + step, members] = True
    return replace(trace, drawn=drawn)


def lot_denominator(trace: Trace) -> Trace:
    sizes = np.maximum(trace.drawn.sum(axis=1, keepdims=True), 1)
    return replace(trace, residual=trace.residual * (PEOPLE * RATE) / sizes)


def uniform(trace: Trace) -> Trace:
    return replace(trace, residual=(ndtr(trace.residual) - 0.5) * 12**0.5)


def bfloat16(trace: Trace) -> Trace:
    rounded = torch.from_numpy(trace.residual).to(torch.bfloat16).double().numpy()
    return replace(trace, residual=rounded + 1e-7 * trace.residual[::-1])


def repeated_after_resume(trace: Trace) -> Trace:
    noise = trace.residual.copy()
    noise[30:] = noise[10:20]
    return replace(trace, residual=noise)


def weakly_dependent(trace: Trace, lag: int) -> Trace:
    """Each step a tenth of the noise of an earlier one, in nothing else different."""
    noise = trace.residual.copy()
    for step in range(lag, len(noise)):
        noise[step] = 0.99**0.5 * noise[step] + 0.1 * noise[step - lag]
    return replace(trace, residual=noise)


def same_in_tensors(trace: Trace) -> Trace:
    noise = trace.residual.copy()
    noise[:, 900:1400] = noise[:, :500]
    return replace(trace, residual=noise)


FAULTS = {
    "weakly dependent on the step before": (lambda t: weakly_dependent(t, 1), "lag correlation"),
    "weakly dependent on four before": (lambda t: weakly_dependent(t, 4), "lag correlation"),
    "twice too small": (lambda t: scaled(t, 0.5), "variance per tensor"),
    "five per cent too small": (lambda t: scaled(t, 0.95), "variance per tensor"),
    "two per cent too small": (lambda t: scaled(t, 0.98), "variance per tensor"),
    "a tensor without": (quiet_tensor, "variance per tensor"),
    "same every step": (
        lambda t: replace(t, residual=np.repeat(t.residual[:1], STEPS, 0)),
        "repeats between steps",
    ),
    "same after resume": (repeated_after_resume, "repeats between steps"),
    "same in tensors": (same_in_tensors, "repeats between tensors"),
    "one number for all": (
        lambda t: replace(t, residual=np.repeat(t.residual[:, :1], 1500, 1)),
        "sum over coordinates",
    ),
    "uniform": (uniform, "normality"),
    "bfloat16": (bfloat16, "ties"),
    "denominator from data": (lot_denominator, "variance per step"),
    "shuffled": (shuffled, "lot sizes"),
    "full batch": (lambda t: replace(t, drawn=np.ones_like(t.drawn)), "participation"),
    "wrong sum": (lambda t: replace(t, signal=t.signal + 1.5), "along the sum"),
    "heavy canaries": (lambda t: replace(t, presence=t.presence + 1.5), "at the canaries"),
    "quiet count": (lambda t: replace(t, count=np.zeros(STEPS)), "count behind the bound"),
    "more steps than charged": (lambda t: replace(t, steps_charged=30), "steps"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_false_noise_is_seen_by_its_check(name):
    fault, check = FAULTS[name]
    for seed in range(3):
        assert check in failed(fault(true_trace(seed))), seed


RUNS = 250


@pytest.fixture(scope="module")
def true_results():
    return [run_battery(true_trace(1000 + s, rate=(0.1, 0.3, 0.5)[s % 3])) for s in range(RUNS)]


def test_true_noise_raises_few_alarms(true_results):
    """At the 1 % level: at most 1 % + 3 standard errors of true traces."""
    alarms = sum(result.alarm for result in true_results)
    assert alarms <= RUNS * 0.01 + 3 * (RUNS * 0.01 * 0.99) ** 0.5


def test_each_check_has_a_valid_level_of_its_own(true_results):
    """No check's p-value falls below 5 % more often than 5 % + 3 standard errors."""
    low: dict[str, int] = {}
    for result in true_results:
        for check in result.checks:
            low[check.name] = low.get(check.name, 0) + (check.p_value < 0.05)
    most = RUNS * 0.05 + 3 * (RUNS * 0.05 * 0.95) ** 0.5
    assert {name: count for name, count in low.items() if count > most} == {}
