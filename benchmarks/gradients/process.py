"""The rows of the table as processes, each in the environment it needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS, FLOOR = "benchmarks.gradients.ours", "benchmarks.gradients.floor"
OPACUS, JAX = "benchmarks.gradients.peer_opacus", "benchmarks.gradients.peer_jax"
ROWS = {  # name: (title, module, environment variable of the interpreter)
    "native": ("non-private PyTorch", OURS, None),
    "tricks": ("non-private, with our engine", OURS, None),
    "loop": ("one person at a time", OURS, None),
    "pure": ("ours, pure PyTorch", OURS, None),
    "compiled": ("ours, compiled", OURS, None),
    "opacus": ("Opacus at its best", OPACUS, "SEQUESTER_PEER_OPACUS"),
    "jax": ("jax-privacy, best micro-batch", JAX, "SEQUESTER_PEER_JAX"),
    "floor": ("arithmetic alone", FLOOR, None),
}


class Process:
    """One row's process; `alive` is False where its environment is missing.

    Attributes:
        first: Wall time of the first step, ms.
        times: What each later step took.
        extra: Peak memory above the start, MB.
        note: Why it is not run, or how it is made.
    """

    def __init__(self, name, workload, threads, people, folder):
        self.name, self.first, self.times, self.extra, self.file = name, 0.0, [], 0, None
        self.title, module, variable = ROWS[name]
        python = sys.executable if variable is None else os.environ.get(variable)
        self.alive, self.note = bool(python), f"{variable} is not set"
        if not python:
            return
        environment = {
            **os.environ,
            **dict.fromkeys(
                ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
            ),
            "SEQUESTER_BENCH_FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [python, "-m", module, workload, name, str(threads), str(people)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        try:
            self.note = self._answer()["note"]
            self.title = self.title + (f" ({self.note})" if self.note else "")
        except RuntimeError as failed:
            self.alive, self.note = False, str(failed)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if hasattr(self, "process"):
            self.process.stdin.close()
            self.process.wait(60)

    def ask(self, command):
        """Send a command and wait for its answer."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"it ended with status {self.process.wait(60)}")
