"""Plans as small as a test needs them."""

from dataclasses import dataclass

from sequester.accounting import Event, Gaussian, PoissonSampled, SelfComposed


@dataclass(frozen=True)
class Steps:
    """Noisy steps on Poisson lots."""

    steps: int
    noise: float = 1.1
    rate: float = 0.01
    unit: str = "person"
    adjacency: str = "add-or-remove"
    delta: float = 1e-6
    population: int | None = None

    def event(self) -> Event:
        return SelfComposed(PoissonSampled(self.rate, Gaussian(self.noise)), self.steps)


@dataclass(frozen=True)
class Once:
    """One event."""

    what: Event
    unit: str = "person"
    adjacency: str = "add-or-remove"
    delta: float = 1e-6

    def event(self) -> Event:
        return self.what


class Clock:
    """A clock that tests set."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
