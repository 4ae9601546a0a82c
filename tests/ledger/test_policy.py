"""What a data holder decides, no analyst's study overrides."""

from dataclasses import replace
from pathlib import Path

import pytest

from sequester.core.errors import SequesterError
from sequester.ledger import Grant, Granter, Ledger, Policy, PolicyChange, Signed
from sequester.ledger.signing import make_key, public_hex
from tests.ledger.conftest import Make, both_stores
from tests.ledger.plans import Clock, Steps

TEXT = """
holder = "Records office"
units = ["person"]
adjacencies = ["add-or-remove"]
min_population = 1000
most_epsilon = 6.0
reservation_days = 2.5

[ceiling]
epsilon = 2.0
delta = 1e-6

[datasets.town-2024]
epsilon = 3.0
delta = 1e-6

[[granters]]
name = "A. Holder"
public_key = "{key}"
"""


def refused(code: int) -> pytest.RaisesExc:
    return pytest.raises(SequesterError, match=f"^SQ-{code} ")


@pytest.fixture
def holder(tmp_path: Path):
    return make_key(tmp_path / "holder.key")


@pytest.fixture
def policy(tmp_path: Path, holder) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(TEXT.format(key=public_hex(holder)))
    return Policy.read(path)


@both_stores
def test_the_policy_rules(make: Make, policy: Policy) -> None:
    ledger = make(policy=policy)
    assert ledger.policy() == policy
    with refused(340):
        ledger.create_budget("town", "town-2024", 3.1, 1e-6)
    with refused(340):
        ledger.create_budget("town", "town-2024", 3.0, 1e-5)
    with refused(340):
        ledger.create_budget("other", "elsewhere", 2.1, 1e-6)
    with refused(340):
        ledger.create_budget("town", "town-2024", 3.0, 1e-6, unit="window")
    with refused(340):
        ledger.create_budget("town", "town-2024", 3.0, 1e-6, adjacency="replace-one")
    ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    with refused(340):
        ledger.reserve(Steps(10), budget="town", key="a")
    with refused(340):
        ledger.reserve(Steps(10, population=999), budget="town", key="a")
    held = ledger.reserve(Steps(10, population=1000), budget="town", key="a")
    assert held.expires_ms == 1_700_000_000_000 + round(2.5 * 86_400_000)
    ledger.verify()


def test_only_listed_data_sets(make: Make, policy: Policy) -> None:
    from msgspec.structs import replace as changed

    ledger = make(policy=changed(policy, only_datasets=True))
    with refused(340):
        ledger.create_budget("other", "elsewhere", 1.0, 1e-6)
    ledger.create_budget("town", "town-2024", 1.0, 1e-6)


@both_stores
def test_a_grant_raises_one_ceiling_once(make: Make, policy: Policy, holder, tmp_path) -> None:
    ledger = make(policy=policy)
    ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    grant = Grant(ledger.id, "town", 3.0, 4.5, "A. Holder", "a second study was approved")
    stranger = make_key(tmp_path / "stranger.key")
    with refused(342):
        ledger.grant(grant.sign(stranger))
    signed = grant.sign(holder)
    with refused(334):
        ledger.grant(replace(signed, document=signed.document | {"epsilon": 5.5}))
    with refused(334):
        ledger.grant(replace(signed, purpose="policy"))
    for wrong in (
        replace(grant, ledger="0" * 64),
        replace(grant, before=2.0),
        replace(grant, before=4.0),
    ):
        with refused(343):
            ledger.grant(wrong.sign(holder))
    with refused(340):
        ledger.grant(replace(grant, epsilon=6.5).sign(holder))
    with refused(310):
        ledger.grant(replace(grant, budget="city").sign(holder))
    assert ledger.grant(signed).epsilon == 4.5
    with refused(343):
        ledger.grant(signed)
    assert ledger.budgets()[0].budget.epsilon == 4.5
    assert ledger.verify().entries == 3


def test_a_part_is_not_raised_above_its_whole(make: Make, policy: Policy, holder) -> None:
    ledger = make(policy=policy)
    ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    ledger.create_budget("north", "town-2024", 2.0, 1e-6, parent="town", share="population")
    grant = Grant(ledger.id, "north", 2.0, 3.5, "A. Holder", "more")
    with refused(343):
        ledger.grant(grant.sign(holder))
    ledger.grant(replace(grant, epsilon=3.0).sign(holder))
    ledger.verify()


def test_a_grant_says_who_and_why_and_only_raises(make: Make, holder) -> None:
    grant = Grant("0" * 64, "town", 3.0, 4.0, "A. Holder", "why")
    for bad in (
        replace(grant, who=""),
        replace(grant, why=" "),
        replace(grant, why="a\nb"),
        replace(grant, why="x" * 501),
        replace(grant, epsilon=3.0),
        replace(grant, epsilon=float("inf")),
        replace(grant, epsilon=float("nan")),
    ):
        with refused(314):
            bad.sign(holder)


@both_stores
def test_another_policy_needs_a_granters_signature(
    make: Make, policy: Policy, holder, tmp_path
) -> None:
    ledger = make(policy=policy)
    looser = Policy(holder="Records office", granters=policy.granters, min_population=5)
    change = PolicyChange(ledger.id, 1, looser, "A. Holder", "a smaller pilot")
    with refused(342):
        ledger.change_policy(change.sign(make_key(tmp_path / "stranger.key")))
    with refused(343):
        ledger.change_policy(replace(change, replaces=2).sign(holder))
    signed = change.sign(holder)
    ledger.change_policy(signed)
    with refused(343):
        ledger.change_policy(signed)
    assert ledger.policy() == looser
    ledger.create_budget("town", "town-2024", 9.0, 1e-6)
    ledger.reserve(Steps(1, population=5), budget="town", key="a")
    with refused(340):
        ledger.reserve(Steps(1, population=4), budget="town", key="b")
    assert ledger.verify().entries == 4


def test_a_clock_far_ahead_does_not_lock_everybody_out(make: Make, tmp_path: Path) -> None:
    clock = Clock()
    ledger = make(clock=clock)
    clock.now += 10 * 365 * 86_400
    ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    clock.now -= 10 * 365 * 86_400
    with refused(306):
        ledger.reserve(Steps(1), budget="town", key="a")
    from sequester.ledger.signing import read_key

    patient = Policy(clock_tolerance_s=11 * 365 * 86_400.0, granters=ledger.policy().granters)
    change = PolicyChange(ledger.id, 1, patient, "A. Holder", "one machine's clock was wrong")
    ledger.change_policy(change.sign(read_key(tmp_path / "ledger.key")))
    ledger.reserve(Steps(1), budget="town", key="a")
    ledger.verify()


@pytest.mark.parametrize(
    "text",
    [
        "holder = 3",
        "ceilings = 3",
        "[ceiling]\nepsilon = 1.0",
        "[ceiling]\nepsilon = -1.0\ndelta = 1e-6",
        "[ceiling]\nepsilon = inf\ndelta = 1e-6",
        "min_population = 0",
        "reservation_days = nan",
        "clock_tolerance_s = -1.0",
        "most_epsilon = 0.0",
        "adjacencies = ['close']",
        "units = []",
        "placements = []",
        "placements = ['nowhere']",
        "[[granters]]\nname = 'x'\npublic_key = 'short'",
        "not toml",
        "\x00",
    ],
)
def test_a_policy_that_means_nothing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(SequesterError) as refusal:
        Policy.read(path)
    assert refusal.value.code in (201, 341)
    assert "policy.toml" in str(refusal.value)


def test_without_granters_the_ledgers_own_key_grants(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.policy().granters == (
        Granter("whoever holds the ledger's key", ledger.public_key),
    )


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"document": 1}', "x" * 70_000])
def test_a_file_that_is_no_signed_document(tmp_path: Path, content: str) -> None:
    path = tmp_path / "grant.json"
    path.write_text(content)
    with refused(334):
        Signed.read(path, "grant")
