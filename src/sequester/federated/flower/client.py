"""A node's side: the app that answers one of the server's messages."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sequester.core.errors import UsageError
from sequester.federated.flower.messages import mebibytes, packed, setting, unpacked
from sequester.federated.network import frames
from sequester.federated.network.node import Node

_LOG = logging.getLogger("sequester.node")


def client_app() -> ClientApp:
    """A ClientApp that answers for one site; its settings are the node's own configuration.

    Flower starts it anew for every message, so nothing but the node's folder outlives one.
    """

    def train(message: Message, context: Context) -> Message:
        body = answer(context.node_config, unpacked(message.content))
        return Message(packed(body), reply_to=message)

    app = ClientApp()
    app.train()(train)
    return app


def answer(settings: Any, body: bytes) -> bytes:
    """The node's answer; a node that its holder did not set up says so, to the server too."""
    try:
        node = node_of(settings)
    except UsageError as problem:
        _LOG.error("%s", problem)
        return frames.seal(frames.Refused("", False, problem.code, problem.message, ""))
    return node.answer(body)


def node_of(settings: Any) -> Node:
    """The node that its holder configured: the settings of docs/flower.md."""
    return Node(
        site=str(setting(settings, "site")),
        data=Path(str(setting(settings, "data"))).expanduser(),
        folder=Path(str(setting(settings, "folder"))).expanduser(),
        limit=mebibytes(settings.get("limit-mb", 256)),
        person=str(settings.get("person", "person")),
        erased=str(settings.get("erased", "")),
        erased_key=str(settings.get("erased-key", "")),
        members=str(settings.get("members", "")),
    )
