"""A run that dies in its third round, at a chosen moment."""

from __future__ import annotations

import pytest

from sequester.federated.checkpoint import FileStore
from sequester.federated.run import federate

POINTS = ("before sealing", "after sealing", "before saving")


def killed(study, out, point):
    """The folder of what is left."""
    seal, save = FileStore.seal, FileStore.save

    def dying_seal(self, simulation, sealed):
        if simulation.next_round == 2 and point == "before sealing":
            raise KeyboardInterrupt
        seal(self, simulation, sealed)
        if simulation.next_round == 2 and point == "after sealing":
            raise KeyboardInterrupt

    def dying_save(self, simulation):
        if simulation.next_round == 3 and point == "before saving":
            raise KeyboardInterrupt
        save(self, simulation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "seal", dying_seal)
        patch.setattr(FileStore, "save", dying_save)
        with pytest.raises(KeyboardInterrupt):
            federate(study, out=out)
    (folder,) = out.iterdir()
    return folder
