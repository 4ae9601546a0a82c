"""Secure aggregation beside the AES limit and Flower's SecAgg+, in one table.

    python -m benchmarks.secagg.rounds --flower PYTHON [--members 10 50 100]   # 3 minutes
    python -m benchmarks.secagg.rounds --flower PYTHON --members 500 1000      # 15 minutes

Whole rounds of the real protocol with active security. Keys and shares of a cohort are exchanged
once; the rounds of all lengths and dropouts start behind that, and count its time as theirs. The
limit is the time to make the (k + 1) keystreams of 4·d bytes and nothing else, measured beside
every row.
`PYTHON` is that of an environment with flwr; the same (n, k, t, d) then runs there
(`peer_flower.py`) in the same minute.

Up to 100 members every client is timed (the median is shown) and every sum is checked. Above, 12
clients are timed and the others send their words unmasked, which is the same work for the server;
those rows are marked ~ and their sum is not looked at.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from sequester import secagg
from sequester.core.rng import public_generator
from sequester.secagg import crypto, masks
from sequester.secagg.masks import Words
from sequester.secagg.server import Phase
from sequester.secagg.simulator import enrol, open_round, roster_of

CORRUPT, DROPOUT = 0.05, 0.3
SAMPLE = 12
LENGTHS, DROPS = (10_000, 100_000, 1_000_000), (0.0, 0.1, 0.3)


def aes_rate() -> float:
    """Bytes of AES-128 keystream per second of one core: the faster path, the best chunk."""
    best = 0.0
    for chunk, as_gcm in itertools.product((1 << 17, 1 << 18, 1 << 19), (False, True)):
        zeros, buffer = bytes(chunk), np.empty(chunk + 32, np.uint8).data
        stream, laps = masks._stream(bytes(16), as_gcm=as_gcm), (1 << 24) // chunk
        for _ in range(5):
            start = time.process_time()
            for _ in range(laps):
                stream.update_into(zeros, buffer)
            best = max(best, laps * chunk / (time.process_time() - start))
    return best


@dataclass
class Cost:
    """CPU seconds of the median client and of the server, bytes up and down of a client."""

    client: float
    server: float
    up: int
    down: int


class Tally:
    """A round's state and its costs; `fork` lets several rounds start behind the same keys."""

    def __init__(self, server: secagg.Server, clients: dict[int, secagg.Client]) -> None:
        self.server, self.clients = server, clients
        self.outbox = dict.fromkeys(clients, server.offer())
        self.spent, self.up = dict.fromkeys(clients, 0.0), dict.fromkeys(clients, 0)
        self.down, self.at_server = 0, 0.0

    def fork(self, session: secagg.Session) -> Tally:
        """A copy whose round sums vectors of another length."""
        other = copy.copy(self)
        other.server = copy.copy(self.server)
        other.server.session, other.server._arrived = session, copy.copy(self.server._arrived)
        for name in ("masked", "confirms", "reveals"):
            setattr(other.server._arrived, name, type(getattr(self.server._arrived, name))())
        other.server._sum = Words.zeros(session.length, session.wide, session.bits)
        other.clients = {}
        for member, client in self.clients.items():
            twin = other.clients[member] = copy.copy(client)
            twin._session, twin._answered = session, None
            twin._channels, twin._held = dict(client._channels), dict(client._held)
        other.spent, other.up = dict(self.spent), dict(self.up)
        return other

    def phase(self, words: Words, gone: set[int], timed: set[int], told: int) -> None:
        """Everybody who is there answers; the server closes the phase."""
        masked = self.server.phase is Phase.MASKED
        for member, message in self.outbox.items():
            if member in gone:
                continue
            plain = masked and member not in timed
            start = time.process_time()
            answer = (_plain if plain else _answer)(self.clients[member], message, words)
            middle = time.process_time()
            self.server.receive(member, answer)
            self.at_server += time.process_time() - middle
            self.spent[member] += middle - start
            self.up[member] += len(answer)
            self.down += len(message) if member == told else 0
            if masked:  # a client of its own process reuses this memory in its next round
                self.clients[member]._answered = None
        start = time.process_time()
        self.outbox = self.server.close()
        self.at_server += time.process_time() - start


class Bench:
    """Rounds of one cohort behind one exchange of keys."""

    def __init__(self, members: int, *, full: bool) -> None:
        self.members, self.full, self.sampled = members, full, members > 100
        identities = enrol(range(members))
        roster = roster_of(identities)
        plan = self.plan(1)
        order = public_generator(2).permutation(members).tolist()
        self.order, self.timed = order, set(order[-SAMPLE:] if self.sampled else order)
        self.session = plan.session("bench", 0, model=bytes(32), roster=roster.digest)
        server, clients = open_round(self.session, identities, plan.policy(), roster=roster)
        self.keys = Tally(server, clients)
        for _ in range(2):
            self.keys.phase(Words.zeros(1, 4, 32), set(), self.timed, order[-1])

    def plan(self, length: int) -> secagg.RoundPlan:
        """The same for every dropout that is played."""
        return secagg.plan(
            self.members, length, dropout=DROPOUT, corrupt=CORRUPT, full_graph=self.full, bits=32
        )

    def play(self, length: int, dropout: float) -> Cost:
        """One round."""
        session = replace(self.session, length=length)
        # The keys were made for length 1; that name of the session stays for all lengths.
        session.__dict__["digest"] = self.session.digest
        base = public_generator(1).integers(0, 1 << 20, length).astype(np.uint32)
        words = Words(base, np.array([1, 0, 0, 0], np.uint32))
        gone = set(self.order[: round(dropout * self.members)])
        turn = self.keys.fork(session)
        while turn.server.phase is not Phase.DONE:
            turn.phase(words, gone, self.timed, self.order[-1])
        outcome = turn.server.outcome
        assert outcome is not None
        expected = base * np.uint32(len(outcome.survivors))
        if not self.sampled and not np.array_equal(outcome.total.narrow, expected):
            raise SystemExit("the sum is wrong")
        stayed = self.timed - gone
        client = statistics.median(turn.spent[member] for member in stayed)
        return Cost(client, turn.at_server, max(turn.up[member] for member in stayed), turn.down)


def _answer(client: secagg.Client, message: bytes, words: Words) -> bytes:
    return client.answer(message, words)


def _plain(client: secagg.Client, message: bytes, words: Words) -> bytes:
    """As `answer`, but for the masks: what the server must do is the same."""
    masked, agree = masks.masked, crypto.agree
    masks.masked = lambda given, plus, minus, bits, head: masks.pack(given, bits, head)
    crypto.agree = lambda private, public: bytes(32)
    try:
        return client.answer(message, words)
    finally:
        masks.masked, crypto.agree = masked, agree


def flower(python: Path | None, plan: secagg.RoundPlan) -> dict | None:
    """What Flower takes for the same numbers, or None."""
    if python is None:
        return None
    sizes = (plan.members, plan.neighbours, plan.threshold, plan.encoding.length)
    script = Path(__file__).with_name("peer_flower.py")
    command = [str(python), str(script), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def row(bench: Bench, plan: secagg.RoundPlan, dropout: float, theirs: dict | None) -> None:
    """Measure and print one line."""
    length, peers = plan.encoding.length, plan.neighbours
    cost, rate = bench.play(length, dropout), aes_rate()
    limit = (peers + 1) * 4 * length / rate
    cells = ["-"] * 5
    if theirs:
        their_server = theirs["server"][str(dropout)]
        cells = [
            f"{theirs['client'] * 1e3:.0f}", f"{theirs['client'] / cost.client:.0f}",
            f"{their_server:.2f}", f"{their_server / cost.server:.0f}",
            f"{theirs['sent'] / cost.up:.2f}x",
        ]  # fmt: skip
    print(
        f"{plan.members:4d} {peers:4d} {plan.threshold:4d} {length:7d}  {dropout:4.1f} |"
        f" {cost.client * 1e3:9.2f} {limit * 1e3:6.2f} {cost.client / limit:6.2f}"
        f" {cells[0]:>7s} {cells[1]:>6s} |{'~' if bench.sampled else ' '}"
        f"{cost.server:9.4f} {cells[2]:>8s} {cells[3]:>6s} | {cost.up / 1e6:.2f} {cells[4]:>7s}"
        f"  {(cost.up - 4 * length) / peers:.0f}, {cost.down / peers:.0f}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flower", type=Path, help="Python of an environment with flwr.")
    parser.add_argument("--members", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    chosen = parser.parse_args()
    print(f"AES keystream: {aes_rate() / 1e9:.1f} GB/s")
    print(
        "   n    k    t       d  drop | client ms  limit  ratio  Flower      x |"
        "  server s   Flower      x | up MB  Flower  overhead B/neighbour up, down"
    )
    for members in chosen.members:
        for full in (True, False) if members == 100 else (members < 100,):
            bench = Bench(members, full=full)
            for length in chosen.lengths:
                plan = bench.plan(length)
                theirs = flower(chosen.flower, plan)
                for dropout in DROPS:
                    row(bench, plan, dropout, theirs)


if __name__ == "__main__":
    main()
