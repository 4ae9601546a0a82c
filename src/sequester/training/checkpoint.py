"""Checkpoints: safetensors and JSON only, one atomic file each, nothing that can run code.

A checkpoint is private: it holds weights of a run that is not over. The noise key lies beside
it and is destroyed when the run ends, so that nobody can ever take the noise off again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.core.files import sync_folder, write_atomic
from sequester.core.rng import KEY_BYTES, fresh_key, key_from_test_seed
from sequester.training.folder import DECISIONS
from sequester.training.optimisers import Average, Optimiser

_NAME = "state.safetensors"


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run stands, beside its tensors.

    Attributes:
        study: SHA-256 of the study's text: a checkpoint belongs to one study.
        data: Keyed fingerprint of the training data: and to one data set.
        step: The next step to run.
        applied: Noisy updates in the weights; fewer than `step` after a crash.
        clip: The clipping bound of the next step.
        updates: Updates the optimiser counts.
        averaged: Weights in the average.
    """

    study: str
    data: str
    step: int
    applied: int
    clip: float
    updates: int
    averaged: int


@dataclass
class State:
    """All that changes from step to step.

    Attributes:
        model: Weights.
        optimiser: Its moments.
        average: The average of weights.
        step: The next step.
        applied: Updates applied so far.
        clip: The present clipping bound.
    """

    model: nn.Module
    optimiser: Optimiser
    average: Average
    step: int
    applied: int
    clip: float

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by a name that says whose it is."""
        for name, value in self.model.state_dict().items():
            yield f"model.{name}", value
        for name, value in self.optimiser.state.items():
            yield f"optimiser.{name}", value
        for name, value in self.average.state.items():
            yield f"average.{name}", value


def save_state(folder: Path, state: State, *, study: str, data: str) -> None:
    """Write the checkpoint; the old one stays until the new one is on disk."""
    progress = Progress(
        study=study,
        data=data,
        step=state.step,
        applied=state.applied,
        clip=state.clip,
        updates=state.optimiser.updates,
        averaged=state.average.updates,
    )
    tensors = {name: value.detach().clone().contiguous() for name, value in state.tensors()}
    raw = save(tensors, metadata={"progress": msgspec.json.encode(progress).decode()})
    write_atomic(folder / _NAME, raw, private=True)


def load_state(folder: Path, state: State, *, study: str, data: str) -> None:
    """Continue from the checkpoint in `folder`, if there is one.

    Raises:
        UsageError: SQ-503 if it is damaged, or belongs to another study or other data.
    """
    file = folder / _NAME
    if not file.exists():
        return
    raw = file.read_bytes()
    try:
        tensors = load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        progress = msgspec.json.decode(header["__metadata__"]["progress"], type=Progress)
    except (SafetensorError, KeyError, ValueError, msgspec.MsgspecError):
        raise UsageError(503, "this checkpoint is damaged", where=str(file)) from None
    if progress.study != study or progress.data != data:
        what = "study" if progress.study != study else "data"
        raise UsageError(
            503,
            f"this checkpoint was made with another {what}; resume with the one it started "
            "from, or start a new run",
            where=str(file),
        )

    def part(name: str) -> dict[str, Tensor]:
        return {
            key.removeprefix(f"{name}."): value
            for key, value in tensors.items()
            if key.startswith(f"{name}.")
        }

    form = {name: (value.shape, value.dtype) for name, value in state.model.state_dict().items()}
    shapes = {value.shape for value in state.model.state_dict().values()}
    found = {name: (value.shape, value.dtype) for name, value in part("model").items()}
    rest = [value for name, value in tensors.items() if not name.startswith("model.")]
    if found != form or any(value.shape not in shapes for value in rest):
        raise UsageError(
            503, "this checkpoint holds other tensors than the study's model", where=str(file)
        )
    state.model.load_state_dict(part("model"))
    state.optimiser.state = part("optimiser")
    state.optimiser.updates = progress.updates
    state.average.state = part("average")
    state.average.updates = progress.averaged
    state.step, state.applied, state.clip = progress.step, progress.applied, progress.clip


def run_key(folder: Path, *, test_seed: int | None) -> bytes:
    """The run's noise key: stored once, read again on resumption.

    Raises:
        UsageError: SQ-504 if the file was altered.
    """
    if test_seed is not None:
        return key_from_test_seed(test_seed)
    file = folder / "noise.key"
    if not file.exists():
        write_atomic(file, fresh_key(), private=True)
    key = file.read_bytes()
    if len(key) != KEY_BYTES:
        raise UsageError(504, "the noise key is damaged; start a new run", where=str(file))
    return key


def destroy(folder: Path) -> None:
    """Remove all that a finished run must not keep, whatever its name; the key is overwritten.

    What stays are the run's decisions.
    """
    for file in folder.iterdir():
        if file.name == "noise.key":
            with file.open("r+b") as stream:
                stream.write(os.urandom(KEY_BYTES))
                os.fsync(stream.fileno())
        if file.name != DECISIONS:
            file.unlink()
    sync_folder(folder)
