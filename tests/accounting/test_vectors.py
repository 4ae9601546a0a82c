"""Published and independently computed values, each with an accepted interval."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sequester import accounting as acc
from sequester.accounting import calibrate, group, renyi
from sequester.core.errors import UsageError
from tests.shared import needs_shared, shared

PATH = shared("reference", "accounting_vectors.json")
TABLE = json.loads(PATH.read_text()) if PATH.exists() else {"vectors": [], "edge_cases": []}
OPACUS_ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))
CONFIGURATIONS = {
    "A": (1.1, 0.01, 4000, 1e-6),
    "B": (4.84, 0.25, 120, 1e-5),
    "D": (1.1, 256 / 60000, 14062, 1e-5),
}


def run(noise: float, rate: float, steps: int) -> acc.Event:
    return acc.SelfComposed(acc.PoissonSampled(rate, acc.Gaussian(noise)), steps)


def event_of(p: dict) -> acc.Event:
    kind, steps = p["mech"], p.get("T", 1)
    if kind == "poisson_gaussian":
        return run(p["z"], p["q"], steps)
    if kind == "gaussian":
        return acc.SelfComposed(acc.Gaussian(p["z"]), steps)
    if kind == "wor_gaussian":
        each = acc.FixedSizeSampled(p["N"], p["B"], acc.Gaussian(p["z"]))
        return acc.SelfComposed(each, steps)
    if kind == "truncated_poisson_gaussian":
        each = acc.TruncatedPoissonSampled(p["q"], p["N"], p["cap"], acc.Gaussian(p["z"]))
        return acc.SelfComposed(each, steps)
    if kind.startswith("mixture_gaussian"):
        each = acc.RecordsPoissonSampled(p["q"], p["k"], acc.Gaussian(p["z"]))
        return acc.SelfComposed(each, steps)
    if kind == "hetero":
        return acc.Composed([run(*part) for part in p["parts"]])
    if kind == "zcdp":
        return acc.ZCDP(p["rho"])
    shape = math.inf if p["shape"] == "inf" else float(p["shape"])
    return acc.RepeatAndSelect(run(*CONFIGURATIONS["A"][:3]), p["mean"], shape)


def value_of(vector: dict) -> float:
    p, quantity = vector["params"], vector["quantity"]
    if quantity == "rdp":
        return float(acc.rdp(event_of(p), [p["alpha"]])[0])
    if quantity == "noise_multiplier":
        if p["mech"] == "calibrate":
            return calibrate.noise_multiplier(p["eps"], p["delta"], p["q"], p["T"])
        return acc.quantile_split(p["z"], p["sigma_b"])
    if quantity in ("tpr", "advantage"):
        name = p["mech"][-1]
        said = acc.statement(run(*CONFIGURATIONS[name][:3]), CONFIGURATIONS[name][3])
        return said.advantage if quantity == "advantage" else said.tpr_at_fpr(p["fpr"])
    if "orders" in p:
        curve = acc.rdp(event_of(p), OPACUS_ORDERS)
        at = zip(OPACUS_ORDERS, curve, strict=True)
        return min(renyi.epsilon_at(order, float(value), p["delta"]) for order, value in at)
    adjacency = "replace-one" if p.get("adjacency") == "replace_one" else "add-or-remove"
    return acc.epsilon(event_of(p), p["delta"], adjacency=adjacency)


VECTORS = [v for v in TABLE["vectors"] if v["quantity"] != "mf_error"]  # test_matrix_error.py


@needs_shared("reference", "accounting_vectors.json")
@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_value_lies_in_the_accepted_interval(vector: dict) -> None:
    value = value_of(vector)
    assert vector["accept_lo"] <= value <= vector["accept_hi"]


TRUTH = {  # independent prototype, extrapolated; "never below" within its own accuracy
    (1.1, 0.01, 4000, 1e-6): 3.533452579713017,
    (4.84, 0.25, 120, 1e-5): 2.3744365812087587,
    (1.0, 0.0256, 390, 1e-5): 3.212052,
    (1.1, 256 / 60000, 14062, 1e-5): 2.38159692149064,
    (0.6, 0.001, 10000, 1e-6): 3.152191101870039,
    (0.8, 0.01, 1000, 1e-7): 4.266228557678477,
    (10.0, 1.0, 1000, 1e-6): 19.4236565,
    (2.0, 0.1, 100_000, 1e-8): 232.11652908109812,
    (0.3, 1e-4, 1_000_000, 1e-9): 97.4328817562154,
}


@pytest.mark.parametrize(("case", "truth"), TRUTH.items(), ids=list("ABCDEFGHI"))
def test_upper_bound_is_tight_and_never_below(case: tuple, truth: float) -> None:
    *setting, delta = case
    value = acc.epsilon(run(*setting), delta)
    assert truth * (1 - 1e-7) <= value <= truth * 1.0005


@pytest.mark.parametrize("delta", [1e-6, 1e-10, 1e-14, 1e-30])
def test_transform_agrees_with_the_exact_gaussian_down_to_tiny_delta(delta: float) -> None:
    from sequester.accounting import pld
    from sequester.accounting.parts import GaussianPart

    composed = pld.epsilon(((GaussianPart(1.0), 10),), delta, 45.0)
    exact = acc.epsilon(acc.SelfComposed(acc.Gaussian(1.0), 10), delta)
    assert composed is not None
    assert exact * (1 - 1e-9) <= composed <= exact * 1.0002


def raises(ask: Callable[[], object]) -> bool:
    with pytest.raises(UsageError):
        ask()
    return True


EDGES: dict[str, Callable[[], bool]] = {
    "nan_noise": lambda: raises(lambda: acc.Gaussian(math.nan)),
    "nan_delta": lambda: raises(lambda: acc.epsilon(acc.Gaussian(1.0), math.nan)),
    "nan_eps": lambda: raises(lambda: acc.delta(acc.Gaussian(1.0), math.nan)),
    "nan_rho": lambda: raises(lambda: acc.ZCDP(math.nan)),
    "delta_ge_1": lambda: (
        raises(lambda: acc.epsilon(acc.Gaussian(1.0), 1.0))
        and acc.epsilon(run(1.0, 0.01, 10), 0.5) >= 0.0
    ),
    "neg_delta": lambda: raises(lambda: acc.epsilon(acc.Gaussian(1.0), -1.0)),
    "no_steps": lambda: acc.epsilon(run(1.0, 0.1, 0), 1e-6) == 0.0,
    "q0": lambda: acc.epsilon(run(1.0, 0.0, 100), 1e-6) == 0.0,
    "q_gt_1": lambda: raises(lambda: acc.PoissonSampled(1.5, acc.Gaussian(1.0))),
    "neg_steps": lambda: raises(lambda: acc.SelfComposed(acc.Gaussian(1.0), -100)),
    "neg_z": lambda: raises(lambda: acc.Gaussian(-1.0)),
    "z0": lambda: math.isinf(acc.epsilon(run(0.0, 0.5, 10), 1e-6)),
    "tiny_z": lambda: 4e5 < acc.epsilon(acc.Gaussian(1e-3), 1e-6) < 6e5,
    "huge_T": lambda: acc.epsilon(run(1.0, 1e-12, 10**9), 1e-6) < 1e-2,
    "delta0": lambda: math.isinf(acc.epsilon(run(1.0, 0.1, 10), 0.0)),
}


@pytest.mark.parametrize("name", EDGES)
def test_edge_cases_that_other_libraries_get_wrong(name: str) -> None:
    assert EDGES[name]()


@needs_shared("reference", "accounting_vectors.json")
def test_no_edge_case_is_left_out() -> None:
    assert {case["id"] for case in TABLE["edge_cases"]} == set(EDGES)


def test_more_that_means_nothing_is_refused() -> None:
    nan = math.nan
    for refused in (
        lambda: acc.Gaussian(math.inf),
        lambda: acc.Gaussian(True),
        lambda: acc.Laplace(-1.0),
        lambda: acc.PoissonSampled(nan, acc.Gaussian(1.0)),
        lambda: acc.PoissonSampled(-0.1, acc.Gaussian(1.0)),
        lambda: acc.SelfComposed(acc.Gaussian(1.0), 1.5),
        lambda: acc.delta(acc.Gaussian(1.0), -0.1),
        lambda: acc.delta(acc.Gaussian(1.0), math.inf),
        lambda: acc.rdp(acc.Gaussian(1.0), [1.0]),
        lambda: acc.rdp(acc.Gaussian(1.0), [nan]),
        lambda: acc.epsilon(acc.Gaussian(1.0), 1e-5, adjacency="add_remove"),
        lambda: acc.epsilon(acc.Gaussian(1.0), 1e-5, accountant="prv"),
        lambda: acc.Filter(nan, 1e-6, 8.0),
        lambda: acc.Odometer(nan),
    ):
        with pytest.raises(UsageError):
            refused()
    assert acc.epsilon(acc.Composed([]), 1e-6) == 0.0
    assert math.isinf(acc.epsilon(acc.Gaussian(0.0), 1e-6))


@pytest.mark.parametrize(("records", "published"), [(2, 7.790), (4, 18.000), (8, 44.71)])
def test_a_person_with_several_records(records: int, published: float) -> None:
    z, q, steps, delta = CONFIGURATIONS["A"]
    found = group.person(run(z, q, steps), delta, records)
    assert found.method == "mixture"
    assert published * (1 - 2e-4) <= found.epsilon <= published * (1 + 1e-3)


EXHAUSTING = """
from pathlib import Path
from sequester import accounting as acc

def run(noise, rate, steps):
    return acc.SelfComposed(acc.PoissonSampled(rate, acc.Gaussian(noise)), steps)

assert acc.epsilon(run(1e-3, 0.01, 100), 1e-6) > 1e6
assert acc.epsilon(run(1e-2, 0.5, 100), 1e-6) > 1e4
assert acc.epsilon(run(0.3, 0.5, 1000), 1e-6) > 1e3
assert acc.epsilon(run(1.0, 1e-3, 10**6), 1e-8) > 1.0
# Not getrusage: its peak survives exec, so it would be the parent's.
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory needs Linux's /proc"
)
def test_settings_that_exhaust_other_libraries_stay_small() -> None:
    # A process of its own: this one's peak belongs to whatever tests ran in it before.
    done = subprocess.run(
        [sys.executable, "-c", EXHAUSTING], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1_500_000  # kB, the whole process


def test_orders_match_numerical_integration() -> None:
    from scipy.integrate import quad

    for rate, sigma, order in [
        (0.1, 2.0, 1.35),
        (0.01, 1.1, 1.01),
        (0.5, 0.7, 3.7),
        (1e-3, 0.5, 2.5),
    ]:

        def integrand(x: float, q: float = rate, s: float = sigma, a: float = order) -> float:
            log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * s * s))
            density = -x * x / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi))
            return math.exp(density + a * log_ratio)

        total = sum(
            quad(integrand, low, low + 1, epsabs=1e-18, epsrel=1e-13)[0]
            for low in np.arange(-15.0 * sigma, order + 15.0 * sigma)
        )
        exact = math.log(total) / (order - 1.0)
        ours = renyi.sampled_gaussian(rate, sigma, order)
        assert exact * (1 - 1e-6) - 1e-12 <= ours <= exact * (1 + 1e-6) + 1e-12
