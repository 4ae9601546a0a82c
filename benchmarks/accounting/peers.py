"""The peers' side of the comparison; run by `against_peers.py` in an environment that has them.

Reads one request per line, `{"peer": …, "case": [z, q, T, δ], "repeats": n}`, and answers with
`{"epsilon": …, "seconds": …, "peak_mb": …}` or `{"failed": why}`. Imports nothing of sequester.
"""

import json
import resource
import signal
import sys
import time
import warnings

MOST_BYTES, MOST_SECONDS = 6 * 2**30, 30


class TooSlow(Exception):
    """A peer took more than MOST_SECONDS."""


def give_up(*_: object) -> None:
    raise TooSlow


def dp_accounting_pld(z: float, q: float, steps: int, delta: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    peer = PLDAccountant()
    peer.compose(
        dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), int(steps)
    )
    return peer.get_epsilon(delta)


def opacus_rdp(z: float, q: float, steps: int, delta: float) -> float:
    from opacus.accountants import RDPAccountant

    peer = RDPAccountant()
    peer.history = [(z, q, int(steps))]
    return peer.get_epsilon(delta)


def opacus_prv(z: float, q: float, steps: int, delta: float) -> float:
    from opacus.accountants import PRVAccountant

    peer = PRVAccountant()
    peer.history = [(z, q, int(steps))]
    return float(peer.get_epsilon(delta))


def prv_accountant(z: float, q: float, steps: int, delta: float) -> float:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    peer = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=q)],
        max_self_compositions=[int(steps)],
        eps_error=0.1,
        delta_error=delta / 1000,
    )
    return float(peer.compute_epsilon(delta=delta, num_self_compositions=[int(steps)])[2])


EASY = (2.0, 0.1, 10, 1e-5)
PEERS = {f.__name__: f for f in (dp_accounting_pld, opacus_rdp, opacus_prv, prv_accountant)}


def answer(request: dict) -> dict:
    run, best, value = PEERS[request["peer"]], float("inf"), float("nan")
    try:
        run(*EASY)  # imports are not what is measured
        signal.alarm(MOST_SECONDS)
        for _ in range(request["repeats"]):
            begun = time.perf_counter()
            value = run(*request["case"])
            best = min(best, time.perf_counter() - begun)
            if best > 2.0:
                break
    except TooSlow:
        return {"failed": f"> {MOST_SECONDS} s"}
    except ImportError:
        return {"failed": "not installed"}
    except (MemoryError, ValueError, RuntimeError, OverflowError) as error:
        return {"failed": "out of memory" if isinstance(error, MemoryError) else str(error)[:60]}
    finally:
        signal.alarm(0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"epsilon": float(value), "seconds": best, "peak_mb": peak}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, give_up)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
