"""The run folder: what lies where, and who may read it.

runs/<study>-<time>/
  study.toml          exactly what ran, defaults filled in
  claim.json          absent until there is one
  facts.json          what may be told outside beside the claim
  model.safetensors   released weights
  checkpoints/        resumable; noise key and position; private, emptied at the end
  private/            metrics and advice; never leaves
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sequester.core.errors import SequesterError, UsageError
from sequester.core.files import check_name, sweep

DECISIONS = "begun.json"
"""In `checkpoints`: what a run decided before its first step. The only file that stays there."""

POSITION = "position"
"""In `checkpoints` of a central run: the next unused step of its noise."""

NEVER_BEGAN = (
    "one that was stopped before it began: nothing was drawn or charged. Remove the folder and "
    "start the study again"
)


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder."""

    path: Path

    @classmethod
    def create(cls, out: Path, study: str) -> RunFolder:
        """A new folder `<study>-<time>` under `out`; the private parts are for the owner alone."""
        name = check_name(study, "a study's name")
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        for attempt in range(1000):
            suffix = f"-{attempt}" if attempt else ""
            folder = cls(out / f"{name}-{stamp}{suffix}")
            try:
                folder.path.mkdir(parents=True)
            except FileExistsError:
                continue
            folder.checkpoints.mkdir(mode=0o700)
            folder.private.mkdir(mode=0o700)
            return folder
        raise UsageError(501, "no free name for a run folder; choose another --out", where=str(out))

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run.

        Raises:
            UsageError: SQ-502 if the folder holds no run, or one killed before it was written down.
        """
        folder = cls(path)
        if not folder.study.is_file() or not folder.checkpoints.is_dir():
            raise UsageError(502, f"this folder holds no run, or {NEVER_BEGAN}", where=str(path))
        return folder

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process out while this one trains here.

        Two that resume one run would draw the same noise on different sums. The lock goes with
        the process, however it ends.

        Raises:
            UsageError: SQ-508 if another process holds the run.
        """
        handle = os.open(self.checkpoints, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    508,
                    "another process is training this run; wait for it, or stop it, and resume "
                    "then",
                    where=str(self.path),
                ) from None
            for folder in (self.path, self.checkpoints, self.private):
                sweep(folder)  # what a process left that was killed while it wrote
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Leave no folder of a new run that is refused inside, before anything is held for it.

        Where the disk or a server did not say whether it took the charge (SQ-303), it stays: a
        resumed run finds out.
        """
        try:
            yield
        except SequesterError as refusal:
            if refusal.code != 303:
                shutil.rmtree(self.path)
            raise

    @property
    def name(self) -> str:
        """The run's name: the folder's."""
        return self.path.name

    @property
    def study(self) -> Path:
        """The study with defaults filled in."""
        return self.path / "study.toml"

    @property
    def claim(self) -> Path:
        """The claim."""
        return self.path / "claim.json"

    @property
    def facts(self) -> Path:
        """Facts that may leave."""
        return self.path / "facts.json"

    @property
    def weights(self) -> Path:
        """Released weights."""
        return self.path / "model.safetensors"

    @property
    def checkpoints(self) -> Path:
        """What a resumed run needs; private."""
        return self.path / "checkpoints"

    @property
    def private(self) -> Path:
        """Metrics computed on people; private."""
        return self.path / "private"
