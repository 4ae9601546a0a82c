"""`python -m benchmarks.gradients.ours WORKLOAD ROW THREADS [PEOPLE]`: one row with PyTorch.

Rows: `native` (no privacy), `loop` (one person at a time), `pure` (ours without the compiled
kernels) and `compiled` (ours). Every private row clips, adds Gaussian noise and steps.
"""

import os
import sys
from dataclasses import dataclass, replace

import torch

from benchmarks.gradients.networks import loss, network
from benchmarks.gradients.timing import measure
from benchmarks.gradients.workloads import CLIP, data


@dataclass(frozen=True)
class Lot:
    x: torch.Tensor
    target: torch.Tensor
    owner: torch.Tensor
    people: int

    def select(self, start, stop):
        first, last = torch.searchsorted(self.owner, torch.tensor([start, stop])).tolist()
        rows = slice(first, last)
        return replace(
            self,
            x=self.x[rows],
            target=self.target[rows],
            owner=self.owner[rows] - start,
            people=stop - start,
        )


def lot(workload, people=64):
    d = data(workload, people)
    owner = torch.repeat_interleave(torch.arange(people), torch.from_numpy(d.counts))
    return Lot(torch.from_numpy(d.x), torch.from_numpy(d.y), owner, people)


def native_step(model, people):
    """The non-private step: mean over people of the mean over their windows."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    share = 1.0 / torch.bincount(people.owner, minlength=people.people)[people.owner]

    def step():
        optimiser.zero_grad()
        ((loss(model, people) * share).sum() / people.people).backward()
        optimiser.step()

    return step


def loop_step(model, people, clip):
    """One person at a time, written as anyone would."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())

    def step():
        total = [torch.zeros_like(p) for p in parameters]
        for person in range(people.people):
            grads = torch.autograd.grad(
                loss(model, people.select(person, person + 1)).mean(), parameters
            )
            norm = torch.stack([g.norm() for g in grads]).norm()
            for t, g in zip(total, grads, strict=True):
                t.add_(g, alpha=min(1.0, clip / float(norm)))
        finish(optimiser, dict(zip(parameters, total, strict=True)), clip, people.people)

    return step


def our_step(model, people, clip):
    from sequester.gradients import clipped_sum

    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = dict(model.named_parameters())

    def step():
        total = clipped_sum(model, loss, people, clip).sum
        finish(optimiser, {parameters[k]: v for k, v in total.items()}, clip, people.people)

    return step


def finish(optimiser, total, clip, people):
    for parameter, gradient in total.items():
        parameter.grad = gradient.add_(torch.randn_like(gradient), alpha=clip).div_(people)
    optimiser.step()


def main():
    workload, row, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 64
    torch.set_num_threads(threads)
    if row == "pure":
        os.environ["SEQUESTER_NO_NATIVE"] = "1"
    model, people, clip = network(workload), lot(workload, count), CLIP[workload]
    if row == "native":
        measure(native_step(model, people))
    elif row == "loop":
        measure(loop_step(model, people, clip))
    else:
        measure(our_step(model, people, clip))


if __name__ == "__main__":
    main()
