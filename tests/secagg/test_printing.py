"""What is printed, logged or shown in a traceback holds no secret of a round."""

import dataclasses

import numpy as np
import pytest

from sequester import secagg
from sequester.core.rng import Keystream, public_generator
from sequester.secagg import messages as m
from sequester.secagg.encoding import decode, encode
from sequester.secagg.field import share_bytes
from tests.secagg.test_attacks import Round

HIDDEN = 5  # Fewest bytes or digits in a row that betray something.


def things(root: object) -> list[object]:
    """Everything of ours that hangs on `root`, by attribute, key or place."""
    found, waiting, seen = [], [root], set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, str | bytes | int | float | np.ndarray):
            continue
        seen.add(id(thing))
        if type(thing).__module__.startswith("sequester.secagg"):
            found.append(thing)
        waiting += thing.values() if isinstance(thing, dict) else vars_of(thing)
        if isinstance(thing, list | tuple | set | frozenset):
            waiting += thing
    return found


def vars_of(thing: object) -> list[object]:
    return list(vars(thing).values()) if hasattr(thing, "__dict__") else []


def assert_silent(printed: str, secrets: list[bytes]) -> None:
    for secret in secrets:
        assert secret.hex() not in printed
        assert repr(secret)[2:-1] not in printed
        assert str(list(secret))[1:-1] not in printed


@pytest.mark.parametrize("phases", range(5))
def test_no_object_of_a_round_prints_a_secret(phases: int) -> None:
    turn = Round(4).carry(phases)
    secrets: list[bytes] = []
    for client in turn.clients.values():
        secrets += [client._identity.key, client._secret, *client._held.values()]
        secrets.append(getattr(client, "_seed", b""))
        if phases > 0:
            secrets.append(client._mask_private.private_bytes_raw())
        for channel in client._channels.values():
            secrets += [channel.sealing, channel.confirming]
    size = share_bytes(m.SEED_WORDS)
    secrets += [part[at : at + size] for part in secrets for at in (0, size) if len(part) > size]
    secrets = [secret for secret in secrets if len(secret) > HIDDEN]
    assert len(secrets) > 4 * phases
    seen = things([turn.server, turn.clients, turn.identities])
    if phases == 4:
        reveals = [m.Reveal.decode(turn.answer(i), turn.session) for i in turn.clients]
        secrets += [share.share for each in reveals for share in each.seeds]
        seen += reveals
    assert any(type(thing).__name__ in ("Client", "Identity") for thing in seen)
    for thing in seen:
        assert_silent(repr(thing), secrets)
        assert_silent(str(thing), secrets)
    channels = [thing for thing in seen if type(thing).__name__ == "Channel"]
    assert bool(channels) == (phases in (2, 3, 4))


def numbers_of(vector: np.ndarray) -> set[str]:
    """How the numbers of a vector would look: a run of digits that is nobody else's."""
    shown = {f"{value:.9g}" for value in np.abs(vector.astype(np.float64))}
    return {text[:HIDDEN] for text in shown if len(text) > HIDDEN}


def test_no_report_of_a_round_prints_an_update_or_a_norm() -> None:
    plan = secagg.plan(6, 8, clip=1000.0, noise_multiplier=0.0)
    draw = public_generator(5)
    updates = {i: draw.normal(size=8) * 17.3 for i in range(6)}
    report = secagg.simulate_updates(updates, plan)
    stream = Keystream(bytes(32), run="r", purpose="p")
    one = encode(plan.encoding, updates[0], rotation=bytes(32), stream=stream)
    total = decode(plan.encoding, one.words, 1, rotation=bytes(32))
    private = [one.norm, *(each.norm for each in report.private.values())]
    secret = numbers_of(np.array(private)) | numbers_of(report.total) | numbers_of(total.total)
    secret |= numbers_of(one.words.narrow)
    for value in (*updates.values(), *(each.words.narrow for each in report.private.values())):
        secret |= numbers_of(value)
    assert len(secret) > 50
    timeless = dataclasses.replace(report, traffic=type(report.traffic)())
    for thing in (timeless, one, total, one.words, *report.private.values()):
        for text in secret:
            assert text not in repr(thing), (type(thing), text)
