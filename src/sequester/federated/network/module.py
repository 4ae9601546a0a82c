"""The study's network at a node: of the very files that the server has, and fit for people.

Declarations and files alone decide it, no record does: so it is told, and before any charge.
"""

from __future__ import annotations

import logging

from sequester.core.errors import UsageError
from sequester.training.network import check_network
from sequester.training.resumption import Begun, module_files
from sequester.training.study import Study

_LOG = logging.getLogger("sequester.node")


def check_module(study: Study, begun: Begun) -> None:
    """Refuse another network than the server's, before it is imported, and one that cannot train.

    Raises:
        UsageError: SQ-635 naming a file of the user's own module that differs, SQ-658 with the
            number of what speaks against the network.
    """
    ours, theirs = module_files(study), begun.module
    differing = sorted(name for name, _ in ours.items() ^ theirs.items())
    if differing:
        name, kind = differing[0], study.model.kind
        how = "another" if name in ours and name in theirs else "missing"
        whose = "the server" if name in ours and name not in theirs else "this node"
        raise UsageError(
            635,
            f"file {name!r} of the network {kind!r} is {how} at {whose}; server and nodes need the "
            "same files",
        )
    try:
        check_network(study)
    except UsageError as problem:
        _LOG.warning("SQ-%d: %s", problem.code, problem.message)
        raise UsageError(
            658,
            f"the study's network cannot be built or trained on at this node (SQ-{problem.code}); "
            "the node's own log says why",
        ) from None
