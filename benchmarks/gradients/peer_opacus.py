"""The row of Opacus: `python -m benchmarks.gradients.peer_opacus WORKLOAD opacus THREADS [PEOPLE]`.

Opacus clips records; these are the fastest ways to make it clip people that gave the right
gradient. Recurrences are built from its `RNNLinear` with people as the first dimension and
windows as the second, so that its hook adds a person's windows up ("3-D cell"). A transformer
with one window for each person needs no trick ("expanded weights"). Ragged people run as
records whose gradients are added up by person before the optimiser clips ("folded").
"""

import os
import warnings

import numpy as np
import torch
from opacus.grad_sample import wrap_model
from opacus.layers.dp_rnn import RNNLinear
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional as F

from benchmarks.gradients.arguments import arguments
from benchmarks.gradients.networks import Transformer
from benchmarks.gradients.serve import serve
from benchmarks.gradients.workloads import CLIP, PLACES, data

warnings.filterwarnings("ignore")
WAY = {"W1": "3-D cell", "W2": "expanded weights", "W3": "3-D cell", "W4": "folded"}


class Cell(nn.Module):
    """A recurrence over `(people, windows, steps, features)`."""

    def __init__(self, features, size, gates):
        super().__init__()
        self.size = size
        self.ih, self.hh = RNNLinear(features, gates * size), RNNLinear(size, gates * size)

    def forward(self, x):
        into = self.ih(x)
        h = x.new_zeros(*x.shape[:2], self.size)
        c, outs = h, []
        for t in range(x.shape[2]):
            h, c = self.step(into[:, :, t], self.hh(h), h, c)
            outs.append(h)
        return torch.stack(outs, 2)


class Gru(Cell):
    def step(self, into, over, h, c):
        (ir, iz, i_n), (hr, hz, hn) = into.chunk(3, -1), over.chunk(3, -1)
        z = torch.sigmoid(iz + hz)
        n = torch.tanh(i_n + torch.sigmoid(ir + hr) * hn)
        return n + z * (h - n), c


class Lstm(Cell):
    def step(self, into, over, h, c):
        i, f, g, o = (into + over).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = Gru(6, 128, 3), nn.Linear(128, 6)

    def forward(self, x):
        return self.fc(self.rnn(x).mean(2))


class NextPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn = nn.Embedding(PLACES, 64), Lstm(64, 128, 4)
        self.fc = nn.Linear(128, PLACES)

    def forward(self, x):
        return self.fc(self.rnn(self.emb(x)))


class Places(Transformer):
    def forward(self, x):
        place = torch.arange(x.shape[1]).expand(x.shape).contiguous()
        return self.fc(self.ln(self.blocks(self.emb(x) + self.pos(place))))


NAMES = {
    "rnn.ih.weight": "rnn.weight_ih_l0",
    "rnn.ih.bias": "rnn.bias_ih_l0",
    "rnn.hh.weight": "rnn.weight_hh_l0",
    "rnn.hh.bias": "rnn.bias_hh_l0",
}


class Row:
    def __init__(self, workload, people):
        folder = os.environ["SEQUESTER_BENCH_FOLDER"]
        self.first = {
            name: torch.from_numpy(value)
            for name, value in np.load(f"{folder}/{workload}-weights.npz").items()
        }
        kind = {"W1": Pooled, "W2": Places, "W3": NextPlace, "W4": Pooled}[workload]
        self.model, self.people, self.folded = kind(), people, workload == "W4"
        d = data(workload, people)
        self.x, self.y = torch.from_numpy(d.x), torch.from_numpy(d.y)
        counts = torch.from_numpy(d.counts)
        self.owner = torch.repeat_interleave(torch.arange(people), counts)
        if self.folded:
            self.x = self.x.unsqueeze(1)
        elif workload != "W2":
            self.x = self.x.unflatten(0, (people, -1))
        self.y = self.y.reshape(*self.x.shape[:1], -1)
        self.share = (1.0 / counts)[self.owner].unsqueeze(1) if self.folded else 1.0
        self.restore()
        mode = "ew" if workload == "W2" else "hooks"
        self.private = wrap_model(
            self.model, grad_sample_mode=mode, batch_first=True, loss_reduction="sum"
        )
        self.optimiser = DPOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1), noise_multiplier=1.0,
            max_grad_norm=CLIP[workload], expected_batch_size=people, loss_reduction="mean",
        )  # fmt: skip

    def restore(self):
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.first[NAMES.get(name, name)])

    def backward(self):
        self.optimiser.zero_grad()
        logits = self.private(self.x)
        each = F.cross_entropy(logits.flatten(0, -2), self.y.flatten(), reduction="none")
        (each.view(len(self.x), -1).mean(1, keepdim=True) * self.share).sum().backward()
        if self.folded:
            for parameter in self.model.parameters():
                sample = parameter.grad_sample
                whole = sample.new_zeros(self.people, *sample.shape[1:])
                parameter.grad_sample = whole.index_add_(0, self.owner, sample)

    def step(self):
        self.backward()
        self.optimiser.step()

    def gradient(self):
        self.restore()
        self.optimiser.noise_multiplier = 0.0
        self.backward()
        self.optimiser.pre_step()
        return {NAMES.get(n, n): p.grad.numpy() for n, p in self.model.named_parameters()}


def main():
    given = arguments(__doc__)
    torch.set_num_threads(given.threads)
    row = Row(given.workload, given.people)
    serve(row.step, row.gradient, WAY[given.workload])


if __name__ == "__main__":
    main()
