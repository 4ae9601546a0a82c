"""Privacy accounting: events, certified upper bounds on ε, curves, calibration.

>>> from sequester import accounting as acc
>>> run = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.1)), 4000)
>>> acc.epsilon(run, 1e-6) < 3.5342
True
"""

from sequester.accounting import calibrate
from sequester.accounting.accountant import delta, epsilon
from sequester.accounting.accountant import rdp_curve as rdp
from sequester.accounting.events import (
    VOCABULARY,
    ZCDP,
    ApproximateDP,
    Composed,
    CyclicPoissonSampled,
    DiscreteGaussian,
    Event,
    FixedSizeSampled,
    Gaussian,
    Laplace,
    MatrixMechanism,
    PoissonSampled,
    QuantileEstimate,
    RandomizedResponse,
    RecordsPoissonSampled,
    RepeatAndSelect,
    SelfComposed,
    Shuffled,
    Skellam,
    TreeAggregation,
    TruncatedPoissonSampled,
)
from sequester.accounting.wire import from_json, to_json

__all__ = [
    "VOCABULARY",
    "ZCDP",
    "ApproximateDP",
    "Composed",
    "CyclicPoissonSampled",
    "DiscreteGaussian",
    "Event",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "MatrixMechanism",
    "PoissonSampled",
    "QuantileEstimate",
    "RandomizedResponse",
    "RecordsPoissonSampled",
    "RepeatAndSelect",
    "SelfComposed",
    "Shuffled",
    "Skellam",
    "TreeAggregation",
    "TruncatedPoissonSampled",
    "calibrate",
    "delta",
    "epsilon",
    "from_json",
    "rdp",
    "to_json",
]
