"""Faults planted into the real training step, one at a time, for audits to catch.

Each fault is a change that a tired programmer could make and that leaves training working. It
is planted around the real `training.loop.Loop`: the loop's own code runs, with one part replaced.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from unittest import mock

import numpy as np
import torch

from sequester.accounting import Event, calibrate
from sequester.audit.mechanism.observe import Subject
from sequester.core.rng import Keystream, key_from_test_seed, public_generator
from sequester.gradients import ClippedSum
from sequester.mechanism import AdaptiveClipping, NoiseStream, Plan
from sequester.models import Binary, Shape, build
from sequester.sampling import Lot, PoissonSampler, poisson_event
from sequester.training import Data, Privacy, Study, Training
from sequester.training import loop as loop_module
from sequester.training.loop import Loop

PEOPLE, WINDOWS, STEPS, DELTA = 100, 2, 20, 1e-5
RATE, POPULATION = 0.2, 200


def lot(people: int = PEOPLE, seed: int = 0) -> Lot:
    generator = torch.Generator().manual_seed(seed)
    windows = people * WINDOWS
    x = torch.randn(windows, 6, 3, generator=generator)
    return Lot(
        x=x,
        mask=torch.ones(windows, 6, dtype=torch.bool),
        target=(x.mean((1, 2)) > 0).float(),
        owner=torch.arange(people).repeat_interleave(WINDOWS),
        people=people,
    )


@lru_cache(maxsize=8)
def noise_for(epsilon: float, rate: float, steps: int) -> float:
    return calibrate.noise_multiplier(epsilon, DELTA, sampling_rate=rate, steps=steps)


def subject(
    epsilon: float,
    *,
    make_loop: Callable[..., Loop] = Loop,
    rate: float = RATE,
    people: int = PEOPLE,
    adaptive: AdaptiveClipping | None = None,
    steps: int = STEPS,
) -> Subject:
    study = Study(
        name="zoo",
        data=Data(source="builtin:randhie", population=200),
        privacy=Privacy(epsilon=epsilon),
        training=Training(
            steps=steps, sampling_rate=rate, optimizer="sgd", momentum=0.0, learning_rate=0.05
        ),
    )
    shape = Shape(features=3, vocabularies=(), steps=6, outputs=1, pool="mean")
    model = build("gru", shape, {"hidden": 24})
    plan = Plan(
        unit="person",
        population=POPULATION,
        sampling_rate=rate,
        steps=steps,
        noise_multiplier=noise_for(epsilon, rate, steps),
        clip=1.0,
        parameters=sum(p.numel() for p in model.parameters()),
        delta=DELTA,
        adaptive=adaptive,
    )
    return Subject(study, plan, lot(people), Binary(), model, make_loop)


@dataclass(frozen=True)
class Fault:
    """A planted fault: what surrounds the run, and how the subject is set up."""

    plant: Callable[[], contextlib.AbstractContextManager]
    make_loop: Callable[..., Loop] = Loop
    rate: float = RATE
    people: int = PEOPLE
    adaptive: AdaptiveClipping | None = None

    def subject(self, epsilon: float) -> Subject:
        return subject(
            epsilon,
            make_loop=self.make_loop,
            rate=self.rate,
            people=self.people,
            adaptive=self.adaptive,
        )


def canaries_for(fault: Fault) -> int:
    """As many as the subject's people can stand beside."""
    return 200 if fault.people > 50 else 20


def patched(name: str, value) -> Callable[[], contextlib.AbstractContextManager]:
    return lambda: mock.patch.object(loop_module, name, value)


def on_noise(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Fault:
    """Replace the noise of a step: `change(noise, exact)` of flat tensors in update units."""

    def release(total, norms, *, plan, stream, step, clip):
        real = loop_module_release(total, norms, plan=plan, stream=stream, step=step, clip=clip)
        update, offset = {}, 0
        exact = torch.cat([v.double().reshape(-1) for v in total.values()]) / plan.expected_lot
        noise = torch.cat([v.reshape(-1) for v in real.update.values()]) - exact
        changed = exact + change(noise, exact)
        for key, value in real.update.items():
            update[key] = changed[offset : offset + value.numel()].reshape(value.shape)
            offset += value.numel()
        return replace(real, update=update)

    return Fault(patched("release", release))


loop_module_release = loop_module.release
real_clipped_sum = loop_module.clipped_sum


def uniform(noise: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    deviation = float(noise.std())
    seed = abs(hash(float(noise[0]))) % 2**31
    draws = public_generator(seed).random(len(noise)) - 0.5
    return torch.from_numpy(draws * math.sqrt(12.0) * deviation)


def in_micro_batches(noise: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Four micro-batches, each with a quarter of the deviation: half the noise in all."""
    seed = abs(hash(float(noise[1]))) % 2**31
    parts = public_generator(seed).normal(size=(3, len(noise))) * float(noise.std()) / 4
    return noise / 4 + torch.from_numpy(parts.sum(0))


def no_head(noise: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    quiet = noise.clone()
    quiet[-25:] = 0.0  # the head: 24 weights and a bias come last
    return quiet


def per_window(model, loss, lot, clip, *, chunk=None):
    return real_clipped_sum(model, loss, lot.each_window_its_own(), clip, chunk=chunk)


def of_the_batch(model, loss, lot, clip, *, chunk=None):
    found = real_clipped_sum(model, loss, lot, 1e9, chunk=chunk)
    norm = math.sqrt(sum(float(v.double().square().sum()) for v in found.sum.values()))
    factor = min(1.0, clip.sensitivity() / max(norm, 1e-12))
    total = {name: value * factor for name, value in found.sum.items()}
    return ClippedSum(total, found.norms, found.zero, found.nonfinite)


def by_the_lot(total, norms, *, plan, stream, step, clip):
    real = loop_module_release(total, norms, plan=plan, stream=stream, step=step, clip=clip)
    factor = plan.expected_lot / max(1, len(norms))
    return replace(real, update={name: value * factor for name, value in real.update.items()})


class Repeating(NoiseStream):
    """Draws the noise of step 0, or of ten steps before, again."""

    def __init__(self, base: NoiseStream, after: int) -> None:
        self._base, self._after, self._kept = base, after, {}

    def prepare(self, step: int) -> None:
        self._base.prepare(step)

    def draw(self, step: int, count: int, *, meets: bytes = b"") -> torch.Tensor:
        fresh = self._base.draw(step, count, meets=meets)
        again = 0 if self._after == 1 else step - self._after
        if step >= self._after:
            return self._kept[again]
        self._kept[step] = fresh
        return fresh


def with_stream(after: int) -> Callable[..., Loop]:
    return lambda **parts: Loop(**{**parts, "stream": Repeating(parts["stream"], after)})


@dataclass(frozen=True)
class Shuffled:
    """Walks through a permutation of everybody, a fixed number at a time."""

    people: int
    rate: float

    def draw(self, step: int) -> np.ndarray:
        size = max(1, round(self.people * self.rate))
        epoch, part = divmod(step * size, self.people)
        order = public_generator(epoch).permutation(self.people)
        return np.sort(order[part : part + size])

    def event(self, mechanism: Event) -> Event:
        """What it is taken for."""
        return poisson_event(self.rate, mechanism)


def full_batch(**parts) -> Loop:
    everybody = PoissonSampler(parts["train"].people, 1.0, parts["sampler"].keystream)
    return Loop(**{**parts, "sampler": everybody})


def shuffling(**parts) -> Loop:
    return Loop(**{**parts, "sampler": Shuffled(parts["train"].people, parts["sampler"].rate)})


class SkipsEmpty(Loop):
    """A data loader that never yields an empty lot."""

    def step(self, state):
        if not len(self.sampler.draw(state.step)):
            state.step += 1
            return None
        return super().step(state)


class ForgetsAfterResume(Loop):
    """After a resumption, five steps run whose charge is never advanced."""

    _lost = 0

    def step(self, state):
        measured = super().step(state)
        if state.step > 10 and self._lost < 5:
            self._lost += 1
            state.step -= 1
            key = key_from_test_seed(1000 + self._lost)
            self.stream = NoiseStream(key, "resumed", private=False)
            self.sampler = replace(self.sampler, keystream=Keystream(key, "resumed", "lots"))
        return measured


def quiet_count(total, norms, *, plan, stream, step, clip):
    real = loop_module_release(total, norms, plan=plan, stream=stream, step=step, clip=clip)
    exact = float((norms <= clip).sum()) - 0.5 * len(norms)
    below = plan.adaptive.share_below(exact, plan.expected_lot)
    return replace(real, clip=plan.adaptive.next_clip(clip, below))


@contextlib.contextmanager
def without_invariants() -> Iterator[None]:
    """Production would stop some of these by itself; here the audit must see them."""
    names = ("check_sampler", "check_lot_size", "check_noise", "check_sensitivity", "check_draws")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(loop_module.invariants, name))
        stack.enter_context(mock.patch.object(Loop, "_check_sensitivity"))
        yield


nothing = contextlib.nullcontext

FAULTS: dict[str, Fault] = {
    "noise divided by the lot size": on_noise(lambda noise, _: noise / (POPULATION * RATE)),
    "clipping per window": Fault(patched("clipped_sum", per_window)),
    "clipping the batch sum": Fault(patched("clipped_sum", of_the_batch)),
    "full batch accounted as sampled": Fault(nothing, full_batch),
    "noise halved": on_noise(lambda noise, _: noise * 0.5),
    "noise 5 % too small": on_noise(lambda noise, _: noise * 0.95),
    "noise 2 % too small": on_noise(lambda noise, _: noise * 0.98),
    "a tensor without noise": on_noise(no_head),
    "the same noise every step": Fault(nothing, with_stream(1)),
    "the same noise after resume": Fault(nothing, with_stream(10)),
    "the same noise on every rank": on_noise(lambda noise, _: noise * math.sqrt(2.0)),
    "uniform for Gaussian noise": on_noise(uniform),
    "noise per micro-batch at the wrong scale": on_noise(in_micro_batches),
    "shuffling reported as Poisson": Fault(nothing, shuffling),
    "denominator from the data": Fault(patched("release", by_the_lot)),
    "bfloat16 noise": on_noise(lambda noise, _: noise.to(torch.bfloat16).double()),
    "empty lots skipped": Fault(nothing, SkipsEmpty, rate=0.01, people=20),
    "accountant not advanced after resume": Fault(nothing, ForgetsAfterResume),
    "adaptive clipping without its noise": Fault(
        patched("release", quiet_count), adaptive=AdaptiveClipping(count_noise=4.0)
    ),
}
