"""Secure aggregation: the server learns the sum of the members' vectors and nothing else.

>>> import numpy as np
>>> from sequester import secagg
>>> plan = secagg.plan(5, 3, dropout=0.2, corrupt=0.0)
>>> updates = {member: np.full(3, 0.1) for member in range(5)}
>>> done = secagg.simulate_updates(updates, plan, drops={4: "masked"})
>>> [round(float(value), 6) for value in done.total], done.survivors
([0.4, 0.4, 0.4], (0, 1, 2, 3))
"""

from sequester.secagg.aggregator import Aggregator, PairwiseMasks, hides_little
from sequester.secagg.client import Client
from sequester.secagg.crypto import Identity
from sequester.secagg.encoding import Encoding, decode, encode
from sequester.secagg.graph import Threats
from sequester.secagg.masks import Words
from sequester.secagg.plan import RoundPlan, plan
from sequester.secagg.policy import Policy
from sequester.secagg.server import Outcome, Phase, Server
from sequester.secagg.session import Roster, Session
from sequester.secagg.simulator import (
    RoundContext,
    RoundReport,
    enrol,
    roster_of,
    simulate_round,
    simulate_updates,
)

__all__ = [
    "Aggregator",
    "Client",
    "Encoding",
    "Identity",
    "Outcome",
    "PairwiseMasks",
    "Phase",
    "Policy",
    "Roster",
    "RoundContext",
    "RoundPlan",
    "RoundReport",
    "Server",
    "Session",
    "Threats",
    "Words",
    "decode",
    "encode",
    "enrol",
    "hides_little",
    "plan",
    "roster_of",
    "simulate_round",
    "simulate_updates",
]
