"""Rows in PyTorch: `python -m benchmarks.gradients.ours WORKLOAD ROW THREADS [PEOPLE]`.

native     the ordinary step without privacy: one forward, one backward, native modules
tricks     without privacy, but by our engine: each chunk of people as if it were one person
loop       one person at a time through the native modules, as anyone would write it
pure       ours without compiled kernels
compiled   ours

Every private row clips, adds Gaussian noise (from `torch.randn`: the same for all) and steps.
"""

import os
from dataclasses import replace

import torch

from benchmarks.gradients.arguments import arguments
from benchmarks.gradients.lots import lot
from benchmarks.gradients.networks import loss, network
from benchmarks.gradients.serve import serve
from benchmarks.gradients.workloads import CLIP


class Row:
    """A model, its lot and an optimiser."""

    def __init__(self, workload, people):
        self.model, self.lot, self.clip = network(workload), lot(workload, people), CLIP[workload]
        self.first = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def mean(self):
        """The mean gradient by name, before noise."""
        raise NotImplementedError

    def noise(self, gradient):
        return gradient.add_(torch.randn_like(gradient), alpha=self.clip / self.lot.people)

    def step(self):
        means = self.mean()
        for name, parameter in self.model.named_parameters():
            parameter.grad = self.noise(means[name].to(parameter.dtype))
        self.optimiser.step()

    def gradient(self):
        self.model.load_state_dict(self.first)
        return {name: value.detach().numpy() for name, value in self.mean().items()}


class Native(Row):
    def mean(self):
        owner, people = self.lot.owner, self.lot.people
        share = 1.0 / torch.bincount(owner, minlength=people)[owner]
        self.optimiser.zero_grad()
        ((loss(self.model, self.lot) * share).sum() / people).backward()
        return {name: p.grad for name, p in self.model.named_parameters()}

    def noise(self, gradient):
        return gradient


class Loop(Row):
    def mean(self):
        parameters = list(self.model.parameters())
        total = [torch.zeros_like(p) for p in parameters]
        for person in range(self.lot.people):
            own = self.lot.select(person, person + 1)
            grads = torch.autograd.grad(loss(self.model, own).mean(), parameters)
            norm = torch.stack([g.norm() for g in grads]).norm()
            for t, g in zip(total, grads, strict=True):
                t.add_(g, alpha=min(1.0, self.clip / float(norm)))
        names = [name for name, _ in self.model.named_parameters()]
        return {name: t.div_(self.lot.people) for name, t in zip(names, total, strict=True)}


class Ours(Row):
    def mean(self):
        from sequester.gradients import clipped_sum

        total = clipped_sum(self.model, loss, self.lot, self.clip).sum
        return {name: value.div_(self.lot.people) for name, value in total.items()}


class Tricks(Row):
    """Chunks of people in the place of people, and a bound that nobody reaches."""

    def __init__(self, workload, people, chunk):
        super().__init__(workload, people)
        owner = self.lot.owner
        counts = torch.bincount(owner, minlength=people)
        group = torch.div(owner, chunk, rounding_mode="floor")
        windows = torch.bincount(group)[group]
        weight = windows / counts[owner]  # the mean over the chunk's windows → sum of people
        self.grouped = replace(self.lot, owner=group, people=int(group.max()) + 1, weight=weight)

    def mean(self):
        from sequester.gradients import clipped_sum

        total = clipped_sum(self.model, weighted, self.grouped, 1e12, chunk=1).sum
        return {name: value.div_(self.lot.people) for name, value in total.items()}

    def noise(self, gradient):
        return gradient


def weighted(model, people):
    return loss(model, people) * people.weight


def row_of(name, workload, people):
    if name == "tricks":
        return Tricks(workload, people, 4 if workload == "W2" else 8)
    return {"native": Native, "loop": Loop, "pure": Ours, "compiled": Ours}[name](workload, people)


def main():
    given = arguments(__doc__)
    torch.set_num_threads(given.threads)
    if given.row == "pure":
        os.environ["SEQUESTER_NO_NATIVE"] = "1"
    row = row_of(given.row, given.workload, given.people)
    serve(row.step, row.gradient)


if __name__ == "__main__":
    main()
