"""Privacy accounting: events, certified upper bounds on ε, curves, calibration.

>>> from sequester import accounting as acc
>>> run = acc.SelfComposed(acc.PoissonSampled(0.01, acc.Gaussian(1.1)), 4000)
>>> acc.epsilon(run, 1e-6) < 3.5342
True
"""

from sequester.accounting import calibrate, group
from sequester.accounting.accountant import delta, epsilon
from sequester.accounting.accountant import rdp_curve as rdp
from sequester.accounting.adaptive import Filter, Odometer, order_for, quantile_split
from sequester.accounting.curve import Tradeoff, tradeoff
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
from sequester.accounting.statement import Statement, statement
from sequester.accounting.wire import from_json, to_json

__all__ = [
    "VOCABULARY",
    "ZCDP",
    "ApproximateDP",
    "Composed",
    "CyclicPoissonSampled",
    "DiscreteGaussian",
    "Event",
    "Filter",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "MatrixMechanism",
    "Odometer",
    "PoissonSampled",
    "QuantileEstimate",
    "RandomizedResponse",
    "RecordsPoissonSampled",
    "RepeatAndSelect",
    "SelfComposed",
    "Shuffled",
    "Skellam",
    "Statement",
    "Tradeoff",
    "TreeAggregation",
    "TruncatedPoissonSampled",
    "calibrate",
    "delta",
    "epsilon",
    "from_json",
    "group",
    "order_for",
    "quantile_split",
    "rdp",
    "statement",
    "to_json",
    "tradeoff",
]
