"""The job on pfl: FederatedAveraging with its simulated backend, in one process.

<environment with pfl>/bin/python benchmarks/federated/peers/pfl_job.py DATA HIDDEN ROUNDS
"""

from __future__ import annotations

import logging
import sys

import common
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

torch.set_num_threads(1)
logging.disable(logging.CRITICAL)


class PflNet(common.Net):
    """The network with the two methods pfl asks for."""

    def loss(self, x, y, *, eval=False):
        return functional.cross_entropy(self(torch.as_tensor(x)), torch.as_tensor(y))

    def metrics(self, x, y):
        return {}


class Lap(TrainingProcessCallback):
    """Notes when a round ends."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        clock.lap()
        return False, Metrics()


clock = common.Clock()
folder, hidden, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
x, y, tx, ty = common.read(folder)
x, y = torch.from_numpy(x), torch.from_numpy(y)
torch.manual_seed(0)
np.random.seed(0)
net = PflNet(hidden)
sampler = get_user_sampler("random", range(len(x)))
data = FederatedDataset(lambda user: Dataset((x[user], y[user]), user_id=str(user)), sampler)
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10**6,
        train_cohort_size=common.COHORT,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(
        local_batch_size=common.BATCH, local_num_epochs=1, local_learning_rate=common.RATE
    ),
    model_eval_params=NNEvalHyperParams(local_batch_size=None),
    callbacks=[Lap()],
)
clock.report(accuracy=common.accuracy(net, tx, ty))
