"""Random numbers while gradients are checked: equal for everyone, and none of the user's used up.

A person's dropout mask inside a chunk is another than when that person comes alone. `Quiet` puts
constants in the place of what forward passes draw, so that both can be compared; `Generators`
winds every global generator back afterwards, and `kept` gives them to one thread meanwhile.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sequester.gradients.modes import Mode

_MIDDLE = 0.5
_DRAWN = ("rand", "normal", "uniform", "exponential", "log_normal", "cauchy", "geometric")
_TURN = threading.RLock()


class Generators:
    """Where the global generators of PyTorch, Python and NumPy stand.

    Args:
        device: Whose generator counts besides that of the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        """Note it."""
        self._device = device
        self._torch = torch.get_rng_state()
        self._there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._python = random.getstate()
        self._numpy = _numpy().get_state() if _numpy() is not None else None

    def moved(self) -> bool:
        """Whether anyone drew since."""
        now = Generators(self._device)
        pairs = ((self._torch, now._torch), (self._there, now._there))
        return self.moved_elsewhere() or any(
            a is not None and b is not None and not torch.equal(a, b) for a, b in pairs
        )

    def moved_elsewhere(self) -> bool:
        """Whether anyone drew from Python's or NumPy's since."""
        numpy = None if _numpy() is None else _numpy().get_state()
        return self._python != random.getstate() or _comparable(self._numpy) != _comparable(numpy)

    def wind_back(self) -> None:
        """Let the next numbers be those that came next then."""
        torch.set_rng_state(self._torch)
        if self._there is not None:
            torch.cuda.set_rng_state(self._there, self._device)
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy().set_state(self._numpy)


@contextmanager
def kept() -> Iterator[None]:
    """Global generators are afterwards what they were, and meanwhile of this thread alone.

    Of those threads, that is, which ask for them by `kept`.
    """
    with _TURN:
        before = Generators(torch.device("cpu"))
        try:
            yield
        finally:
            before.wind_back()


def _numpy() -> Any:
    module = sys.modules.get("numpy")
    return None if module is None else module.random


def _comparable(state: Any) -> Any:
    return None if state is None else (state[1].tobytes(), *state[2:])


class Quiet(Mode):
    """Constants instead of random numbers, whatever generator they would come from."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run, then overwrite what was drawn."""
        name = func._schema.name.removeprefix("aten::")  # noqa: SLF001
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if name == "native_dropout":
            keep = 1.0 - float(args[1] or 0.0)
            return args[0] / max(keep, 2.0**-20), torch.ones_like(args[0], dtype=torch.bool)
        if name.startswith("rrelu_with_noise"):
            x, noise, low, high = args[:4]
            noise.copy_(torch.where(x > 0, 1.0, (low + high) / 2))
            return x.mul_(noise) if name.endswith("_") else x * noise
        found = func(*args, **kwargs)
        if not isinstance(found, Tensor):
            return found
        if name.startswith("bernoulli"):
            return found.fill_(1)
        if name.startswith("multinomial") or "randint" in name or name.startswith("random"):
            given = [a for a in args if not isinstance(a, Tensor)]
            low = given[0] if len(given) > 1 and isinstance(given[1], int) else 0
            return found.fill_(low)
        if name.startswith(_DRAWN) and found.is_floating_point():
            return found.fill_(_MIDDLE)
        return found
