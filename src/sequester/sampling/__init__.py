"""Who is in a lot, and the event that justifies it."""

from sequester.sampling.lot import Lot
from sequester.sampling.poisson import PoissonSampler, poisson_event

__all__ = ["Lot", "PoissonSampler", "poisson_event"]
