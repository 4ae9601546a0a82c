"""ε and time against dp-accounting, Opacus and the PRV accountant, in one table.

    python benchmarks/accounting/against_peers.py [--repeats 3]

Peers that are not installed are left out. Run it on a quiet machine: times are the best of
the repeats, each on a fresh accountant. "truth" is an independent extrapolated value.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import time
import warnings
from collections.abc import Callable

from sequester import accounting as acc
from sequester.accounting import accountant, calibrate, renyi

CASES = {
    "A": (1.1, 0.01, 4000, 1e-6, 3.533452579713017),
    "B": (4.84, 0.25, 120, 1e-5, 2.3744365812087587),
    "C": (1.0, 0.0256, 390, 1e-5, 3.212052),
    "D": (1.1, 256 / 60000, 14062, 1e-5, 2.38159692149064),
    "E": (0.6, 0.001, 10_000, 1e-6, 3.152191101870039),
    "F": (0.8, 0.01, 1000, 1e-7, 4.266228557678477),
    "G": (10.0, 1.0, 1000, 1e-6, 19.4236565),
    "H": (2.0, 0.1, 100_000, 1e-8, 232.11652908109812),
    "I": (0.3, 1e-4, 1_000_000, 1e-9, 97.4328817562154),
}


def ours(z: float, q: float, t: int, delta: float) -> float:
    accountant._epsilon.cache_clear()
    renyi.sampled_gaussian.cache_clear()
    return acc.epsilon(acc.SelfComposed(acc.PoissonSampled(q, acc.Gaussian(z)), t), delta)


def dp_accounting(z: float, q: float, t: int, delta: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    peer = PLDAccountant()
    peer.compose(event, t)
    return peer.get_epsilon(delta)


def opacus_rdp(z: float, q: float, t: int, delta: float) -> float:
    from opacus.accountants import RDPAccountant

    peer = RDPAccountant()
    peer.history = [(z, q, t)]
    return peer.get_epsilon(delta)


def prv(z: float, q: float, t: int, delta: float) -> float:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    if t > 50_000:
        raise MemoryError
    peer = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=q)],
        max_self_compositions=[t],
        eps_error=0.1,
        delta_error=delta / 1000,
    )
    return float(peer.compute_epsilon(delta=delta, num_self_compositions=[t])[2])


def timed(run: Callable[..., float], case: tuple, repeats: int) -> tuple[float, float] | None:
    best, value = float("inf"), float("nan")
    try:
        for _ in range(repeats):
            start = time.perf_counter()
            value = run(*case)
            best = min(best, time.perf_counter() - start)
    except (ImportError, MemoryError, ValueError, RuntimeError):
        return None
    return value, best


def table(repeats: int) -> None:
    peers = {"dp-accounting PLD": dp_accounting, "Opacus RDP": opacus_rdp, "PRV 0.1": prv}
    print(f"{'case':5}{'truth':>12}{'ours':>12}{'over truth':>11}{'s':>8}  peers: ε (s; ratio)")
    for name, (z, q, t, delta, truth) in CASES.items():
        count = repeats if t < 50_000 else 1
        mine = timed(ours, (z, q, t, delta), count + 1)
        assert mine is not None
        value, seconds = mine
        others = []
        for label, peer in peers.items():
            found = timed(peer, (z, q, t, delta), count)
            if found is not None:
                low = " BELOW TRUTH" if found[0] < truth * (1 - 1e-6) else ""
                ratio = found[1] / seconds
                others.append(f"{label} {found[0]:.5g} ({found[1]:.3f}; {ratio:.1f}×){low}")
        print(
            f"{name:5}{truth:12.6f}{value:12.6f}{value / truth - 1:11.1e}{seconds:8.3f}  "
            + "; ".join(others),
            flush=True,
        )


def others() -> None:
    for target, q, t, delta in [(1.0, 0.01, 4000, 1e-6), (8.0, 0.01, 4000, 1e-6)]:
        start = time.perf_counter()
        noise = calibrate.noise_multiplier(target, delta, q, t)
        print(f"calibrate ε={target}: z={noise:.5f} in {time.perf_counter() - start:.2f} s (≤ 1)")
    command = "epsilon --noise-multiplier 1.1 --sampling-rate 0.01 --steps 4000 --delta 1e-6"
    start = time.perf_counter()
    subprocess.run(["sequester", *command.split()], check=True, capture_output=True)
    print(f"sequester epsilon, whole process: {time.perf_counter() - start:.2f} s (≤ 1.5)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, peers included: {peak:.0f} MB")


def memory() -> None:
    """Only our own million steps, for an honest peak."""
    start = time.perf_counter()
    value = ours(*CASES["I"][:4])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"10⁶ steps: ε={value:.4f} in {time.perf_counter() - start:.2f} s (≤ 2), {peak:.0f} MB "
        "(≤ 600)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    warnings.simplefilter("ignore")
    arguments = parser.parse_args()
    memory()
    table(arguments.repeats)
    others()
