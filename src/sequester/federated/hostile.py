"""What hostile and broken clients send, for tests and experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sequester.federated.clients import Tamper
from sequester.federated.messages import Update


def _scaled(factor: float) -> Tamper:
    def tamper(update: Update) -> Update:
        scaled = {
            name: np.asarray(array, np.float32) * np.float32(factor)
            for name, array in update.tensors.items()
        }
        return replace(update, tensors=scaled)

    return tamper


def _filled(value: float) -> Tamper:
    def tamper(update: Update) -> Update:
        filled = {
            name: np.full(array.shape, value, np.float32) for name, array in update.tensors.items()
        }
        return replace(update, tensors=filled)

    return tamper


def _changed(**fields: object) -> Tamper:
    def tamper(update: Update) -> Update:
        return replace(update, **fields)  # type: ignore[arg-type]

    return tamper


def _reshaped(update: Update) -> Update:
    broken = {
        name: np.ones((*array.shape, 2), np.float32) for name, array in update.tensors.items()
    }
    return replace(update, tensors=broken)


def _doubled(update: Update) -> Update:
    wide = {name: array.astype(np.float64) for name, array in update.tensors.items()}
    return replace(update, tensors=wide)


def _replayed(update: Update) -> Update:
    return replace(update, round=update.round - 1)


def _silent(update: Update) -> None:
    return None


ATTACKS: dict[str, Callable[[Update], Update | None]] = {
    "sign-flip": _scaled(-1.0),
    "scale": _scaled(100.0),
    "flip-and-scale": _scaled(-10.0),
    "nan": _filled(float("nan")),
    "inf": _filled(float("inf")),
    "huge": _filled(1e30),
    "zero": _filled(0.0),
    "heavy": _changed(weight=1e5),
    "wrong-shape": _reshaped,
    "wrong-dtype": _doubled,
    "replay": _replayed,
    "other-version": _changed(version="0" * 32),
    "silent": _silent,
}
"""Name to what it does to an honest update."""
