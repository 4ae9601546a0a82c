"""Writers that are killed at random instants, and the reckoning afterwards.

Each writer tells its parent through a pipe what it is about to ask (so the key outlives it)
and what the ledger has confirmed. After the kill the parent holds the ledger to it: whatever
was confirmed is there exactly once, whatever was only asked is settled by asking again.
"""

import fcntl
import os
import random
import signal
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sequester.accounting import Gaussian
from sequester.ledger import Ledger, rows
from tests.ledger.plans import Once

NOISES = (20.0, 25.0, 30.0, 40.0)
LESS = 50.0  # what a run that stopped early commits
RECORD = 32  # bytes of one message: a letter, a key, padding
ROWS_PER_LEDGER = 700


@dataclass
class Tally:
    """What was seen, all of which must add up."""

    kills: int = 0
    confirmed: int = 0
    in_doubt_present: int = 0
    in_doubt_absent: int = 0
    lost: int = 0
    doubled: int = 0
    ledgers: int = 0
    server_crashes: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"kills {self.kills}, server crashes {self.server_crashes}, ledgers {self.ledgers}, "
            f"confirmed {self.confirmed}, in doubt and present {self.in_doubt_present}, in doubt "
            f"and absent {self.in_doubt_absent}, lost {self.lost}, doubled {self.doubled}, "
            f"problems {len(self.problems)}"
        )


@dataclass(frozen=True)
class Said:
    """What writers said before they died: letter → keys."""

    asked: set[str]
    reserved: set[str]
    committed: set[str]
    voided: set[str]


def plan(key: str) -> Once:
    """The plan that belongs to a key, so that a parent can repeat the request."""
    return Once(Gaussian(NOISES[int(key[-1], 16) % len(NOISES)]))


def budget(key: str) -> str:
    return "even" if int(key[0], 16) % 2 == 0 else "odd"


def writer(url: str, seed: int, pipe: int, acknowledge_early: bool) -> None:
    """Ask for ever; never returns normally."""
    rng = random.Random(seed)
    ledger = Ledger.open(url)

    def tell(letter: str, key: str) -> None:
        os.write(pipe, f"{letter}{key}".ljust(RECORD).encode())

    while True:
        key = f"{rng.getrandbits(64):016x}"
        tell("A", key)
        if acknowledge_early:  # the planted fault: confirmed before it is durable
            tell("R", key)
        held = ledger.reserve(plan(key), budget=budget(key), key=key)
        tell("R", key)
        choice = rng.random()
        if choice < 0.3:
            held.void("nothing was touched")
            tell("V", key)
        elif choice < 0.7:
            held.begin()
            held.commit(Gaussian(LESS))
            tell("C", key)


def spawn(url: str, seed: int, acknowledge_early: bool) -> tuple[int, int]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(120)  # nobody outlives a fuzzer that was itself killed
        try:
            writer(url, seed, write, acknowledge_early)
        except BaseException as error:
            if url.startswith("postgresql") and getattr(error, "code", 0) == 303:
                os._exit(1)  # The server went away: what was asked is in doubt, as after a kill.
            os.write(write, f"E{type(error).__name__} {str(error)[:24]}".ljust(RECORD).encode())
        finally:
            os._exit(1)
    os.close(write)
    return child, read


def wait(started: list[tuple[int, int]], messages: int, more_s: float) -> None:
    """Until the writers have sent so many messages (2 s at most), and then a moment more."""
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        if sum(waiting(pipe) for _, pipe in started) >= messages * RECORD:
            break
        time.sleep(0.001)
    time.sleep(more_s)


def waiting(pipe: int) -> int:
    """Bytes that can be read from a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def listen(pipes: list[int], tally: Tally) -> Said:
    said = Said(set(), set(), set(), set())
    place = {"A": said.asked, "R": said.reserved, "C": said.committed, "V": said.voided}
    for pipe in pipes:
        heard = b""
        while block := os.read(pipe, 1 << 16):
            heard += block
        os.close(pipe)
        for at in range(0, len(heard) - RECORD + 1, RECORD):
            message = heard[at : at + RECORD].decode()
            if message[0] == "E":
                tally.problems.append(message)
            else:
                place[message[0]].add(message[1:17])
    return said


def reckon(url: str, said: Said, tally: Tally) -> int:
    """Hold the ledger to what its writers said; returns its number of rows."""
    with Ledger.open(url) as ledger:
        ledger.verify()  # the chain, every charge and every balance follow from the rows
        every = ledger.rows()
        numbers: dict[str, list[int]] = {}
        for row in every:
            if row.kind == rows.RESERVE:
                numbers.setdefault((row.key or "")[4:], []).append(row.seq)
        settled = {(row.kind, row.ref) for row in every}
        tally.doubled += sum(len(found) > 1 for found in numbers.values())
        tally.confirmed += len(said.reserved)
        tally.lost += len(said.reserved - set(numbers))
        for kind, keys in ((rows.COMMIT, said.committed), (rows.VOID, said.voided)):
            tally.lost += sum((kind, numbers.get(key, [0])[0]) not in settled for key in keys)
        for key in said.asked - said.reserved:
            if key in numbers:
                tally.in_doubt_present += 1
            else:
                tally.in_doubt_absent += 1
            again = ledger.reserve(plan(key), budget=budget(key), key=key)
            if key in numbers and again.row != numbers[key][0]:
                tally.doubled += 1
            if ledger.reserve(plan(key), budget=budget(key), key=key) != again:
                tally.doubled += 1
        ledger.verify()
        return ledger.entries()


def fuzz(
    fresh: Callable[[], str],
    key: Path,
    *,
    kills: int,
    writers: int,
    seed: int,
    acknowledge_early: bool = False,
    crash_server: Callable[[], None] | None = None,
    crash_share: float = 0.0,
) -> Tally:
    """Kill `writers` writers at a time until `kills` have died; now and then their server too."""
    rng, tally, url, size = random.Random(seed), Tally(), "", ROWS_PER_LEDGER
    while tally.kills < kills:
        if size >= ROWS_PER_LEDGER:  # keep verification cheap
            url = fresh()
            with Ledger.create(url, key=key) as ledger:
                ledger.create_budget("even", "even", 1e6, 1e-6)
                ledger.create_budget("odd", "odd", 1e6, 1e-6)
            tally.ledgers += 1
        started = [spawn(url, rng.getrandbits(60), acknowledge_early) for _ in range(writers)]
        wait(started, rng.randrange(0, 10 * writers), rng.uniform(0.0, 0.02))
        if crash_server is not None and rng.random() < crash_share:
            crash_server()
            tally.server_crashes += 1
        for child, _ in rng.sample(started, writers):
            os.kill(child, signal.SIGKILL)
            time.sleep(rng.uniform(0.0, 0.003))
        for child, _ in started:
            os.waitpid(child, 0)
            tally.kills += 1
        size = reckon(url, listen([pipe for _, pipe in started], tally), tally)
    return tally
