"""Picks the fastest engine that trains the given network exactly."""

from __future__ import annotations

from torch import nn

from sequester.core.errors import UsageError
from sequester.federated.engine.base import Engine, layout_of
from sequester.federated.engine.batched import BatchedEngine
from sequester.federated.engine.kernel import KernelEngine, kernel_available
from sequester.federated.engine.loop import LoopEngine
from sequester.federated.engine.lstm import BatchedLstm
from sequester.federated.engine.recurrent import lay, recognise
from sequester.models.tasks import Task
from sequester.sampling import Lot
from sequester.training.chance import Chance

ENGINES = ("auto", "kernel", "batched", "loop")


LSTM_STEP = 10_000
"""Windows x steps x hidden units of a local step, above which stacking LSTM clients does not pay.

Measured on one AVX2 core, batches of 8 and 32, windows of 12 and 64 steps, 8 to 128 units: a
stacked step costs 60 to 75 ns for each of them, an autograd step 0.5 ms and little more. They meet
at 8,000 to 12,000: stacking is 1.1x as fast at 8,192; 0.75x, 0.59x at 12,288; 0.4x at 32,768.
"""


def choose_engine(
    model: nn.Module,
    task: Task,
    lot: Lot,
    *,
    engine: str = "auto",
    threads: int = 1,
    batch: int = 8,
    chance: Chance | None = None,
) -> Engine:
    """An engine for the clients of `lot` (a client is the lot's person).

    Args:
        model: The network; the loop trains it in place, the others read its shape alone.
        task: What it predicts.
        lot: All enrolled clients' windows.
        engine: "auto", or one of "kernel", "batched" and "loop" to insist.
        threads: Of the compiled kernel; the result does not depend on it.
        batch: Windows of a local step, by which the faster engine is told. The choice follows from
            public sizes alone, so that every node of a network makes the same one.
        chance: What layers draw; public numbers if not given.

    Raises:
        UsageError: SQ-615 for an unknown name, or one that cannot train this network.
    """
    if engine not in ENGINES:
        raise UsageError(615, f"the engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    network = None if engine == "loop" else recognise(model, task, lot)
    if engine == "kernel" and (network is None or network.kind != "gru"):
        raise UsageError(
            615, "engine 'kernel' trains a one-layer GRU over numeric features; use 'auto'"
        )
    if network is None:
        if engine == "batched":
            raise UsageError(
                615,
                "engine 'batched' trains a one-layer GRU or LSTM over numeric features; use "
                "'auto' or 'loop' for other networks",
            )
        return LoopEngine(model, task.loss, lot, chance=chance)
    if network.kind == "lstm":
        if engine == "auto" and batch * lot.x.shape[1] * network.hidden > LSTM_STEP:
            return LoopEngine(model, task.loss, lot, chance=chance)
        return BatchedLstm(network, lay(lot), layout_of(model))
    if engine == "kernel" or (engine == "auto" and kernel_available()):
        return KernelEngine(network, lay(lot), layout_of(model), threads=threads)
    return BatchedEngine(network, lay(lot), layout_of(model))
