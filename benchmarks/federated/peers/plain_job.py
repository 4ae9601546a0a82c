"""A plain loop over the clients: what anybody would write.

python benchmarks/federated/peers/plain_job.py DATA HIDDEN ROUNDS
"""

from __future__ import annotations

import sys

import common
import torch

torch.set_num_threads(1)
clock = common.Clock()
folder, hidden, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
x, y, tx, ty = common.read(folder)
x, y = torch.from_numpy(x), torch.from_numpy(y)
net = common.make_net(hidden)
model = [p.detach().clone() for p in net.parameters()]
for r in range(rounds):
    total = [torch.zeros_like(p) for p in model]
    for client in common.cohort(r, len(x)):
        with torch.no_grad():
            for p, value in zip(net.parameters(), model, strict=True):
                p.copy_(value)
        common.local_train(net, x[client], y[client])
        with torch.no_grad():
            for s, p, value in zip(total, net.parameters(), model, strict=True):
                s.add_(p - value)
    for value, s in zip(model, total, strict=True):
        value.add_(s / common.COHORT)
    clock.lap()
with torch.no_grad():
    for p, value in zip(net.parameters(), model, strict=True):
        p.copy_(value)
clock.report(accuracy=common.accuracy(net, tx, ty))
