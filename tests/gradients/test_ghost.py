"""Huge layers that see few rows of a person: products never formed, bounds kept all the same."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sequester.gradients import Automatic, Flat, PerLayer, augmented, clipped_sum, ghost, oracle
from sequester.gradients.book import SparseRows
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import BODIES, Tied, Wide
from tests.gradients.test_layers import asked_for, flat_token, next_token, several


@pytest.fixture
def kept(monkeypatch):
    """Every linear layer's gradients stay rows; returns the layers' shapes that did."""
    seen = []
    original = ghost.Factored.add_weighted

    def noted(self, total, scale):
        seen.append(tuple(total.shape))
        original(self, total, scale)

    monkeypatch.setattr(ghost, "HUGE", 1)
    monkeypatch.setattr(ghost, "pays", lambda weight, rows: True)
    monkeypatch.setattr(ghost.Factored, "add_weighted", noted)
    return seen


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none") * lot.weight


def agrees(model, loss, lot, rule=0.3, chunk=None):
    want = oracle.clipped_sum(model, loss, lot, rule)
    got = clipped_sum(model, loss, lot, rule, chunk=chunk)
    assert relative_error(got, want) < 1e-5
    assert torch.allclose(got.norms, want.norms, rtol=2e-5)
    assert got.zero == want.zero
    return got


NETWORKS = (
    "identity|rows|four dimensions|shared|low rank|encoder layer|gru cells|packed gru|"
    "initial state from data|bias only|unreached"
).split("|")


@pytest.mark.parametrize("counts", [[3, 0, 1, 7, 2], [1, 1, 1]])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers(name, counts, kept, caplog):
    torch.manual_seed(3)
    agrees(BODIES[name](), classify, ragged(counts), chunk=3)
    assert kept
    assert not caplog.records


@pytest.mark.parametrize("loss", [next_token, flat_token, asked_for, several])
@pytest.mark.parametrize("build", [Tied, Wide, lambda n: Wide(n, bias=False)])
def test_vocabularies_and_tied_tables(loss, build, kept, caplog):
    torch.manual_seed(5)
    model = build(300)
    for rule in (0.3, Automatic(0.2), PerLayer.of(model, 0.2)):
        agrees(model, loss, ragged([2, 0, 1, 3], tokens=300, steps=4), rule)
    assert kept
    assert set(kept) <= {(300, 6), (300, 7)}
    assert not caplog.records


def test_augmented_copies(kept):
    torch.manual_seed(6)
    model, lot = Wide(300), ragged([1, 2], tokens=300)
    same = augmented(flat_token, lambda lot: lot, 3)
    got, want = clipped_sum(model, same, lot, 0.1), oracle.clipped_sum(model, flat_token, lot, 0.1)
    assert relative_error(got, want) < 1e-5
    assert kept


def test_it_is_chosen_where_rows_are_few_and_then_makes_room(monkeypatch):
    sizes = []
    original = ghost.Factored.square_norms
    monkeypatch.setattr(
        ghost.Factored, "square_norms",
        lambda self, table: sizes.append(self.people) or original(self, table),
    )  # fmt: skip
    model = nn.Sequential(nn.Linear(3, 300), nn.Flatten(0, 1), nn.Linear(300, 300))

    def loss(model, lot):
        return model(lot.x).square().sum(1)

    model[0].requires_grad_(False)
    monkeypatch.setattr("sequester.gradients.cutting._GRADIENT_BYTES", 4 * (300 * 301) * 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would share the memory
    try:
        agrees(model, loss, ragged([1] * 40, steps=1))
    finally:
        torch.set_num_threads(threads)
    assert sizes == [40]  # although four products would fill the memory
    sizes.clear()
    agrees(model, loss, ragged([300, 290], steps=1))
    assert not sizes


ODD = [0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-40, 1e-30, 1e-15, 1e15, 1e20, 1e38]


def rows_of(draw):
    g = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=9))
    p, d = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    left = torch.randn(sum(counts), p, generator=g)
    right = torch.randn(sum(counts), d, generator=g)
    person = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if draw(st.booleans()):  # nearly opposite rows
        left[1::2] = -left[: len(left) // 2 * 2 : 2] * (1 + draw(st.sampled_from([0, 1e-7, 1e-2])))
        right[1::2] = right[: len(right) // 2 * 2 : 2]
    size = draw(st.sampled_from(ODD))
    left[person == len(counts) - 1] *= size
    table = None
    if draw(st.booleans()):
        keys = torch.arange(len(counts) * p)[torch.rand(len(counts) * p, generator=g) < 0.3]
        values = torch.randn(len(keys), d, generator=g)
        table = SparseRows(keys // p, keys % p, values)
    return ghost.Factored(len(counts), person, left, right), table


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_a_norm_is_right_or_left_to_the_product(data):
    factors, table = rows_of(data.draw)
    found = factors.square_norms(table)
    total = torch.zeros(factors.left.shape[1], factors.right.shape[1], dtype=torch.float64)
    scale = torch.rand(factors.people, dtype=torch.float64).masked_fill(~found.isfinite(), 0.0)
    factors.add_weighted(total, scale)
    want = torch.zeros_like(total)
    for person in range(factors.people):
        own = factors.person == person
        left, right = factors.left[own].double(), factors.right[own].double()
        whole = left.t() @ right
        if scale[person]:
            want += whole * scale[person]
        if table is not None:
            mine = table.person == person
            whole.index_add_(0, table.row[mine], table.values[mine].double())
        square = float(whole.square().sum())
        if found[person].isfinite():
            # `clipping.MARGIN` is half of this, for the norm itself
            assert float(found[person]) == pytest.approx(square, rel=2.0**-20, abs=0)
        else:
            lengths = float((left.norm(dim=1) * right.norm(dim=1)).sum())
            cancels = square < 2e-3 * (lengths + square**0.5) ** 2
            assert cancels or not math.isfinite(square) or own.sum() > _alone(factors)
    assert float((total - want).norm()) <= 1e-11 * float((scale * found.sqrt())[scale > 0].sum())


def _alone(factors):
    p, d = factors.left.shape[1], factors.right.shape[1]
    return (ghost._ALONE * p * d / (p + d)) ** 0.5


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("build", [Tied, Wide])
def test_one_odd_person_changes_nobody_else(value, build, kept):
    torch.manual_seed(2)
    model, lot = build(300), ragged([3, 0, 1, 2], tokens=300)

    def loss(model, lot):
        return flat_token(model, lot) * lot.weight

    others = clipped_sum(model, loss, lot.select(0, 3), 0.1)
    lot.weight[lot.owner == 3] = value
    got = clipped_sum(model, loss, lot, 0.1)
    part = [got.sum[name] - others.sum[name] for name in got.sum]
    norm = math.sqrt(sum(float(p.square().sum()) for p in part))
    assert norm <= 0.1 * (1 + 1e-6)
    assert got.nonfinite == (not math.isfinite(value))
    if value in (1e15, 1e20):
        assert norm == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("rest", [0.0, 1e-8, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize(
    "rule", [Flat(1e-9), Flat(0.2), Automatic(0.2), PerLayer(limits={"": 0.2})]
)
def test_people_whose_rows_cancel_stay_within_the_sensitivity(rule, rest, kept):
    """Two steps with opposite gradients: what is left of them is all that counts."""
    torch.manual_seed(4)
    model, lot = nn.Linear(64, 400, bias=False), ragged([1, 1], steps=2, features=64)
    lot.x[1, 1] = lot.x[1, 0]
    sign = torch.tensor([[1.0, 1.0], [1.0, -(1.0 + rest)]])

    def loss(model, lot):
        weight = sign[lot.target].to(lot.x.dtype)
        return (1e3 * model(lot.x).sin().sum(-1) * weight).sum(1)

    lot.target[:] = torch.tensor([0, 1])
    alone = clipped_sum(model, loss, lot.select(1, 2), rule)
    norm = float(alone.sum["weight"].norm())
    assert norm <= rule.sensitivity() * (1 + 1e-6)
    both, want = clipped_sum(model, loss, lot, rule), oracle.clipped_sum(model, loss, lot, rule)
    assert float(both.norms[0]) == pytest.approx(float(want.norms[0]), rel=1e-6)
    first = clipped_sum(model, loss, lot.select(0, 1), rule)
    moved = float((both.sum["weight"] - first.sum["weight"]).norm())
    assert moved <= rule.sensitivity() * (1 + 1e-6)
