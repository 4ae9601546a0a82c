"""Lots keep people apart, whatever their sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester.core.errors import UsageError
from sequester.sampling import Lot


def lot_of(counts: list[int], steps: int = 3) -> Lot:
    """A lot whose windows carry their own number, person `i` owning `counts[i]` of them."""
    windows = sum(counts)
    number = torch.arange(windows, dtype=torch.float32)
    return Lot(
        x=number[:, None, None].expand(windows, steps, 2).clone(),
        mask=torch.ones(windows, steps, dtype=torch.bool),
        target=number.clone(),
        owner=torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        people=len(counts),
        categorical=number.long()[:, None, None].expand(windows, steps, 1).clone(),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.data())
def test_pick_gives_each_person_exactly_their_windows(counts: list[int], data: st.DataObject):
    whole = lot_of(counts)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(counts) - 1))))
    picked = whole.pick(np.array(chosen, dtype=np.int64))
    assert picked.people == len(chosen)
    for place, person in enumerate(chosen):
        mine = picked.target[picked.owner == place]
        theirs = whole.target[whole.owner == person]
        assert mine.tolist() == theirs.tolist()
    assert picked.categorical is not None
    assert picked.categorical[:, 0, 0].tolist() == picked.target.long().tolist()


@pytest.mark.parametrize("positions", [[0, 1, 2], [2], []])
def test_what_is_written_into_picked_people_does_not_stay_in_the_data(positions: list[int]):
    whole, before = lot_of([2, 0, 3]), lot_of([2, 0, 3])
    picked = whole.pick(np.array(positions, dtype=np.int64))
    for part in (picked.x, picked.mask, picked.target, picked.owner, picked.categorical):
        assert part is not None
        part.zero_()
    for name in ("x", "mask", "target", "owner", "categorical"):
        assert torch.equal(getattr(whole, name), getattr(before, name))


def test_select_renumbers_a_range_of_people():
    part = lot_of([2, 0, 3, 1]).select(1, 3)
    assert part.people == 2
    assert part.owner.tolist() == [1, 1, 1]
    assert part.target.tolist() == [2.0, 3.0, 4.0]


def test_an_empty_lot_is_a_lot():
    empty = lot_of([2, 1]).pick(np.array([], dtype=np.int64))
    assert empty.people == 0
    assert empty.x.shape == (0, 3, 2)
    assert empty.offsets.tolist() == [0]


def test_windows_as_their_own_owners():
    own = lot_of([2, 0, 3]).each_window_its_own()
    assert own.people == 5
    assert own.owner.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("owner", [[1, 0], [0, 2], [-1, 0]])
def test_owners_that_do_not_ascend_are_refused(owner: list[int]):
    with pytest.raises(UsageError, match="SQ-230"):
        Lot(
            x=torch.zeros(2, 1, 1),
            mask=torch.ones(2, 1, dtype=torch.bool),
            target=torch.zeros(2),
            owner=torch.tensor(owner),
            people=2,
        )


def test_fields_of_unequal_length_are_refused():
    with pytest.raises(UsageError, match=r"SQ-230 lot\.target"):
        Lot(
            x=torch.zeros(2, 1, 1),
            mask=torch.ones(2, 1, dtype=torch.bool),
            target=torch.zeros(3),
            owner=torch.tensor([0, 1]),
            people=2,
        )
