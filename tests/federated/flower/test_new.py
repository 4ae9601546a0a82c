"""`sequester flower new`: what it writes, and that nothing private can travel with it."""

from __future__ import annotations

import ast
import json
import tomllib

import pytest
from click.testing import CliRunner

from sequester.cli.flower import command
from sequester.core.errors import UsageError
from sequester.federated.flower.new import PACKAGE, write_app
from sequester.federated.network.site import without_source
from sequester.training.study_file import read_study, to_toml
from tests.federated.network.world import make_study, write_sites


@pytest.fixture
def study(tmp_path):
    return make_study(write_sites(tmp_path / "data"))


def test_the_app_is_small_and_names_what_flower_needs(study, tmp_path):
    path, app = tmp_path / "study.toml", tmp_path / "app"
    path.write_text(to_toml(study))
    result = CliRunner().invoke(command, ["new", str(path), str(app), "--sites", "4", "--json"])
    assert result.exception is None, result.exception
    told = json.loads(result.stdout)
    assert told["run"] == str(tmp_path / "app-run")
    assert {str(file) for file in app.rglob("*") if file.is_file()} == set(told["files"])
    project = tomllib.loads((app / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []  # nothing is installed at run time
    flower = project["tool"]["flwr"]["app"]
    for side in flower["components"].values():
        module, name = side.split(":")
        tree = ast.parse((app / (module.replace(".", "/") + ".py")).read_text())
        assert name in {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets}
    settings = flower["config"]
    assert (settings["sites"], settings["least-sites"]) == (4, 3)  # one dead site blocks nobody
    assert read_study(app / PACKAGE / "study.toml") == without_source(study)
    assert study.data.source not in (app / PACKAGE / "study.toml").read_text()


@pytest.mark.parametrize(
    ("federated", "sites", "least"),
    [({}, 1, 1), ({}, 2, 1), ({"secagg": {"dropout": 0.34}}, 3, 2), ({"secagg": {}}, 3, 3)],
)
def test_a_round_waits_for_as_few_sites_as_can_give_it_a_sum(federated, sites, least, tmp_path):
    study = make_study(write_sites(tmp_path / "data"), federated)
    write_app(study, tmp_path / "app", run=tmp_path / "run", sites=sites)
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["least-sites"] == least


def test_no_run_folder_inside_the_app_and_nothing_is_overwritten(study, tmp_path):
    app = tmp_path / "app"
    with pytest.raises(UsageError, match="SQ-643"):  # Flower would send it to every node
        write_app(study, app, run=app / "run", sites=3)
    assert not app.exists()
    with pytest.raises(UsageError, match="SQ-643"):
        write_app(study, app, run=tmp_path / "run", sites=0)
    write_app(study, app, run=tmp_path / "run", sites=3)
    with pytest.raises(UsageError, match="SQ-646"):
        write_app(study, app, run=tmp_path / "run", sites=3)


@pytest.mark.parametrize(
    ("federated", "changes"),
    [
        ({}, {"data": {"features": {"value": {"lower": -4, "upper": 4, "estimate": True}}}}),
        ({}, {"data": {"holdout": {"protection": "privatised"}}}),
        ({"placement": "cross-device", "secagg": {"min_cohort": 3}}, {}),
    ],
)
def test_what_needs_the_data_in_one_place_is_refused(federated, changes, tmp_path):
    if "holdout" in changes.get("data", {}):
        changes = {
            **changes,
            "ledger": {"url": "sqlite:///x.db", "budget": "b", "holdout_budget": "h"},
        }
    study = make_study(write_sites(tmp_path / "data"), federated, **changes)
    with pytest.raises(UsageError, match="SQ-638"):
        write_app(study, tmp_path / "app", run=tmp_path / "run", sites=3)


def test_no_password_travels_in_the_app(tmp_path):
    ledger = {"url": "postgresql://me:hush@db.example.org/budget", "budget": "b"}
    study = make_study(write_sites(tmp_path / "data"), ledger=ledger)
    with pytest.raises(UsageError, match="SQ-648"):
        write_app(study, tmp_path / "app", run=tmp_path / "run", sites=3)
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize("value", ["x", "1.5", 1.5, 0, "0", -1, "", "²"])
def test_a_limit_that_is_no_whole_number_is_refused(value):
    flower = pytest.importorskip("sequester.federated.flower.messages")
    with pytest.raises(UsageError, match="SQ-643"):
        flower.mebibytes(value)
    assert flower.mebibytes("3") == flower.mebibytes(3) == 3 << 20
