"""A small lot for tests, independent of the sampling room."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class TinyLot:
    x: Tensor
    mask: Tensor
    target: Tensor
    owner: Tensor
    people: int
    weight: Tensor

    def select(self, start_person, stop_person):
        keep = (self.owner >= start_person) & (self.owner < stop_person)
        parts = {
            f.name: getattr(self, f.name)[keep]
            for f in fields(self)
            if isinstance(getattr(self, f.name), Tensor)
        }
        parts["owner"] = parts["owner"] - start_person
        return replace(self, **parts, people=stop_person - start_person)


def ragged(counts, steps=5, features=3, classes=4, seed=0, tokens=None):
    """People with `counts[p]` windows each; integer ids below `tokens` where given."""
    g = torch.Generator().manual_seed(seed)
    windows = sum(counts)
    shape = (windows, steps)
    x = (
        torch.randint(0, tokens, shape, generator=g)
        if tokens
        else torch.randn(*shape, features, generator=g)
    )
    return TinyLot(
        x=x,
        mask=torch.rand(shape, generator=g) < 0.8,
        target=torch.randint(0, classes, (windows,), generator=g),
        owner=torch.repeat_interleave(
            torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64)
        ),
        people=len(counts),
        weight=torch.ones(windows),
    )


def relative_error(result, oracle):
    """Largest error over parameters, relative to the whole sum's norm."""
    scale = sum(float(v.square().sum()) for v in oracle.sum.values()) ** 0.5
    worst = max(float((result.sum[name].double() - v).norm()) for name, v in oracle.sum.items())
    return worst / max(scale, 1e-30)
