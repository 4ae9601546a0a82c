"""Federated algorithms, one file each, on flat vectors.

An algorithm has at most three places to speak: what a client's local steps look like (`local`),
how accepted updates add up to one step (`fold`), and how the server applies it (`apply`).
Everything is float64 on the server; sums run over clients in ascending order, so the order of
arrival cannot change a bit of the result.
"""

from sequester.federated.algorithms.adaptive import FedAdagrad, FedAdam, FedAvgM, FedYogi
from sequester.federated.algorithms.base import Algorithm, Fold, LocalWork, ServerState
from sequester.federated.algorithms.fedavg import FedAvg
from sequester.federated.algorithms.fednova import FedNova
from sequester.federated.algorithms.fedprox import FedProx
from sequester.federated.algorithms.robust import (
    CoordinateMedian,
    Krum,
    NormBound,
    Rule,
    TrimmedMean,
)
from sequester.federated.algorithms.scaffold import Scaffold
from sequester.federated.algorithms.weighting import ByWindows, Capped, Uniform, Weighting

__all__ = [
    "Algorithm",
    "ByWindows",
    "Capped",
    "CoordinateMedian",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedNova",
    "FedProx",
    "FedYogi",
    "Fold",
    "Krum",
    "LocalWork",
    "NormBound",
    "Rule",
    "Scaffold",
    "ServerState",
    "TrimmedMean",
    "Uniform",
    "Weighting",
]
