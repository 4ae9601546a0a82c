"""Questions to one node, as a server would ask them."""

from __future__ import annotations

import msgspec
import numpy as np

from sequester import __version__
from sequester.federated.messages import version_of
from sequester.federated.network import frames
from sequester.federated.network.frames import Ask, Enrol, Enrolled, Release
from sequester.federated.network.node import Node
from sequester.federated.network.site import layout_for
from sequester.federated.settings import settings_of
from sequester.ledger import Ledger
from sequester.training import resumption
from sequester.training.study_file import to_toml
from tests.federated.network.world import SITES


def enrol_of(study, **changes):
    begun = msgspec.structs.replace(resumption.begin(study, "", "flower"), run="run-1")
    question = Enrol(
        run="run-1",
        study=to_toml(study),
        begun=msgspec.json.encode(begun).decode(),
        layout=layout_for(study, settings_of(study)).digest(),
        version=__version__,
        limit=frames.LIMIT,
        hold=True,
        ticket="t",
    )
    return msgspec.structs.replace(question, **changes)


def ask_node(node, header, tensors=None, badge=""):
    raw = node.answer(frames.seal(header, tensors, badge=badge))
    return frames.unseal(raw, lambda header: badge if getattr(header, "enrolled", True) else "")


def enrolled(node, study):
    header, _ = frames.unseal(node.answer(frames.seal(enrol_of(study))), lambda _: "")
    assert isinstance(header, Enrolled), header
    return header


def ask_of(study, *, round_=0, model=None, **changes):
    layout = layout_for(study, settings_of(study))
    size = layout.size - 2 if layout.dtype == "float64" else layout.size
    model = np.full(size, 0.1, np.float32) if model is None else model
    ask = Ask(
        run="run-1",
        round=round_,
        version=version_of(layout, model),
        layout=layout.digest(),
        clip=study.privacy.clip,
        first=0,
        clients=(0,),
        nonces=("n",),
        last=(-1,),
        ticket=f"{round_}-0-0",
    )
    return msgspec.structs.replace(ask, **changes), {"model": model}


def node_at(data, tmp_path, site="a"):
    return Node(site, data / site / "people.csv", tmp_path / "node")


BROKEN = "a000,7\n"  # a row with too few fields: records decide that it cannot be read
RELEASE = Release("run-1", ("run-1",), "r")


def spent(folder):
    """What a ledger holds; 0 without one."""
    file = folder / "ledger.db"
    if not file.exists():
        return 0
    with Ledger.open(f"sqlite:///{file}") as ledger:
        return sum(standing.spent for standing in ledger.budgets())


def at_sites(nodes):
    """The same at every site."""
    return [spent(nodes / site) for site in SITES]


def break_file(data, site="c"):
    """Let a site's people be unreadable; gives back what mends it."""
    file = data / site / "people.csv"
    text = file.read_text()
    file.write_text(text + BROKEN)
    return lambda: file.write_text(text)
