"""A server's hold on its run folder, which a server that was killed lets go a while later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sequester.core.errors import UsageError
from sequester.federated.network.transport import Transport
from sequester.training.folder import RunFolder

DYING_S = 120.0
"""How long a server that was killed may keep the run folder before its successor gives up."""


@contextmanager
def held(folder: RunFolder, transport: Transport) -> Iterator[None]:
    """Hold the run folder. A SuperLink that is killed takes its ServerApp along a while later."""
    begun = transport.now()
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(folder.held())
                break
            except UsageError as refusal:
                if refusal.code != 508 or transport.now() - begun > DYING_S:
                    raise
                transport.wait()
        yield
