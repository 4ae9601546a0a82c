"""What a hostile site may send: nothing that harms a run, another site or anybody's privacy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from sequester.federated import clients
from sequester.federated import round as machine
from sequester.federated.clients import COUNTS, held_counts
from sequester.federated.gate import MOST_PEOPLE, Accepted, Limits, SiteBounds, admit
from sequester.federated.messages import Instruction, Layout, Rejection, answer
from sequester.federated.noise import SiteSum, release_sum
from sequester.federated.run import federate
from sequester.mechanism import AdaptiveClipping, NoiseStream, Plan
from tests.federated.test_run import make_study, table  # noqa: F401 - a fixture
from tests.federated.test_simulation import site_world

HUGE = 2.0**38
"""Whose float64 neighbours lie 2⁻¹⁴ apart: everybody else's sum would be rounded to that."""
SENT = {
    "counts beyond the population": ({"people": 1e15}, "bad-counts"),
    "counts beyond memory": ({"people": 1e6, "people below the bound": 1e6}, "bad-counts"),
    "negative counts": ({"people": -1e6}, "bad-counts"),
    "more below the bound than there are": ({"people below the bound": 49.0}, "bad-counts"),
    "half a person": ({"people": 10.5}, "bad-counts"),
    "no number of people": ({"people": float("nan")}, "not-finite"),
    "endless people": ({"people below the bound": float("inf")}, "not-finite"),
    "a sum no people have": ({"head.weight": 1e12}, "too-large"),
    "a sum that rounds other sites": ({"head.bias": HUGE * 0.2}, "too-large"),
    "more than everybody": ({"head.bias": 2 * 0.2 * 50}, "too-large"),
    "no sum": ({"head.bias": float("-inf")}, "not-finite"),
}
LEAST = 0.7 * 2.0**-24
"""A step of the grid under a bound of 0.7."""
NOTHING = (0.0, 5e-324, -5e-324, 2.0**-1022, 1e-45, 0.49 * LEAST, -0.5 * LEAST)


def sends(changes):
    """`Silos.answer` of a world in which the second site is hostile in the second round."""
    real = clients.Silos.answer

    def patched(self, instructions, state, clip):
        for event in real(self, instructions, state, clip):
            update = event.update
            if (update.client, update.round) != (1, 1):
                yield event
            elif changes is None:
                yield machine.Lost(1)
            else:
                tensors = {
                    name: np.full(value.shape, changes.get(name, 0.0) + 0 * value)
                    if name in changes
                    else value
                    for name, value in update.tensors.items()
                }
                yield replace(event, update=replace(update, tensors=tensors))

    return patched


def run_with(changes, study, out):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients.Silos, "answer", sends(changes))
        done = federate(study, out=out)
    lines = (done.folder.private / "rounds.jsonl").read_text().splitlines()
    kept = {name: value.tobytes() for name, value in load_file(done.folder.weights).items()}
    return kept, [json.loads(line)["rejected"] for line in lines]


@pytest.mark.parametrize("adaptive", [None, {"count_noise": 5.0}], ids=["fixed", "adaptive"])
def test_a_hostile_site_is_counted_and_is_otherwise_as_one_that_is_silent(
    adaptive,
    table,  # noqa: F811
    tmp_path,
):
    changes = {"privacy": {"adaptive": adaptive}} if adaptive else {}
    study = make_study(table, {"placement": "cross-silo"}, **changes)
    silent, lost = run_with(None, study, tmp_path)
    assert lost[1] == {"lost": 1}
    for name, (fields, reason) in SENT.items():
        weights, rejected = run_with(fields, study, tmp_path)
        assert rejected[1] == {reason: 1}, name
        assert weights == silent, name
    if adaptive is None:  # a count that nobody asked for is none
        _, rejected = run_with({"people": 3.0}, study, tmp_path)
        assert rejected[1] == {"bad-counts": 1}


def plan_of(population, size=3, **changes):
    return Plan("person", population, 0.5, 5, 1.0, 0.7, size, 1e-5, **changes)


def passes(plan, clip, vector):
    """The update as the gate hands it on; None if it does not."""
    size = plan.parameters
    layout = Layout(("w", *COUNTS), ((size,), (), ()), "float64")
    sent = answer(Instruction("r", 0, "v", 0, "n", 1.0), layout.views(vector))
    try:
        return admit(sent, layout, Limits(steps=1, weight=1.0, site=SiteBounds.of(plan, clip)))
    except Rejection:
        return None


@pytest.mark.parametrize("amount", NOTHING)
def test_a_sum_that_adds_not_one_step_is_none(amount):
    counted = plan_of(50, adaptive=AdaptiveClipping())
    for people, plan in ((0.0, plan_of(50)), (0.0, counted), (3.0, counted)):
        vector = np.array([amount, 0.0, -amount, 0.0, people])
        assert (passes(plan, 0.7, vector) is None) == (people == 0), people
        vector[1] = LEAST
        assert passes(plan, 0.7, vector) is not None


NUMBERS = st.floats(width=64) | st.integers(-5, 2**62).map(float) | st.floats(-1, 1)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(NUMBERS, min_size=5, max_size=5),
    st.sampled_from([1, 50, 10**6, MOST_PEOPLE, 2**40]),
    st.sampled_from([1e-30, 0.7, 1e30]),
    st.booleans(),
)
def test_what_passes_the_gate_can_be_released(numbers, population, clip, counted):
    plan = plan_of(population, adaptive=AdaptiveClipping() if counted else None)
    accepted = passes(plan, clip, np.array(numbers))
    if accepted is None:
        return
    fold = SiteSum(3, plan.grid(clip))
    for _ in range(20):
        fold.add(accepted, 1.0)
    stream = NoiseStream.from_test_seed(1, "r")
    direction, bound = release_sum(fold.sealed(), plan=plan, stream=stream, step=0, clip=clip)
    assert np.isfinite(direction).all()
    assert 0 < bound < np.inf


def test_no_count_leads_the_bound_away():
    """Every site says the most, for as long as it likes."""
    plan = plan_of(10**6, adaptive=AdaptiveClipping())
    stream, clip = NoiseStream.from_test_seed(1, "r"), plan.clip
    for step, below in enumerate([10**6] * 60 + [0] * 60):
        accepted = passes(plan, clip, np.array([0.0, 0.0, 0.0, below, 10**6]))
        fold = SiteSum(3, plan.grid(clip))
        for _ in range(100):
            fold.add(accepted, 1.0)
        sealed = fold.sealed()
        direction, clip = release_sum(sealed, plan=plan, stream=stream, step=step, clip=clip)
        assert np.isfinite(direction).all()
    assert plan.clip / 2**20 <= clip <= plan.clip * 2**20


@pytest.mark.parametrize("population", [1000, 2**27, 2**40])
def test_no_site_makes_a_person_of_another_site_count_more(population):
    """The largest sums that pass, off the grid, beside a site where one person moves."""
    size = 400
    plan = plan_of(population, size)
    grid, largest = plan.grid(), min(population, MOST_PEOPLE) * plan.clip / np.sqrt(size)
    person = np.floor(plan.clip / np.sqrt(size) / grid) * grid
    for own in (0.0, 0.49 * np.spacing(largest), 7 * grid):
        totals = []
        for moved in (0.0, person):
            fold = SiteSum(size, grid)
            for hostile in (largest, 0.3 * largest, -0.7 * largest):
                accepted = passes(plan, plan.clip, np.append(np.full(size, hostile), [0.0, 0.0]))
                fold.add(accepted, 1.0)
            honest = np.append(np.full(size, np.rint((own + moved) / grid) * grid), [0.0, 0.0])
            fold.add(Accepted(1, honest, 1, 1.0), 1.0)
            totals.append(np.rint(fold.sealed().total / grid))
        # On the grid, where noise is added: exactly as far as the person alone goes.
        assert np.linalg.norm(totals[1] - totals[0]) * grid == pytest.approx(
            person * np.sqrt(size), rel=1e-12
        )


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 20), st.booleans())
def test_counts_of_a_large_lot_pass_and_one_person_moves_them_by_a_half(below, above, most, under):
    def centred(below, people):
        sent = held_counts(below, people, most)
        assert 0 <= sent[0] <= sent[1] <= most
        return sent[0] - sent[1] / 2

    people = below + above
    if people <= most:
        assert held_counts(below, people, most) == (below, people)
    assert abs(centred(below + under, people + 1) - centred(below, people)) <= 0.5


def test_a_site_with_more_people_than_were_declared_is_held_to_them_and_nobody_counts_more():
    """No honest site is refused for one person too many: that person would move everything."""
    everybody = list(range(12))
    whole, plan = site_world([everybody], population=2)
    assert np.linalg.norm(whole.total) <= 2 * plan.clip * (1 + 1e-6)
    vector = np.append(whole.total, [whole.below, whole.units])
    counted = replace(plan, adaptive=AdaptiveClipping())
    assert passes(counted, plan.clip, vector) is not None
    assert np.linalg.norm(site_world([everybody], population=12)[0].total) > 2 * plan.clip
    for person in (0, 5):
        without, _ = site_world([[p for p in everybody if p != person]], population=2)
        assert np.linalg.norm(whole.total - without.total) <= plan.sensitivity()
