"""Sites that take several private steps of their own in a round.

Each site runs DP-SGD on its own people: every local step draws its people by secret coins, clips
each of them, adds the site's own noise and divides by the site's public number of people. What
it sends is where its model went, which is as private as its steps are: the server is trusted
with nothing. A person lies at one site, so the sites compose in parallel, and a person meets as
many events as there were local steps.

Sources: Abadi et al. 2016, algorithm 1, for the steps; McSherry, "Privacy Integrated Queries"
(2009), theorem 4, for parallel composition. Proof: `proofs/federated_placements.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sequester.core.errors import UsageError
from sequester.federated import round as machine
from sequester.federated.algorithms import ServerState
from sequester.federated.engine.base import fill, model_vector, trainable
from sequester.federated.gate import Accepted
from sequester.federated.messages import Instruction, Layout, Sum, answer
from sequester.gradients import ClippingRule, clipped_sum
from sequester.mechanism import NoiseStream, Plan, release
from sequester.models import Task
from sequester.sampling import Lot, PoissonSampler
from sequester.training.chance import Chance


@dataclass(frozen=True)
class ByPopulation:
    """A site counts by its public share of all people, whatever it reports.

    Attributes:
        shares: By position, summing to 1. A site that does not answer leaves its share unused.
    """

    shares: tuple[float, ...]

    def raw(self, updates: Sequence[Accepted]) -> Sum:
        """N_s / N."""
        return np.array([self.shares[update.client] for update in updates])


@dataclass
class NoisySites:
    """A crowd of sites.

    Attributes:
        model: Scratch module; its parameters are overwritten.
        task: The loss.
        sites: Each site's people.
        samplers: Each site's coins.
        plans: Each site's clip, noise and public number of people.
        rule: Clipping rule.
        streams: Each site's noise, under a key of its own.
        steps: Local steps in a round.
        learning_rate: Of the local steps.
        layout: Of what is sent.
        chance: What layers draw, for each step and site.
        bytes_sent: Bytes of updates on the wire so far.
    """

    model: nn.Module
    task: Task
    sites: Sequence[Lot]
    samplers: Sequence[PoissonSampler]
    plans: Sequence[Plan]
    rule: Callable[[nn.Module, float], ClippingRule]
    streams: Callable[[int], NoiseStream]
    steps: int
    learning_rate: float
    layout: Layout
    chance: Chance
    bytes_sent: int = 0

    def answer(
        self, instructions: Sequence[Instruction], state: ServerState, clip: float
    ) -> Iterable[machine.Event]:
        """Each site's way from the model it received."""
        start = state.model.astype(np.float32)
        rule = self.rule(self.model, clip)
        for instruction in instructions:
            fill(self.model, start)
            for step in range(self.steps):
                # Counted over the run: coins and noise of a step are drawn for it alone.
                self._step(instruction.client, instruction.round * self.steps + step, rule, clip)
            delta = model_vector(self.model) - start
            self.bytes_sent += delta.nbytes
            # Steps and weight say nothing about how many people the site has.
            yield machine.Arrived(answer(instruction, self.layout.views(delta)), 0.0)

    def _step(self, site: int, step: int, rule: ClippingRule, clip: float) -> None:
        lot = self.sites[site].pick(self.samplers[site].draw(step))
        with self.chance.at(step, site):
            clipped = clipped_sum(self.model, self.task.loss, lot, rule)
        released = release(
            clipped.sum,
            clipped.norms,
            plan=self.plans[site],
            stream=self.streams(site),
            step=step,
            clip=clip,
        )
        with torch.no_grad():
            for name, parameter in trainable(self.model).items():
                parameter.sub_(released.update[name].to(parameter.dtype), alpha=self.learning_rate)

    def settle(self, number: int, clients: Sequence[int]) -> None:
        """Nothing: a site keeps nothing between rounds."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Nothing."""


def names_of_sites(sites: NDArray[np.str_], declared: Collection[str] = ()) -> list[str]:
    """The sites that take part, in order.

    Args:
        sites: The site of each training person.
        declared: All sites, those without people among them: they take part with empty lots, so
            that nothing which leaves tells whether somebody is there. Empty takes the sites from
            the people, and the claim says so.

    Raises:
        UsageError: SQ-625 for a person at a site that is not declared.
    """
    found = set(sites.tolist())
    if declared and (unknown := found - set(declared)):
        raise UsageError(
            625,
            f"federated.sites names {len(declared)} sites and {len(unknown)} more are in the "
            "data; declare every site with its public number of people, or none",
            where="federated.sites",
        )
    return sorted(declared or found)


def people_of_sites(
    declared: Mapping[str, int], names: Sequence[str], population: int
) -> list[int]:
    """The public number of people of each site, in the order of `names`.

    Args:
        declared: As the study says; empty for sites of equal size.
        names: See `names_of_sites`.
        population: Declared people of all sites.
    """
    if not declared:
        return [max(1, population // len(names))] * len(names)
    return [declared[name] for name in names]
