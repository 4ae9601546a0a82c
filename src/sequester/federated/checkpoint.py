"""What a federated run keeps between rounds: safetensors and JSON, one atomic file each.

`rounds.safetensors` holds the state after the last finished round. `sealed.safetensors` holds
the sum of a round whose noise is about to be drawn, with the clients' state as of that moment;
it counts only while it is the round after the saved one. Both are private.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.clients import part_of
from sequester.federated.messages import Reason
from sequester.federated.noise import Sealed
from sequester.federated.simulate import Simulation

_STATE, _SEALED = "rounds.safetensors", "sealed.safetensors"
Arrays = dict[str, NDArray[Any]]


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run stands, beside its tensors.

    Attributes:
        study: SHA-256 of the study: a checkpoint belongs to one study.
        data: Keyed fingerprint of the data: and to one data set.
        round: The next round; for a sealed sum, the round it belongs to.
        clip: The bound in force.
        bytes_sent: Bytes of updates so far.
        below: Of a sealed sum.
        units: Of a sealed sum.
        abandoned: Rounds so far of which no model came.
        cohort: Of a sealed sum: clients that were asked.
        accepted: Of a sealed sum: updates in it.
        rejected: Of a sealed sum: updates that are not, by reason.
    """

    study: str
    data: str
    round: int
    clip: float
    bytes_sent: int
    below: int = 0
    units: int = 0
    abandoned: int = 0
    cohort: int = 0
    accepted: int = 0
    rejected: dict[Reason, int] = {}


@dataclass(frozen=True)
class FileStore:
    """`simulate.Store` in a run's checkpoint folder.

    Attributes:
        folder: Where.
        study: SHA-256 of the study.
        data: Fingerprint of the data.
    """

    folder: Path
    study: str
    data: str

    def save(self, simulation: Simulation) -> None:
        """Keep the state after a round."""
        self._write(_STATE, simulation, _arrays(simulation), None)

    def seal(self, simulation: Simulation, sealed: Sealed) -> None:
        """Keep the sum before its noise exists."""
        arrays = _arrays(simulation) | {"sealed": sealed.total}
        self._write(_SEALED, simulation, arrays, sealed)

    def load(self, simulation: Simulation) -> None:
        """Bring `simulation` to where the folder's files say it stopped.

        Raises:
            UsageError: SQ-622 for a damaged checkpoint, or one of another study or data set.
        """
        if (self.folder / _STATE).exists():
            arrays, progress = self._read(_STATE)
            _restore(simulation, arrays, progress)
        if not (self.folder / _SEALED).exists():
            return
        arrays, progress = self._read(_SEALED)
        if progress.round == simulation.next_round:
            total = arrays.pop("sealed")
            _restore(simulation, arrays, progress)
            simulation.sealed = Sealed(total, progress.below, progress.units)
            simulation.tally = replace(
                simulation.tally,
                cohort=progress.cohort,
                accepted=progress.accepted,
                rejected=progress.rejected,
            )

    def _write(
        self, name: str, simulation: Simulation, arrays: Arrays, sealed: Sealed | None
    ) -> None:
        progress = Progress(
            study=self.study,
            data=self.data,
            round=simulation.next_round,
            clip=simulation.clip,
            bytes_sent=simulation.crowd.bytes_sent,
            below=sealed.below if sealed else 0,
            units=sealed.units if sealed else 0,
            abandoned=simulation.abandoned,
            cohort=simulation.tally.cohort if sealed else 0,
            accepted=simulation.tally.accepted if sealed else 0,
            rejected=simulation.tally.rejected if sealed else {},
        )
        raw = save(arrays, metadata={"progress": msgspec.json.encode(progress).decode()})
        write_atomic(self.folder / name, raw, private=True)

    def _read(self, name: str) -> tuple[Arrays, Progress]:
        file = self.folder / name
        raw = file.read_bytes()
        try:
            arrays = load(raw)
            header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
            progress = msgspec.json.decode(header["__metadata__"]["progress"], type=Progress)
        except (SafetensorError, KeyError, ValueError, msgspec.MsgspecError):
            raise UsageError(622, "this checkpoint is damaged", where=str(file)) from None
        if (progress.study, progress.data) != (self.study, self.data):
            what = "study" if progress.study != self.study else "data set"
            raise UsageError(
                622,
                f"this checkpoint was made with another {what}; resume with the one it started "
                "from, or start a new run",
                where=str(file),
            )
        return arrays, progress


def _arrays(simulation: Simulation) -> Arrays:
    """Everything that changes from round to round, by a name that says whose it is."""
    state = simulation.state
    arrays: Arrays = {"model": state.model}
    arrays |= {f"slot.{name}": value for name, value in state.slots.items()}
    arrays |= {f"client.{client}": value for client, value in state.clients.items()}
    arrays |= simulation.crowd.arrays()
    if simulation.masking is not None:
        arrays |= simulation.masking.arrays()
    return {name: np.ascontiguousarray(value) for name, value in arrays.items()}


def _restore(simulation: Simulation, arrays: Arrays, progress: Progress) -> None:
    state = simulation.state
    state.model = arrays["model"]
    state.slots = dict(part_of(arrays, "slot"))
    state.clients = {int(name): value for name, value in part_of(arrays, "client").items()}
    simulation.crowd.restore(arrays)
    simulation.crowd.bytes_sent = progress.bytes_sent
    if simulation.masking is not None:
        simulation.masking.restore(arrays)
    simulation.next_round, simulation.clip = progress.round, progress.clip
    simulation.abandoned = progress.abandoned
