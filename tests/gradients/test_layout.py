"""How gradients lie: there and back, views where they lie so already, and sums that follow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sequester.gradients.accumulate import Accumulator
from sequester.gradients.clipping import Flat
from sequester.gradients.layout import flat, laid, shaped, turned

SHAPES = st.lists(st.integers(1, 6), max_size=3)


@given(st.integers(1, 4), SHAPES)
def test_numbers_come_back_from_their_shape(people, shape):
    gradients = torch.randn(people, *shape)
    numbers = flat(gradients)
    back = shaped(numbers, shape)
    assert torch.equal(back, gradients)
    assert torch.equal(laid(gradients), gradients)
    assert flat(back).data_ptr() == back.data_ptr() == numbers.data_ptr()
    assert laid(back).data_ptr() == back.data_ptr()


def test_what_is_higher_than_wide_lies_turned():
    assert turned((3, 2))
    assert not turned((2, 3))
    assert not turned((2, 2))
    assert shaped(torch.zeros(5, 6), (3, 2)).stride() == (6, 1, 3)


@pytest.mark.parametrize("order", ["rows first", "dense first", "merged"])
def test_a_sum_may_meet_looked_up_rows_and_whole_gradients_in_any_order(order):
    """An embedding that is tied to an output layer, in chunks that reach one or the other."""
    from sequester.gradients.book import SparseRows

    weight = torch.nn.Parameter(torch.zeros(5, 3))
    rows = SparseRows(torch.tensor([0, 1]), torch.tensor([4, 2]), torch.randn(2, 3))
    whole = torch.randn(2, 5, 3)
    entries = {"rows": (None, rows, None), "whole": (whole.clone(), None, None)}
    sums = [Accumulator({"w": weight}, Flat(1e9), 4) for _ in range(2)]
    into = sums if order == "merged" else sums[:1] * 2
    names = ["whole", "rows"] if order == "dense first" else ["rows", "whole"]
    for part, first, name in zip(into, (0, 2), names, strict=True):
        part.add_chunk(first, 2, [entries[name]])
    if order == "merged":
        sums[0].merge(sums[1])
    looked_up = torch.zeros(5, 3).index_add(0, rows.row, rows.values)
    found = sums[0].result().sum["w"]
    assert found.is_contiguous()
    assert torch.allclose(found, (whole.sum(0) + looked_up).double())
