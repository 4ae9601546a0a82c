"""Whether a run protects anybody, said wherever its ε is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequester.mechanism import Claim
    from sequester.training.folder import RunFolder

STAMP = "NOT PRIVATE"


def standing_fields(*, private: bool) -> dict[str, Any]:
    """The JSON fields that stand beside an ε."""
    return {"private": private, "status": "private" if private else STAMP}


def protects(folder: RunFolder, claim: Claim | None) -> bool:
    """Whether a run protects anybody, by its claim or, while it has none, by its study."""
    if claim is not None:
        return claim.private
    # Imported here because torch comes with it, and `explain` does without.
    from sequester.training.study_file import read_study

    return read_study(folder.study).protects
