"""Everyday forward passes beyond layers: followed where they can be, and right in any case."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sequester.gradients import clipped_sum, oracle, verify
from tests.gradients.everyday import FAST, MEETING, Pooling
from tests.gradients.lots import ragged, relative_error
from tests.gradients.test_parity import drawn

LOTS = {
    "ragged": ([3, 0, 1, 7, 2], 4),
    "square": ([2, 1, 1], 4),  # as many windows as steps
    "as wide as long": ([3, 5], 8),
    "one window": ([1], 3),
    "equal": ([2, 2, 2], 2),
}


@pytest.fixture(autouse=True)
def by_rules_alone(monkeypatch):
    """No check against the loop mends what a rule gets wrong."""
    monkeypatch.setattr(verify, "due", lambda call: None)


def lot_of(name):
    counts, steps = LOTS[name]
    lot = ragged(counts, steps=steps)
    lot.mask[:, 0] = True
    return lot


def classify(model, lot):
    return F.cross_entropy(model(lot.x, lot.mask), lot.target, reduction="none")


def right(model, lot, loss=classify):
    want = oracle.clipped_sum(model, loss, lot, 0.3)
    got = clipped_sum(model, loss, lot, 0.3)
    assert relative_error(got, want) < 2e-5
    assert torch.allclose(got.norms, want.norms, rtol=1e-4)
    assert 0 < float(want.norms.max())


@pytest.mark.parametrize("lot", LOTS)
@pytest.mark.parametrize("name", FAST)
def test_everyday_forms_are_followed(name, lot, caplog):
    torch.manual_seed(2)
    right(Pooling(FAST[name]), lot_of(lot))
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("lot", ["ragged", "square", "as wide as long", "equal"])
@pytest.mark.parametrize("name", MEETING)
def test_what_meets_in_everyday_forms_is_taken_apart(name, lot, caplog):
    torch.manual_seed(2)
    right(Pooling(MEETING[name]), lot_of(lot))
    assert caplog.records


class Drawn(nn.Module):
    """Tensors of drawn shapes made of each window, whose windows lie on a drawn axis."""

    def __init__(self, sizes, forward, weight=()):
        super().__init__()
        self.made = nn.ModuleList(nn.Linear(12, max(1, int(torch.tensor(s).prod()))) for s in sizes)
        self.sizes, self.run, self.head = sizes, forward, nn.Linear(12, 4)
        self.weight = nn.Parameter(torch.randn(weight))

    def forward(self, x, mask):
        flat = x.flatten(1).tanh()
        parts = [
            lift(flat).view(len(x), *size) for lift, size in zip(self.made, self.sizes, strict=True)
        ]
        found = self.run(self, parts)
        if found.dim() and len(found) == len(x):
            each = found.unsqueeze(-1).flatten(1).sin().mean(1, keepdim=True)
            return self.head(flat) * (1 + each)
        return self.head(flat) * (1 + found.sin().mean())


@st.composite
def equations(draw):
    """Two terms and a result; the first is of people's numbers, the windows' letter is b."""
    letters = "bcdef"
    sizes = {c: draw(st.sampled_from([1, 2, 3, 4])) for c in letters}
    terms = [draw(st.permutations("b" + "".join(draw(st.sets(st.sampled_from(letters[1:]))))))]
    kind = draw(st.sampled_from(["people", "weight", "public", "none"]))
    if kind != "none":
        own = draw(st.sets(st.sampled_from(letters[1:])))
        terms.append(draw(st.permutations([*own, *("b" if kind == "people" else "")])))
    known = sorted({c for term in terms for c in term})
    out = draw(st.permutations(sorted(draw(st.sets(st.sampled_from(known))) | {"b"})))
    if draw(st.integers(0, 5)) == 0:
        out = [c for c in out if c != "b"]
    first = draw(st.booleans()) and len(terms) == 2
    return sizes, ["".join(t) for t in terms], "".join(out), kind, first


@drawn(60)
@given(drawing=equations(), counts=st.sampled_from([[2, 1, 1], [1, 2], [3, 1, 2]]))
def test_drawn_einsums_agree_with_the_oracle(drawing, counts):
    sizes, terms, out, kind, swapped = drawing
    shapes = [[sizes[c] for c in term if c != "b"] for term in terms]

    def run(model, parts):
        parts = [p.movedim(0, t.index("b")) for p, t in zip(parts, terms, strict=False)]
        other = {"weight": model.weight, "public": torch.ones_like(model.weight).cumsum(0).detach()}
        operands = [*parts, *([other[kind]] if kind in other else [])]
        given, equation = (operands[::-1], terms[::-1]) if swapped else (operands, terms)
        found = torch.einsum(f"{','.join(equation)}->{out}", *given)
        return found.movedim(out.index("b"), 0) if "b" in out else found

    of_people = shapes if kind == "people" else shapes[:1]
    torch.manual_seed(0)
    model = Drawn(of_people, run, shapes[-1] if kind in ("weight", "public") else ())
    if kind in ("weight", "public") and not shapes[-1]:
        model.weight = nn.Parameter(torch.randn(1)[0])
    right(model, ragged(counts, steps=4))


@st.composite
def writings(draw):
    """Where something is written into a tensor of three dimensions, and what."""
    axis, others = draw(st.integers(0, 2)), [draw(st.sampled_from([1, 2, 3, 4])) for _ in "ab"]
    ends = st.one_of(st.none(), st.integers(-4, 4))
    cut = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2]))
    index = []
    for place in range(3):
        whole = place == axis and draw(st.integers(0, 4))
        size = 4 if place == axis else others[place - (place > axis)]
        index.append(slice(None) if whole else draw(st.one_of(cut, st.integers(-size, size - 1))))
    index = index[: draw(st.integers(1, 3))] if draw(st.booleans()) else index
    if draw(st.booleans()) and len(index) < 3:
        index.insert(0, Ellipsis)
    if draw(st.integers(0, 3)) == 0:
        index.insert(draw(st.integers(0, len(index))), None)
    what = draw(st.sampled_from(["same", "flipped", "mean", "number", "weight", "places"]))
    return axis, others, tuple(index), what, draw(st.booleans())


@drawn(80)
@given(drawing=writings())
def test_drawn_writings_agree_with_the_oracle(drawing):
    axis, others, index, what, before = drawing

    def run(model, parts):
        one, other = (p.movedim(0, axis) for p in parts)
        target = one.new_zeros(one.shape)
        if before or what in ("number", "weight", "places"):
            target[...] = one  # otherwise nobody's numbers would lie at some windows' places
        source = other.flip(axis) if what == "flipped" else other
        if what == "places":
            source = torch.arange(source.numel()).view(source.shape).to(one.dtype)
        try:
            part = source[index]
        except IndexError:
            part, where = source, Ellipsis
        else:
            where = index
        if what == "mean" and part.dim():
            part = part.mean(-1, keepdim=True)
        if what == "weight":
            part = model.weight
        target[where] = 0.5 if what == "number" else part
        return (target + 0.1 * one).movedim(axis, 0)

    torch.manual_seed(0)
    model = Drawn([others, others], run)
    right(model, ragged([2, 1, 1], steps=4))
