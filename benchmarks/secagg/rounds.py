"""Secure aggregation beside the AES limit and Flower's SecAgg+, in one table.

    python benchmarks/secagg/rounds.py [--flower results.jsonl] [--large]

Whole rounds of the real protocol with active security (signatures, confirmation): every member
runs, the median member's CPU time and the server's are shown, and every sum is checked. The
limit is the time to make the (k + 1) keystreams of 4·d bytes and nothing else, measured in the
same run. `results.jsonl` holds the lines that `peer_flower.py` printed on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sequester import secagg
from sequester.core.rng import public_generator
from sequester.secagg import masks
from sequester.secagg.masks import Words
from sequester.secagg.simulator import RoundContext, enrol, open_round, roster_of, run_round

CORRUPT, DROPOUT = 0.05, 0.3


def aes_rate() -> float:
    """Bytes of AES-128 keystream per second of one core, by the faster path."""
    best = 0.0
    buffer = np.empty(masks.CHUNK_BYTES + 32, np.uint8).data
    for as_gcm in (False, True):
        stream = masks._stream(bytes(16), as_gcm=as_gcm)
        for _ in range(5):
            start = time.process_time()
            for _ in range(200):
                stream.update_into(masks._ZEROS, buffer)
            best = max(best, 200 * masks.CHUNK_BYTES / (time.process_time() - start))
    return best


def one_round(plan: secagg.RoundPlan, dropout: float) -> tuple[float, float, int, int]:
    """(seconds of the median client, of the server, bytes up, bytes down); checks the sum."""
    members, length = plan.members, plan.encoding.length
    identities = enrol(range(members))
    roster = roster_of(identities)
    where = RoundContext("bench", 0)
    session = plan.session("bench", 0, model=where.model, roster=roster.digest)
    server, clients = open_round(session, identities, plan.policy(), roster=roster)
    base = public_generator(1).integers(0, 1 << 20, length).astype(np.uint32)
    words = Words(base, np.array([1, 0, 0, 0], np.uint32))  # The same for all: memory, not time.
    leaving = public_generator(2).permutation(members)[: round(dropout * members)]
    done = run_round(
        server, clients, dict.fromkeys(clients, words), {int(m): "masked" for m in leaving}
    )
    survivors = done.outcome.survivors
    expected = base * np.uint32(len(survivors))
    if not np.array_equal(done.outcome.total.narrow, expected):
        raise SystemExit("the sum is wrong")
    traffic = done.traffic
    client = statistics.median(traffic.client_seconds[m] for m in survivors)
    up = max(traffic.sent[m] for m in survivors)
    return client, traffic.server_seconds, up, max(traffic.received.values())


def flower_lines(path: Path | None) -> dict[tuple[int, int, int], dict]:
    """(members, neighbours, length) → what Flower took."""
    if path is None:
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return {(x["members"], x["neighbours"], x["length"]): x for x in lines}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flower", type=Path)
    parser.add_argument("--large", action="store_true", help="500 and 1,000 members too")
    chosen = parser.parse_args()
    flower = flower_lines(chosen.flower)
    cohorts = [(10, True, 1_000_000), (50, True, 1_000_000), (100, True, 1_000_000)]
    cohorts.append((100, False, 1_000_000))
    if chosen.large:
        cohorts = [(500, False, 100_000), (1000, False, 10_000)]
    print(f"AES keystream: {aes_rate() / 1e9:.1f} GB/s")
    print(
        "   n    k    t       d  drop | client ms  limit  ratio  Flower      x |"
        "  server s  Flower      x | up MB  Flower  overhead B/neighbour up, down"
    )
    for members, full, largest in cohorts:
        for length in (10_000, 100_000, 1_000_000):
            if length > largest:
                continue
            for dropout in (0.0, 0.1, 0.3):
                if chosen.large and dropout == 0.1:
                    continue
                row(members, full, length, dropout, flower)


def row(
    members: int, full: bool, length: int, dropout: float, flower: dict[tuple[int, int, int], dict]
) -> None:
    """Measure and print one line."""
    plan = secagg.plan(members, length, dropout=DROPOUT, corrupt=CORRUPT, full_graph=full, bits=32)
    rate = aes_rate()
    client, server, up, down = one_round(plan, dropout)
    peers = plan.neighbours
    limit = (peers + 1) * 4 * length / rate
    theirs = flower.get((members, peers, length))
    cells = ["-"] * 5
    if theirs:
        their_server = theirs["server"][str(dropout)]
        cells = [
            f"{theirs['client'] * 1e3:.0f}", f"{theirs['client'] / client:.0f}",
            f"{their_server:.2f}", f"{their_server / server:.0f}", f"{theirs['sent'] / up:.2f}x",
        ]  # fmt: skip
    print(
        f"{members:4d} {peers:4d} {plan.threshold:4d} {length:7d}  {dropout:4.1f} |"
        f" {client * 1e3:9.2f} {limit * 1e3:6.2f} {client / limit:6.2f}"
        f" {cells[0]:>7s} {cells[1]:>6s} |"
        f" {server:9.4f} {cells[2]:>7s} {cells[3]:>6s} | {up / 1e6:.2f} {cells[4]:>7s}"
        f"  {(up - 4 * length) / peers:.0f}, {down / peers:.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
