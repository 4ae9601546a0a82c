"""Parts of an audit that are done, so that an interrupted one goes on where it stopped.

They lie in the run's `private/audit/`, as text and safetensors, and go when the audit ends. Of
the mechanism the scores and verdicts are kept and not the secret key of its lots and noise: an
audit that stops among its steps draws new ones. Of each reference model its signals are kept,
which are all that the attacks use. What was asked, of which run and by which version, is kept
beside them; parts of another question are thrown away.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sequester.audit.mechanism.battery import BatteryResult
from sequester.audit.mechanism.evidence import Found
from sequester.audit.mechanism.scores import Scores
from sequester.core.files import write_atomic

Floats = NDArray[np.float64]


class _Mechanism(msgspec.Struct, frozen=True):
    """`evidence.Found` as it is kept."""

    values: list[float]
    coins: list[bool]
    battery: BatteryResult
    seconds: float


@dataclass(frozen=True)
class Finished:
    """The finished parts of one audit.

    Attributes:
        folder: Where they lie; the owner's alone.
        key: Secret of this audit's choice of windows, the same when it goes on.
    """

    folder: Path
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, private: Path, asked: bytes, *, key: bytes) -> Finished:
        """What is left of an interrupted audit that was `asked` the same; else nothing.

        Args:
            private: The run's private folder.
            asked: Everything that decides what an audit finds.
            key: Of an audit that begins.
        """
        folder, question = private / "audit", hashlib.blake2b(asked, digest_size=32).hexdigest()
        file = folder / "windows.key"
        if not file.is_file() or _read(folder / "asked") != question.encode():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700, parents=True)
            write_atomic(folder / "asked", question, private=True)
            write_atomic(file, key, private=True)
        return cls(folder, file.read_bytes())

    def mechanism(self, find: Callable[[], Found]) -> Found:
        """The mechanism's part, found now unless it was before."""
        path = self.folder / "mechanism.json"
        try:
            kept = msgspec.json.decode(_read(path), type=_Mechanism)
        except msgspec.DecodeError:
            found = find()
            scores = found.scores
            kept = _Mechanism(
                scores.values.tolist(), scores.coins.tolist(), found.battery, found.seconds
            )
            write_atomic(path, msgspec.json.encode(kept), private=True)
        return Found(
            Scores(np.array(kept.values, float), np.array(kept.coins, bool)),
            kept.battery,
            kept.seconds,
        )

    def reference(self, number: int, judge: Callable[[], Floats]) -> Floats:
        """Signals under reference model `number`, which is trained now unless it was before."""
        path = self.folder / f"reference-{number}.safetensors"
        try:
            return load(_read(path))["signals"]
        except (SafetensorError, KeyError):
            signals = judge()
            write_atomic(path, save({"signals": signals}), private=True)
            return signals

    def close(self) -> None:
        """The audit is over, and nothing of it is kept here."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> bytes:
    """A part's bytes; none where it was not finished."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
