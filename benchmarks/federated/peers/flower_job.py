"""The job on Flower's simulation engine (Ray, two actors of one core).

<python with flwr[simulation]> benchmarks/federated/peers/flower_job.py DATA HIDDEN ROUNDS
"""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import logging
import sys
import warnings

import common
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
torch.set_num_threads(1)
folder, hidden, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clients = len(common.read(folder, lazily=True)[0])
client_app = ClientApp()
server_app = ServerApp()
clock = common.Clock(whole_tree=True)


@client_app.train()
def train(message, context):
    """One client's local epoch."""
    torch.set_num_threads(1)
    x, y, _, _ = common.read(folder, lazily=True)
    me = int(context.node_config["partition-id"])
    net = common.Net(hidden)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    common.local_train(net, torch.tensor(x[me]), torch.tensor(y[me]))
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": x.shape[1]}),
        }
    )
    return Message(content=content, reply_to=message)


def lap(number, arrays):
    """Called after every round, and before the first with number 0."""
    if number:
        clock.lap()


@server_app.main()
def main(grid, context):
    """FedAvg over a tenth of the clients."""
    net = common.make_net(hidden)
    strategy = FedAvg(
        fraction_train=common.COHORT / clients, fraction_evaluate=0.0, min_available_nodes=clients
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=rounds,
        evaluate_fn=lap,
    )
    net.load_state_dict(result.arrays.to_torch_state_dict())
    _, _, tx, ty = common.read(folder)
    clock.report(accuracy=common.accuracy(net, tx, ty))


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
