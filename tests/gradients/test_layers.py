"""Every layer and way of using it, in every shape of lot, against the float64 oracle."""

import pytest
import torch
import torch.nn.functional as F

from sequester.gradients import clipped_sum, oracle
from tests.gradients.lots import ragged, relative_error
from tests.gradients.models import BODIES, TOKENS, Tied, Wide

LOTS = {
    "ragged": [3, 0, 1, 7, 2],
    "equal": [2, 2, 2, 2],
    "one window each": [1, 1, 1],
    "one person": [4],
}


def classify(model, lot):
    return F.cross_entropy(model(lot.x), lot.target, reduction="none")


def check(model, loss, lot, caplog, chunk=None):
    want = oracle.clipped_sum(model, loss, lot, 0.3)
    got = clipped_sum(model, loss, lot, 0.3, chunk=chunk)
    assert not caplog.records, caplog.text
    assert relative_error(got, want) < 1e-5
    assert torch.allclose(got.norms, want.norms, rtol=2e-5)
    assert 0 < float(want.norms.max())


@pytest.mark.parametrize("lot", LOTS)
@pytest.mark.parametrize("name", BODIES)
def test_layer(name, lot, caplog):
    torch.manual_seed(3)
    model = BODIES[name]()
    tokens = TOKENS if name == "embedding" else None
    check(model, classify, ragged(LOTS[lot], tokens=tokens, steps=5), caplog)


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_do_not_show(chunk, caplog):
    torch.manual_seed(4)
    check(BODIES["encoder layer"](), classify, ragged(LOTS["ragged"]), caplog, chunk)


def next_token(model, lot):
    """Mean over true steps of the loss of the next token."""
    logits = model(lot.x)
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), lot.x[:, 1:], reduction="none")
    known = lot.mask[:, 1:].to(each.dtype)
    return (each * known).sum(1) / known.sum(1).clamp_min(1)


def flat_token(model, lot):
    logits = model(lot.x)
    wanted = torch.where(lot.mask, lot.x, -100)
    each = F.cross_entropy(logits.flatten(0, -2), wanted.flatten(), reduction="none")
    return each.view(lot.x.shape).mean(1)


def asked_for(model, lot):
    """Uses the wide logits for something else too."""
    logits = model(lot.x)
    return flat_token(model, lot) + 0.01 * logits.logsumexp(-1).sum(1)


def several(model, lot):
    """The same logits against two targets, and the same layer called once more."""
    logits = model(lot.x).flatten(0, -2)
    wanted = [lot.x.flatten(), lot.x.flip(1).flatten()]
    each = sum(F.cross_entropy(logits, target, reduction="none") for target in wanted)
    return each.view(lot.x.shape).mean(1) + flat_token(model, lot)


@pytest.mark.parametrize("loss", [next_token, flat_token, asked_for, several])
@pytest.mark.parametrize("counts", LOTS.values())
@pytest.mark.parametrize(
    ("build", "tokens"),
    [(Tied, TOKENS), (lambda: Tied(300), 300), (Wide, 300), (lambda: Wide(bias=False), 300)],
)
def test_vocabularies(loss, counts, build, tokens, caplog):
    torch.manual_seed(5)
    check(build(), loss, ragged(counts, tokens=tokens, steps=6), caplog)


def test_workers_do_not_show(caplog):
    torch.manual_seed(6)
    model, lot = Wide(), ragged([3, 1, 4, 1, 5], tokens=300)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(model, flat_token, lot, caplog, chunk=1)
        again = [clipped_sum(model, flat_token, lot, 0.3, chunk=1) for _ in range(2)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(again[0].sum[k], again[1].sum[k]) for k in again[0].sum)
