"""From a study to a run folder: placements, claims, ledger, crashes, the command line."""

from __future__ import annotations

import json
import math

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from sequester.accounting import epsilon, from_json
from sequester.cli.federate import command
from sequester.core.errors import UsageError
from sequester.federated import clients as federated_clients
from sequester.federated import run as federated_run
from sequester.federated.checkpoint import FileStore
from sequester.federated.run import federate, resume
from sequester.federated.settings import settings_of
from sequester.ledger import Ledger
from sequester.mechanism import Claim
from sequester.training import resume as central_resume
from sequester.training.study_file import decode, to_toml
from tests.federated.killed import POINTS, killed

CANARY = "canary-person-7"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """60 people at three sites; tomorrow's label follows today's value."""
    generator = np.random.default_rng(0)
    lines = ["person,time,site,value,label"]
    for person in range(60):
        name = CANARY if person == 7 else f"p{person}"
        level = generator.normal()
        for time in range(8):
            value = level + generator.normal()
            label = int(value + generator.normal() > 0)
            lines.append(f"{name},{time},s{person % 3},{value:.3f},{label}")
    path = tmp_path_factory.mktemp("data") / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def make_study(table, federated=None, **changes):
    raw = {
        "name": "clinic",
        "data": {
            "source": str(table),
            "population": 50,
            "features": {"value": {"lower": -4.0, "upper": 4.0}},
            "window": 4,
            "stride": 4,
            "group": "site",
        },
        "model": {"kind": "gru", "options": {"hidden": 4}},
        "privacy": {"noise_multiplier": 1.0, "clip": 0.2, "insecure_test_seed": 5},
        "training": {"steps": 4, "sampling_rate": 0.5},
        "federated": federated or {},
    }
    for section, fields in changes.items():
        raw[section] = {**raw.get(section, {}), **fields}
    return decode(raw)


PLACEMENTS = {
    "cross-device": ({"placement": "cross-device"}, {}),
    "cross-silo": ({"placement": "cross-silo", "algorithm": "fedadam"}, {}),
    "local": ({"placement": "local"}, {"training": {"steps": 4, "sampling_rate": 1.0}}),
    "compressed": ({"compression": "random-k", "share": 0.2}, {}),
    "personal": ({"personal": "head"}, {}),
    "adaptive": ({}, {"privacy": {"adaptive": {"count_noise": 5.0}}}),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_placement_ends_with_weights_a_claim_and_nothing_private_outside(
    name, table, tmp_path
):
    federated, changes = PLACEMENTS[name]
    study = make_study(table, federated, **changes)
    done = federate(study, out=tmp_path)
    assert done.stopped == "finished"
    assert done.rounds == 4
    claim = Claim.read(done.folder.claim)
    # the claim follows from the events that ran, and reads back against them
    event = from_json(json.dumps(claim.fields["events"]))
    assert claim.epsilon >= epsilon(event, 1e-5)
    assert claim.epsilon == pytest.approx(done.epsilon, rel=1e-3)
    assert claim.fields["unit"] == "person"
    assert not claim.private  # a test seed is stamped
    words = " ".join(claim.fields["assumptions"])
    placement = federated.get("placement", "cross-device")
    assert {"cross-device": "one client", "cross-silo": "one site", "local": "itself"}[
        placement
    ] in words
    weights = load_file(done.folder.weights)
    assert all(np.isfinite(value).all() for value in weights.values())
    assert not list(done.folder.checkpoints.glob("*.safetensors"))
    outside = [p for p in done.folder.path.iterdir() if p.is_file()]
    assert len(outside) >= 4
    for path in outside:
        assert CANARY.encode() not in path.read_bytes()
    rounds = (done.folder.private / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in rounds] == [0, 1, 2, 3]
    assert (done.folder.private / "rounds.jsonl").stat().st_mode & 0o077 == 0


def test_sampling_amplifies_at_the_server_and_not_against_it(table, tmp_path):
    central = federate(make_study(table), out=tmp_path)
    federated, changes = PLACEMENTS["local"]
    local = federate(make_study(table, federated, **changes), out=tmp_path)
    assert local.epsilon > 1.3 * central.epsilon


def test_a_claim_is_whole_whenever_it_is_on_disk(table, tmp_path, monkeypatch):
    """Killed as soon as the claim is written: it says all that the finished run's says."""
    whole = federate(make_study(table), out=tmp_path / "whole")
    write = Claim.write

    def then_die(self, path):
        write(self, path)
        raise SystemExit

    monkeypatch.setattr(Claim, "write", then_die)
    with pytest.raises(SystemExit):
        federate(make_study(table), out=tmp_path / "cut")
    (cut,) = (tmp_path / "cut").iterdir()
    for name in ("assumptions", "not_evidenced"):
        assert Claim.read(cut / "claim.json").fields[name] == whole.claim.fields[name]
    facts = [json.loads((run / "facts.json").read_text()) for run in (cut, whole.folder.path)]
    assert facts[0]["plan"] == facts[1]["plan"]


def test_the_twin_without_privacy_says_so(table, tmp_path):
    study = make_study(
        table, {"algorithm": "scaffold", "weighting": "windows"}, privacy={"mode": "none"}
    )
    done = federate(study, out=tmp_path)
    assert math.isinf(done.epsilon)
    assert json.loads(done.folder.claim.read_text())["status"] == "NOT PRIVATE"


@pytest.mark.parametrize("name", ["cross-device", "cross-silo", "compressed", "personal"])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_run_resumes_to_the_same_weights(name, point, table, tmp_path):
    federated, changes = PLACEMENTS[name]
    study = make_study(table, federated, **changes)
    unbroken = federate(study, out=tmp_path / "whole").folder
    whole = load_file(unbroken.weights)
    folder = killed(study, tmp_path / "killed", point)
    assert not (folder / "claim.json").exists()
    done = resume(folder)
    again = load_file(done.folder.weights)
    assert done.rounds == 4
    last, also = (
        (f.private / "rounds.jsonl").read_text().splitlines()[-1] for f in (done.folder, unbroken)
    )
    assert json.loads(last)["bytes"] == json.loads(also)["bytes"] > 0
    assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in whole.items()}


def test_control_variates_survive_a_restart_and_rounds_without_the_client(
    table, tmp_path, monkeypatch
):
    """Goal G15: SCAFFOLD under partial participation, killed between model and disk."""
    study = make_study(
        table,
        {"algorithm": "scaffold"},
        privacy={"mode": "none"},
        training={"steps": 5, "sampling_rate": 0.4},
    )
    whole = load_file(federate(study, out=tmp_path / "whole").folder.weights)
    save, kept = FileStore.save, []

    def dying_save(self, simulation):
        kept.append(set(simulation.state.clients))
        if simulation.next_round == 3:
            raise KeyboardInterrupt
        save(self, simulation)

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "save", dying_save)
        with pytest.raises(KeyboardInterrupt):
            federate(study, out=tmp_path / "killed")
    assert kept[0] < kept[1]  # those of the first round are still there after the second
    (folder,) = (tmp_path / "killed").iterdir()
    again = load_file(resume(folder).folder.weights)
    assert {k: v.tobytes() for k, v in again.items()} == {k: v.tobytes() for k, v in whole.items()}


def test_the_bound_follows_its_quantile_through_the_rounds(table, tmp_path):
    """From ten times too large it falls, and the claim's event is the plan's."""
    study = make_study(
        table,
        privacy={"clip": 50.0, "adaptive": {"count_noise": 5.0}},
        training={"steps": 6, "sampling_rate": 1.0},
    )
    done = federate(study, out=tmp_path)
    lines = (done.folder.private / "rounds.jsonl").read_text().splitlines()
    clips = [json.loads(line)["clip"] for line in lines]
    assert clips[0] == 50.0
    assert clips[-1] < 40.0
    fixed = federate(make_study(table, training={"steps": 6, "sampling_rate": 1.0}), out=tmp_path)
    assert done.epsilon == pytest.approx(fixed.epsilon)


def test_a_checkpoint_of_other_data_or_a_damaged_one_is_refused(table, tmp_path, monkeypatch):
    study = make_study(table)
    monkeypatch.setattr(federated_run, "_note", _interrupt_at_round_1)
    with pytest.raises(KeyboardInterrupt):
        federate(study, out=tmp_path)
    (folder,) = tmp_path.iterdir()
    saved = folder / "checkpoints" / "rounds.safetensors"
    good = saved.read_bytes()
    saved.write_bytes(good[:50])
    with pytest.raises(UsageError, match="SQ-622"):
        resume(folder)
    digest = good.index(b'study\\":\\"') + len(b'study\\":\\"')
    saved.write_bytes(good[:digest] + b"0" * 8 + good[digest + 8 :])
    with pytest.raises(UsageError, match="SQ-622"):
        resume(folder)
    saved.write_bytes(good)
    other = table.read_text().replace("p9,", "q9,")
    (tmp_path / "other.csv").write_text(other)
    stored = folder / "study.toml"
    stored.write_text(stored.read_text().replace(str(table), str(tmp_path / "other.csv")))
    with pytest.raises(UsageError, match="SQ-503"):
        resume(folder)


def _interrupt_at_round_1(folder, simulation, number, *_):
    if number == 1:
        raise KeyboardInterrupt


def test_the_ledger_holds_the_charge_and_refuses_what_does_not_fit(table, tmp_path):
    url = f"sqlite:///{tmp_path / 'budget.db'}"
    ledger = Ledger.create(url)
    ledger.create_budget("clinic", "clinic", 20.0, 1e-5)
    study = make_study(
        table, ledger={"url": url, "budget": "clinic"}, privacy={"insecure_test_seed": 11}
    )
    first = federate(study, out=tmp_path)
    assert first.claim.fields["ledger"]["budget"] == "clinic"
    more = make_study(
        table,
        ledger={"url": url, "budget": "clinic"},
        privacy={"insecure_test_seed": 12},
        training={"steps": 400, "sampling_rate": 0.5},
    )
    second = federate(more, out=tmp_path)
    assert second.stopped == "budget"
    assert second.rounds < 400


@pytest.mark.parametrize(
    ("federated", "changes", "number"),
    [
        ({"placment": "local"}, {}, 620),
        ({"epochs": 0}, {}, 620),
        ({"mu": -1.0}, {}, 620),
        ({}, {"training": {"average": 0.5}}, 627),
        ({"weighting": "windows"}, {}, 621),
        ({"rule": "median"}, {}, 621),
        ({"algorithm": "scaffold"}, {}, 621),
        ({"algorithm": "fednova"}, {}, 621),
        ({"placement": "local"}, {}, 621),
        ({"placement": "cross-silo"}, {"data": {"group": ""}}, 621),
        ({"placement": "cross-silo", "compression": "top-k"}, {}, 621),
        ({}, {"unit": {"kind": "window"}}, 621),
        ({}, {"privacy": {"clipping": "automatic"}}, 621),
        ({"placement": "local"}, {"privacy": {"mode": "none"}}, 621),
        (
            {"placement": "local", "weighting": "capped"},
            {"training": {"sampling_rate": 1.0}},
            621,
        ),
        (
            {"placement": "local"},
            {"training": {"sampling_rate": 1.0}, "privacy": {"adaptive": {}}},
            621,
        ),
    ],
)
def test_what_no_guarantee_covers_is_refused_by_number(federated, changes, number, table):
    with pytest.raises(UsageError, match=f"SQ-{number}") as caught:
        settings_of(make_study(table, federated, **changes))
    assert caught.value.where


def test_the_command_line_gives_the_contracts_fields(table, tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(to_toml(make_study(table)))
    result = CliRunner().invoke(
        command, [str(path), "--out", str(tmp_path / "runs"), "--json", "--quiet"]
    )
    assert result.exception is None, result.exception
    fields = json.loads(result.stdout)
    wanted = {"run", "epsilon", "delta", "unit", "steps", "stopped", "rounds", "cohort"}
    assert wanted <= fields.keys()
    assert fields["rounds"] == 4
    assert fields["cohort"] == 25.0
    with pytest.raises(UsageError, match="SQ-920"):
        CliRunner().invoke(command, [], catch_exceptions=False)


def test_settings_have_a_sentence_each():
    from sequester.federated.settings import Federated

    described = Federated.__doc__.split("Attributes:")[1]
    for field in msgspec.structs.fields(Federated):
        assert f"{field.name}:" in described


def test_a_run_is_resumed_as_its_own_kind_only(table, tmp_path, monkeypatch):
    # The other kind counts steps from nought and would draw the same noise under one charge.
    monkeypatch.setattr(federated_run, "_note", _interrupt_at_round_1)
    with pytest.raises(KeyboardInterrupt):
        federate(make_study(table), out=tmp_path)
    (folder,) = tmp_path.iterdir()
    with pytest.raises(UsageError, match="SQ-507"):
        central_resume(folder)


def test_a_study_made_in_python_is_checked_like_a_file(table, tmp_path):
    study = make_study(table)
    careless = msgspec.structs.replace(
        study, privacy=msgspec.structs.replace(study.privacy, delta=0.3)
    )
    with pytest.raises(UsageError, match="SQ-266"):
        federate(careless, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_local_client_sends_its_noisy_delta_and_no_counts(table, tmp_path, monkeypatch):
    sent = []
    real = federated_clients.answer

    def spy(instruction, delta, *, steps, weight):
        sent.append((steps, weight))
        return real(instruction, delta, steps=steps, weight=weight)

    monkeypatch.setattr(federated_clients, "answer", spy)
    federated, changes = PLACEMENTS["local"]
    federate(make_study(table, federated, **changes), out=tmp_path / "local")
    assert set(sent) == {(1, 1.0)}
    sent.clear()
    federate(make_study(table), out=tmp_path / "device")
    assert set(sent) == {(1, 2.0)}  # with a trusted server the counts do travel
