"""The whole thing on real processes: a node and the server are killed, and the sum still holds."""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from sequester.core.errors import UsageError
from sequester.federated.flower.new import PACKAGE, write_app
from sequester.federated.run import federate
from sequester.ledger import Ledger
from sequester.mechanism import Claim
from sequester.training.folder import RunFolder
from tests.federated.flower import meddler, randhie
from tests.federated.flower.deployment import BIN, Deployment
from tests.federated.flower.wire import Wire
from tests.federated.network import mortal
from tests.federated.network.silent import simulated

pytestmark = pytest.mark.skipif(
    not (BIN / "flower-superlink").exists(), reason="Flower is not installed: sequester[flower]"
)
ROUNDS = int(os.environ.get("FLOWER_ROUNDS", "2"))  # more of them by hand: each takes seconds
# No deadline is met here: Flower itself gives a dead node up, after a minute at the most.
SETTINGS = "round-seconds=600.0 wait-seconds=600.0 least-sites=2"
PATIENCE_S = 600 + 60 * ROUNDS
STARTING_S = 120.0
"""For a ServerApp that Flower starts to hold the run folder."""
LONG = pytest.mark.skipif(
    "FLOWER_SECURE" not in os.environ,
    reason="processes for each site, message and death take minutes: FLOWER_SECURE=1 runs it",
)


ROOT = Path(__file__).resolve().parents[3]
HAUNTED = """
import sys

sys.path.insert(0, {root!r})
from {module} import {does}

{does}(Path({folder!r}))
"""


def in_server(app, does, folder):
    """Let the server's processes call a function of these tests with `folder`, before all else."""
    with (app / PACKAGE / "server_app.py").open("a") as handle:
        handle.write(
            HAUNTED.format(
                root=str(ROOT), module=does.__module__, does=does.__name__, folder=str(folder)
            )
        )


def rounds_of(run):
    file = run / "private" / "rounds.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def train(flower, app, run, over, seconds, settings=SETTINGS):
    """Say `flwr run`, and again whenever our server is gone, until `over`; the runs' numbers.

    A killed server is gone; and one whose heartbeats do not get through for a minute, as on a
    machine with too much to do, is given up by Flower. One that is not there after so long was
    given up before it began.
    """
    numbers, began, seen = [], -1e9, False

    def done():
        nonlocal began, seen
        if over():
            return True
        if serving(run):
            seen = True
        elif seen or time.monotonic() - began > STARTING_S:
            started = flower.flwr("run", str(app), "-c", settings)
            assert started.returncode == 0, started.stderr
            numbers.append(re.search(r"started run (\d+)", started.stdout)[1])
            began, seen = time.monotonic(), False
        return over()

    flower.until(done, seconds, "the run gets there")
    return numbers


def logs(flower, numbers):
    return "".join(flower.flwr("log", number, "--show").stdout for number in numbers)


def serving(run):
    """Whether a server holds the run folder."""
    try:
        with RunFolder(run).held():
            return False
    except FileNotFoundError:  # it was never begun
        return False
    except UsageError:
        return True


def check_equal(run, twin):
    """The weights are the simulator's, bit for bit."""
    ours, theirs = load_file(run / "model.safetensors"), load_file(twin.folder.weights)
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}


@pytest.mark.timeout(4 * PATIENCE_S)
def test_a_killed_node_and_a_killed_server_change_nothing_but_who_took_part(tmp_path):
    names = randhie.write_sites(tmp_path / "data")
    study = randhie.make_study(tmp_path / "data", rounds=ROUNDS)
    run, app = tmp_path / "run", tmp_path / "app"
    write_app(study, app, run=run, sites=3)
    flower = Deployment(tmp_path)
    # One site's wire delays, cuts, half-closes and throttles what it carries.
    seed = int(os.environ.get("FLOWER_WIRE", "0"))
    with closing(Wire(flower.port, seed)) as wire, flower:
        flower.link()
        for name in names:
            file = tmp_path / "data" / name / "people.csv"
            flower.node(name, file, port=wire.port if name == names[1] else 0)
        train(flower, app, run, lambda: len(rounds_of(run)) >= 1, PATIENCE_S)
        flower.kill(f"node-{names[2]}")
        flower.kill("link")
        assert not (run / "claim.json").exists()
        flower.link()
        numbers = train(flower, app, run, (run / "claim.json").exists, PATIENCE_S)
        told = f"finished: {ROUNDS} rounds; {run}"
        flower.until(lambda: told in logs(flower, numbers), 120, "the log tells it")
    assert wire.seen["cut"] + wire.seen["half-close"] > 0
    done = rounds_of(run)
    assert [line["round"] for line in done] == list(range(ROUNDS))
    assert done[0]["sites"] == names
    assert done[-1]["sites"] == names[:2]  # the killed node was a dropout, and nothing else
    claim = Claim.read(run / "claim.json")
    assert claim.epsilon <= 2.0
    missing = {
        (line["round"], place)
        for line in done
        for place, name in enumerate(names)
        if name not in line["sites"]
    }
    check_equal(run, simulated(study, tmp_path / "twin", missing))
    # Every site's own ledger holds the charge, also the one that vanished.
    for name in names:
        with Ledger.open(f"sqlite:///{tmp_path / 'nodes' / name / 'ledger.db'}") as ledger:
            assert ledger.verify().entries >= 3
            assert ledger.budgets()[0].spent > 0


@LONG
@pytest.mark.timeout(4 * PATIENCE_S)
def test_a_sum_masked_on_the_way_trains_the_same_weights(tmp_path):
    names = randhie.write_sites(tmp_path / "data")
    study = randhie.make_study(tmp_path / "data", rounds=ROUNDS, secagg={"dropout": 0.34})
    run, app = tmp_path / "run", tmp_path / "app"
    write_app(study, app, run=run, sites=3)
    with Deployment(tmp_path) as flower:
        flower.link()
        for name in names:
            flower.node(name, tmp_path / "data" / name / "people.csv")
        train(flower, app, run, (run / "claim.json").exists, 2 * PATIENCE_S)
    assert [line["sites"] for line in rounds_of(run)] == [names] * ROUNDS
    check_equal(run, federate(study, out=tmp_path / "twin"))
    assumed = Claim.read(run / "claim.json").fields["assumptions"]
    assert any("pinned the members' public keys" in words for words in assumed)


@LONG
@pytest.mark.timeout(8 * PATIENCE_S)
def test_a_server_killed_at_every_point_of_a_round_is_the_same_server(tmp_path):
    names = randhie.write_sites(tmp_path / "data")
    study = randhie.make_study(tmp_path / "data", rounds=len(mortal.POINTS))
    run, app = tmp_path / "run", tmp_path / "app"
    write_app(study, app, run=run, sites=3)
    in_server(app, mortal.haunt, tmp_path)
    with Deployment(tmp_path) as flower:
        flower.link()
        for name in names:
            flower.node(name, tmp_path / "data" / name / "people.csv")
        all_there = SETTINGS.replace("least-sites=2", "least-sites=3")
        over = (run / "claim.json").exists
        numbers = train(flower, app, run, over, 8 * PATIENCE_S, all_there)
    assert mortal.deaths(tmp_path) == list(mortal.POINTS)
    assert len(numbers) > len(mortal.POINTS)
    mortal.check_noise(tmp_path)
    check_equal(run, federate(study, out=tmp_path / "twin"))


@LONG
@pytest.mark.timeout(4 * PATIENCE_S)
def test_a_message_altered_or_repeated_on_the_way_enters_no_sum(tmp_path):
    names = randhie.write_sites(tmp_path / "data")
    study = randhie.make_study(tmp_path / "data", rounds=len(meddler.MEDDLED))
    run, app, kept = tmp_path / "run", tmp_path / "app", tmp_path / "kept"
    write_app(study, app, run=run, sites=3)
    kept.mkdir()
    in_server(app, meddler.meddle, kept)
    with Deployment(tmp_path) as flower:
        flower.link()
        for name in names:
            flower.node(name, tmp_path / "data" / name / "people.csv")
        train(flower, app, run, (run / "claim.json").exists, 2 * PATIENCE_S)
        told = flower.log(f"node-{names[meddler.PLACE]}")
    assert "SQ-631 this node could not read the message: malformed" in told
    done = rounds_of(run)
    assert [line["rejected"] for line in done] == list(meddler.MEDDLED.values())
    missing = {(line["round"], meddler.PLACE) for line in done if line["rejected"]}
    check_equal(run, simulated(study, tmp_path / "twin", missing))
