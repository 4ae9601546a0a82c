"""The three engines agree; a result depends on nothing but the client itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sequester.core.errors import UsageError
from sequester.federated.engine import (
    BatchedEngine,
    BatchedLstm,
    KernelEngine,
    LoopEngine,
    choose_engine,
    kernel_available,
    visits,
)
from sequester.federated.engine.base import layout_of, model_vector
from sequester.federated.engine.recurrent import lay, recognise
from sequester.models.tasks import Classes
from tests.federated.clients import COUNTS, TASKS, make_job, make_lot, make_model

needs_kernel = pytest.mark.skipif(not kernel_available(), reason="the cohort kernel is not built")
FAST = [pytest.param(KernelEngine, marks=needs_kernel), BatchedEngine]


def engines(task, pool="last", hidden=12, *, ragged=True, fast=BatchedEngine, **options):
    lot = make_lot(task, ragged=ragged, each_step=pool == "none")
    model = make_model(task, hidden=hidden, pool=pool)
    start = model_vector(model)
    network = recognise(model, task, lot)
    return (
        LoopEngine(model, task.loss, lot),
        fast(network, lay(lot), layout_of(model), **options),
        start,
    )


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("pool", ["last", "mean", "none"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_fast_engines_agree_with_autograd(fast, ragged, pool, task):
    loop, engine, start = engines(task, pool, ragged=ragged, fast=fast)
    for extra in (
        {},
        {"proximal": 0.4, "momentum": 0.6},
        {"correction": True},
        {"batch": 64, "epochs": 1},
    ):
        one, two = (made.train(make_job(made, start, **extra)) for made in (loop, engine))
        np.testing.assert_array_equal(one.steps, two.steps)
        np.testing.assert_array_equal(one.windows, COUNTS)
        np.testing.assert_allclose(two.deltas, one.deltas, atol=3e-6, rtol=1e-4)
        assert np.abs(one.deltas).max() > 0.01


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.parametrize("hidden", [1, 5, 8, 16, 33, 64])
def test_every_width_agrees(fast, hidden):
    task = Classes(3)
    loop, engine, start = engines(task, hidden=hidden, fast=fast)
    one, two = (made.train(make_job(made, start)) for made in (loop, engine))
    np.testing.assert_allclose(two.deltas, one.deltas, atol=3e-6, rtol=1e-4)


@pytest.mark.parametrize("fast", FAST)
@pytest.mark.parametrize("pool", ["last", "none"])
def test_a_delta_is_the_same_bit_for_bit_whatever_the_cohort_chunk_order_and_threads(fast, pool):
    task = TASKS["binary"]
    _, engine, start = engines(task, pool, fast=fast)
    whole = engine.train(make_job(engine, start, correction=True)).deltas
    options = {"chunk": 3} if fast is BatchedEngine else {"threads": 3}
    _, other, _ = engines(task, pool, fast=fast, **options)
    order = [6, 0, 4, 3, 7, 1]
    again = other.train(make_job(other, start, order, correction=True)).deltas
    assert again.tobytes() == whole[order].tobytes()
    alone = engine.train(make_job(engine, start, [3], correction=True)).deltas
    assert alone.tobytes() == whole[[3]].tobytes()


@pytest.mark.parametrize("fast", [*FAST, LoopEngine])
def test_each_client_may_start_from_its_own_model(fast):
    loop, engine, start = engines(TASKS["classes"])
    if fast is not BatchedEngine:
        loop, engine, start = engines(
            TASKS["classes"], fast=BatchedEngine if fast is LoopEngine else fast
        )
        engine = loop if fast is LoopEngine else engine
    own = np.stack([start, start * 0.5, start * 2.0])
    job = make_job(engine, start, [0, 3, 6])
    together = engine.train(
        type(job)(job.clients, own, job.anchor, job.work, job.seed, job.round)
    ).deltas
    for row, client in enumerate([0, 3, 6]):
        alone = engine.train(make_job(engine, own[row], [client])).deltas[0]
        np.testing.assert_array_equal(together[row], alone)


def test_momentum_is_that_of_torch():
    """Against torch.optim.SGD, in the order of the visits."""
    task = TASKS["classes"]
    loop, engine, start = engines(task, ragged=False)
    job = make_job(engine, start, [6], momentum=0.7)
    model, lot = make_model(task), make_lot(task, ragged=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.7)
    order = visits(job, np.concatenate([[0], np.cumsum(COUNTS)])).order
    for at in range(0, len(order), 4):
        rows = torch.from_numpy(order[at : at + 4])
        optimiser.zero_grad()
        part = type(lot)(lot.x[rows], lot.mask[rows], lot.target[rows], rows * 0, 1)
        task.loss(model, part).mean().backward()
        optimiser.step()
    wanted = model_vector(model) - start
    for made in (loop, engine):
        np.testing.assert_allclose(made.train(job).deltas[0], wanted, atol=3e-6, rtol=1e-4)


def test_a_client_without_windows_takes_no_step():
    _, engine, start = engines(TASKS["binary"])
    trained = engine.train(make_job(engine, start, [2]))
    assert trained.steps.tolist() == [0]
    assert not trained.deltas.any()


@pytest.mark.parametrize("fast", FAST)
def test_a_client_whose_data_are_not_finite_shows_it(fast):
    task = TASKS["binary"]
    lot = make_lot(task)
    lot.x[0, 0, 0] = float("nan")
    lot.mask[0, 0] = True
    model = make_model(task)
    engine = fast(recognise(model, task, lot), lay(lot), layout_of(model))
    trained = engine.train(make_job(engine, model_vector(model), epochs=1))
    assert np.isnan(trained.deltas[0]).any()
    assert np.isfinite(trained.deltas[1:]).all()


def test_the_order_of_visits_is_a_fresh_shuffle_of_each_pass():
    _, engine, start = engines(TASKS["binary"])
    offsets = np.concatenate([[0], np.cumsum(COUNTS)])
    plan = visits(make_job(engine, start, [6, 3]), offsets)
    first, second = plan.order[:24], plan.order[24:48]
    assert sorted(first) == sorted(second) == list(range(34, 58))
    assert first.tolist() != second.tolist()
    alone = visits(make_job(engine, start, [6]), offsets)
    np.testing.assert_array_equal(alone.order, plan.order[:48])
    firsts = [
        visits(type(job)(job.clients, job.start, job.anchor, job.work, job.seed, r), offsets).order[
            0
        ]
        for job in [make_job(engine, start, [6])]
        for r in range(2400)
    ]
    counts = np.bincount(np.array(firsts) - 34, minlength=24)
    # 24 places, 100 expected each; χ² with 23 degrees of freedom is below 60 but once in 30,000
    assert ((counts - 100.0) ** 2 / 100.0).sum() < 60


@pytest.mark.parametrize("kind", ["gru_skip", "linear"])
def test_other_networks_take_the_loop(kind):
    task = TASKS["binary"]
    lot, model = make_lot(task), make_model(task, kind=kind)
    assert choose_engine(model, task, lot).name == "loop"
    with pytest.raises(UsageError, match="SQ-615"):
        choose_engine(model, task, lot, engine="batched")
    with pytest.raises(UsageError, match="SQ-615"):
        choose_engine(model, task, lot, engine="fastest")


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("pool", ["last", "mean", "none"])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_an_lstm_is_trained_in_batches_as_autograd_would(task, pool, ragged):
    lot = make_lot(task, ragged=ragged, each_step=pool == "none")
    model = make_model(task, hidden=7, pool=pool, kind="lstm")
    start = model_vector(model)
    engine = choose_engine(model, task, lot)
    assert type(engine) is BatchedLstm
    loop = LoopEngine(model, task.loss, lot)
    extra = {"proximal": 0.4, "momentum": 0.6, "correction": True}
    whole = None
    for options in ({}, extra):
        one, whole = (made.train(make_job(made, start, **options)) for made in (loop, engine))
        np.testing.assert_allclose(whole.deltas, one.deltas, atol=3e-6, rtol=1e-4)
        assert np.abs(one.deltas).max() > 0.01
    # bit for bit the same whatever the chunk and the cohort
    chunked = BatchedLstm(recognise(model, task, lot), lay(lot), layout_of(model), chunk=3)
    again = chunked.train(make_job(chunked, start, [6, 0, 4], **extra)).deltas
    assert again.tobytes() == whole.deltas[[6, 0, 4]].tobytes()
    with pytest.raises(UsageError, match="SQ-615"):
        choose_engine(model, task, lot, engine="kernel")


def test_a_mask_with_a_hole_is_left_to_the_loop():
    task = TASKS["binary"]
    lot, model = make_lot(task, ragged=False), make_model(task)
    assert recognise(model, task, lot) is not None
    lot.mask[0, 2] = False
    assert recognise(model, task, lot) is None


def test_the_loop_refuses_double_precision():
    task = TASKS["binary"]
    with pytest.raises(UsageError, match="SQ-612"):
        LoopEngine(make_model(task).double(), task.loss, make_lot(task))


@needs_kernel
def test_training_learns_and_engines_stay_together_over_ten_rounds():
    """Weights within 1e-5 after ten rounds of FedAvg from every execution path."""
    task = TASKS["classes"]
    finals = []
    for engine in (*engines(task, fast=KernelEngine)[:2], engines(task)[1]):
        model = engines(task)[2].astype(np.float64)
        for r in range(10):
            job = make_job(engine, model.astype(np.float32), epochs=1, learning_rate=0.1)
            job = type(job)(job.clients, job.start, job.anchor, job.work, job.seed, r)
            model = model + engine.train(job).deltas.astype(np.float64).mean(axis=0)
        finals.append(model)
    for other in finals[1:]:
        np.testing.assert_allclose(other, finals[0], atol=1e-5)
    assert torch.isfinite(torch.from_numpy(finals[0])).all()


@pytest.mark.parametrize(
    ("steps", "batch", "hidden", "faster"),
    [
        (64, 8, 8, "batched"),
        (64, 8, 16, "batched"),
        (64, 8, 24, "loop"),
        (64, 8, 64, "loop"),
        (12, 8, 64, "batched"),
        (12, 8, 128, "loop"),
        (64, 32, 8, "loop"),
    ],
)
def test_auto_takes_the_engine_that_was_measured_faster_for_an_lstm(steps, batch, hidden, faster):
    task = TASKS["classes"]
    lot = make_lot(task, counts=(2, 3), steps=steps, ragged=False)
    model = make_model(task, steps=steps, hidden=hidden, kind="lstm")
    assert choose_engine(model, task, lot, batch=batch).name == faster
    assert choose_engine(model, task, lot, batch=batch, engine="batched").name == "batched"
