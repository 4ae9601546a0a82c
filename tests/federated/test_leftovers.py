"""What is left on disk of exact sums, and what a run says outside: nothing that people decide."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sequester.cli.federate import command
from sequester.core.errors import LedgerRefusal, UsageError
from sequester.core.files import sweep, write_atomic
from sequester.federated import clients
from sequester.federated import run as federated_run
from sequester.federated.network.memory import SECURE, Memory
from sequester.federated.run import federate, resume
from sequester.ledger import Ledger
from sequester.mechanism import Claim
from sequester.training import resume as central_resume
from sequester.training import run as central_run
from sequester.training import train
from sequester.training.folder import RunFolder
from sequester.training.study_file import to_toml
from tests.federated.killed import killed
from tests.federated.network.asking import ask_node, ask_of, enrolled, node_at
from tests.federated.network.world import make_study as networked
from tests.federated.network.world import write_sites
from tests.federated.test_run import PLACEMENTS, make_study, table  # noqa: F401 - a fixture
from tests.leftovers import killed_while_writing
from tests.training.population import people
from tests.training.population import study as central_study


def names(folder):
    return {file.name for file in folder.iterdir()}


def test_a_sweep_takes_unfinished_files_and_nothing_else(tmp_path):
    write_atomic(tmp_path / "kept", b"x")
    for other in (".hidden", "sums.partial", ".gitignore"):
        (tmp_path / other).write_text("not ours")
    left = killed_while_writing(tmp_path / "sealed.safetensors")
    assert left.stat().st_mode & 0o077 == 0
    sweep(tmp_path)
    assert names(tmp_path) == {"kept", ".hidden", "sums.partial", ".gitignore"}
    sweep(tmp_path / "nowhere")


def test_no_sum_outlives_a_finished_run_however_it_was_killed(table, tmp_path):  # noqa: F811
    folder = RunFolder(killed(make_study(table), tmp_path, "before saving"))
    for name in ("sealed.safetensors", "rounds.safetensors", "begun.json", "noise.key"):
        killed_while_writing(folder.checkpoints / name)
    killed_while_writing(folder.private / "advice.txt")
    killed_while_writing(folder.claim)
    resume(folder.path)
    assert names(folder.checkpoints) == {"begun.json"}
    assert not [
        name for part in (folder.path, folder.private) for name in names(part) if "." == name[0]
    ]


def test_nor_a_finished_central_run(tmp_path):
    def stop(measured):
        if measured.step == 6:
            signal.raise_signal(signal.SIGINT)

    part = train(central_study(), out=tmp_path, people=people(), watch=stop)
    killed_while_writing(part.folder.checkpoints / "state.safetensors")
    assert central_resume(part.folder.path, people=people()).claim is not None
    assert names(part.folder.checkpoints) == {"begun.json"}


def test_nor_a_run_that_dies_between_its_claim_and_its_end(
    table,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    def dying(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(federated_run, "destroy", dying)
    monkeypatch.setattr(central_run, "destroy", dying)
    with pytest.raises(KeyboardInterrupt):
        federate(make_study(table), out=tmp_path / "rounds")
    with pytest.raises(KeyboardInterrupt):
        train(central_study(), out=tmp_path / "steps", people=people())
    for again, out in ((resume, "rounds"), (central_resume, "steps")):
        (folder,) = (tmp_path / out).iterdir()
        assert names(folder / "checkpoints") > {"begun.json"}
        with pytest.raises(UsageError, match="SQ-505"):
            again(folder)
        assert names(folder / "checkpoints") == {"begun.json"}


def test_nor_does_a_node_keep_what_it_had_half_written(tmp_path):
    data = write_sites(tmp_path / "data", people=10)
    study = networked(data, {"placement": "cross-device"})
    node = node_at(data, tmp_path)
    badge = enrolled(node, study).badge
    memory = Memory(node.folder, "run-1")
    left = [killed_while_writing(memory.folder / name) for name in ("clients.safetensors", SECURE)]
    ask_node(node, *ask_of(study), badge=badge)
    assert not any(file.exists() for file in left)
    late = killed_while_writing(memory.folder / SECURE)
    memory.close(4, 1)
    assert not late.exists()


def test_a_run_that_was_killed_before_it_decided_anything_says_so(table, tmp_path):  # noqa: F811
    for kept in ((), ("study.toml",)):
        folder = RunFolder.create(tmp_path, "clinic")
        for name in kept:
            (folder.path / name).write_text(to_toml(make_study(table)))
        killed_while_writing(folder.checkpoints / "begun.json")
        for again in (resume, central_resume):
            with pytest.raises(UsageError, match=r"SQ-502 .*stopped before it began.*start"):
                again(folder.path)


def test_a_relative_source_of_a_resumed_run_is_explained(table, tmp_path):  # noqa: F811
    raw = to_toml(make_study(table)).replace(str(table), table.name)
    beside = tmp_path / "study"
    beside.mkdir()
    (beside / table.name).write_text(table.read_text())
    (beside / "study.toml").write_text(raw)
    command_line = [str(beside / "study.toml"), "--out", str(tmp_path / "runs"), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federated_run, "_note", _interrupt)
        CliRunner().invoke(command, command_line)
    (folder,) = (tmp_path / "runs").iterdir()
    result = CliRunner().invoke(command, ["--resume", str(folder)])
    assert "STUDY --resume RUN" in str(result.exception)
    good = CliRunner().invoke(command, [*command_line, "--resume", str(folder)])
    assert good.exception is None


def _interrupt(*_):
    raise KeyboardInterrupt


SAYS = {
    **PLACEMENTS,
    "top-k": ({"compression": "top-k", "share": 0.1}, {}),
    "masked": (
        {"placement": "cross-silo", "secagg": {"corrupt": 0.0, "dropout": 0.34}},
        {"training": {"steps": 2, "sampling_rate": 0.5}},
    ),
    "site steps": (
        {
            "placement": "cross-silo",
            "local_steps": 2,
            "sites": {"s0": 12, "s1": 12, "s2": 12, "s3": 14},
        },
        {},
    ),
}


HELD = {"holdout": {"column": "part", "value": "test"}}


def parted(table, leave_out=0):  # noqa: F811
    """The 60 people, the last twelve held out, without the first `leave_out`."""
    head, *lines = table.read_text().splitlines()
    parts = ["train"] * 48 * 8 + ["test"] * 12 * 8
    rows = [f"{line},{part}" for line, part in zip(lines, parts, strict=True)]
    return "\n".join([f"{head},part", *rows[leave_out * 8 :]]) + "\n"


@pytest.mark.parametrize("name", SAYS)
def test_nothing_outside_a_run_changes_with_who_is_in_it(name, table, tmp_path):  # noqa: F811
    """Half of the training people gone, the same seed: only what noise covers may differ."""
    federated, changes = SAYS[name]
    (tmp_path / "few").mkdir()
    whole, few = tmp_path / table.name, tmp_path / "few" / table.name
    whole.write_text(parted(table))
    few.write_text(parted(table, leave_out=24))
    said = []
    for source in (whole, few):
        study = make_study(source, federated, data=HELD, **changes)
        path = tmp_path / f"{source.parent.name}.toml"
        path.write_text(to_toml(study))
        arguments = [str(path), "--out", str(source.parent / "runs"), "--json", "--quiet"]
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        fields = json.loads(result.stdout)
        folder = RunFolder.open(Path(fields["run"]))
        facts, claim = (json.loads(p.read_text()) for p in (folder.facts, folder.claim))
        for entry in facts["utility"]:  # held-out people, who are outside the claim
            del entry["value"], entry["interval"]
        for curve in facts["curves"]:
            if curve["protection"] == "privatised":
                del curve["y"]
        del claim["created"], claim["data"]["fingerprint"]
        del fields["run"], fields["card"], fields["value"]
        said.append((fields, facts, claim))
        rounds = (folder.private / "rounds.jsonl").read_text().splitlines()
        assert all("bytes" in json.loads(line) for line in rounds)
    assert said[0] == said[1]


def test_where_taking_part_is_seen_the_claim_is_about_what_a_person_holds(
    table,  # noqa: F811
    tmp_path,
):
    """Who leaves takes their noise along: "as if they had never been there" would be wrong."""
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    ledger = Ledger.create(url)
    ledger.create_budget("held", "clinic", 40.0, 1e-5, adjacency="zero-out")
    ledger.create_budget("there", "clinic2", 40.0, 1e-5)
    federated, changes = PLACEMENTS["local"]

    def booked(budget, seed):
        return make_study(
            table,
            federated,
            **{**changes, "privacy": {"insecure_test_seed": seed}},
            ledger={"url": url, "budget": budget},
        )

    claim = Claim.read(federate(booked("held", 21), out=tmp_path).folder.claim)
    assert claim.fields["adjacency"] == "zero-out"
    assert "who takes part is public" in " ".join(claim.fields["assumptions"])
    with pytest.raises(LedgerRefusal, match="SQ-319"):
        federate(booked("there", 22), out=tmp_path)
    # The server's own noise hides whether somebody is there at all.
    central = federate(make_study(table), out=tmp_path)
    assert Claim.read(central.folder.claim).fields["adjacency"] == "add-or-remove"
    # Central training of the same study has no rounds that anybody could watch.
    study = make_study(table, federated, **changes)
    assert Claim.read(train(study, out=tmp_path).folder.claim).fields["adjacency"] == (
        "add-or-remove"
    )


@pytest.mark.parametrize("steps", [1, 2])
def test_a_declared_site_takes_part_whether_or_not_somebody_is_there(
    steps,
    table,  # noqa: F811
    tmp_path,
):
    lone = tmp_path / "lone.csv"  # the same people, and one more at a site of their own
    person = [f"alone,{time},s9,{time / 8 - 0.5},{time % 2},train" for time in range(8)]
    lone.write_text(parted(table) + "\n".join(person) + "\n")
    whole = tmp_path / "whole.csv"
    whole.write_text(parted(table))
    declared = {"s0": 15, "s1": 15, "s2": 15, "s9": 5}
    sent = {}
    for sites in (declared, {}):
        federated = {"placement": "cross-silo", "local_steps": steps, "sites": sites}
        for source in (whole, lone):
            seen = sent.setdefault((bool(sites), source == lone), [])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("sequester.federated.clients.answer", _seeing(seen))
                patch.setattr("sequester.federated.sites.answer", _seeing(seen))
                done = federate(make_study(source, federated, data=HELD), out=tmp_path)
            about = " ".join(Claim.read(done.folder.claim).fields["not_evidenced"])
            assert ("taken from the data" in about) is not bool(sites)
    assert sent[True, True] == sent[True, False]
    assert {client for client, _ in sent[True, False]} == {0, 1, 2, 3}
    assert sent[False, True] != sent[False, False]  # what an undeclared list gives away
    forgotten = {"placement": "cross-silo", "local_steps": steps, "sites": {"s0": 25, "s1": 25}}
    with pytest.raises(UsageError, match="SQ-625"):
        federate(make_study(table, forgotten), out=tmp_path)


def _seeing(seen):
    real = clients.answer

    def spy(instruction, tensors, **counts):
        shapes = tuple(np.shape(tensor) for tensor in tensors.values())
        seen.append((instruction.client, shapes))
        return real(instruction, tensors, **counts)

    return spy
