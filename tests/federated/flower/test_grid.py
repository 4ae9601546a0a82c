"""Flower's grid as our transport: what is late, broken or not taken reaches no round."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sequester.federated.messages import Rejection
from sequester.federated.network.frames import unseal
from sequester.federated.network.transport import Parcel, Reply

flwr = pytest.importorskip("flwr.app", reason="Flower is not installed: sequester[flower]")
grid = pytest.importorskip("sequester.federated.flower.grid")
messages = pytest.importorskip("sequester.federated.flower.messages")


@dataclass
class Grid:
    """As Flower's, with answers put in by hand."""

    taken: list[bool] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    def get_node_ids(self):
        return [12, 11]

    def push_messages(self, pushed):
        for message in pushed:
            self.sent.append(message)
            message.number = f"m{len(self.sent)}"
        return [message.number if self.taken.pop(0) else "" for message in pushed]

    def pull_messages(self, numbers):
        self.asked.append(list(numbers))
        given, self.answers = self.answers, []
        return given

    def answer(self, place, content=None, error=None):
        about = SimpleNamespace(reply_to_message_id=self.sent[place].number)
        self.answers.append(
            SimpleNamespace(
                metadata=about,
                content=content,
                error=error,
                has_content=lambda: content is not None,
            )
        )


def message(content, node, kind, *, ttl, group_id):
    """Flower's own can be made in one of its processes only."""
    return SimpleNamespace(content=content, node=node, kind=kind, ttl=ttl, group_id=group_id)


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    monkeypatch.setattr(grid, "Message", message)


@pytest.fixture
def made():
    inner = Grid(taken=[True, True])
    outer = grid.GridTransport(inner)
    outer.send([Parcel("0-0-0", 11, b"one"), Parcel("0-1-0", 12, b"two")], 30.0)
    return inner, outer


def test_each_question_is_a_message_that_lives_as_long_as_its_round(made):
    inner, outer = made
    assert outer.nodes() == [11, 12]
    assert [messages.unpacked(m.content) for m in inner.sent] == [b"one", b"two"]
    told = [(m.node, m.kind, m.ttl, m.group_id) for m in inner.sent]
    assert told == [(11, "train", 30.0, "0-0-0"), (12, "train", 30.0, "0-1-0")]


def test_an_answer_comes_back_under_its_questions_ticket_and_once(made):
    inner, outer = made
    inner.answer(1, messages.packed(b"second"))
    assert list(outer.receive()) == [Reply("0-1-0", b"second")]
    inner.answer(1, messages.packed(b"again"))
    assert list(outer.receive()) == []
    assert inner.asked == [["m1", "m2"], ["m1"]]


def test_what_comes_after_a_round_was_forgotten_reaches_no_other(made):
    inner, outer = made
    outer.forget()
    inner.answer(0, messages.packed(b"late"))
    assert list(outer.receive()) == []  # Flower is not even asked
    inner.taken = [True]
    outer.send([Parcel("1-0-0", 11, b"next")], 30.0)
    assert list(outer.receive()) == []
    inner.answer(2, messages.packed(b"in time"))
    assert list(outer.receive()) == [Reply("1-0-0", b"in time")]


def test_flowers_error_is_a_lost_answer_and_its_words_go_nowhere(made, caplog):
    inner, outer = made
    inner.answer(0, error=flwr.Error(3, "KeyError: 'a person'"))
    assert list(outer.receive()) == [Reply("0-0-0", None)]
    assert "3" in caplog.text
    assert "person" not in caplog.text


CONTENTS = {
    "nothing": flwr.RecordDict(),
    "another record": flwr.RecordDict({"other": flwr.ArrayRecord([np.zeros(3, np.uint8)])}),
    "numbers": flwr.RecordDict({messages.RECORD: flwr.ArrayRecord([np.zeros(3)])}),
    "two arrays": flwr.RecordDict({messages.RECORD: flwr.ArrayRecord([np.zeros(3, np.uint8)] * 2)}),
    "no bytes": messages.packed(b""),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_content_that_is_no_frame_is_one_that_no_digest_fits(kind, made):
    inner, outer = made
    inner.answer(0, CONTENTS[kind])
    (reply,) = outer.receive()
    with pytest.raises(Rejection, match="malformed"):
        unseal(reply.body, lambda _: "")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_question_that_flower_does_not_take_is_lost_at_once(lost):
    inner = Grid(taken=[place != lost for place in (0, 1)])
    outer = grid.GridTransport(inner)
    outer.send([Parcel("0-0-0", 11, b"one"), Parcel("0-1-0", 12, b"two")], 600.0)
    assert list(outer.receive()) == [Reply(f"0-{lost}-0", None)]
    assert inner.asked == [[f"m{2 - lost}"]]
    inner.answer(1 - lost, messages.packed(b"taken"))
    assert list(outer.receive()) == [Reply(f"0-{1 - lost}-0", b"taken")]
