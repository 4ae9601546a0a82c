"""What personalisation leaves behind: each client's own part of the model, in the private folder.

`private/personal/client-<position>.safetensors` holds one client's part: a head's tensors, a pair
of factors for each matrix (`<name>.left`, `<name>.right`, to be multiplied and added), or a whole
fine-tuned model. A part is learned from that client's data alone, without noise: it is as personal
as the data, readable by the owner alone, and belongs to that client's device, nowhere else.

    from sequester.federated.keepsakes import personal_model
    model.load_state_dict(personal_model(Path("runs/study-20260101T000000"), "a site's name"))
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import Tensor, nn

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.algorithms.personal import LocalHead
from sequester.federated.clients import Devices
from sequester.federated.engine.base import fill
from sequester.federated.messages import Vector
from sequester.models import Routed
from sequester.training.dataset import group_of, split
from sequester.training.folder import RunFolder
from sequester.training.session import Session

_LEFT, _RIGHT = ".left", ".right"


def write_parts(folder: RunFolder, devices: Devices, shared: Vector, names: Sequence[str]) -> None:
    """Keep every client's part.

    Args:
        folder: The run's.
        devices: The clients, after the last round.
        shared: The released model, `(size,)`.
        names: What the clients are called, by position; positions themselves where empty.
    """
    if devices.personal is None:
        return
    place = folder.private / "personal"
    place.mkdir(mode=0o700, exist_ok=True)
    for client, kept in sorted(devices.kept.items()):
        name = names[client] if names else str(client)
        raw = save(devices.personal.part(shared, kept), metadata={"client": name})
        write_atomic(place / f"client-{client:06d}.safetensors", raw, private=True)


def personal_model(run: Path, client: str) -> dict[str, Tensor]:
    """One client's own model, as a module's `state_dict`.

    Args:
        run: The run folder.
        client: A site's name, or a person's position among the training people, from "0".

    Raises:
        UsageError: SQ-618 if the run keeps nothing of this client.
    """
    folder = RunFolder.open(run)
    for file in sorted((folder.private / "personal").glob("client-*.safetensors")):
        with safe_open(str(file), "np") as opened:
            if (opened.metadata() or {}).get("client") == client:
                return _joined(load_file(folder.weights), load_file(file))
    raise UsageError(
        618,
        "this run keeps no part of this client: it was in no round, or the study has no "
        "federated.personal",
        where="private/personal",
    )


def _joined(released: dict[str, Tensor], part: dict[str, Tensor]) -> dict[str, Tensor]:
    """The released model with a client's part in it."""
    model = dict(released)
    for name, value in part.items():
        if name in model:
            model[name] = value
        elif name.endswith(_LEFT):
            matrix = name.removesuffix(_LEFT)
            model[matrix] = model[matrix] + value @ part[matrix + _RIGHT]
    return model


def judge_personal(session: Session, devices: Devices, shared: Vector, sites: Sequence[str]) -> str:
    """Let the figure of merit be that of the models people really get; say so.

    Held-out people of a site that took part are judged by that site's own model. Where each person
    is a client of their own, held-out people have none, and only a shared model that is whole can
    be judged; one whose head stays with the clients cannot.

    Args:
        session: Its `judged` is set.
        devices: The clients, after the last round.
        shared: The released model, `(size,)`.
        sites: Names of the clients, by position; empty where a client is a person.

    Returns:
        What the claim says of the figure; "" where it is the released model's.
    """
    personal = devices.personal
    if personal is None:
        return ""
    headless = isinstance(personal, LocalHead)
    held = split(session.people, session.study.data)[1]
    of = np.full(session.prepared.held_out.people, -1)
    data = session.study.data
    if sites and of.size:
        place = {name: client for client, name in enumerate(sites) if client in devices.kept}
        groups = group_of(held, data.group, data.read.get("site", "site"))
        of = np.array([place.get(name, -1) for name in groups])
    if headless and (of < 0).any():
        session.judged = None
        return (
            "No figure of merit was computed: held-out people without a head of their own cannot "
            "be judged by released weights whose head nobody trained."
        )
    if (of < 0).all():
        return ""
    models = {-1: session.state.model}
    for client in sorted(set(of[of >= 0].tolist())):
        models[client] = _filled(session.state.model, personal.start(shared, devices.kept[client]))
    session.judged = Routed(models, of)
    return (
        "The figure of merit is that of personal models, which stay with their sites, each on its "
        "own site's held-out people; the released weights alone are another model."
    )


def _filled(model: nn.Module, vector: NDArray[np.float32]) -> nn.Module:
    """A copy of the module with these trainable parameters."""
    copied = copy.deepcopy(model)
    fill(copied, vector)
    return copied
