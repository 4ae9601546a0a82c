"""The people, their windows, and who trains, who chooses settings and who tests.

Windows hold the last hour (at 5 minutes a step) before each label: value, change and gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as parquet
import torch
from tests.shared import shared

from sequester.models.build import build
from sequester.models.inputs import Shape
from sequester.models.tasks import Binary, auc, predict
from sequester.sampling import Lot

STEPS, PER_PERSON, HIDDEN = 12, 48, 16
TASK = Binary()
SHAPE = Shape(3, (), STEPS, 1, "last")


@dataclass(frozen=True)
class Person:
    """One person's windows, float32 `(windows, steps, 3)`, and labels `(windows,)`."""

    x: np.ndarray
    y: np.ndarray


def load():
    """People by site, in a fixed order."""
    table = parquet.read_table(shared("data", "real", "cgm", "data.parquet")).to_pandas()
    generator = np.random.default_rng(0)
    sites = {}
    for (site, _), rows in table.groupby(["site", "person"], observed=True, sort=True):
        value = (rows.glucose.to_numpy(float) - 120.0) / 60.0
        seconds = rows.time.to_numpy(float)
        label = rows.label.to_numpy(float)
        step = np.diff(seconds, prepend=seconds[0]) / 900.0
        features = np.stack(
            [value, np.diff(value, prepend=value[0]) * 4, np.clip(step, 0, 4)], axis=1
        )
        ends = np.flatnonzero(~np.isnan(label) & (np.arange(len(label)) >= STEPS - 1))
        ends = np.sort(generator.choice(ends, min(PER_PERSON, len(ends)), replace=False))
        window = ends[:, None] + np.arange(1 - STEPS, 1)
        person = Person(features[window].astype(np.float32), label[ends].astype(np.float32))
        sites.setdefault(str(site), []).append(person)
    return sites


@dataclass(frozen=True)
class Split:
    """People of each site by role; nobody has two roles.

    Attributes:
        train: Three fifths.
        validate: One fifth: settings are chosen by them alone, then they train too.
        test: One fifth: looked at once, by settings already chosen.
    """

    train: dict[str, list[Person]]
    validate: dict[str, list[Person]]
    test: dict[str, list[Person]]

    def final(self):
        """What the chosen settings train on."""
        return {site: self.train[site] + self.validate[site] for site in self.train}


def split(sites):
    """One split for all seeds."""
    generator = np.random.default_rng(1)
    roles = ({}, {}, {})
    for site, people in sites.items():
        order = generator.permutation(len(people))
        fifth = max(1, len(people) // 5)
        for role, part in zip(
            roles, (order[2 * fifth :], order[fifth : 2 * fifth], order[:fifth]), strict=True
        ):
            role[site] = [people[k] for k in part]
    return Split(*roles)


def everyone(sites):
    """All people of all sites."""
    return [person for people in sites.values() for person in people]


def dealt(sites):
    """The same people dealt at random to as many clients of equal size."""
    people = everyone(sites)
    order = np.random.default_rng(2).permutation(len(people))
    return [[people[k] for k in part] for part in np.array_split(order, len(sites))]


def lot_of(groups):
    """A lot whose owners are `groups`, each a list of people."""
    counts = [sum(len(person.y) for person in group) for group in groups]
    x = torch.from_numpy(np.concatenate([p.x for group in groups for p in group]))
    return Lot(
        x=x,
        mask=torch.ones(x.shape[:2], dtype=torch.bool),
        target=torch.from_numpy(np.concatenate([p.y for group in groups for p in group])),
        owner=torch.from_numpy(np.repeat(np.arange(len(groups)), counts)),
        people=len(groups),
    )


def network(seed):
    """The network of the job."""
    return build("gru", SHAPE, {"hidden": HIDDEN}, seed=seed)


def model_auc(vector, lot):
    """AUC of a flat model on a lot."""
    model = network(0)
    at, flat = 0, torch.from_numpy(np.asarray(vector, np.float32))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()
    return auc(lot.target.numpy() > 0.5, predict(model, lot)[:, 0].numpy())


def pooled_logistic(people, lot):
    """The yardstick: logistic regression on the same windows, pooled."""
    from sklearn.linear_model import LogisticRegression

    pooled = lot_of([people])
    fitted = LogisticRegression(max_iter=2000).fit(
        pooled.x.flatten(1).numpy(), pooled.target.numpy()
    )
    score = fitted.decision_function(lot.x.flatten(1).numpy())
    return auc(lot.target.numpy() > 0.5, score)
