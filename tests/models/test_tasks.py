"""Losses and figures against scikit-learn and against loops."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

from sequester.models import Binary, Classes, Forecast, auc, predict
from sequester.sampling import Lot


class Given(nn.Module):
    """Returns its input's first channels as logits."""

    def forward(self, x, mask, categorical=None):
        return x


def lot(x: torch.Tensor, target: torch.Tensor, owner: list[int], codes=None) -> Lot:
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    return Lot(x, mask, target, torch.tensor(owner), owner[-1] + 1, codes)


def test_auc_agrees_with_scikit_learn_ties_included():
    generator = np.random.default_rng(0)
    for _ in range(20):
        truth = generator.random(200) < 0.3
        score = np.round(generator.normal(size=200) + truth, 1)
        assert auc(truth, score) == pytest.approx(roc_auc_score(truth, score))
    assert np.isnan(auc(np.zeros(3, dtype=bool), np.zeros(3)))


def test_binary_loss_is_the_mean_over_labelled_steps():
    logits = torch.tensor([[[0.3], [-2.0], [5.0]], [[1.0], [0.0], [0.0]]])
    target = torch.tensor([[1.0, 0.0, float("nan")], [float("nan")] * 3])
    losses = Binary().loss(Given(), lot(logits, target, [0, 1]))
    probabilities = torch.sigmoid(logits[0, :2, 0]).numpy()
    assert float(losses[0]) == pytest.approx(log_loss([1, 0], probabilities), rel=1e-5)
    assert float(losses[1]) == 0.0


def test_classes_ignore_padding_and_know_both_trivial_rules():
    logits = torch.zeros(1, 4, 3)
    logits[0, :, 1] = 5.0
    target = torch.tensor([[1, 1, 2, -1]])
    present = torch.tensor([[[2], [2], [3], [1]]])
    task = Classes(outputs=3, copies={"the same class again": (0,)})
    found = task.evaluate(Given(), lot(logits, target, [0], present))
    assert found.value == pytest.approx(2 / 3)
    assert found.baseline == 1.0
    assert found.baseline_name == "the same class again"
    assert found.predictions == 3
    expected = nn.functional.cross_entropy(logits[0, :3], target[0, :3])
    assert float(task.loss(Given(), lot(logits, target, [0]))[0]) == pytest.approx(float(expected))


def test_forecasts_are_judged_in_the_datas_own_unit():
    guess = torch.tensor([[[0.5], [0.0]]])
    target = torch.tensor([[0.0, float("nan")]])
    found = Forecast(scale=40.0).evaluate(Given(), lot(guess, target, [0]))
    assert found.value == pytest.approx(20.0)
    assert float(Forecast().loss(Given(), lot(guess, target, [0]))[0]) == pytest.approx(0.125)


def test_predictions_do_not_depend_on_how_many_people_are_taken_at_once():
    x = torch.arange(24.0).reshape(6, 2, 2)
    whole = lot(x, torch.zeros(6), [0, 0, 1, 3, 3, 4])
    assert torch.equal(predict(Given(), whole, people=1), predict(Given(), whole, people=9))
