"""Nodes in secure sums: who spoils a round is named, no run ends for it, nothing is done twice."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from sequester.core.errors import SequesterError
from sequester.federated.network.member import Member
from sequester.federated.network.node import Node
from sequester.secagg import crypto, masks, parcels
from sequester.secagg import messages as m
from sequester.secagg.client import Client
from tests.federated.network.world import SITES, Wire, make_nodes, make_study, run, write_sites
from tests.secagg.rounds import CONFIG, LAX, MODEL, roster_of
from tests.secagg.test_attacks import Round

SECRET = {"secagg": {"dropout": 0.34}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("data"))


def rounds_of(served) -> list[dict]:
    lines = (served.folder.private / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("lane", ["narrow", "wide"])
def test_a_member_that_masks_no_vector_ends_its_round_and_not_the_run(
    lane, data, tmp_path, monkeypatch
):
    real = Member._words

    def words(self, ticket, plan, model, train):
        made = real(self, ticket, plan, model, train)
        if self.identity.member == 1 and ticket.number == 0:
            getattr(made, lane)[:] += np.uint32(0x12345678)
        return made

    monkeypatch.setattr(Member, "_words", words)
    served = run(data, tmp_path / "run", make_study(data, SECRET, training={"steps": 2}))
    first, second = rounds_of(served)
    assert not first["done"]
    assert "SQ-720" in first["why"]
    assert second["done"]
    assert second["sites"] == list(SITES)


def test_the_record_names_a_dealer_of_rubbish(data, tmp_path, monkeypatch):
    real, spoilt = parcels.pack, []

    def pack(context, sealing, dealer, holder, share):
        parcel = real(context, sealing, dealer, holder, share)
        if dealer == 1 and context.session.round_number == 0:
            spoilt.append(holder)
            return parcel._replace(sealed=bytes(len(parcel.sealed)))
        return parcel

    monkeypatch.setattr(parcels, "pack", pack)
    served = run(data, tmp_path / "run", make_study(data, SECRET, training={"steps": 2}))
    assert set(spoilt) == {0, 2}
    first, second = rounds_of(served)
    assert not first["done"]
    assert first["blamed"] == [["b", 711]]
    assert first["disputes"] == [["b", "a"], ["b", "c"]]
    assert "member 1 (SQ-711)" in first["why"]
    assert second["done"]
    assert not {"blamed", "disputes"} & second.keys()


def test_a_refused_message_is_named_whatever_becomes_of_the_round(data, tmp_path, monkeypatch):
    real = Client._join

    def join(self, message):
        answer = bytearray(real(self, message))
        if self.member == 2 and self.session.round_number == 0:
            answer[-1] ^= 1  # The signature no longer fits.
        return bytes(answer)

    monkeypatch.setattr(Client, "_join", join)
    served = run(data, tmp_path / "run", make_study(data, SECRET, training={"steps": 2}))
    first, second = rounds_of(served)
    assert not first["done"]  # The other two do not hide among two.
    assert first["blamed"] == [["c", 709]]
    assert second["done"]


def test_processes_of_one_node_check_and_mask_once(data, tmp_path, monkeypatch):
    counts = {"signed": 0, "masked": 0}

    def counted(name, real):
        def call(*arguments):
            counts[name] += 1
            return real(*arguments)

        return call

    monkeypatch.setattr(crypto, "is_signed", counted("signed", crypto.is_signed))
    monkeypatch.setattr(masks, "masked", counted("masked", masks.masked))
    nodes = make_nodes(data, tmp_path / "nodes")
    wire = Wire(nodes)

    def deliver(parcel):
        old = nodes[parcel.node]
        nodes[parcel.node] = Node(old.site, old.data, old.folder)
        return parcel

    wire.deliver = deliver
    served = run(data, tmp_path / "run", make_study(data, SECRET, training={"steps": 1}), wire=wire)
    assert rounds_of(served)[0]["done"]
    # Three adverts at the server, two neighbours at each of three members.
    assert counts == {"signed": 3 + 3 * 2, "masked": 3}


def test_after_a_step_gone_through_again_the_next_is_checked_in_full() -> None:
    turn = Round().carry(1)
    peers = turn.read(m.Peers, 0)
    forged = tuple(keys._replace(signature=bytes(64)) for keys in peers.keys)
    lie = dataclasses.replace(peers, keys=forged).encode()
    client = Client(
        turn.identities[0], roster_of(turn.identities), LAX, model=MODEL, config=CONFIG,
        secret=turn.clients[0]._secret,
    )  # fmt: skip
    client.retrace(turn.server.offer(), turn.clients[0].answer(turn.server.offer()))
    with pytest.raises(SequesterError, match="SQ-709"):
        client.answer(lie)
