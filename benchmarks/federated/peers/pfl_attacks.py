"""The attacks on pfl's simulated backend, bare and under its Gaussian mechanism.

Prints one JSON object. A hostile client is a user whose local training gives the hostile vector.
"""

from __future__ import annotations

import json
import logging

import attack_kinds
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics

logging.disable(logging.CRITICAL)


class Vector(torch.nn.Module):
    """A model that is one vector."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(attack_kinds.SIZE))

    def loss(self, x, y, eval=False):
        return self.w.sum()

    def metrics(self, x, y):
        return {}


class Sent(FederatedAveraging):
    """Federated averaging of the vectors that the table names."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        vector, _ = attack_kinds.sent(int(user_dataset.user_id), self.kind)
        # pfl's central optimiser descends: it takes the model before minus the model after.
        return MappedVectorStatistics({"w": torch.from_numpy(-vector)}, weight=1.0), Metrics()


def release(kind, *, private):
    """The new model after one round, starting from zeros."""
    net = Vector()
    data = FederatedDataset(
        lambda user: Dataset((np.zeros((32, 1)), np.zeros(32)), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(attack_kinds.CLIENTS))),
    )
    mechanism = [CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1e-9))] if private else []
    Sent(kind).run(
        algorithm_params=NNAlgorithmParams(1, 10**6, attack_kinds.CLIENTS, 0),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=mechanism),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(8, 1, 0.1),
        model_eval_params=NNEvalHyperParams(None),
        callbacks=[],
    )
    return net.w.detach().numpy().copy()


print(
    json.dumps(
        {
            "bare": attack_kinds.table(lambda kind: release(kind, private=False)),
            "private": attack_kinds.table(lambda kind: release(kind, private=True)),
        }
    )
)
