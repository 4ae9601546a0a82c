"""The ledger: budgets of data sets that cannot be overspent, and everything ever charged.

>>> from sequester.ledger import Ledger
>>> ledger = Ledger.open("sqlite:///budget.db")                  # doctest: +SKIP
>>> held = ledger.reserve(plan, budget="town", key="run-1")      # doctest: +SKIP
>>> held.begin()                                                 # doctest: +SKIP
>>> claim_fields = held.commit(event_that_ran)                   # doctest: +SKIP
"""

from sequester.ledger.budgets import Budget
from sequester.ledger.grants import Grant, PolicyChange
from sequester.ledger.ledger import Ledger, Standing
from sequester.ledger.policy import Ceiling, Granter, Policy
from sequester.ledger.reservations import Chargeable, Reservation
from sequester.ledger.signing import Signed
from sequester.ledger.verify import Verified

__all__ = [
    "Budget",
    "Ceiling",
    "Chargeable",
    "Grant",
    "Granter",
    "Ledger",
    "Policy",
    "PolicyChange",
    "Reservation",
    "Signed",
    "Standing",
    "Verified",
]
