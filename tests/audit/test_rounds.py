"""The auditor of federated rounds: silent on the real ones, loud on planted faults."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from sequester.audit.mechanism.evidence import audit_mechanism
from sequester.audit.mechanism.rounds import Rounds
from sequester.audit.mechanism.tiers import ESTIMATE, GAUSSIAN
from sequester.federated import clients as clients_module
from sequester.federated import noise as noise_module
from sequester.federated.settings import settings_of
from sequester.mechanism import AdaptiveClipping, NoiseStream
from sequester.models import Binary, Shape
from sequester.training import Adaptive, Data, Privacy, Study, Training
from sequester.training.dataset import Prepared
from sequester.training.resumption import Begun
from tests.audit.zoo import subject

CANARIES = 120
DEVICE = {"placement": "cross-device", "local_learning_rate": 0.5}
CAPPED = DEVICE | {"weighting": "capped", "weight_cap": 4.0}
FIXED = DEVICE | {"lot_size": 60}
LOCAL = {"placement": "local", "local_learning_rate": 0.5}
SILO = {"placement": "cross-silo", "algorithm": "fedadam", "server_learning_rate": 0.05}


def rounds(federated: dict, epsilon: float = 4.0, *, rate: float = 0.2, steps: int = 12) -> Rounds:
    own = {key: federated[key] for key in ("adaptive", "lot_size") if key in federated}
    federated = {key: value for key, value in federated.items() if key not in own}
    adaptive, size = own.get("adaptive"), own.get("lot_size", 0)
    if federated["placement"] == "local":
        rate = 1.0
    base = subject(epsilon, rate=rate, steps=steps, people=260 if size else 100)
    plan = replace(base.plan, adaptive=AdaptiveClipping(**adaptive) if adaptive else None)
    if size:
        rate = size / plan.population
        plan = replace(plan, sampling_rate=rate, lot_size=size, adjacency="replace-one")
    study = Study(
        name="rounds",
        data=Data(source="builtin:randhie", population=plan.population, group="site"),
        privacy=Privacy(
            noise_multiplier=plan.noise_multiplier,
            adaptive=Adaptive(**adaptive) if adaptive else None,
        ),
        training=Training(steps=steps, sampling_rate=rate, lot_size=size),
        federated=federated,
    )
    sites = np.array(["north", "south", "west"])[np.arange(base.people.people) % 3]
    shape = Shape(features=3, vocabularies=(), steps=6, outputs=1, pool="mean")
    prepared = Prepared(base.people, base.people, Binary(), shape, sites)
    begun = Begun(
        run="audited",
        data="",
        noise_multiplier=plan.noise_multiplier,
        steps=steps,
        setup=(),
        cut=False,
        kind="federated",
        asked="",
    )
    return Rounds(study, settings_of(study), begun, plan, prepared, base.model)


ADAPTIVE = {"adaptive": {"quantile": 0.5, "learning_rate": 0.3, "count_noise": 4.0}}


@pytest.mark.parametrize(
    "federated",
    [DEVICE, CAPPED, SILO, DEVICE | ADAPTIVE, SILO | ADAPTIVE, FIXED, LOCAL],
    ids=str,
)
def test_real_rounds_raise_no_alarm(federated):
    audit = audit_mechanism(rounds(federated), canaries=CANARIES, seed=2)
    assert not audit.alarm, audit.battery.failed
    proofs = [tier.epsilon for tier in audit.tiers if tier.name != ESTIMATE]
    assert max(proofs) <= audit.claimed
    assert federated["placement"] in audit.what


@pytest.mark.parametrize(
    "federated",
    [DEVICE, SILO, LOCAL],
    ids=["cross-device", "cross-silo", "local"],
)
def test_one_full_round_gains_the_canaries_most_of_what_is_claimed(federated):
    """One-shot canaries against theory: the Gaussian-DP tier at T = 1."""
    audit = audit_mechanism(rounds(federated, rate=1.0, steps=1), canaries=1000, seed=5)
    found = next(tier for tier in audit.tiers if tier.name == GAUSSIAN)
    assert 0.5 * audit.claimed < found.epsilon < audit.claimed
    assert not audit.alarm, audit.battery.failed


real_release, real_clipped = noise_module.release_counted, noise_module.clipped
real_sum = clients_module.clipped_sum


def quiet(total, centred, *, plan, **drawn):
    less = replace(plan, noise_multiplier=0.9 * plan.noise_multiplier)
    return real_release(total, centred, plan=less, **drawn)


def unclipped(delta, weight, clip):
    return real_clipped(delta, weight, 1e9)


def by_the_cohort(sealed, *, plan, stream, step, clip):
    direction, bound = real_release_sum(sealed, plan=plan, stream=stream, step=step, clip=clip)
    return direction * plan.expected_lot / max(1, sealed.units), bound


def per_window(model, loss, lot, rule):
    return real_sum(model, loss, lot.each_window_its_own(), rule)


def quiet_clients(plan, stream_of):
    less = replace(plan, noise_multiplier=0.9 * plan.noise_multiplier)
    return real_protector(less, stream_of)


def for_adding_only(plan, stream_of):
    """Noise for a sensitivity of C, where an exchange moves an update by 2C."""
    return real_protector(replace(plan, noise_multiplier=plan.noise_multiplier / 2), stream_of)


def one_stream_for_all(plan, stream_of):
    """One key for everybody: each client's own guard against using noise twice sees nothing."""
    streams = {}

    def same(client):
        return streams.setdefault(client, NoiseStream(b"k" * 32, "run", private=False))

    return real_protector(plan, same)


def clients_unclipped(plan, stream_of):
    less = replace(plan, clip=1e3, noise_multiplier=plan.noise_multiplier / 1e3)
    return real_protector(less, stream_of)


def in_turn(self, step):
    return np.sort((np.arange(self.size) + step * self.size) % self.people)


real_protector = noise_module.protector
real_release_sum = noise_module.release_sum
PROTECTOR, LOTS = "sequester.federated.assemble.protector", "sequester.sampling.FixedSizeSampler"
EVERYBODY = "sequester.sampling.PoissonSampler.draw"
FAULTS = {
    "noise 10 % too small": (
        "sequester.federated.noise.release_counted",
        quiet,
        (DEVICE, SILO, FIXED),
    ),
    "updates not clipped": ("sequester.federated.noise.clipped", unclipped, (DEVICE, FIXED)),
    "denominator from the cohort": (
        "sequester.federated.simulate.release_sum",
        by_the_cohort,
        (DEVICE, SILO),
    ),
    "windows clipped, people claimed": (
        "sequester.federated.clients.clipped_sum",
        per_window,
        (SILO,),
    ),
    "clients' noise 10 % too small": (PROTECTOR, quiet_clients, (LOCAL,)),
    "clients' noise for half an exchange": (PROTECTOR, for_adding_only, (LOCAL,)),
    "one noise for all clients": (PROTECTOR, one_stream_for_all, (LOCAL,)),
    "clients not clipped": (PROTECTOR, clients_unclipped, (LOCAL,)),
    "cohorts in turn": (f"{LOTS}.draw", in_turn, (FIXED,)),
    "one more in every cohort": (
        f"{LOTS}.draw",
        lambda self, step: np.arange(step, step + self.size + 1) % self.people,
        (FIXED,),
    ),
    "everybody every round": (EVERYBODY, lambda self, step: np.arange(self.people), (DEVICE, SILO)),
}


@pytest.mark.parametrize(
    ("name", "federated"), [(n, f) for n, (_, _, kinds) in FAULTS.items() for f in kinds], ids=str
)
def test_a_fault_planted_into_rounds_is_caught(name, federated):
    where, what, _ = FAULTS[name]
    with mock.patch(where, what):
        audit = audit_mechanism(rounds(federated, 8.0), canaries=CANARIES, seed=1)
    assert audit.alarm


@pytest.mark.parametrize("federated", [DEVICE, SILO], ids=["cross-device", "cross-silo"])
def test_a_key_and_not_the_seed_decides_lots_and_noise(federated):
    base = rounds(federated, steps=1)
    one, other = (
        replace(base, key=key).observe(canaries=20, windows=2, seed=3) for key in (b"k" * 32, None)
    )
    assert (one.design.coins == other.design.coins).all()
    assert (one.trace.drawn != other.trace.drawn).any()
    assert (one.trace.residual != other.trace.residual).all()
    assert "kkkk" not in repr(replace(base, key=b"k" * 32))


def test_an_exchange_of_a_whole_cohort_gains_the_canaries_what_is_claimed():
    """Everybody in one cohort of fixed size: two bounds apart under the plan's own claim."""
    base = rounds(DEVICE | {"lot_size": 200}, steps=1)
    audit = audit_mechanism(base, canaries=100, seed=5)
    found = next(tier for tier in audit.tiers if tier.name == GAUSSIAN)
    assert 0.3 * audit.claimed < found.epsilon < audit.claimed
    assert audit.claimed > 8.0  # an exchange costs about twice what adding somebody does
    assert not audit.alarm, audit.battery.failed
