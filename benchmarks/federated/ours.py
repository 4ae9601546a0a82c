"""Our side of the speed table; `speed` starts each line in a process of its own.

python -m benchmarks.federated.ours rounds kernel 64 DATA 10
python -m benchmarks.federated.ours overhead kernel 64 DATA 10
python -m benchmarks.federated.ours ragged kernel 64 DATA 3
python -m benchmarks.federated.ours flat kernel 16 DATA 200
python -m benchmarks.federated.ours lstm batched 64 DATA 3
python -m benchmarks.federated.ours cohort kernel 128 DATA 5000
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.federated.job import BATCH, COHORT, RATE, TASK, cohort, make_data, make_model
from benchmarks.federated.peers import common
from sequester.core.rng import Keystream, fresh_key
from sequester.federated.algorithms import FedAvg, LocalWork, ServerState
from sequester.federated.checkpoint import FileStore
from sequester.federated.clients import Devices
from sequester.federated.engine import Job, choose_engine
from sequester.federated.engine.base import model_vector
from sequester.federated.run import _note
from sequester.federated.simulate import Guarantee, Simulation
from sequester.ledger import Ledger
from sequester.mechanism import NoiseStream, Plan
from sequester.models.build import build
from sequester.models.inputs import Shape
from sequester.sampling import Lot, PoissonSampler

WORK = LocalWork(RATE, 1, BATCH)


def lot_of(folder):
    """The data of the job as our lot, and the test set."""
    x, y, tx, ty = common.read(folder)
    clients, windows = y.shape
    return Lot(
        x=torch.from_numpy(x.reshape(clients * windows, *x.shape[2:])),
        mask=torch.ones(clients * windows, x.shape[2], dtype=torch.bool),
        target=torch.from_numpy(y.reshape(-1)),
        owner=torch.arange(clients).repeat_interleave(windows),
        people=clients,
    ), (tx, ty)


def simulation_of(lot, hidden, name, **changes):
    """The job as a simulation of ours: every message passes the state machine and the gate."""
    model = make_model(hidden)
    engine = choose_engine(model, TASK, lot, engine=name)
    algorithm = FedAvg()
    return Simulation(
        run="speed",
        state=ServerState(model_vector(model).astype(np.float64)),
        crowd=Devices(engine, WORK, algorithm, 0),
        algorithm=algorithm,
        work=WORK,
        cohort=changes.pop("cohort", lambda r: cohort(r, lot.people)),
        **changes,
    ), model


def accuracy(model, vector, test):
    """Share of the test set that is right."""
    flat, at = torch.from_numpy(vector.astype(np.float32)), 0
    x, y = test
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
        _, h = model.cell(torch.from_numpy(x))
        return float((model.head(h[-1]).argmax(1).numpy() == y).mean())


def rounds(name, hidden, folder, count):
    """The job itself."""
    clock = common.Clock()
    lot, test = lot_of(folder)
    simulation, model = simulation_of(lot, hidden, name)
    for _ in range(count):
        simulation.run_round()
        clock.lap()
    clock.report(accuracy=accuracy(model, simulation.state.model, test))


def overhead(name, hidden, folder, count):
    """CPU seconds of a round with everything around the engine, and of the engine alone.

    Person-level guarantee: the ledger holds the charge, Poisson cohorts, every update clipped,
    the sum sealed on disk, noise, metrics line, checkpoint, and the ledger settled at the end.
    """
    lot, _ = lot_of(folder)
    with tempfile.TemporaryDirectory() as work:
        out = Path(work)
        (out / "private").mkdir()
        key = fresh_key()
        model = make_model(hidden)
        size = sum(p.numel() for p in model.parameters())
        plan = Plan("person", lot.people, COHORT / lot.people, count, 1.0, 1.0, size, 1e-5)
        start = time.process_time()
        ledger = Ledger.create(f"sqlite:///{out / 'budget.db'}")
        ledger.create_budget("speed", "speed", 1000.0, 1e-5)
        hold = ledger.reserve(plan, budget="speed", key="speed")
        hold.begin()
        booking = time.process_time() - start
        sampler = PoissonSampler(lot.people, plan.sampling_rate, Keystream(key, "speed", "lots"))
        simulation, _ = simulation_of(
            lot,
            hidden,
            name,
            cohort=sampler.draw,
            guarantee=Guarantee(plan, NoiseStream(key, "speed")),
            store=FileStore(out, "study", "data"),
            clip=plan.clip,
        )
        folder_like = type("Folder", (), {"private": out / "private"})
        whole, alone = [], []
        for r in range(count):
            start = time.process_time()
            outcome = simulation.run_round()
            _note(folder_like, r, simulation.clip, outcome, simulation.crowd.bytes_sent)
            whole.append(time.process_time() - start)
            vector = simulation.state.model.astype(np.float32)
            job = Job(sampler.draw(r), vector, vector, WORK, 0, r)
            start = time.process_time()
            simulation.crowd.engine.train(job)
            alone.append(time.process_time() - start)
        start = time.process_time()
        hold.commit(plan.event())
        booking += time.process_time() - start
    # The ledger is asked once in a run; its whole cost is spread over these few rounds.
    figures = {
        "whole": float(np.median(whole)),
        "engine": float(np.median(alone)),
        "ledger": booking / count,
    }
    print(json.dumps(figures))


def ragged(name, hidden, folder, count):
    """CPU seconds for a window of clients with 1 to 500 windows, and of clients with 32."""
    generator = np.random.default_rng(0)
    counts = np.exp(generator.uniform(0, np.log(500), 300)).astype(int)
    counts[:2] = 1, 500
    uneven, _ = make_data(clients=300, counts=counts)
    even, _ = make_data(clients=300)
    figures = {"windows": [int(counts.min()), int(np.median(counts)), int(counts.max())]}
    for kind, lot in (("even", even), ("uneven", uneven)):
        model = make_model(hidden)
        engine = choose_engine(model, TASK, lot, engine=name)
        start, each = model_vector(model), []
        for r in range(count):
            begin = time.process_time()
            trained = engine.train(Job(cohort(r, 300), start, start, WORK, 0, r))
            each.append((time.process_time() - begin) / int(trained.windows.sum()))
        figures[kind] = float(np.median(each))
    print(json.dumps(figures))


def flat(name, hidden, folder, count):
    """Resident memory after a tenth of the rounds and after all, MB."""
    lot, _ = lot_of(folder)
    simulation, _ = simulation_of(lot, hidden, name)
    seen = []
    for _ in range(count):
        simulation.run_round()
        seen.append(resident())
    print(json.dumps({"early": seen[count // 10], "late": seen[-1]}))


def peak_of_this_process():
    """Peak resident MB. Not `ru_maxrss`: that begins with the peak of whoever started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def cohort_memory(name, hidden, folder, count):
    """How far one round of `count` clients with one short window each raises peak memory, MB."""
    generator = np.random.default_rng(0)
    lot = Lot(
        x=torch.from_numpy(generator.normal(size=(count, 4, 6)).astype(np.float32)),
        mask=torch.ones(count, 4, dtype=torch.bool),
        target=torch.from_numpy(generator.integers(0, 6, count)),
        owner=torch.arange(count),
        people=count,
    )
    simulation, _ = simulation_of(lot, hidden, name, cohort=lambda _: np.arange(count))
    before = peak_of_this_process()
    simulation.run_round()
    after = peak_of_this_process()
    deltas = 4 * count * len(simulation.state.model) / 2**20
    print(json.dumps({"growth": after - before, "deltas": deltas}))


def lstm(name, hidden, folder, count):
    """CPU seconds of a round with an LSTM: one client after another, and all at once."""
    lot, _ = lot_of(folder)
    model = build("lstm", Shape(6, (), lot.x.shape[1], 6, "last"), {"hidden": hidden}, seed=0)
    start, figures = model_vector(model), {}
    for kind, clients in (("loop", 10), (name, COHORT)):
        engine, seen = choose_engine(model, TASK, lot, engine=kind), []
        for r in range(count):
            job = Job(cohort(r, lot.people)[:clients], start, start, WORK, 0, r)
            begin = time.process_time()
            engine.train(job)
            seen.append((time.process_time() - begin) * COHORT / clients)
        figures[kind] = float(np.median(seen))
    figures["auto"] = choose_engine(model, TASK, lot, batch=BATCH).name
    print(json.dumps(figures))


def resident():
    """Resident set size now, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def main():
    torch.set_num_threads(1)
    what, name, hidden, folder, count = sys.argv[1:]
    tasks = {"rounds": rounds, "overhead": overhead, "ragged": ragged, "flat": flat, "lstm": lstm}
    tasks["cohort"] = cohort_memory
    tasks[what](name, int(hidden), folder, int(count))


if __name__ == "__main__":
    main()
