"""A lot leaves nothing behind: no tensors, no graphs, no buffers that grow."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.gradients import Flat, clipped_sum, cutting, fast, tape, verify, workspace
from sequester.gradients.accumulate import Accumulator
from tests.gradients.lots import ragged
from tests.gradients.models import BODIES, TOKENS, Wide


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def next_place(model, lot):
    return F.cross_entropy(model(lot.x).transpose(1, 2), lot.x, reduction="none").mean(1)


class Meets(nn.Module):
    """Takes the fallback after some layers were recorded."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x):
        out = self.body(x)[0]
        return self.head((out - out.mean(0)).mean(1))


@pytest.fixture
def tapes(monkeypatch):
    """Weak references to every tape that is opened."""
    seen = []
    original = tape.Tape.__init__

    def noted(self, *args):
        original(self, *args)
        seen.append(weakref.ref(self))

    monkeypatch.setattr(tape.Tape, "__init__", noted)
    return seen


@pytest.mark.parametrize("name", [*BODIES, "wide", "meets"])
def test_every_chunk_is_forgotten(name, tapes):
    tokens = {"embedding": TOKENS, "wide": 300}.get(name)
    model = {"wide": Wide, "meets": Meets}.get(name, BODIES.get(name))()
    loss = next_place if name == "wide" else classify
    clipped_sum(model, loss, ragged([2, 0, 1], tokens=tokens), 1.0, chunk=1)
    gc.collect()
    assert tapes
    assert not [found for found in tapes if found() is not None]


def test_a_loss_that_fails_leaves_nothing_behind(tapes):
    def fails(model, lot):
        model(lot.x)
        raise ArithmeticError("of the user's own")

    with pytest.raises(ArithmeticError):
        clipped_sum(BODIES["gru"](), fails, ragged([2, 1]), 1.0)
    gc.collect()
    assert not [found for found in tapes if found() is not None]


def test_buffers_stop_growing():
    workspace.release()
    model, sizes = BODIES["gru"](), []
    clipped_sum(model, classify, ragged([5] * 40), 1.0, chunk=4)  # one thread: does it draw?
    for _ in range(3):
        clipped_sum(model, classify, ragged([5] * 40), 1.0, chunk=4)
        sizes.append(sum(space.bytes() for space in workspace._IDLE))
    assert sizes[0] == sizes[1] == sizes[2] > 0
    workspace.release()
    assert torch.get_num_threads() >= 1


@pytest.mark.parametrize("threads", [1, 2])
def test_wide_logits_of_all_workers_fit_one_budget(threads, monkeypatch):
    monkeypatch.setattr(cutting, "_OUTPUT_BYTES", 1 << 18)
    before = torch.get_num_threads()
    workspace.release()
    torch.set_num_threads(threads)
    try:
        model, lot = Wide(2000), ragged([3, 1, 0, 2] * 10, tokens=2000)
        for _ in range(2):  # threads work side by side once a model is known to draw nothing
            clipped_sum(model, next_place, lot, 1.0)
    finally:
        torch.set_num_threads(before)
    held = [
        buffer.numel() * buffer.element_size()
        for space in workspace._IDLE
        for (name, *_), buffer in space._buffers.items()
        if name.startswith("logits")
    ]
    assert len(held) == threads
    assert 0 < sum(held) <= 1 << 18


class Named:
    """A lot whose windows have any shape and name."""

    def __init__(self, owner, people, **held):
        self.owner, self.people, self.held = owner, people, held

    def select(self, first, stop):
        keep = (self.owner >= first) & (self.owner < stop)
        held = {name: t[keep] for name, t in self.held.items()}
        return Named(self.owner[keep] - first, stop - first, **held)


@pytest.mark.parametrize("layout", ["steps first", "channels first", "ids"])
@pytest.mark.parametrize("name", ["x", "series"])
def test_chunks_are_sized_by_steps_whatever_a_lot_calls_them(name, layout, monkeypatch):
    for most in ("_ROWS", "_MANY_ROWS"):
        monkeypatch.setattr(cutting, most, 200)
    taken = []
    original = fast.Job.add_chunk

    def noted(self, lot, span, *rest):
        taken.append(lot.select(*span).owner.numel())
        return original(self, lot, span, *rest)

    monkeypatch.setattr(fast.Job, "add_chunk", noted)
    shape = {"steps first": (40, 50, 3), "channels first": (40, 3, 50), "ids": (40, 50)}[layout]
    data = torch.randint(0, 3, shape) if layout == "ids" else torch.randn(shape)
    lot = Named(torch.arange(40), 40, **{name: data}, wanted=torch.randint(0, 4, (40,)))

    def loss(model, lot):
        x = lot.held[name]
        x = F.one_hot(x, 3).float() if x.dim() == 2 else x
        x = x.transpose(1, 2) if x.shape[1] == 3 else x
        return F.cross_entropy(model(x), lot.held["wanted"], reduction="none")

    clipped_sum(BODIES["gru"](), loss, lot, 1.0)
    assert taken == [4] * 10


def test_a_check_holds_one_persons_gradient_at_a_time(monkeypatch):
    held, original = [], verify.loop.person_gradient

    def noted(*args):
        assert not [old for old in held if old() is not None]
        gradient = original(*args)
        held.extend(weakref.ref(part) for part in gradient if part is not None)
        return gradient

    lot, model = ragged([2] * 10), BODIES["gru"]()
    counts = torch.full((10,), 2)
    monkeypatch.setattr(verify.loop, "person_gradient", noted)
    job = fast.Job(model, classify, dict(model.named_parameters()), Flat(1.0))
    assert job.plan_check([(0, 10)], counts)
    into = Accumulator(job.parameters, job.rule, 10)
    job.add_chunk(lot, (0, 10), counts, into, 1 << 30, nullcontext())
    assert len(held) == verify._FIRST * len(list(model.parameters()))
    assert job.refused() is None


def test_buffers_that_are_let_go_are_gone_at_once():
    """Without a collection: a tape in a circle with its watch would keep them."""
    spaces, original = [], workspace.Workspace.__init__

    def noted(self):
        original(self)
        spaces.append(weakref.ref(self))

    workspace.release()
    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workspace.Workspace, "__init__", noted)
            clipped_sum(BODIES["gru"](), classify, ragged([5] * 8), 1.0, chunk=4)
        workspace.release()
        assert spaces
        assert not [space for space in spaces if space() is not None]
    finally:
        gc.enable()


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("people", [1, 2, 8])
def test_the_number_of_threads_stays_the_users(people):
    for _ in range(2):
        clipped_sum(BODIES["gru"](), classify, ragged([5] * people), 1.0, chunk=1)
        assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_no_chunk_is_at_work_beside_a_comparison(monkeypatch):
    """Nor are its buffers there; and everybody is added once all the same."""
    working, beside = [], []
    enter, check = fast.Job._enter, verify.check

    def noted(self, *args):
        working.append(1)
        try:
            return enter(self, *args)
        finally:
            working.pop()

    def looked(*args, **given):
        beside.append((len(working), len(workspace._IDLE)))
        check(*args, **given)

    monkeypatch.setattr(fast.Job, "_enter", noted)
    monkeypatch.setattr(verify, "check", looked)
    model, lot = BODIES["gru"](), ragged([1, 2, 0, 3, 1, 4, 1, 1, 2, 1, 1, 2])
    sums = [clipped_sum(model, classify, lot, 1.0, chunk=2) for _ in range(16)]
    assert beside[1:] == [(0, 0)] * 2  # calls 4 and 16; the first takes chunks one after another
    for found in sums:
        assert torch.equal(found.norms, sums[0].norms)
        assert all(torch.allclose(v, sums[0].sum[k], rtol=1e-12) for k, v in found.sum.items())


def test_rows_of_several_workers_fit_one_budget(monkeypatch):
    monkeypatch.setattr(cutting, "_ROWS", 400)
    monkeypatch.setattr(cutting, "_MANY_ROWS", 400)
    monkeypatch.setattr(cutting, "_ALL_ROWS", 500)
    monkeypatch.setattr(cutting, "_FEW_ROWS", 100)
    job = fast.Job(BODIES["gru"](), classify, {"w": nn.Parameter(torch.zeros(1))}, Flat(1.0))
    lot, most, offsets = ragged([4] * 400), {}, list(range(0, 1601, 4))
    for threads in (1, 2, 8):
        room = cutting.Room(job.model, job.parameters, lot, offsets, threads)
        most[threads] = room.windows * cutting.rows_of(lot)[0]
    steps = cutting.rows_of(lot)[0]
    assert all(wanted - steps < most[k] <= wanted for k, wanted in ((1, 400), (2, 250), (8, 100)))


class Small(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)


@pytest.mark.parametrize(
    ("layers", "rows"),
    [
        ([nn.GRU(5, 8)], 131072),
        ([nn.GRU(5, 32), nn.Linear(32, 4)], 56173),  # 48 MiB of 224 numbers
        ([nn.LSTM(5, 32, 2, bidirectional=True)], 16384),
        ([nn.GRU(5, 8), nn.Embedding(9000, 40)], 108473),  # 9,000 rows are nobody's outputs
        ([nn.GRU(5, 32), nn.Linear(32, 4), nn.MultiheadAttention(32, 8)], 24196),
        ([nn.GRU(5, 128)], 16384),
        ([nn.Linear(5, 8)], 16384),
    ],
)
def test_small_recurrences_take_more_rows_at_once(layers, rows):
    model = Small(*layers)
    lot = ragged([4] * 30, steps=24)
    offsets = [4 * k for k in range(200_001)]
    assert cutting.rows_of(lot) == (24, 4)
    assert (
        cutting.Room(model, dict(model.named_parameters()), lot, offsets, 1).windows == rows // 24
    )
    # Anything may attend from each step to each.
    long = ragged([4] * 30, steps=1500)
    room = cutting.Room(model, dict(model.named_parameters()), long, offsets, 1)
    assert room.windows == 16384 // 1500


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            out, state = self.cell(x[:, step : step + 1], state)
        return self.head(out[:, -1])


def test_a_layer_called_at_each_step_keeps_its_gradients_once():
    held = {}
    for steps in (2, 30):
        workspace.release()
        model, lot = Unrolled(), ragged([1] * 40, steps=steps)
        for _ in range(2):  # a first call, which is checked, lets go of its buffers
            clipped_sum(model, classify, lot, 0.3)
        names = [name for space in workspace._IDLE for name, *_ in space._buffers]
        held[steps] = sum("dx" in name for name in names)
    assert held == {2: 2, 30: 2}


@pytest.mark.parametrize(("body", "wanted"), [("gru", [1, 2]), ("dropout", [1, 1])])
def test_threads_share_a_first_lot_once_a_chunk_of_it_drew_nothing(body, wanted, monkeypatch):
    model = BODIES["gru"]()
    if body == "dropout":
        model = nn.Sequential(nn.Dropout(0.5), model)
    asked = []

    def noting(original):
        return lambda count, *rest: asked.append(count) or original(count, *rest)

    monkeypatch.setattr(fast, "on_threads", noting(fast.on_threads))
    monkeypatch.setattr(fast, "in_turn", noting(fast.in_turn))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        clipped_sum(model, classify, ragged([5] * 40), 1.0, chunk=4)
    finally:
        torch.set_num_threads(before)
    assert asked == wanted
