"""ε and time against dp-accounting, Opacus and the PRV accountant, in one table.

    python -m benchmarks.accounting.against_peers --peers PYTHON [--repeats 3]

PYTHON is the interpreter of an environment with `opacus`, `dp-accounting` and `prv-accountant`
(also SEQUESTER_ACCOUNTANTS_PYTHON). Cases take turns; times are the best of the repeats, each on
emptied caches. "truth" is an independent, extrapolated value, exact for G. Peers may use 6 GiB.
"""

import argparse
import functools
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sequester import accounting as acc
from sequester.accounting import calibrate

CASES = {
    "A": (1.1, 0.01, 4000, 1e-6, 3.533452579713017),
    "B": (4.84, 0.25, 120, 1e-5, 2.3744365812087587),
    "C": (1.0, 0.0256, 390, 1e-5, 3.212052),
    "D": (1.1, 256 / 60000, 14062, 1e-5, 2.38159692149064),
    "E": (0.6, 0.001, 10_000, 1e-6, 3.152191101870039),
    "F": (0.8, 0.01, 1000, 1e-7, 4.266228557678477),
    "G": (10.0, 1.0, 1000, 1e-6, 19.423656474031056),
    "H": (2.0, 0.1, 100_000, 1e-8, 232.11652908109812),
    "I": (0.3, 1e-4, 1_000_000, 1e-9, 97.4328817562154),
}
PEERS = {
    "dp_accounting_pld": "dp-accounting PLD",
    "opacus_rdp": "Opacus RDP",
    "opacus_prv": "Opacus PRV",
    "prv_accountant": "PRV (error 0.1)",
}
LOOSEST, EXACT = 1.0005, 1e-7  # of the truth; the truth itself is known to about 1e-7
CHECKS: list[bool] = []


def limit(text: str, value: float, most: float, unit: str = "s") -> None:
    """Print one figure beside its limit."""
    kept = value <= most
    CHECKS.append(kept)
    print(f"{text:52} {value:10.4g} {unit:3} ≤ {most:g} {'met' if kept else 'MISSED'}", flush=True)


def emptied(run: Callable[[], float], repeats: int) -> tuple[float, float]:
    """(value, best seconds) of a call that finds nothing remembered."""
    remembering = [o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)]
    best, value = float("inf"), float("nan")
    for _ in range(repeats):
        for one in remembering:
            one.cache_clear()
        begun = time.perf_counter()
        value = run()
        best = min(best, time.perf_counter() - begun)
    return value, best


def run_of(z: float, q: float, steps: int) -> acc.Event:
    return acc.SelfComposed(acc.PoissonSampled(q, acc.Gaussian(z)), steps)


class Peers:
    """A process of the peers' environment."""

    def __init__(self, python: str) -> None:
        program = [python, str(Path(__file__).with_name("peers.py"))]
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def ask(self, peer: str, case: tuple[float, ...], repeats: int) -> dict[str, float | str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"peer": peer, "case": case, "repeats": repeats}
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except BrokenPipeError:
            said = ""
        found: dict[str, float | str] = json.loads(said) if said else {"failed": "died"}
        return found


def cell(found: dict[str, float | str], truth: float, seconds: float) -> str:
    if "failed" in found:
        return str(found["failed"])
    value, theirs = float(found["epsilon"]), float(found["seconds"])
    low = " LOW" if value < truth * (1 - 1e-6) else ""
    return f"{value:.5g}{low} ({theirs:.3f} s, {theirs / seconds:.0f}×)"


def table(peers: Peers, repeats: int) -> None:
    """One row for each case, then the limits."""
    print(f"{'':3}{'truth':>11} {'ours':>11} {'over truth':>10} {'s':>8}  ", end="")
    print("".join(f"{name:>30}" for name in PEERS.values()))
    rows = {}
    for name, (z, q, steps, delta, truth) in CASES.items():
        event = run_of(z, q, steps)
        ours, seconds = emptied(lambda e=event, d=delta: acc.epsilon(e, d), repeats + 1)
        found = {p: peers.ask(p, (z, q, steps, delta), repeats) for p in PEERS}
        rows[name] = ours, seconds, found
        print(
            f"{name:3}{truth:11.6f} {ours:11.6f} {ours / truth - 1:10.1e} {seconds:8.4f}  ", end=""
        )
        print("".join(f"{cell(found[p], truth, seconds):>30}" for p in PEERS), flush=True)
    print()
    for name, (ours, seconds, found) in rows.items():
        truth = CASES[name][4]
        limit(f"{name}: ours over truth", ours / truth, LOOSEST, "")
        limit(f"{name}: truth over ours (never below)", truth / ours, 1 + EXACT, "")
        if name in "ABCDE":
            limit(f"{name}: seconds", seconds, 0.1)
            if "seconds" in (theirs := found["dp_accounting_pld"]):
                limit(
                    f"{name}: time over dp-accounting's PLD",
                    seconds / float(theirs["seconds"]),
                    1 / 3,
                    "",
                )


def million() -> None:
    """A million steps in a process of its own, for an honest peak."""
    code = (
        "import resource as r, time\n"
        "from benchmarks.accounting.against_peers import CASES, acc, run_of\n"
        "z, q, steps, delta, _ = CASES['I']\nbegun = time.perf_counter()\n"
        "acc.epsilon(run_of(z, q, steps), delta)\n"
        "print(time.perf_counter() - begun, r.getrusage(r.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    seconds, peak = map(float, python(code).split())
    limit("10⁶ steps (I), first call of a process", seconds, 2.0)
    limit("10⁶ steps (I), peak memory of the process", peak, 600.0, "MB")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout


def others() -> None:
    """Calibration and the command."""
    for target, q, steps, delta in [
        (1.0, 0.01, 4000, 1e-6),
        (8.0, 0.01, 4000, 1e-6),
        (3.0, 0.0256, 390, 1e-5),
    ]:
        solve = functools.partial(calibrate.noise_multiplier, target, delta, q, steps)
        noise, seconds = emptied(solve, 2)
        limit(f"calibrate ε = {target:g} → z = {noise:.5f}", seconds, 1.0)
    command = (
        "epsilon --noise-multiplier 1.1 --sampling-rate 0.01 --steps 4000 --delta 1e-6".split()
    )
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        subprocess.run(["sequester", *command], check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    limit("sequester epsilon, whole process", min(times), 1.5)
    code = (
        f"import sys; sys.argv = ['sequester', *{command!r}]\nfrom sequester.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint(int('torch' in sys.modules))"
    )
    limit("sequester epsilon, imports of torch", int(python(code).split()[-1]), 0, "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = os.environ.get("SEQUESTER_ACCOUNTANTS_PYTHON", sys.executable)
    parser.add_argument("--peers", default=chosen, help="interpreter that has the peers")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    million()
    others()
    print()
    table(Peers(options.peers), options.repeats)
    print(f"{sum(CHECKS)} of {len(CHECKS)} limits met; load {os.getloadavg()[0]:.1f}")
    raise SystemExit(0 if all(CHECKS) else 1)


if __name__ == "__main__":
    main()
