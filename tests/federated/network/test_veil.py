"""Secure sums between machines: nodes forget nothing that a server could use, and drop out well."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from sequester.federated.checkpoint import FileStore
from sequester.federated.clients import Silos
from sequester.federated.network import frames
from sequester.federated.network.frames import Answers, Ask, Refused, Step, Stepped
from sequester.federated.network.node import Node
from sequester.federated.network.veil import Veil
from tests.federated.network.world import SITES, Wire, make_nodes, make_study, run, write_sites

SECRET = {"secagg": {"dropout": 0.34}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"))


class Tap(Wire):
    """Keeps every frame that flies past, and who asked what."""

    def __init__(self, nodes, lose=lambda site, step: False):
        super().__init__(nodes)
        self.frames, self.badges = [], {}
        self.lose = lose
        self.carry = self.hear
        self.deliver = self.pass_on

    def badge_of(self, site):
        return lambda header: "" if isinstance(header, frames.Open) else self.badges.get(site, "")

    def pass_on(self, parcel):
        site = self.nodes_[parcel.node].site
        header, _ = frames.unseal(parcel.body, self.badge_of(site))
        self.frames.append((site, header, parcel.body))
        lost = isinstance(header, Step) and self.lose(site, header)
        return None if lost else parcel

    def hear(self, parcel, reply):
        site = self.nodes_[parcel.node].site
        header, tensors = frames.unseal(reply.body, self.badge_of(site))
        if hasattr(header, "badge"):
            self.badges[site] = header.badge
        self.frames.append((site, header, tensors))
        return [(0, reply)]


def phase_of(step):
    return int(step.ticket.split("-")[2])


@pytest.mark.parametrize("phase", [1, 3, 5, 7, 9])
def test_a_node_may_vanish_at_any_message_of_a_secure_sum(phase, data, tmp_path):
    study = make_study(data, SECRET, training={"steps": 2})
    wire = Tap(
        make_nodes(data, tmp_path / "nodes"),
        lose=lambda site, step: site == "b" and step.round == 0 and phase_of(step) >= phase,
    )
    served = run(data, tmp_path / "run", study, wire=wire)
    lines = (served.folder.private / "rounds.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    # Three members, of whom one may drop: the sum opens, of whoever's vector had arrived.
    early = phase <= 5
    opened = first["done"] and first["sites"] == (["a", "c"] if early else list(SITES))
    assert opened or (not first["done"] and "SQ-7" in first["why"])
    assert second["done"]
    assert second["sites"] == list(SITES)


def test_no_frame_holds_a_sites_sum_and_none_is_sent_in_clear(data, tmp_path, monkeypatch):
    seen = []
    real = Veil.open

    def open_(self, ticket, accepted, weights):
        opened = real(self, ticket, accepted, weights)
        seen.append((accepted, opened.total))
        return opened

    monkeypatch.setattr(Veil, "open", open_)
    study = make_study(data, SECRET, training={"steps": 1})
    wire = Tap(make_nodes(data, tmp_path / "nodes"))
    run(data, tmp_path / "run", study, wire=wire)
    kinds = {type(header).__name__ for _, header, _ in wire.frames}
    assert kinds == {"Enrol", "Willing", "Enrolled", "Step", "Stepped", "Finish", "Finished"}
    ((accepted, total),) = seen
    assert not accepted
    assert np.abs(total).max() > 0
    # The masked vectors look like noise: no two nodes' words agree, none is sparse.
    masked = [
        tensors["message"]
        for _, header, tensors in wire.frames
        if isinstance(header, Stepped) and phase_of(header) == 5
    ]
    assert len(masked) == 3
    for vector in masked:
        assert len(np.unique(vector[-64:])) > 32
    # Asked in clear, a node of this run says no.
    node = make_nodes(data, tmp_path / "nodes")[101]
    step = next(header for site, header, _ in wire.frames if isinstance(header, Step))
    ask = Ask(
        step.run, 0, step.version, step.layout, step.clip, 0, (0,), ("n",), (-1,), ticket="0-0-0"
    )
    raw = node.answer(frames.seal(ask, {"model": np.zeros(4, np.float32)}, badge=wire.badges["a"]))
    header, _ = frames.unseal(raw, lambda _: wire.badges["a"])
    assert not isinstance(header, Answers)
    assert header.code == 641


def test_a_new_process_answers_the_same_message_alike_and_no_other_in_its_place(data, tmp_path):
    study = make_study(data, SECRET, training={"steps": 1})
    nodes = make_nodes(data, tmp_path / "nodes")
    wire = Tap(nodes)

    # Every message meets a new process, as on Flower.
    real, before = wire.pass_on, tmp_path / "before"

    def pass_on(parcel):
        old = nodes[parcel.node]
        nodes[parcel.node] = Node(old.site, old.data, old.folder)
        if parcel.ticket.startswith("finish") and not before.exists():
            shutil.copytree(tmp_path / "nodes", before)
        return real(parcel)

    wire.deliver = pass_on
    run(data, tmp_path / "run", study, wire=wire)
    steps = [(h, body) for site, h, body in wire.frames if site == "a" and isinstance(h, Step)]
    answers = [t["message"] for site, h, t in wire.frames if site == "a" and isinstance(h, Stepped)]
    assert [phase_of(header) for header, _ in steps] == [1, 3, 5, 7, 9]
    # When the run is over the node forgets the round's secret.
    assert not list((tmp_path / "nodes").rglob("secure.safetensors"))
    node, badge = Node("a", data / "a" / "people.csv", before / "a"), wire.badges["a"]
    with pytest.MonkeyPatch.context() as patch:
        # Nobody is trained on for it: the bytes are those that left.
        patch.setattr(Silos, "answer", None)
        for (header, body), answer in zip(steps, answers, strict=True):
            again, tensors = frames.unseal(node.answer(body), lambda _: badge)
            assert isinstance(again, Stepped), header
            assert np.array_equal(tensors["message"], answer)
    # Another survivor set, or another cohort, in the place of one that was answered.
    for place in (1, 3):
        header, body = steps[place]
        _, tensors = frames.unseal(body, lambda _: badge)
        other = tensors["message"].copy()
        other[-1] ^= 1
        raw = node.answer(frames.seal(header, {"message": other}, badge=badge))
        refused, _ = frames.unseal(raw, lambda _: badge)
        assert isinstance(refused, Refused)
    header, body = steps[0]
    swapped = msgspec.structs.replace(header, members=tuple(reversed(header.members)))
    _, tensors = frames.unseal(body, lambda _: badge)
    raw = node.answer(frames.seal(swapped, tensors, badge=badge))
    refused, _ = frames.unseal(raw, lambda _: badge)
    assert refused.code == 647


@pytest.mark.parametrize("point", ["in the protocol", "before sealing", "before saving"])
def test_a_server_that_dies_opens_no_second_sum(point, data, tmp_path, monkeypatch):
    study = make_study(data, SECRET, training={"steps": 2})
    totals = {}
    real_open, real_exchange = Veil.open, Veil._exchange

    def open_(self, ticket, accepted, weights):
        opened = real_open(self, ticket, accepted, weights)
        totals.setdefault(ticket.number, set()).add(opened.total.tobytes())
        return opened

    def exchange(self, ticket, outbox, *, first):
        if ticket.number == 1 and not first:
            raise KeyboardInterrupt
        return real_exchange(self, ticket, outbox, first=first)

    def dying(self, simulation, *rest):
        if simulation.next_round >= 1:
            raise KeyboardInterrupt
        return real(self, simulation, *rest)

    monkeypatch.setattr(Veil, "open", open_)
    with monkeypatch.context() as patch:
        if point == "in the protocol":
            patch.setattr(Veil, "_exchange", exchange)
        else:
            name = "seal" if point == "before sealing" else "save"
            real = getattr(FileStore, name)
            patch.setattr(FileStore, name, dying)
        with pytest.raises(KeyboardInterrupt):
            run(data, tmp_path / "run", study)
    served = run(data, tmp_path / "run", study, wire=Wire(make_nodes(data, tmp_path / "nodes")))
    assert served.rounds == 2
    assert all(len(sums) <= 1 for sums in totals.values())


@pytest.mark.parametrize("phase", [3, 5, 7, 9])
def test_an_earlier_answer_that_is_played_again_silences_nobody(phase, data, tmp_path):
    """It has the site's badge, and the transport's ticket; only its own ticket is another."""
    study = make_study(data, SECRET, training={"steps": 2})
    wire = Tap(make_nodes(data, tmp_path / "nodes"))
    real, earlier, played = wire.hear, {}, []

    def hear(parcel, reply):
        copies = real(parcel, reply)
        if parcel.ticket[0].isdecimal() and parcel.node == 102:
            number, _, step = parcel.ticket.split("-")
            if (number, int(step)) == ("0", phase):
                played.append(step)
                copies = [
                    (0, replace(earlier["last"], ticket=parcel.ticket, final=False)),
                    (1, reply),
                ]
            earlier["last"] = reply
        return copies

    wire.carry = hear
    served = run(data, tmp_path / "run", study, wire=wire)
    assert played == [str(phase)]
    lines = (served.folder.private / "rounds.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        assert line["sites"] == list(SITES)
        assert "blamed" not in line
