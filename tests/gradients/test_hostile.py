"""Forward passes in which windows meet, or PyTorch hides what happens, against float64."""

import warnings
from collections import namedtuple
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

from sequester.core.errors import UsageError
from sequester.gradients import clipped_sum, layers, oracle, tape, verify
from tests.gradients.hostile import HIDDEN, MEETING, WIDE, Body, half, pooled
from tests.gradients.lots import TinyLot, ragged, relative_error
from tests.gradients.models import BODIES

COUNTS = [3, 1, 2]


@pytest.fixture(params=["rules alone", "checked"])
def checked(request, monkeypatch):
    """The rules must find it without the check against the loop, and the check disturb nothing."""
    if request.param == "rules alone":
        monkeypatch.setattr(verify, "due", lambda call: None)


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def correct(model, loss, lot, clip=0.3):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, want = clipped_sum(model, loss, lot, clip), oracle.clipped_sum(model, loss, lot, clip)
    assert relative_error(got, want) < 2e-5
    assert torch.allclose(got.norms, want.norms, rtol=1e-4)
    assert 0 < float(want.norms.max())
    return got


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", MEETING)
def test_windows_that_meet_are_taken_apart(name, caplog):
    torch.manual_seed(1)
    correct(Body(MEETING[name]), classify, ragged(COUNTS, steps=4))
    assert caplog.records


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", HIDDEN)
def test_what_pytorch_hides_is_not_followed(name):
    torch.manual_seed(1)
    correct(Body(HIDDEN[name]), classify, ragged(COUNTS, steps=4))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("name", WIDE)
def test_wide_logits_whatever_is_done_to_them(name):
    torch.manual_seed(1)
    model = Body(lambda m, x: pooled(m, m.lift(x)), classes=300)
    lot = ragged(COUNTS, steps=4, classes=300)
    correct(model, lambda m, lot: WIDE[name](m, lot.x, lot.target), lot)


def test_autocast_is_left_to_the_loop(caplog):
    model = Body(lambda m, x: pooled(m, m.lift(x)), classes=300)
    lot = ragged(COUNTS, steps=4, classes=300)
    got = clipped_sum(model, lambda m, lot: half(m, lot.x, lot.target), lot, 0.3)
    assert "autocast" in caplog.text
    assert all(bool(v.any()) for k, v in got.sum.items() if k.startswith(("lift", "head")))


@dataclass(frozen=True)
class Inner:
    x: Tensor


Pair = namedtuple("Pair", "x")


class Hides:
    __slots__ = ("_x",)

    def __init__(self, x):
        self._x = x

    @property
    def x(self):
        return self._x


class Lazy:
    """Holds tensors where nobody can see them."""

    def __init__(self, x):
        self.take = iter([x])
        self.kept = []

    @property
    def x(self):
        self.kept = self.kept or [next(self.take)]
        return self.kept[0]


WRAPPED = {
    "dataclass": Inner,
    "named tuple": Pair,
    "slots": Hides,
    "namespace": lambda x: SimpleNamespace(x=x),
    "object in a list": lambda x: SimpleNamespace(all=[Inner(x)], x=x),
    "iterator": Lazy,
    "array": lambda x: SimpleNamespace(array=x.numpy()),
    "numbers": lambda x: SimpleNamespace(numbers=x.tolist()),
    "set": lambda x: SimpleNamespace(some=frozenset([x])),
}


def unwrap(value):
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "array"):
        return torch.from_numpy(value.array)
    if hasattr(value, "numbers"):
        return torch.tensor(value.numbers)
    return next(iter(value.some)) if hasattr(value, "some") else value.x


@dataclass(frozen=True)
class Nested(TinyLot):
    inner: object = None
    kind: str = ""

    def select(self, start_person, stop_person):
        keep = (self.owner >= start_person) & (self.owner < stop_person)
        part = TinyLot.select(replace(self, inner=None), start_person, stop_person)
        return replace(part, inner=WRAPPED[self.kind](unwrap(self.inner)[keep]))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("kind", WRAPPED)
def test_lots_hold_data_however_deep(kind):
    lot = ragged(COUNTS, steps=4)
    fields = {k: getattr(lot, k) for k in ("x", "mask", "target", "owner", "people", "weight")}
    nested = Nested(**fields, inner=lot.x, kind=kind)

    def loss(model, lot):
        x = unwrap(lot.inner).to(model.lift.weight.dtype)
        return F.cross_entropy(model(lot.x) * x.mean(), lot.target, reduction="none")

    correct(Body(lambda m, x: pooled(m, m.lift(x))), loss, nested)


def batch_size(model, lot):
    return classify(model, lot) / len(lot.x)


def places(model, lot):
    return classify(model, lot) * (1.0 + torch.arange(len(lot.x)))


@pytest.mark.parametrize("loss", [batch_size, places])
def test_numbers_of_windows_and_places_mean_what_they_mean_for_a_person_alone(loss, caplog):
    correct(Body(lambda m, x: pooled(m, m.lift(x))), loss, ragged(COUNTS, steps=4))
    assert "alone" in caplog.text


def kept_in(what):
    """A module that changes something it holds, in place."""

    class Keeps(Body):
        def __init__(self):
            super().__init__(lambda m, x: pooled(m, m.lift(x)))
            self.list, self.dict, self.set = [], {"a": 0}, set()
            self.object, self.deep = SimpleNamespace(n=0), [{"x": [1]}]
            self.tensor, self.array = torch.zeros(3), bytearray(4)
            self.extra = 0

        def forward(self, x):
            getattr(self, f"in_{what}")(x.detach())
            return super().forward(x)

        def in_list(self, x):
            self.list.append(x[0])

        def in_dict(self, x):
            self.dict["a"] = float(x.mean())

        def in_set(self, x):
            self.set.add(float(x[0, 0, 0]))

        def in_object(self, x):
            self.object.n += 1

        def in_deep(self, x):
            self.deep[0]["x"][0] = float(x.mean())

        def in_tensor(self, x):
            self.tensor.data.copy_(x[0, 0])

        def in_array(self, x):
            self.array[0] = (self.array[0] + 1) % 256

    return Keeps()


@pytest.mark.parametrize("what", ["list", "dict", "set", "object", "deep", "tensor", "array"])
def test_what_a_module_holds_may_not_change_in_place(what):
    with pytest.raises(UsageError, match=f"SQ-406 .*'{what}'"):
        clipped_sum(kept_in(what), classify, ragged(COUNTS, steps=4), 0.3)


def test_extra_state_may_not_change():
    seen = []

    class Extra(Body):
        def get_extra_state(self):
            return {"seen": list(seen)}

        def forward(self, x):
            seen.append(float(x.detach().mean()))
            return super().forward(x)

    with pytest.raises(UsageError, match=r"SQ-406 .*get_extra_state"):
        clipped_sum(Extra(lambda m, x: pooled(m, m.lift(x))), classify, ragged(COUNTS, steps=4), 1)


def test_hooks_on_gradients_of_parameters_act_on_each_person(caplog):
    model, lot = Body(lambda m, x: pooled(m, m.lift(x))), ragged(COUNTS, steps=4)
    plain = clipped_sum(model, classify, lot, 1e6)
    model.head.weight.register_hook(lambda g: g * 0.5)
    got = clipped_sum(model, classify, lot, 1e6)
    assert torch.allclose(got.sum["head.weight"], plain.sum["head.weight"] * 0.5, rtol=1e-4)
    assert torch.allclose(got.sum["lift.weight"], plain.sum["lift.weight"], rtol=1e-4, atol=1e-7)
    assert "hook" in caplog.text


def test_the_users_own_error_is_the_users_and_is_not_held_against_the_model(caplog):
    model, lot = Body(lambda m, x: pooled(m, m.lift(x) @ torch.ones(7, 7))), ragged(COUNTS, steps=4)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        clipped_sum(model, classify, lot, 0.3)
    assert not caplog.records
    model.run = lambda m, x: pooled(m, m.lift(x))
    correct(model, classify, lot)
    assert not caplog.records


# --- planted faults: the check against the loop must find each ---------------------------------


def followed(tape_, func, args, kwargs):
    """A rule that calls everything kept apart."""
    rows = tape_.state(args[0])
    result = func(*args, **kwargs)
    return tape_.label(result, rows)


PLANTED = {
    "flip keeps windows": (
        lambda p: [p.setitem(tape.RULES, f, followed) for f in (Tensor.flip, torch.flip)],
        lambda m, x: pooled(m, m.lift(x).flip(0)),
    ),
    "cumsum keeps windows": (
        lambda p: p.setitem(tape.RULES, Tensor.cumsum, followed),
        lambda m, x: pooled(m, m.lift(x).cumsum(0)),
    ),
    "nothing is planted, and nothing seen": (
        lambda p: None,
        lambda m, x: pooled(m, m.lift(x) + from_dlpack(to_dlpack(x)).mean()),
    ),
    "backward passes nobody knows": (
        lambda p: p.setattr(tape, "hidden_function", lambda _: None),
        HIDDEN["function backwards"],
    ),
    "scales of data": (
        lambda p: p.setattr(layers.normalisation, "_own", lambda *_: True),
        MEETING["layer norm"],
    ),
    "a wrong norm's gradient": (
        lambda p: p.setattr(
            layers.normalisation, "_scaled", lambda t, x, rows, parts: t.label(x.detach(), rows)
        ),
        lambda m, x: pooled(m, m.norm(m.lift(x))),
    ),
    "a weight forgotten": (
        lambda p: p.setattr(layers.linear, "enter", lambda *_: None),
        lambda m, x: pooled(m, m.lift(x)),
    ),
    "lengths read from others": (
        lambda p: p.setattr(layers.indexing, "tensors_in", lambda *_: ()),
        lambda m, x: pooled(m, m.lift(x)[:, : (x[:, :, 0] > 1.0).sum(1).max().clamp_min(1)]),
    ),
}


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("fault", PLANTED)
def test_the_check_finds_a_broken_rule(fault, drops, monkeypatch, caplog):
    torch.manual_seed(2)
    plant, forward = PLANTED[fault]
    plant(monkeypatch)
    model, lot = Body(forward), ragged([3, 1, 2, 4], steps=4)
    if drops:  # compared with constants in the place of random numbers
        clipped_sum(Body(lambda m, x: F.dropout(forward(m, x), 0.5)), classify, lot, 0.3)
    else:
        correct(model, classify, lot)
    assert "alone" in caplog.text


def test_a_check_leaves_random_numbers_and_results_as_they_were(monkeypatch, caplog):
    def run(number):
        monkeypatch.setattr(verify, "due", lambda call: number)
        torch.manual_seed(5)
        torch.manual_seed(6)
        model = Body(
            lambda m, x: pooled(m, F.dropout(m.lift(x), 0.5) + torch.rand_like(x)[:, :, :1])
        )
        found = clipped_sum(model, classify, ragged(COUNTS, steps=4), 0.3)
        return found.sum, torch.rand(3)

    with_check, without = run(0), run(None)
    assert all(torch.equal(with_check[0][k], without[0][k]) for k in without[0])
    assert torch.equal(with_check[1], without[1])
    assert not caplog.records


RANDOM = {
    "dropout": lambda m, x: pooled(m, F.dropout(m.lift(x), 0.4)),
    "feature dropout": lambda m, x: pooled(m, F.feature_alpha_dropout(m.lift(x), 0.4, True)),
    "noise": lambda m, x: pooled(m, m.lift(x + torch.randn_like(x))),
    "uniform": lambda m, x: pooled(m, m.lift(x) * torch.rand_like(x)[:, :, :1]),
    "rrelu": lambda m, x: pooled(m, F.rrelu(m.lift(x), training=True)),
    "attention": lambda m, x: pooled(
        m, F.scaled_dot_product_attention(m.lift(x), m.lift(x), m.lift(x), dropout_p=0.3)
    ),
}
GENERATOR = torch.Generator().manual_seed(1)
# Of these nobody knows whose they are: people could share them.
UNOWNED = {
    "uniform": lambda m, x: pooled(m, m.lift(x) * torch.rand(len(x), 1, 1)),
    "integers": lambda m, x: pooled(m, m.lift(x) * torch.randint(1, 3, (len(x), 1, 1))),
    "own generator": lambda m, x: pooled(
        m, m.lift(x) * torch.rand(x.shape[:2], generator=GENERATOR)[..., None]
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_forward_passes_are_checked_and_pass(name, caplog):
    clipped_sum(Body(RANDOM[name]), classify, ragged([3, 1, 2, 4], steps=4), 0.3)
    assert not caplog.records


@pytest.mark.parametrize("name", UNOWNED)
def test_numbers_drawn_for_nobody_are_drawn_for_one_person_at_a_time(name, caplog):
    clipped_sum(Body(UNOWNED[name]), classify, ragged([3, 1, 2, 4], steps=4), 0.3)
    assert "draws numbers" in caplog.text


def test_checks_come_seldom_and_take_others_each_time():
    assert [call for call in range(1, 300) if verify.due(call) is not None] == [1, 4, 16, 64, 256]
    counts = torch.tensor([2, 0, 3, 1, 3, 0, 1, 1, 2, 2])
    assert set(verify.chosen(counts, 0)) <= {0, 2, 3, 4, 6, 7, 8, 9}
    assert len(set(verify.chosen(counts, 0, 6))) == 6
    assert len({p for number in range(1, 9) for p in verify.chosen(counts, number)}) == 8


def test_another_loss_or_mode_is_checked_anew(monkeypatch):
    seen = []
    monkeypatch.setattr(verify, "check", lambda *_, number, **__: seen.append(number))
    model, lot = BODIES["linear without bias"](), ragged(COUNTS, steps=4)
    for change in (
        lambda: None,
        lambda: None,
        model.eval,
        lambda: model.head.bias.requires_grad_(False),
    ):
        change()
        clipped_sum(model, classify, lot, 0.3)
    clipped_sum(model, lambda m, lot: classify(m, lot), lot, 0.3)
    assert seen == [0, 0, 0, 0]
