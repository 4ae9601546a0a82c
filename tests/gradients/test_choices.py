"""What may be chosen: augmented copies, ways of clipping, where the model lies."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch
import torch.nn.functional as F

from sequester.core.errors import UsageError
from sequester.gradients import Automatic, Flat, PerLayer, augmented, clipped_sum, oracle
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import BODIES


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


class Turn:
    """Alters each copy in another, known way."""

    def __init__(self):
        self._factors = cycle((1.5, 2.5, 0.5))

    def __call__(self, lot):
        return replace(lot, x=lot.x * next(self._factors))


class Plain:
    """The oracle's lots are not dataclasses."""

    def __init__(self, lot, factor):
        self._lot, self.x = lot, lot.x * factor

    def __getattr__(self, name):
        return getattr(self._lot, name)


def test_augmented_copies_are_averaged_before_clipping(caplog):
    torch.manual_seed(1)
    model, lot = BODIES["gru"](), ragged([3, 1, 2])
    got = clipped_sum(model, augmented(classify, Turn(), 3), lot, 0.1)

    def copies(model, lot):
        return torch.stack([classify(model, Plain(lot, 0.5 + k)) for k in (1, 2, 0)]).mean(0)

    want = oracle.clipped_sum(model, copies, lot, 0.1)
    assert relative_error(got, want) < 1e-5
    assert torch.allclose(got.norms, want.norms, rtol=2e-5)
    assert not caplog.records


@pytest.mark.parametrize("rule", [Flat(0.2), Automatic(0.2), PerLayer(limits={"": 0.2})])
def test_augmented_people_stay_within_the_sensitivity(rule):
    model, lot = BODIES["lstm"](), ragged([4])
    got = clipped_sum(model, augmented(classify, Turn(), 6), lot, rule)
    norm = sum(float(v.square().sum()) for v in got.sum.values()) ** 0.5
    assert 0 < norm <= rule.sensitivity() * (1 + 1e-6)


@pytest.mark.parametrize("times", [0, -1, 1.5, True])
def test_copies_are_counted_in_whole_numbers(times):
    with pytest.raises(UsageError, match="SQ-409"):
        augmented(classify, Turn(), times)


@pytest.mark.parametrize("share", [0.01, 1.0, 100.0])
def test_each_way_of_clipping_reaches_its_sensitivity_and_no_more(share):
    """A person far beyond every bound adds exactly the sensitivity the noise is scaled by."""
    torch.manual_seed(2)
    model, lot = BODIES["encoder layer"](), ragged([3])

    def steep(model, lot):
        return 1e6 * classify(model, lot)

    rules = [Flat(share), Automatic(share), PerLayer.of(model, share)]
    for rule in rules:
        got = clipped_sum(model, steep, lot, rule)
        norm = sum(float(v.square().sum()) for v in got.sum.values()) ** 0.5
        assert norm == pytest.approx(rule.sensitivity(), rel=1e-5)
        assert norm <= rule.sensitivity() * (1 + 1e-6)


@pytest.mark.parametrize("rule", [Flat(0.7), PerLayer(limits={"": 0.7}), Automatic(0.7, 1e-12)])
@pytest.mark.parametrize("share", [1 - 2**-22, 1.0, 1 + 1e-7, 1 + 1e-6, 3.0])
def test_a_bound_holds_with_a_norm_that_float32_rounds_down(rule, share):
    """At the edge of the bound, a norm that is too small by float32's rounding is allowed for."""
    norm = share * rule.sensitivity()
    measured = torch.full((1, 1), norm * (1.0 - 2.0**-22), dtype=torch.float64)
    factor = float(rule.factors(measured))
    assert factor * norm <= rule.sensitivity()
    assert factor * norm > min(norm, rule.sensitivity()) * (1 - 1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_model_on_a_gpu_agrees_with_the_oracle():
    model, lot = BODIES["gru"](), ragged([3, 1, 2])
    want = oracle.clipped_sum(model, classify, lot, 0.1)
    moved = replace(lot, x=lot.x.cuda(), target=lot.target.cuda(), owner=lot.owner.cuda())
    got = clipped_sum(model.cuda(), classify, moved, 0.1)
    got = type(got)({k: v.cpu() for k, v in got.sum.items()}, got.norms, got.zero, got.nonfinite)
    assert relative_error(got, want) < 1e-5
