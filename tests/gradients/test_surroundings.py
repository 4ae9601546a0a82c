"""What a module could keep of one person for another, beside itself: found, or shown by order."""

from __future__ import annotations

import functools
import math
import random
import sys
import types
from collections import deque
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sequester.core.errors import UsageError
from sequester.gradients import clipped_sum
from tests.gradients.lots import ragged

COUNTS = [3, 1, 2, 4, 1]
KEPT: list[float] = []
QUEUE: deque[torch.Tensor] = deque(maxlen=1)
TENSOR = torch.zeros(3)
TABLE = {"mean": 0.0}
ELSEWHERE = types.ModuleType("their_state")
sys.modules["their_state"] = ELSEWHERE
CONSTANT = torch.linspace(0.1, 1, 3)


def mean(x):
    """Of everybody's data in a pass; a tensor, which the fast engine follows."""
    return x.detach().mean((0, 1))


class Body(nn.Module):
    """Subtracts `before(x)` from its input, which is what somebody else left."""

    def __init__(self):
        super().__init__()
        self.lift, self.head = nn.Linear(3, 8), nn.Linear(8, 4)

    def before(self, x):
        return 0.0

    def forward(self, x):
        return self.head(torch.tanh(self.lift(x - self.before(x))).mean(1))


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


class InGlobalList(Body):
    def before(self, x):
        KEPT.append(float(x.mean()))
        return KEPT[-2] if len(KEPT) > 1 else 0.0


class InGlobalTensor(Body):
    def before(self, x):
        was = TENSOR.clone()
        TENSOR.copy_(mean(x))
        return was


class InGlobalQueue(Body):
    def before(self, x):
        was = QUEUE[0] if QUEUE else 0.0
        QUEUE.append(mean(x))
        return was


class InCacheFilledOnce(Body):
    def before(self, x):
        TABLE.setdefault("first", mean(x))
        return TABLE["first"]


class InOtherModule(Body):
    def before(self, x):
        was = ELSEWHERE.seen
        ELSEWHERE.seen = mean(x)
        return was


class InClass(Body):
    seen = 0.0

    def before(self, x):
        was = type(self).seen
        type(self).seen = mean(x)
        return was


class InBase(InClass):
    def before(self, x):
        was = InClass.seen
        InClass.seen = mean(x)
        return was


class InDefault(Body):
    def before(self, x, kept={"seen": 0.0}):  # noqa: B006
        was, kept["seen"] = kept["seen"], mean(x)
        return was


class Helper:
    seen = 0.0

    def __call__(self, x):
        was, Helper.seen = Helper.seen, mean(x)
        return was


class InHelpersClass(Body):
    def __init__(self):
        super().__init__()
        self.helper = Helper()

    def before(self, x):
        return self.helper(x)


def keeps():
    """A function that keeps what it saw in its closure."""
    seen = 0.0

    def before(x):
        nonlocal seen
        was, seen = seen, mean(x)
        return was

    return before


def keeps_in(seen, x):
    was, seen["x"] = seen["x"], mean(x)
    return was


def noted(x):
    was = getattr(noted, "seen", 0.0)
    noted.seen = mean(x)
    return was


@functools.lru_cache(1)
def cached(length):
    return TENSOR


class InLruCache(Body):
    def before(self, x):
        return cached(len(x))


class InProperty(Body):
    @property
    def was(self):
        return InProperty.kept[-1]

    kept: ClassVar = [0.0]

    def before(self, x):
        was = self.was
        self.kept.append(mean(x))
        return was


def in_function(before):
    made = Body()
    made.before = before
    return made


def hooked(register):
    made, before = Body(), keeps()
    if "pre" in register:
        made.lift.register_forward_pre_hook(lambda m, args: (args[0] - before(args[0]),))
    else:
        made.lift.register_forward_hook(
            lambda m, args, out: out - torch.as_tensor(before(args[0])).mean()
        )
    return made


MODELS = {
    "a global list": InGlobalList,
    "a global tensor": InGlobalTensor,
    "a global queue": InGlobalQueue,
    "a cache filled once": InCacheFilledOnce,
    "another module": InOtherModule,
    "its class": InClass,
    "a base class": InBase,
    "a default": InDefault,
    "the class of what it holds": InHelpersClass,
    "a closure": lambda: in_function(keeps()),
    "a partial": lambda: in_function(functools.partial(keeps_in, {"x": 0.0})),
    "a function's own attribute": lambda: in_function(noted),
    "a method's object": lambda: in_function(Helper().__call__),
    "an lru_cache": InLruCache,
    "a property's class": InProperty,
    "a hook": lambda: hooked("register_forward_hook"),
    "a hook before": lambda: hooked("register_forward_pre_hook"),
    "a part of it": lambda: nn.Sequential(nn.Identity(), InClass()),
}


@pytest.fixture(autouse=True)
def clean():
    KEPT.clear()
    QUEUE.clear()
    TENSOR.zero_()
    TABLE.pop("first", None)
    ELSEWHERE.seen = Helper.seen = InClass.seen = 0.0
    InProperty.kept[:] = [0.0]
    vars(noted).clear()
    cached.cache_clear()
    vars(math).pop("kept", None)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("by_loop", [False, True])
@pytest.mark.parametrize("where", MODELS)
def test_what_is_kept_beside_a_module_is_refused(where, by_loop, threads):
    model = MODELS[where]()
    if by_loop:
        model.register_forward_pre_hook(lambda m, args: float(args[0].mean()) and None)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(UsageError, match="SQ-406"):
            clipped_sum(model, classify, ragged(COUNTS, steps=4), 0.3, chunk=2)
    finally:
        torch.set_num_threads(before)


TWIN = """
class Kept:
    seen = 0.0

SEEN = {"x": 0.0}

def closure(seen):
    def read(): return seen
    def write(x): nonlocal seen; seen = x
    return read, write

def default(read={"x": 0.0}): return read

holds = closure(0.0)
READ = {"global": lambda: SEEN["x"], "class": lambda: Kept.seen, "closure": holds[0],
        "default": lambda: default()["x"]}
WRITE = {"global": lambda x: SEEN.update(x=x), "class": lambda x: setattr(Kept, "seen", x),
         "closure": holds[1], "default": lambda x: default().update(x=x)}
"""


def twins(kind, writes):
    """Two files of the user's with the same names in them, of which one keeps what it saw."""
    files = [types.ModuleType(name) for name in ("their_first", "their_second")]
    for file in files:
        exec(TWIN, vars(file))
    read, write = [f.READ[kind] for f in files], files[writes].WRITE[kind]

    def before(x):
        was = read[0]() + read[1]()
        write(mean(x))
        return was

    return in_function(before)


@pytest.mark.parametrize("writes", [0, 1])
@pytest.mark.parametrize("kind", ["global", "class", "closure", "default"])
def test_two_of_one_name_are_both_looked_at(kind, writes):
    with pytest.raises(UsageError, match=r"SQ-406 .*changed while the model ran"):
        clipped_sum(twins(kind, writes), classify, ragged(COUNTS, steps=4), 0.3)


def loss_closure():
    before = keeps()
    return lambda model, lot: classify(model, lot) * (1 + torch.as_tensor(before(lot.x)).mean())


def loss_filled_once(model, lot):
    TABLE.setdefault("first", mean(lot.x).mean())
    return classify(model, lot) * TABLE["first"]


class LossObject:
    seen = 0.0

    def __init__(self):
        self.own = 0.0


class LossOfItself(LossObject):
    def __call__(self, model, lot):
        self.own += float(lot.x.mean())
        return classify(model, lot)


class LossOfItsClass(LossObject):
    def __call__(self, model, lot):
        LossObject.seen = lot.x.mean()
        return classify(model, lot)


LOSSES = {
    "a closure": loss_closure,
    "a cache filled once": lambda: loss_filled_once,
    "the object": LossOfItself,
    "its class": LossOfItsClass,
    "a method": lambda: LossOfItself().__call__,
    "a partial": lambda: functools.partial(LossOfItself()),
}


@pytest.mark.parametrize("where", LOSSES)
def test_what_a_loss_keeps_is_refused(where):
    with pytest.raises(UsageError, match="SQ-406"):
        clipped_sum(Body(), LOSSES[where](), ragged(COUNTS, steps=4), 0.3)


def hidden(by_loop):
    """Keeps the last one's mean where no picture looks: in a module of Python's own."""

    def before(x):
        if by_loop:
            float(x.mean())
        was, fresh = getattr(math, "kept", (0.0, 0.0)), mean(x)
        math.kept = (fresh, was[0])
        return was[0]

    return in_function(before)


@pytest.mark.parametrize("by_loop", [False, True])
def test_whoever_came_before_shows_where_nobody_looks(by_loop):
    with pytest.raises(UsageError, match=r"SQ-406 .*who came before"):
        clipped_sum(hidden(by_loop), classify, ragged(COUNTS, steps=4), 0.3)


class Constant(Body):
    scale = CONSTANT * 2
    words = ("a", "b")

    def before(self, x):
        return CONSTANT * self.scale * len(self.words)


class Drawing(Body):
    """From generators of its own, of every kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.own = {
            "torch": torch.Generator().manual_seed(1),
            "numpy": np.random.default_rng(1),
            "old numpy": np.random.RandomState(1),
            "python": random.Random(1),
        }[kind]

    def before(self, x):
        if self.kind == "torch":
            return torch.rand(3, generator=self.own)
        return float(self.own.random() if self.kind != "old numpy" else self.own.rand())


HARMLESS = {
    "constants": Constant,
    "dropout": lambda: nn.Sequential(nn.Dropout(0.5), Body()),
    **{
        f"generator: {kind}": functools.partial(Drawing, kind)
        for kind in ("torch", "numpy", "old numpy", "python")
    },
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_keeps_nothing_of_people_is_not_refused(what):
    model = HARMLESS[what]()
    for _ in range(4):
        clipped_sum(model, classify, ragged(COUNTS, steps=4), 0.3)


class Late(Body):
    """Keeps nothing before one of its weights is large."""

    kept = 0.0

    def before(self, x):
        if float(self.head.bias.detach().max()) > 10.0:
            Late.kept = 0.5 * Late.kept + float(x.mean())
        return Late.kept


def test_what_is_kept_later_than_at_the_first_call_is_refused_then():
    model, lot = Late(), ragged(COUNTS)
    for _ in range(2):
        clipped_sum(model, classify, lot, 1.0)
    with torch.no_grad():
        model.head.bias[0] = 11.0
    with pytest.raises(UsageError, match="SQ-406"):
        clipped_sum(model, classify, lot, 1.0)


def test_what_pytest_makes_of_an_assertion_is_nobodys_state():
    util = sys.modules["_pytest.assertion.util"]
    before = util._config

    def loss(model, lot):
        assert lot.people
        sys.modules["_pytest.assertion.util"]._config = object()
        return classify(model, lot)

    try:
        clipped_sum(Body(), loss, ragged(COUNTS), 1.0)
    finally:
        util._config = before


LIBRARY = """
import functools

KNOWN = {}

@functools.lru_cache
def places(shape):
    return tuple(range(len(shape)))

def turned(x):
    KNOWN.setdefault(type(x), "torch")
    return x.permute(*places(tuple(x.shape)))
"""


@pytest.mark.parametrize(("library", "trusted"), [("einops.turning", True), ("others", False)])
def test_only_einops_may_keep_recipes_by_shape(library, trusted):
    """A stand-in: caches by shape, the number of windows included, as einops has them."""
    module = types.ModuleType(library)
    exec(LIBRARY, module.__dict__)

    class Turning(Body):
        def before(self, x):
            return x - turned(x)

    turned = module.turned
    model = Turning()
    for counts in (COUNTS, [9, 8]):
        with (
            nullcontext() if trusted else pytest.raises(UsageError, match=r"SQ-406 .*public input")
        ):
            clipped_sum(model, classify, ragged(counts), 0.3)


def test_a_constant_made_at_first_use_is_refused_until_public_input_made_it():
    class Masked(Body):
        mask = None

        def before(self, x):
            if self.mask is None:
                self.mask = torch.linspace(0, 1, x.shape[1])[:, None]
            return self.mask

    model = Masked()
    with pytest.raises(UsageError, match=r"SQ-406 .*'mask'.*once on public input"):
        clipped_sum(model, classify, ragged(COUNTS), 0.3)
    model = Masked()
    model(torch.ones(1, 5, 3))
    clipped_sum(model, classify, ragged(COUNTS), 0.3)
