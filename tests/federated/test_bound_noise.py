"""Noise is bound to what it is added to: another sum never meets the noise of before.

A round's position and its sealed sum keep honest runs apart. These tests are about what is left
when both were lost: an older run folder that was put back, a node's folder that was copied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sequester.core.rng import key_from_test_seed
from sequester.federated.messages import Instruction
from sequester.federated.noise import Sealed, protector, release_sum
from sequester.federated.run import federate
from sequester.mechanism import NoiseStream, Plan
from sequester.mechanism.adaptive import AdaptiveClipping
from sequester.mechanism.release import release
from tests.federated.network.world import make_study, run, write_sites

SIZE = 4000
KEY = key_from_test_seed(3)
CLIP = 0.5
SUM = np.random.default_rng(1).normal(size=SIZE)


def plan_of(**changes):
    fields = {
        "unit": "person",
        "population": 24,
        "sampling_rate": 1.0,
        "steps": 5,
        "noise_multiplier": 1.0,
        "clip": CLIP,
        "parameters": SIZE,
        "delta": 1e-5,
    }
    return Plan(**(fields | changes))


PLAN = plan_of(adaptive=AdaptiveClipping(count_noise=5.0))


def stream(*, private=True, run="r", key=KEY):
    """As a process that lost everything: at the first position again."""
    return NoiseStream(key, run, private=private)


def noise_of(sealed, *, clip=CLIP, plan=PLAN, step=2, **which):
    """What was added, in deviations."""
    mean, _ = release_sum(sealed, plan=plan, stream=stream(**which), step=step, clip=clip)
    std = plan.gradient_noise_multiplier * plan.sensitivity(clip)
    return (mean * plan.expected_lot - sealed.total) / std


SEALED = Sealed(SUM, 9, 20)
ONE_STEP = SUM + PLAN.grid(CLIP) * (np.arange(SIZE) == 17)
OTHERS = {
    "sum by one step of the grid": ({"total": ONE_STEP}, {}),
    "nobody": ({"total": np.zeros(SIZE)}, {}),
    "count below": ({"below": 10}, {}),
    "units": ({"units": 21}, {}),
    "bound": ({}, {"clip": 0.4}),
    "noise multiplier": ({}, {"plan": replace(PLAN, noise_multiplier=1.5)}),
    "round": ({}, {"step": 3}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_sum_in_the_same_place_meets_independent_noise(other):
    sealed, changes = OTHERS[other]
    first, second = noise_of(SEALED), noise_of(replace(SEALED, **sealed), **changes)
    for drawn in (first, second):
        assert abs(drawn.std() - 1) < 5 / np.sqrt(2 * SIZE)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(SIZE)


@pytest.mark.parametrize(
    "same", [{}, {"total": SUM + 0.0}, {"total": np.where(SUM > 0, SUM + 1e-12, SUM)}]
)
def test_the_same_sum_meets_the_same_noise_again(same):
    """A replay tells nothing new; sums that round to one count of the grid are one sum."""
    again = replace(SEALED, **same)
    args = {"plan": PLAN, "step": 2, "clip": CLIP}
    first = release_sum(SEALED, stream=stream(), **args)
    second = release_sum(again, stream=stream(), **args)
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1] == second[1]


def test_what_is_not_released_does_not_decide_the_noise():
    """Counts matter only where they are released."""
    plain = plan_of()
    first, second = (noise_of(Sealed(SUM, n, 20), plan=plain) for n in (3, 4))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("change", ["update", "bound"])
def test_a_client_asked_twice_for_one_round_gives_no_difference_away(change):
    """Its node's memory was set back, and a server asks again with another model."""
    plan = plan_of()
    other = replace(plan, clip=0.4) if change == "bound" else plan
    shift = 0.1 if change == "update" else 0.0
    small = (SUM * 0.001).astype(np.float32)
    asked = Instruction("r", 2, "v", 0, "n", 0.0)

    def answer(plan, delta):
        noisy = protector(plan, lambda _: stream())(asked, delta)
        return (noisy - delta) / (2 * plan.sensitivity(plan.clip) * plan.noise_multiplier)

    shifted = small.copy()
    shifted[0] += np.float32(shift)
    first, second = answer(plan, small), answer(other, shifted)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(SIZE)
    assert answer(plan, small).tobytes() == first.tobytes()


def test_a_sites_private_step_is_bound_too():
    """Several private steps in a round (`federated/sites.py`) release as everybody does."""
    plan = plan_of()

    def step(total):
        released = release(
            {"w": torch.from_numpy(total)},
            torch.zeros(0),
            plan=plan,
            stream=stream(),
            step=2,
            clip=CLIP,
        )
        return released.update["w"].numpy() * plan.expected_lot - total

    first, second = step(SUM), step(ONE_STEP)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(SIZE)


def test_runs_under_a_test_seed_can_be_compared_up_to_rounding():
    """Their noise protects nobody; bound, engines a rounding apart would share no digit."""
    moved = replace(SEALED, total=ONE_STEP)
    first, second = (noise_of(one, private=False) for one in (SEALED, moved))
    assert np.allclose(first, second, atol=1e-6)


@pytest.mark.parametrize("placement", ["cross-silo", "cross-device", "local"])
def test_the_network_and_the_simulator_agree_under_keys_that_protect(
    placement, tmp_path, monkeypatch
):
    """Bit for bit, with noise bound to the sums: the keys are those of the system, made equal."""
    data = write_sites(tmp_path / "data")
    rate = {"training": {"sampling_rate": 1.0}} if placement == "local" else {}
    study = make_study(data, {"placement": placement}, privacy={"insecure_test_seed": None}, **rate)
    for module in ("training.checkpoint", "federated.network.memory"):
        monkeypatch.setattr(f"sequester.{module}.fresh_key", lambda: KEY)
    monkeypatch.setattr("secrets.token_hex", lambda count: "5" * 2 * count)
    simulated = federate(study, out=tmp_path / "simulated")
    served = run(data, tmp_path / "run", study)
    ours, theirs = load_file(served.folder.weights), load_file(simulated.folder.weights)
    assert {k: v.tobytes() for k, v in ours.items()} == {k: v.tobytes() for k, v in theirs.items()}
