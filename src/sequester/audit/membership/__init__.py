"""Can somebody tell whether a person took part?

These figures are computed on private people: they stay in the run's `private/` folder and on
the operator's terminal, and charge nothing because nothing of them is released.
"""

from sequester.audit.membership.attacks import lira, loss, rmia, signals, signals_of_iterates
from sequester.audit.membership.exposure import exposure, repeated
from sequester.audit.membership.references import adam, halves, reference_signals
from sequester.audit.membership.roc import Attack, Caps, Interval, measure

__all__ = [
    "Attack",
    "Caps",
    "Interval",
    "adam",
    "exposure",
    "halves",
    "lira",
    "loss",
    "measure",
    "reference_signals",
    "repeated",
    "rmia",
    "signals",
    "signals_of_iterates",
]
