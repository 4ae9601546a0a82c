"""One's own network across machines: the same files everywhere, looked at before any charge."""

from __future__ import annotations

import sys

import msgspec
import pytest

from sequester.core.errors import UsageError
from sequester.federated.flower.new import write_app
from sequester.federated.network.frames import Refused, Willing
from sequester.ledger import Ledger
from sequester.training.resumption import module_files
from tests.federated.network.asking import (
    ask_node,
    ask_of,
    at_sites,
    enrol_of,
    enrolled,
    node_at,
    spent,
)
from tests.federated.network.world import make_study, run, write_sites

NET = """
from torch import nn
import ownhelp

class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.line = nn.Linear(shape.features, shape.outputs)

    def forward(self, x, mask, categorical):
        return self.line(ownhelp.f(x))
"""
HELP = "def f(x):\n    return x.mean(1, keepdim=True).expand_as(x)\n"
WRONG = {
    "another shape": (NET, "def f(x):\n    return x.mean(1)\n", 254),
    "it fails": (NET, "def f(x):\n    return x[99]\n", 254),
    "people meet": (NET.replace("nn.Linear(", "nn.BatchNorm1d(6) if 1 else ("), HELP, 401),
    "nothing to train": (NET.replace("self.line =", "self.line = nn.Identity() or"), HELP, 405),
    "it keeps what it saw": (NET, "seen = []\ndef f(x):\n    seen.append(x)\n    return x\n", 406),
    "no such class": (NET.replace("class Net", "class Other"), HELP, 252),
    "no such option": (NET.replace("(self, shape)", "(self, shape, more)"), HELP, 253),
}


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data", people=10)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Writes the module's files afresh, as another machine's."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**texts):
        for file in folder.iterdir():
            file.unlink()
        for name in ("ownnet", "ownhelp"):
            sys.modules.pop(name, None)
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)

    yield write
    write()


def own(data, **changes):
    return make_study(data, model={"kind": "ownnet:Net", "options": {}}, **changes)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(
    ("there", "file"),
    [
        ({"ownnet": NET, "ownhelp": HELP + "\n"}, "ownhelp.py"),
        ({"ownnet": NET + "\n", "ownhelp": HELP}, "ownnet.py"),
        ({"ownnet": NET}, "ownhelp.py"),
        ({"ownhelp": HELP}, "ownhelp.py"),
        ({}, "ownhelp.py"),
    ],
)
def test_another_sites_files_are_refused_before_they_run_or_cost(
    there, file, hold, data, tmp_path, place
):
    place(ownnet=NET, ownhelp=HELP)
    question = enrol_of(own(data), hold=hold)
    place(**there)
    header, _ = ask_node(node_at(data, tmp_path), question)
    assert isinstance(header, Refused)
    assert header.code == 635
    assert repr(file) in header.message
    assert "ownnet" not in sys.modules
    assert spent(tmp_path / "node") == 0
    place(ownnet=NET, ownhelp=HELP)
    header, _ = ask_node(node_at(data, tmp_path), question)
    assert not isinstance(header, Refused), header


def test_files_that_changed_during_a_run_answer_no_round(data, tmp_path, place):
    place(ownnet=NET, ownhelp=HELP)
    study = own(data)
    question, model = ask_of(study, model=None)
    badge = enrolled(node_at(data, tmp_path), study).badge
    place(ownnet=NET, ownhelp=HELP + "\n")
    header, _ = ask_node(node_at(data, tmp_path), question, model, badge=badge)
    assert header.code == 635


@pytest.mark.parametrize("hold", [False, True])
def test_a_network_of_ours_has_no_files(hold, data, tmp_path):
    question = enrol_of(make_study(data), hold=hold)
    begun = msgspec.json.decode(question.begun) | {"module": {"/etc/secret": "00"}}
    question = msgspec.structs.replace(question, begun=msgspec.json.encode(begun).decode())
    header, _ = ask_node(node_at(data, tmp_path), question)
    assert (header.code, "/etc/secret" in header.message) == (635, True)
    assert spent(tmp_path / "node") == 0


@pytest.mark.parametrize("kind", WRONG)
def test_a_network_that_cannot_train_costs_nobody_anything(kind, data, tmp_path, place):
    net, helps, code = WRONG[kind]
    url = f"sqlite:///{tmp_path / 'server.db'}"
    Ledger.create(url).create_budget("network", "network", 20.0, 1e-5)
    place(ownnet=net, ownhelp=helps)
    study = own(data, ledger={"url": url, "budget": "network"})
    with pytest.raises(UsageError, match=f"SQ-{code}"):
        run(data, tmp_path / "run", study)
    assert at_sites(tmp_path / "nodes") == [0, 0, 0]
    with Ledger.open(url) as ledger:
        assert ledger.budgets()[0].spent == 0
    # Nor at a node whose server did not look.
    place(ownnet=NET, ownhelp=HELP)
    question = enrol_of(own(data))
    place(ownnet=net, ownhelp=helps)
    begun = msgspec.json.decode(question.begun) | {"module": module_files(own(data))}
    for hold in (False, True):
        asked = msgspec.structs.replace(
            question, begun=msgspec.json.encode(begun).decode(), hold=hold
        )
        header, _ = ask_node(node_at(data, tmp_path), asked)
        assert (header.code, f"SQ-{code}" in header.message) == (658, True)
        assert spent(tmp_path / "node") == 0


@pytest.mark.parametrize("options", [{"hiden": 3}, {"hidden": 0}])
def test_a_network_of_ours_that_cannot_be_built_is_refused_before_its_app_is_written(
    options, data, tmp_path
):
    study = make_study(data)
    model = msgspec.structs.replace(study.model, options=options)
    study = msgspec.structs.replace(study, model=model)
    with pytest.raises(UsageError, match="SQ-253"):
        write_app(study, tmp_path / "app", run=tmp_path / "run", sites=3)
    assert not (tmp_path / "app").exists()


def test_an_app_is_written_before_its_own_module_lies_in_it(data, tmp_path, place):
    place()
    study = own(data)
    assert write_app(study, tmp_path / "app", run=tmp_path / "run", sites=3)
    place(ownnet=NET, ownhelp=HELP)
    assert isinstance(ask_node(node_at(data, tmp_path), enrol_of(study, hold=False))[0], Willing)
