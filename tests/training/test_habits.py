"""What a person's own past says, against a plain loop over each person's records."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester.sequences import mobility
from sequester.training import demos
from sequester.training.dataset import prepare
from sequester.training.habits import followers
from sequester.training.sources import stays


def slow(codes: list[int], owner: list[int], columns: int) -> np.ndarray:
    found = np.zeros((len(codes), columns), dtype=np.int64)
    for i, here in enumerate(codes):
        before = [
            codes[j + 1]
            for j in range(i)
            if owner[j] == owner[j + 1] == owner[i] and codes[j] == here > 0 and codes[j + 1] > 0
        ]
        if before:
            most = max(Counter(before).values())
            commonest = [word for word in before if Counter(before)[word] == most][-1]
            answers = [commonest, *reversed(before)][:columns]
            found[i, : len(answers)] = answers
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40), st.integers(1, 4))
def test_followers_are_what_a_loop_finds(pairs: list[tuple[int, int]], columns: int):
    pairs.sort(key=lambda pair: pair[0])
    owner, codes = [p[0] for p in pairs], [p[1] for p in pairs]
    made = followers(np.array(codes, dtype=np.int64), np.array(owner, dtype=np.int64), columns)
    assert np.array_equal(made, slow(codes, owner, columns))


def test_a_person_s_habits_and_stays_depend_on_that_person_alone():
    town = mobility.simulate(40, 1)
    alone, everybody = stays(town.select(np.array([7]))), stays(town)
    codes = [p.codes("place", mobility.VOCABULARY).astype(np.int64) for p in (alone, everybody)]
    rows = slice(everybody.offsets[7], everybody.offsets[8])
    assert np.array_equal(codes[0], codes[1][rows])
    assert (codes[0][1:] != codes[0][:-1]).all()
    one = followers(codes[0], alone.owner, 3)
    assert np.array_equal(one, followers(codes[1], everybody.owner, 3)[rows])


def test_the_town_s_lots_hold_what_its_shape_declares():
    study = demos.town()
    lot = prepare(study, stays(mobility.simulate(60, 2)), key=bytes(32)).train
    prepared = prepare(study, stays(mobility.simulate(60, 2)), key=bytes(32))
    assert lot.categorical is not None
    assert lot.categorical.shape[2] == len(prepared.shape.vocabularies)
    assert lot.x.shape[2] == prepared.shape.features
    # The answer is never among what the person's past says at that record by construction.
    known = lot.target >= 0
    here = lot.categorical[..., 0] - 1
    assert not bool((here == lot.target)[known].any())
