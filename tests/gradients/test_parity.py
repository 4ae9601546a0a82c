"""Drawn networks, lots and engines against the float64 oracle; drawn hostile people."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from sequester.gradients import Flat, PerLayer, clipped_sum, loop, native, oracle
from sequester.gradients.accumulate import Accumulator
from sequester.gradients.lots import person_offsets
from tests.gradients.lots import ragged, relative_error

ENGINES = ["fast", "loop", *(["without kernels"] if native.describe() == "compiled" else [])]


def drawn(examples):
    """The same draws in every run."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )  # fmt: skip


class Drawn(nn.Module):
    """A network of drawn parts; `shared` applies one layer twice."""

    def __init__(self, body, features, width, shared, classes):
        super().__init__()
        self.lift, self.kind, self.shared = nn.Linear(features, width), body, shared
        made = {
            "gru": lambda: nn.GRU(width, width, batch_first=True),
            "gru both ways": lambda: nn.GRU(width, width, 2, batch_first=True, bidirectional=True),
            "lstm": lambda: nn.LSTM(width, width, batch_first=True),
            "rnn": lambda: nn.RNN(width, width, batch_first=True),
            "conv": lambda: nn.Conv1d(width, width, 2, padding=1, dilation=2),
            "attention": lambda: nn.TransformerEncoderLayer(
                width, 2, width, dropout=0.0, batch_first=True
            ),
            "packed": lambda: nn.LSTM(width, width, batch_first=True),
        }
        self.body = made[body]()
        wide = 2 * width if body == "gru both ways" else width
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, classes)

    def forward(self, x, mask):
        h = self.lift(x).tanh()
        if self.shared:
            h = h + F.linear(h, self.lift.weight @ self.lift.weight.t())
        if self.kind == "conv":
            h = self.body(h.transpose(1, 2)).transpose(1, 2)[:, : x.shape[1]]
            h = F.pad(h, (0, 0, 0, x.shape[1] - h.shape[1]))
        elif self.kind == "attention":
            h = self.body(h)
        elif self.kind == "packed":
            lengths = mask.sum(1).clamp_min(1)
            packed = nn.utils.rnn.pack_padded_sequence(
                h, lengths, batch_first=True, enforce_sorted=False
            )
            h, _ = nn.utils.rnn.pad_packed_sequence(
                self.body(packed)[0], batch_first=True, total_length=x.shape[1]
            )
        else:
            h = self.body(h)[0]
        kept = mask.unsqueeze(-1).to(h.dtype)
        return self.head((self.norm(h) * kept).sum(1) / kept.sum(1).clamp_min(1.0))


def loss(model, lot):
    return F.cross_entropy(model(lot.x, lot.mask), lot.target, reduction="none") * lot.weight


def by(engine, model, lot, rule, chunk, monkeypatch):
    """The clipped sum by one engine."""
    if engine == "loop":
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        accumulator = Accumulator(parameters, rule, lot.people)
        loop.add_people(model, loss, lot, person_offsets(lot), accumulator)
        return accumulator.result()
    with monkeypatch.context() as patch:
        if engine == "without kernels":
            patch.setenv("SEQUESTER_NO_NATIVE", "1")
        return clipped_sum(model, loss, lot, rule, chunk=chunk)


@st.composite
def networks(draw):
    torch.manual_seed(draw(st.integers(0, 99)))
    kinds = ["gru", "gru both ways", "lstm", "rnn", "conv", "attention", "packed"]
    body, features = draw(st.sampled_from(kinds)), draw(st.integers(1, 4))
    width = 2 * draw(st.integers(1, 9))
    model = Drawn(body, features, width, draw(st.booleans()), classes=3)
    frozen = draw(st.sets(st.sampled_from([n for n, _ in model.named_parameters()]), max_size=5))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen or name == "head.bias")
    return model, features


@st.composite
def lots(draw, features):
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    return ragged(
        counts, draw(st.integers(1, 7)), features, classes=3, seed=draw(st.integers(0, 9))
    )


@pytest.mark.parametrize("engine", ENGINES)
@drawn(12)
@given(data=st.data())
def test_agrees_with_the_oracle(engine, data, monkeypatch):
    model, features = data.draw(networks())
    lot = data.draw(lots(features))
    rule = data.draw(st.sampled_from([Flat(0.05), Flat(1e3), PerLayer.of(model, 0.2)]))
    chunk = data.draw(st.sampled_from([None, 1, 2]))
    want = oracle.clipped_sum(model, loss, lot, rule)
    got = by(engine, model, lot, rule, chunk, monkeypatch)
    assert relative_error(got, want) < 1e-5
    assert torch.allclose(got.norms, want.norms, rtol=2e-5, atol=1e-9)
    assert got.zero == want.zero


HOSTILE = [0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-40, 1e-38, 1e-20, 1e20, 1e30, 1e38, -1e38]


@pytest.mark.parametrize("where", ["loss", "records"])
@pytest.mark.parametrize("engine", ENGINES)
@drawn(6)
@given(data=st.data())
def test_hostile_people_stay_within_their_bound(engine, where, data, monkeypatch):
    model, features = data.draw(networks())
    lot = data.draw(lots(features))
    chosen = data.draw(st.dictionaries(st.integers(0, lot.people - 1), st.sampled_from(HOSTILE)))
    for person, value in chosen.items():
        own = lot.owner == person
        if where == "loss":
            lot.weight[own] = value
        else:
            lot.x[own, 0, 0] = value
    clip, chunk = (
        data.draw(st.sampled_from([1e-3, 1.0, 1e4])),
        data.draw(st.sampled_from([None, 1])),
    )
    got = by(engine, model, lot, Flat(clip), chunk, monkeypatch)
    total = {name: torch.zeros_like(value) for name, value in got.sum.items()}
    for person in range(lot.people):
        alone = by(engine, model, lot.select(person, person + 1), Flat(clip), chunk, monkeypatch)
        square = sum(float(v.square().sum()) for v in alone.sum.values())
        assert square**0.5 <= clip * (1 + 1e-6)
        assert alone.nonfinite == (not bool(got.norms[person].isfinite()))
        if alone.nonfinite:
            assert square == 0.0
        for name, value in alone.sum.items():
            total[name] += value
    assert got.nonfinite == int((~got.norms.isfinite()).sum())
    assert all(bool(value.isfinite().all()) for value in got.sum.values())
    moved = sum(float((got.sum[k] - total[k]).square().sum()) for k in total) ** 0.5
    assert moved <= 1e-5 * clip * lot.people


@example(large=16, small=2.4e-4)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(large=st.integers(1, 300), small=st.floats(1e-5, 1e-2))
def test_a_norm_keeps_what_many_small_numbers_add_to_a_few_large_ones(large, small):
    class Raw(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(70_000))

    direction = torch.full((70_000,), small)
    direction[:large] = 1.0
    lot = ragged([1])
    result = clipped_sum(
        Raw(), lambda m, lot: (m.w * direction).sum() * lot.weight.double(), lot, 0.5
    )
    norm = float(result.sum["w"].square().sum().sqrt())
    assert 0.5 * (1 - 2e-6) <= norm <= 0.5 * (1 + 1e-6)
