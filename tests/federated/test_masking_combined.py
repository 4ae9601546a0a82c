"""Secure sums with everything else a study can ask for: each combination works or has a number."""

from __future__ import annotations

import itertools

import pytest

from sequester.core.errors import UsageError
from sequester.federated.run import federate
from sequester.mechanism import Claim
from tests.federated.test_run import make_study


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """14 people at three sites, who have nothing to teach."""
    rows = [f"p{p},{t},s{p % 3},{p - t},{p * t % 2}" for p in range(14) for t in range(8)]
    path = tmp_path_factory.mktemp("data") / "people.csv"
    path.write_text("\n".join(["person,time,site,value,label", *rows]) + "\n")
    return path


PARTS = {
    "placement": ("cross-silo", "cross-device"),
    "noise": ("none", "discrete-gaussian", "skellam"),
    "compression": ("none", "random-k"),
    "adaptive": (False, True),
    "guarantee": (True, False),
}


@pytest.mark.parametrize("chosen", list(itertools.product(*PARTS.values())), ids=str)
def test_a_combination_runs_or_is_refused_by_number(chosen, table, tmp_path):
    placement, noise, compression, adaptive, guarantee = chosen
    federated = {
        "placement": placement,
        "secagg": {"noise": noise, "dropout": 0.34, "corrupt": 0.0, "drill": 0.1},
    }
    if compression != "none":
        federated |= {"compression": compression, "share": 0.3}
    if placement == "cross-silo":
        federated |= {"algorithm": "fedadam"}
    privacy = {"mode": "none", "clip": 0.2} if not guarantee else {}
    if adaptive:
        privacy |= {"adaptive": {"count_noise": 5.0}}
    fits = noise == "none" or (guarantee and not adaptive)  # Shares noise the sum, no count.
    fits &= compression == "none" or placement == "cross-device" or not guarantee
    if not fits:
        with pytest.raises(UsageError, match=r"SQ-62[14]"):
            federate(
                make_study(table, federated, privacy=privacy, training={"steps": 2}), out=tmp_path
            )
        return
    study = make_study(table, federated, privacy=privacy, training={"steps": 2})
    done = federate(study, out=tmp_path)
    assert done.rounds == 2
    said = " ".join(Claim.read(done.folder.claim).fields["assumptions"])
    assert "Members mask what they send" in said
    assert ("trusted with the exact sums" in said) == (noise == "none")
