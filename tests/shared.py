"""Where tests find data that is not part of the package; they skip visibly without it."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def shared(*parts: str) -> Path:
    """The path of shared material, whether or not it is there."""
    base = os.environ.get("SEQUESTER_SHARED")
    folder = Path(base) if base else ROOT.parent / "shared"
    return folder.joinpath(*parts)


def needs_shared(*parts: str) -> pytest.MarkDecorator:
    """Skip the test, naming what is missing, where the shared material is not there."""
    path = shared(*parts)
    return pytest.mark.skipif(not path.exists(), reason=f"shared/{'/'.join(parts)} is not here")
