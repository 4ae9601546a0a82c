"""Local training of a whole cohort: three engines, one result.

    kernel.py    compiled: one GRU client at a time, its weights in cache (fastest)
    batched.py   pure PyTorch: all clients' matrices side by side, gradients by hand
    lstm.py      the same for an LSTM
    loop.py      any module: one client after another with autograd

They agree to float32 rounding. Within one engine a client's delta is the same bit for bit,
whatever the chunk, the cohort around it and the order.
"""

from sequester.federated.engine.base import Engine, Job, Trained, visits
from sequester.federated.engine.batched import BatchedEngine
from sequester.federated.engine.choose import choose_engine
from sequester.federated.engine.kernel import KernelEngine, kernel_available
from sequester.federated.engine.loop import LoopEngine
from sequester.federated.engine.lstm import BatchedLstm

__all__ = [
    "BatchedEngine",
    "BatchedLstm",
    "Engine",
    "Job",
    "KernelEngine",
    "LoopEngine",
    "Trained",
    "choose_engine",
    "kernel_available",
    "visits",
]
