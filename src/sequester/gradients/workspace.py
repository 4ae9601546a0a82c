"""Buffers that are allocated once and used for every chunk.

Fresh multi-megabyte tensors cost a page fault for every 4 KiB, which is more than the
arithmetic of a small recurrent network; so each worker keeps its buffers.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor


class Workspace:
    """Named flat buffers of one worker; a name's buffer is valid until the name is taken again."""

    def __init__(self) -> None:
        """Start without buffers."""
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of `shape`, with the dtype and device of `like`."""
        key = (name, like.dtype, like.device)
        size = math.prod(shape)
        held = self._buffers.get(key)
        if held is None or held.numel() < size:
            held = torch.empty(size, dtype=like.dtype, device=like.device)
            self._buffers[key] = held
        return held[:size].view(shape)

    def keep_only(self, prefix: str) -> None:
        """Let go of every buffer whose name does not begin so."""
        self._buffers = {k: b for k, b in self._buffers.items() if k[0].startswith(prefix)}

    def bytes(self) -> int:
        """Memory held."""
        return sum(b.numel() * b.element_size() for b in self._buffers.values())


_LOCK = threading.Lock()
_IDLE: list[Workspace] = []


def borrow() -> Workspace:
    """A workspace nobody uses now."""
    with _LOCK:
        return _IDLE.pop() if _IDLE else Workspace()


def give_back(workspace: Workspace) -> None:
    """Keep the workspace for the next lot."""
    with _LOCK:
        _IDLE.append(workspace)


def release() -> None:
    """Free the buffers of all workspaces that are not in use."""
    with _LOCK:
        _IDLE.clear()
