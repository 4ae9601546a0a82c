"""What real Flower's processes hold in memory, round after round, those it starts anew included."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SPAN = 20
"""Rounds at either end whose medians are compared."""


def resident(process: int | None = None) -> float:
    """MiB of a process, of this one by default."""
    pages = Path(f"/proc/{process or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _parents() -> Iterator[tuple[int, int]]:
    """Every process, and the one that started it."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended
            told = (entry / "stat").read_text().rpartition(")")[2].split()
            yield int(entry.name), int(told[1])


def _program(process: int) -> str:
    """The program's name: that of the script where an interpreter runs one."""
    words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    names = [Path(word).name for word in words[:2]]
    return next((name for name in names if name.startswith(("flwr-", "flower-"))), names[0])


@dataclass
class Watch:
    """Memory of every process of a deployment, by what it is.

    Attributes:
        leaders: The processes that were started by hand, by name, as they are now.
        now: Of the round that runs: each process's most, by what it is and its number.
        rounds: Of each round that is over: the most that a process of each kind held.
    """

    leaders: Mapping[str, int]
    now: dict[tuple[str, int], float] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)

    def look(self) -> None:
        """Take one sample."""
        whose = {number: name for name, number in self.leaders.items()}
        parents = dict(_parents())
        for number in parents:
            above = number
            while above and above not in whose:
                above = parents.get(above, 0)
            if not above:
                continue
            with contextlib.suppress(OSError):  # it may have ended
                if program := _program(number):  # one that was not waited for yet has none
                    what = f"{whose[above]}: {program}", number
                    self.now[what] = max(self.now.get(what, 0.0), resident(number))

    def over(self) -> None:
        """A round is over."""
        most: dict[str, float] = {}
        for (what, _), held in self.now.items():
            most[what] = max(most.get(what, 0.0), held)
        self.rounds.append(most)
        self.now.clear()

    def told(self) -> list[str]:
        """A line for each kind of process."""
        kinds = sorted(set().union(*self.rounds))
        return [self._line(kind) for kind in kinds]

    def _line(self, kind: str) -> str:
        at = np.array([n for n, held in enumerate(self.rounds) if kind in held])
        held = np.array([self.rounds[n][kind] for n in at])
        first, last = held[:SPAN], held[-SPAN:]
        after = at >= min(SPAN, len(self.rounds) // 3)
        slope = 1024 * float(np.polyfit(at[after], held[after], 1)[0]) if after.sum() > 1 else 0.0
        return (
            f"{kind:32} {len(at):4} rounds: median of the first {len(first)} "
            f"{np.median(first):.1f} MiB, of the last {len(last)} {np.median(last):.1f}; "
            f"{slope:+.1f} KiB a round"
        )
