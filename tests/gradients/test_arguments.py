"""Arguments by name and by place, sizes that coincide: followed alike, never guessed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.gradients import clipped_sum, oracle, verify
from tests.gradients.hostile import Body, pooled
from tests.gradients.lots import ragged, relative_error


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def place(x):
    return (x[:, :, 0] > 0).sum(1) % x.shape[1]


def column(x, h):
    return place(x)[:, None, None].expand(-1, 1, h.shape[2])


NAMED = {
    "gather": lambda h, x: torch.gather(h, index=column(x, h), dim=1),
    "gather, method": lambda h, x: h.gather(dim=1, index=column(x, h)),
    "gather, all": lambda h, x: torch.gather(input=h, dim=1, index=column(x, h)),
    "take_along_dim": lambda h, x: torch.take_along_dim(h, column(x, h), dim=1),
    "take_along_dim, all": lambda h, x: torch.take_along_dim(
        input=h, dim=1, indices=column(x, h)
    ),
    "index_select": lambda h, x: torch.index_select(h, dim=1, index=torch.tensor([2, 0])),
    "index_select, method": lambda h, x: h.index_select(dim=-2, index=torch.tensor([1])),
    "select": lambda h, x: torch.select(h, dim=1, index=2)[:, None],
    "narrow": lambda h, x: torch.narrow(h, dim=1, start=1, length=2),
    "chunk": lambda h, x: torch.chunk(h, chunks=2, dim=1)[1],
    "split": lambda h, x: torch.split(tensor=h, split_size_or_sections=2, dim=1)[0],
    "split, method": lambda h, x: h.split(split_size=2, dim=1)[0],
    "tensor_split": lambda h, x: torch.tensor_split(h, indices=[1], dim=1)[1],
    "unbind": lambda h, x: torch.unbind(h, dim=1)[0][:, None],
    "flip": lambda h, x: torch.flip(h, dims=(1,)) * torch.arange(8.0),
    "roll": lambda h, x: torch.roll(h, shifts=1, dims=2),
    "repeat_interleave": lambda h, x: torch.repeat_interleave(h, repeats=2, dim=1),
    "unsqueeze": lambda h, x: torch.unsqueeze(h, dim=1).flatten(1, 2),
    "cat": lambda h, x: torch.cat(tensors=[h, h * 2], dim=1),
    "stack, axis": lambda h, x: torch.stack(tensors=[h, h * 2], axis=1).flatten(1, 2),
    "sum": lambda h, x: torch.sum(input=h, dim=1, keepdim=True),
    "softmax": lambda h, x: torch.softmax(input=h, dim=2),
    "relu": lambda h, x: F.relu(input=h),
    "pad": lambda h, x: F.pad(input=h, pad=(1, 1))[..., 1:-1],
    "normalize": lambda h, x: F.normalize(input=h, dim=2),
    "reshape": lambda h, x: torch.reshape(input=h, shape=(len(h), -1, 8)),
    "permute": lambda h, x: torch.permute(input=h, dims=(0, 1, 2)),
    "where": lambda h, x: torch.where(condition=h > 0, input=h, other=h * 0.1),
    "product": lambda h, x: torch.matmul(input=h, other=torch.eye(8, dtype=h.dtype)),
    "places": lambda h, x: h[:, [0, 2]],
    "places, tensor": lambda h, x: h[:, torch.tensor([0, 2])],
    "places of features": lambda h, x: h[..., 2:][:, :, [0, 1, 2, 3, 4, 5, 0, 1]],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_arguments_by_name_are_followed(name, caplog):
    torch.manual_seed(1)
    model = Body(lambda m, x: pooled(m, NAMED[name](m.lift(x), x)))
    lot = ragged([3, 1, 2], steps=4)
    got, want = (
        clipped_sum(model, classify, lot, 0.3),
        oracle.clipped_sum(model, classify, lot, 0.3),
    )
    assert relative_error(got, want) < 1e-5
    assert not caplog.records


class Named(nn.Module):
    """Fails under the tape only, deep inside."""

    def forward(self, h):
        if torch.overrides._is_torch_function_mode_enabled():
            raise KeyError("of somebody's")
        return h


def test_a_failure_of_the_fast_engine_names_the_module(caplog):
    model = Body(lambda m, x: pooled(m, m.deep[0](m.lift(x))))
    model.deep = nn.ModuleList([Named()])
    clipped_sum(model, classify, ragged([2, 1], steps=4), 0.3)
    assert "deep.0 (Named)" in caplog.text
    assert "somebody" not in caplog.text


class Square(nn.Module):
    """As many classes as steps."""

    def __init__(self, turned):
        super().__init__()
        self.table, self.head = nn.Embedding(256, 4), nn.Linear(4, 256)
        self.turned = turned

    def forward(self, x):
        return self.turned(self.head(self.table(x)))


TURNED = {
    "permute": lambda z: z.permute(0, 1, 2),
    "transpose": lambda z: z.transpose(1, 1),
    "movedim": lambda z: z.movedim(-1, -1),
    "there and back": lambda z: z.transpose(1, 2).transpose(1, 2),
    "windows away and back": lambda z: z.permute(1, 0, 2).permute(1, 0, 2),
    "really": lambda z: z.transpose(1, 2),
}


@pytest.mark.parametrize("name", TURNED)
def test_wide_logits_of_coinciding_sizes(name, monkeypatch):
    monkeypatch.setattr(verify, "due", lambda call: None)  # the rules alone
    torch.manual_seed(1)
    model, lot = Square(TURNED[name]), ragged([1, 1], steps=256, tokens=256)

    def loss(m, lot):
        return F.cross_entropy(m(lot.x).transpose(1, 2), lot.x, reduction="none").mean(1)

    got, want = clipped_sum(model, loss, lot, 1e-3), oracle.clipped_sum(model, loss, lot, 1e-3)
    assert relative_error(got, want) < 1e-5
