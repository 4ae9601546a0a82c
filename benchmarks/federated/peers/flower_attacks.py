"""The attacks on Flower's FedAvg, bare and under its server-side clipping.

Prints one JSON object. Replies are handed to the strategy as its grid would hand them.
"""

from __future__ import annotations

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

import json
import logging
import warnings

import attack_kinds
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
TaskIdentity._run_id = TaskIdentity._task_id = TaskIdentity._node_id = 1


class Grid:
    """As much of a grid as configuring a round needs."""

    def get_node_ids(self):
        return list(range(1, attack_kinds.CLIENTS + 1))


def release(kind, *, private):
    """The new model after one round, starting from zeros."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=attack_kinds.CLIENTS)
    if private:  # noise of a billionth: only the influence is looked at
        strategy = DifferentialPrivacyServerSideFixedClipping(
            strategy, 1e-9, 1.0, attack_kinds.CLIENTS
        )
    start = ArrayRecord([np.zeros(attack_kinds.SIZE, np.float32)])
    asked = list(strategy.configure_train(1, start, ConfigRecord(), Grid()))
    replies = []
    for client, message in enumerate(asked):
        vector, examples = attack_kinds.sent(client, kind)
        content = RecordDict(
            {
                "arrays": ArrayRecord([vector]),
                "metrics": MetricRecord({"num-examples": examples}),
            }
        )
        replies.append(Message(content, reply_to=message))
    if kind == "replay":
        replies[attack_kinds.HOSTILE] = replies[attack_kinds.HOSTILE - 1]
    arrays, _ = strategy.aggregate_train(1, replies)
    return arrays.to_numpy_ndarrays()[0] if arrays else None


print(
    json.dumps(
        {
            "bare": attack_kinds.table(lambda kind: release(kind, private=False)),
            "private": attack_kinds.table(lambda kind: release(kind, private=True)),
        }
    )
)
