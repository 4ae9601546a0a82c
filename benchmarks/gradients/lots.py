"""The workloads as lots of tensors, and the float64 loop that every row must agree with."""

from dataclasses import dataclass, replace

import torch

from benchmarks.gradients.networks import loss
from benchmarks.gradients.workloads import data


@dataclass(frozen=True)
class Lot:
    """`weight` multiplies each window's loss; 1 unless someone regroups people."""

    x: torch.Tensor
    target: torch.Tensor
    owner: torch.Tensor
    people: int
    weight: torch.Tensor

    def select(self, start, stop):
        first, last = torch.searchsorted(self.owner, torch.tensor([start, stop])).tolist()
        rows = slice(first, last)
        return replace(
            self,
            x=self.x[rows],
            target=self.target[rows],
            owner=self.owner[rows] - start,
            people=stop - start,
            weight=self.weight[rows],
        )


def lot(workload, people=64):
    d = data(workload, people)
    owner = torch.repeat_interleave(torch.arange(people), torch.from_numpy(d.counts))
    x, target = torch.from_numpy(d.x), torch.from_numpy(d.y)
    return Lot(x, target, owner, people, torch.ones(len(owner)))


def reference(model, people, clip):
    """Means over people of clipped gradients in float64, one person at a time; clip None: none."""
    double = model.double()
    parameters = dict(double.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for person in range(people.people):
        own = people.select(person, person + 1)
        own = replace(own, x=own.x.double() if own.x.is_floating_point() else own.x)
        found = torch.autograd.grad(loss(double, own).mean(), list(parameters.values()))
        norm = float(torch.stack([g.norm() for g in found]).norm())
        factor = 1.0 if clip is None else min(1.0, clip / norm)
        for name, gradient in zip(parameters, found, strict=True):
            total[name].add_(gradient, alpha=factor / people.people)
    return {name: value.detach().numpy() for name, value in total.items()}
