"""The simulator, with the same sites silent in the same rounds as elsewhere."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from sequester.federated import clients
from sequester.federated import round as machine
from sequester.federated.run import federate


def simulated(study, out, missing: Collection[tuple[int, int]]):
    """Simulate `study` without the answers `missing`, each a round and a site's place."""
    real = clients.Silos.answer

    def answer(self, instructions, state, clip):
        for event in real(self, instructions, state, clip):
            silent = (event.update.round, event.update.client) in missing
            yield machine.Lost(event.update.client) if silent else event

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients.Silos, "answer", answer)
        return federate(study, out=out)
