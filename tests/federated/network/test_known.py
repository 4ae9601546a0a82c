"""What is known before any site is asked costs no site anything; and what a run's facts say."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from sequester.core.errors import UsageError
from sequester.federated.network.run import _Server
from tests.federated.network.asking import ask_node, enrol_of, node_at
from tests.federated.network.world import POLICY, TERMS, make_study, run, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data")


def test_an_update_that_fits_no_message_is_refused_before_a_site_is_asked(data, tmp_path):
    study = make_study(data, model={"options": {"hidden": 100}})
    with pytest.raises(UsageError, match="SQ-630"):
        run(data, tmp_path / "run", study, terms=replace(TERMS, limit=1 << 16))
    assert not (tmp_path / "nodes").exists()


def test_facts_say_how_the_rounds_were_run(data, tmp_path):
    federated = {"algorithm": "fedadam", "server_learning_rate": 0.03}
    served = run(data, tmp_path / "run", make_study(data, federated))
    plan = json.loads(served.folder.facts.read_text())["plan"]
    assert plan["rounds"] == 4
    assert plan["placement"] == "cross-silo"
    assert plan["server learning rate"] == 0.03
    assert "optimiser" not in plan


def test_no_node_hears_where_the_operators_file_lies(data, tmp_path, monkeypatch):
    asked, question = [], _Server._question
    monkeypatch.setattr(_Server, "_question", lambda self: asked.append(question(self)) or asked[0])
    run(data, tmp_path / "run", make_study(data))
    assert str(data) not in msgspec.json.encode(asked[0]).decode()


def test_what_is_left_of_a_budget_is_in_the_nodes_log_alone(data, tmp_path, caplog):
    (data / "a" / "policy.toml").write_text(POLICY.replace("50.0", "0.1357"))
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(make_study(data)))
    assert header.code == 312
    assert not any(sign.isdigit() for sign in header.message)
    assert "0.13" in caplog.text
