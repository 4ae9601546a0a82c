"""What a holder asks of secure sums: weaker ones are refused before the node makes a key."""

from __future__ import annotations

import msgspec
import pytest

from sequester.core.errors import UsageError
from sequester.federated.network.frames import Enrolled, Refused
from sequester.federated.network.member import sums_for
from sequester.federated.settings import settings_of
from tests.federated.network.asking import ask_node, enrol_of, node_at
from tests.federated.network.world import POLICY, make_study, write_sites


@pytest.fixture
def data(tmp_path):
    return write_sites(tmp_path / "data")


# What a study asks that the defaults refuse, and what the holder must write to let it in.
WEAKER = {
    "a server that is trusted": ({"semi_honest": True}, "semi_honest = true"),
    "a cohort of two": ({"min_cohort": 2}, "min_cohort = 2"),
    "half may be missing": ({"dropout": 0.5}, "dropout = 0.5"),
}


def enrolment(data, tmp_path, policy, secagg):
    (data / "a" / "policy.toml").write_text(POLICY + policy)
    study = make_study(data, {"secagg": {"dropout": 0.34, **secagg}})
    header, _ = ask_node(node_at(data, tmp_path), enrol_of(study))
    return header


@pytest.mark.parametrize("kind", WEAKER)
def test_only_the_holder_lets_weaker_sums_in(kind, data, tmp_path):
    asked, granted = WEAKER[kind]
    header = enrolment(data, tmp_path, "", asked)
    assert isinstance(header, Refused)
    assert header.code == 649
    assert not list((tmp_path / "node").glob("*.key"))
    assert not (tmp_path / "node" / "ledger.db").exists()
    assert isinstance(enrolment(data, tmp_path, f"[secure_sums]\n{granted}\n", asked), Enrolled)


@pytest.mark.parametrize("terms", ["min_cohort = 4", "dropout = 0.3", "corrupt = 0.2"])
def test_a_holder_may_ask_for_more(terms, data, tmp_path):
    assert enrolment(data, tmp_path, f"[secure_sums]\n{terms}\n", {}).code == 649
    assert isinstance(enrolment(data, tmp_path, "", {}), Enrolled)


def test_the_studys_own_cohort_is_the_rounds(data):
    # The policy is held against the study's number, so that number must bind every round.
    study = make_study(data, {"secagg": {"min_cohort": 5, "dropout": 0.2, "corrupt": 0.0}})
    sums = sums_for(settings_of(study), 6, 10, study.data.population)
    assert sums.round_plan(1.0, 0.0).policy().min_cohort >= 5
    fewer = msgspec.structs.replace(sums.chosen, min_cohort=7)
    with pytest.raises(UsageError, match="SQ-624"):
        type(sums)(fewer, 6, 10, sites=True, most=24)
