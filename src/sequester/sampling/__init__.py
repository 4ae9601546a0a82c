"""Who is in a lot, and the event that justifies it."""

from sequester.sampling.fixed import FixedSizeSampler, fixed_size_event
from sequester.sampling.lot import Lot
from sequester.sampling.poisson import PoissonSampler, poisson_event

__all__ = ["FixedSizeSampler", "Lot", "PoissonSampler", "fixed_size_event", "poisson_event"]
