"""Places of Python's, PyTorch's and NumPy's where a module could keep one person's for another."""

from __future__ import annotations

import collections
import contextvars
import ctypes
import enum
import functools
import io
import itertools
import logging
import pathlib
import queue
import random
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients import clipped_sum
from tests.gradients.lots import ragged
from tests.gradients.test_surroundings import Body, classify, keeps

COUNTS = [3, 1, 2, 4, 1]
VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("variable", default=0.0)
LOG = logging.getLogger("their module")
LONG = 20_002


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    SMALL = 1


class Named:
    """Keeps something under a name like Python's own."""

    __kept__ = 0.0


@functools.cache
def bank():
    return [0.0]


@functools.lru_cache(2)
def table():
    return {"seen": 0.0}


@functools.lru_cache(2)
def nothing(size):
    return torch.zeros(size)


def running():
    value = 0.0
    while True:
        fresh = yield value
        value = value if fresh is None else fresh


def fill(tensor, value):
    with torch.no_grad():
        tensor.fill_(value)


def buffer(value):
    return np.array([value]).tobytes()


def at(k):
    """In a container, at a place."""
    return (lambda m: m.own[k]), (lambda m, v: m.own.__setitem__(k, v))


def read_bytes(made):
    return float(np.frombuffer(made.own.getvalue())[0])


def write_bytes(made, value):
    made.own.seek(0)
    made.own.write(buffer(value))


def write_words(made, value):
    made.own.seek(0)
    made.own.truncate()
    made.own.write(repr(value))


def through(queue_):
    """The value that waits in a queue, left there."""
    value = queue_.get()
    queue_.put(value)
    return value


def rename(made, value):
    made.own.clear()
    made.own[repr(value)] = 0


def queued():
    made = queue.SimpleQueue()
    made.put(0.0)
    return made


def objects():
    made = np.empty(1, dtype=object)
    made[0] = [0.0]
    return made


def set_gradient(made, value):
    made.head.bias.grad = torch.full((4,), value)


def gradient(made):
    return 0.0 if made.head.bias.grad is None else made.head.bias.grad[0]


def kept_by(norm):
    """The running mean of a layer that is found in `own`; frozen, so that it mixes nobody."""
    return (lambda m: norm(m.own).running_mean[0].clone()), (
        lambda m, v: fill(norm(m.own).running_mean, v)
    )


def frozen():
    return nn.BatchNorm1d(2).eval()


# For each place: what `own` is, how it is read, how it is written.
PLACES = {
    "a weight of a module in a list": (
        lambda: [nn.Linear(2, 1)],
        lambda m: m.own[0].weight.detach()[0, 0].clone(),
        lambda m, v: fill(m.own[0].weight, v),
    ),
    "a buffer of a module in a list": (lambda: [frozen()], *kept_by(lambda own: own[0])),
    "a buffer in a tuple in a dict": (lambda: {"a": (frozen(),)}, *kept_by(lambda o: o["a"][0])),
    "a buffer in a namespace": (
        lambda: types.SimpleNamespace(norm=frozen()),
        *kept_by(lambda own: own.norm),
    ),
    "what cache returned": (
        lambda: bank()[1:],
        lambda m: bank()[0],
        lambda m, v: bank().__setitem__(0, v),
    ),
    "what lru_cache returned": (
        lambda: len(table()),
        lambda m: table()["seen"],
        lambda m, v: table().__setitem__("seen", v),
    ),
    "a context variable": (lambda: None, lambda m: VARIABLE.get(), lambda m, v: VARIABLE.set(v)),
    "a parameter's attribute": (
        lambda: None,
        lambda m: getattr(m.lift.weight, "ema", 0.0),
        lambda m, v: setattr(m.lift.weight, "ema", v),
    ),
    "a held tensor's attribute": (
        lambda: torch.zeros(1),
        lambda m: getattr(m.own, "ema", 0.0),
        lambda m, v: setattr(m.own, "ema", v),
    ),
    "a parameter's gradient": (lambda: None, gradient, set_gradient),
    "the start of a long list": (lambda: [0.0] * LONG, *at(1)),
    "the end of a long list": (lambda: [0.0] * LONG, *at(LONG - 1)),
    "a long deque": (lambda: collections.deque([0.0] * LONG), *at(1)),
    "a long dict": (lambda: dict.fromkeys(range(LONG), 0.0), *at(1)),
    "a long list of lists": (
        lambda: [[0.0, 0.0] for _ in range(LONG)],
        lambda m: m.own[1][0],
        lambda m, v: m.own[1].__setitem__(0, v),
    ),
    "a long list of dicts": (
        lambda: [{"a": 0.0, "b": "c"} for _ in range(LONG)],
        lambda m: m.own[1]["a"],
        lambda m, v: m.own[1].__setitem__("a", v),
    ),
    "a long list of tensors": (
        lambda: [torch.zeros(1) for _ in range(LONG)],
        lambda m: m.own[1].clone(),
        lambda m, v: fill(m.own[1], v),
    ),
    "a dict's key": (lambda: {"0.0": 0}, lambda m: float(next(iter(m.own))), rename),
    "a sparse tensor": (
        lambda: torch.eye(2).to_sparse(),
        lambda m: m.own._values()[0].clone(),
        lambda m, v: fill(m.own._values(), v),
    ),
    "a sparse tensor of rows": (
        lambda: torch.eye(2).to_sparse_csr(),
        lambda m: m.own.values()[0].clone(),
        lambda m, v: fill(m.own.values(), v),
    ),
    "an array of objects": (
        objects,
        lambda m: m.own[0][0],
        lambda m, v: m.own[0].__setitem__(0, v),
    ),
    "an enumeration's member": (
        lambda: None,
        lambda m: getattr(Colour.RED, "kept", 0.0),
        lambda m, v: setattr(Colour.RED, "kept", v),
    ),
    "a number's attribute": (
        lambda: [Size.SMALL],
        lambda m: getattr(m.own[0], "kept", 0.0),
        lambda m, v: setattr(m.own[0], "kept", v),
    ),
    "a name like Python's own": (
        lambda: None,
        lambda m: Named.__kept__,
        lambda m, v: setattr(Named, "__kept__", v),
    ),
    "a logger's attribute": (
        lambda: None,
        lambda m: getattr(LOG, "kept", 0.0),
        lambda m, v: setattr(LOG, "kept", v),
    ),
    "BytesIO": (lambda: io.BytesIO(buffer(0.0)), read_bytes, write_bytes),
    "StringIO": (lambda: io.StringIO("0.0"), lambda m: float(m.own.getvalue()), write_words),
    "an array of C's": (lambda: (ctypes.c_double * 2)(), *at(1)),
    "a queue of C's": (
        queued,
        lambda m: through(m.own),
        lambda m, v: (m.own.get(), m.own.put(v)),
    ),
    "a running generator": (running, lambda m: next(m.own), lambda m, v: m.own.send(v)),
    "a counter": (
        itertools.count,
        lambda m: float(repr(m.own)[6:-1]) * 0.1,
        lambda m, v: v > 0 and next(m.own),
    ),
    "an object's function": (
        lambda: types.SimpleNamespace(before=keeps()),
        lambda m: 0.0,
        lambda m, v: m.own.before(torch.full((1, 1, 3), v)),
    ),
    "a function deep in a list": (
        lambda: {"a": [{"b": keeps()}]},
        lambda m: 0.0,
        lambda m, v: m.own["a"][0]["b"](torch.full((1, 1, 3), v)),
    ),
}


def keeping(place):
    """Takes off its input what it kept of the pass before."""
    make, read, write = PLACES[place]
    made = Body()
    made.own = make()

    def before(x):
        was = read(made)
        write(made, float(x.mean()))
        return was

    made.before = before
    return made


@pytest.fixture(autouse=True)
def clean():
    yield
    bank.cache_clear()
    table.cache_clear()
    Named.__kept__ = 0.0
    for thing in (Colour.RED, Size.SMALL, LOG):
        vars(thing).pop("kept", None)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("place", PLACES)
def test_a_place_in_which_something_is_kept_is_looked_at(place):
    lot = ragged(COUNTS, steps=4)
    with pytest.raises(UsageError, match=r"SQ-406 .*changed (during the forward|while the model)"):
        clipped_sum(keeping(place), classify, lot, 0.3)


class Marking(Body):
    def __init__(self, start, marked):
        super().__init__()
        self.own, self.marked = start, marked

    def forward(self, x):
        self.own = self.marked
        return super().forward(x)


EQUAL = [(0, False), (1, True), (0, 0.0), (0.0, -0.0), (1, 1.0), (0j, -0j), (0.0, 0j)]


@pytest.mark.parametrize("box", [lambda v: v, lambda v: [v], lambda v: {"a": v}, lambda v: ([v],)])
@pytest.mark.parametrize(("start", "marked"), EQUAL)
def test_values_that_python_calls_equal_are_told_apart(start, marked, box):
    with pytest.raises(UsageError, match="SQ-406"):
        clipped_sum(Marking(box(start), box(marked)), classify, ragged(COUNTS, steps=4), 0.3)


@pytest.mark.parametrize("box", [list, tuple, dict, types.SimpleNamespace])
def test_a_layer_that_mixes_people_is_refused_wherever_it_lies(box):
    made, norm = Body(), nn.BatchNorm1d(8, track_running_stats=False)
    holds = box([norm]) if box in (list, tuple) else box(norm=norm)
    made.own = [holds]
    with pytest.raises(UsageError, match=r"SQ-401 .*'own' .*BatchNorm1d.*GroupNorm"):
        clipped_sum(made, classify, ragged(COUNTS), 0.3)


MANY: list[object] = []


@pytest.mark.parametrize("where", ["own", "global MANY"])
def test_more_than_can_be_looked_at_is_refused(where):
    made, many = Body(), [object() for _ in range(100_001)]
    if where == "own":
        made.own = many
    else:
        MANY[:] = many
        made.before = lambda x: 0.0 * len(MANY)
    try:
        with pytest.raises(UsageError, match=rf"SQ-406 '{where}' holds more than .*in a tensor"):
            clipped_sum(made, classify, ragged(COUNTS), 0.3)
    finally:
        MANY.clear()


@dataclass(frozen=True)
class Settings:
    width: int = 3
    names: tuple[str, ...] = ("a", "b")


SETTINGS = Settings()


def logs(made, x):
    LOG.debug("windows follow")
    return float(LOG.isEnabledFor(logging.CRITICAL))


# What many a module has, and keeps nothing of people in: made, and used at each pass.
USUAL = {
    "a vocabulary": (
        lambda: {f"word {k}": k for k in range(50_000)},
        lambda m, x: m.own["word 1"] * 0.1,
    ),
    "a vocabulary with counts": (
        lambda: {f"word {k}": (k, 1.5) for k in range(50_000)},
        lambda m, x: m.own["word 1"][0] * 0.1,
    ),
    "a set of words": (lambda: {f"word {k}" for k in range(50_000)}, lambda m, x: len(m.own) * 0),
    "a logger": (lambda: LOG, logs),
    "a frozen teacher in a list": (
        lambda: [nn.Sequential(nn.Conv1d(4, 3, 1), nn.BatchNorm1d(3)).eval().requires_grad_(False)],
        lambda m, x: m.own[0](torch.ones(1, 4, 1)).mean(),
    ),
    "a cache that is asked again": (
        lambda: (nothing(1), nothing(3)),
        lambda m, x: nothing(3).sum() + nothing(1).sum(),
    ),
    "an enumeration": (lambda: Colour.RED, lambda m, x: float(Colour(1).value)),
    "settings": (lambda: SETTINGS, lambda m, x: SETTINGS.width * 0.1),
    "a context variable": (lambda: VARIABLE, lambda m, x: VARIABLE.get()),
    "a sparse constant": (lambda: torch.eye(3).to_sparse(), lambda m, x: m.own.to_dense().mean()),
    "Python's normal numbers": (lambda: random.Random(1), lambda m, x: m.own.gauss(0.0, 1.0)),
    "a path": (lambda: pathlib.Path("a", "b"), lambda m, x: 0.0 * len(str(m.own)) * hash(m.own)),
    "a generator nobody asks": (running, lambda m, x: 0.0),
}


@pytest.mark.parametrize("what", USUAL)
def test_what_is_usual_is_not_refused(what):
    make, use = USUAL[what]
    made = Body()
    made.own = make()
    made.before = lambda x: use(made, x)
    for _ in range(2):
        clipped_sum(made, classify, ragged(COUNTS, steps=4), 0.3)


def test_gradients_of_an_ordinary_step_may_hang_on_the_weights():
    made, lot = Body(), ragged(COUNTS, steps=4)
    classify(made, lot).mean().backward()
    made.again = [made.lift, {"head": made.head}, made]
    was = [parameter.grad.clone() for parameter in made.parameters()]
    clipped_sum(made, classify, lot, 0.3)
    assert all(torch.equal(p.grad, w) for p, w in zip(made.parameters(), was, strict=True))
