"""The study: what shall be done, in frozen values decoded strictly from TOML or built in Python.

Every default is here and nowhere else; the run folder keeps the study with defaults filled
in. `docs/training.md` explains each field to a user.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sequester.models import Option


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a study: frozen, and a misspelt field is an error."""


class Feature(Section, frozen=True):
    """A numeric column and its public range, to which values are clamped and scaled.

    Attributes:
        lower: Smallest plausible value, from general knowledge, never from the data.
        upper: Largest plausible value.
        log: Scale `log(1 + value - lower)`, for counts and money.
        centre: Value that becomes 0, as publicly known; None: the middle of the range.
        estimate: "range" (or true): find a narrower range inside [lower, upper] privately;
            "mean": find the centre privately, as a bounded mean. Charged to the plan.
    """

    lower: float
    upper: float
    log: bool = False
    centre: float | None = None
    estimate: bool | Literal["range", "mean"] = False

    @property
    def wants_range(self) -> bool:
        """Whether a narrower range is to be found privately."""
        return self.estimate in (True, "range")

    @property
    def wants_mean(self) -> bool:
        """Whether the centre is to be found privately."""
        return self.estimate == "mean"


class Category(Section, frozen=True):
    """A categorical column and its public vocabulary.

    Attributes:
        values: The vocabulary; a value outside it becomes code 0. Empty with `estimate`.
        estimate: Find the values that many people have, privately; charged to the plan.
    """

    values: tuple[str, ...] = ()
    estimate: bool = False


class Holdout(Section, frozen=True):
    """People kept from training, and how the figure computed on them is protected.

    Attributes:
        share: Share of people, chosen by a keyed hash of the person.
        column: Or: people whose static column has `value`.
        value: See `column`.
        protection: "public" says these people agreed to, or need no, protection; "privatised"
            adds noise and charges their own budget.
        epsilon: ε of the privatised figure, at the study's δ.
    """

    share: float = 0.2
    column: str = ""
    value: str = ""
    protection: Literal["public", "privatised"] = "public"
    epsilon: float = 1.0


class Baseline(Section, frozen=True):
    """The rule to beat: "yes" where a feature's present value is at least this.

    Attributes:
        feature: One of the study's features.
        at_least: In the feature's own unit.
        name: How the card calls the rule.
    """

    feature: str
    at_least: float
    name: str = "persistence"


class Data(Section, frozen=True):
    """Which records, what is public about them, and what is predicted.

    Attributes:
        source: A file, a folder or a path with `{person}`; `builtin:randhie`; `simulated:mobility`
            (hourly places);
            `simulated:stays` (the same town, one record for each stay).
        population: Declared public number of people who could be in the training data.
        person: Column that names the person.
        time: Column that orders a person's records.
        features: Numeric columns by name.
        categories: Categorical columns by name.
        label: Column to predict; for task "next" and "forecast" its following value.
        task: "label" (yes/no), "next" (a category), "forecast" (a number).
        level: Where a label holds: at every "step", once per "window", once per "person".
        horizon: Steps between the last input and what "next" and "forecast" predict.
        window: Steps per window.
        stride: Steps between windows.
        max_per_person: Largest number of windows of one person; 0 keeps all.
        read: How the source is read beyond the columns above; fields of `sequences.Schema`.
        missing_flags: Add to each feature a column that says where it was measured.
        fill: A missing number is 0 (the middle of its range), or "forward": the window's last
            measured value before it.
        gap: Add the time since the record before, log-scaled up to this many seconds (or
            steps); 0 for no such feature.
        clock: Add hour of day and day of week of calendar times as features.
        lags: Add what each category was this many records before what is predicted next: 24
            for "yesterday at that hour" of hourly records.
        habits: Add this many columns for each category: what most often followed its present value
            in the person's own past, then what followed it the last times.
        span: Public first and last ISO date; adds the time inside it as a feature.
        group: Column by whose values private clip fractions are kept.
        baseline: For yes/no labels: the rule that the figure of merit stands beside.
        description: For the card, in a sentence; no values.
        licence: For the card.
        simulated: The people are invented.
    """

    source: str
    population: int
    person: str = "person"
    time: str = "time"
    features: dict[str, Feature] = {}
    categories: dict[str, Category] = {}
    label: str = "label"
    task: Literal["label", "next", "forecast"] = "label"
    level: Literal["step", "window", "person"] = "step"
    horizon: int = 1
    window: int = 32
    stride: int = 32
    max_per_person: int = 0
    read: dict[str, Any] = {}
    missing_flags: bool = False
    fill: Literal["middle", "forward"] = "middle"
    gap: float = 0.0
    clock: bool = False
    lags: tuple[int, ...] = ()
    habits: int = 0
    span: tuple[str, str] | None = None
    group: str = ""
    baseline: Baseline | None = None
    holdout: Holdout = Holdout()
    description: str = ""
    licence: str = ""
    simulated: bool = False


class Unit(Section, frozen=True):
    """Whose presence is hidden: a person's, or only that of one window or step (record)."""

    kind: Literal["person", "window", "step"] = "person"


class Model(Section, frozen=True):
    """The network and its own options.

    Attributes:
        kind: A name of ours.
        module: Instead: `package.file:Class`, your own `nn.Module`; a file beside the study does.
        pool: One answer per window from its "last" step or from the "mean" of all.
        options: Keyword arguments of the network.
    """

    kind: str = "gru"
    module: str = ""
    pool: Literal["last", "mean"] = "mean"
    options: dict[str, Option] = {}

    def __post_init__(self) -> None:
        """One network has one name."""
        if self.module and self.kind not in ("gru", self.module):
            raise ValueError("give model.kind or model.module, not both")
        if self.module:
            msgspec.structs.force_setattr(self, "kind", self.module)


class Adaptive(Section, frozen=True):
    """The clipping bound follows this quantile of the norms; see `mechanism.adaptive`."""

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float = 10.0


class Privacy(Section, frozen=True):
    """The guarantee asked for.

    Attributes:
        mode: "person-level" noise, or "none" for the twin without any, marked as such.
        epsilon: Target; noise is solved for it, or training stops when it is reached.
        delta: Must be far below 1/population.
        noise_multiplier: Given instead of solved; then `epsilon` is the ceiling.
        clip: Bound on one person's gradient (the first one, if adaptive).
        clipping: "flat", "per-layer" or "automatic".
        adaptive: Let the bound follow a quantile; its noise is charged.
        count_clipped: Release a noisy count of the people clipped in each step, for the card; its
            noise is charged with the step's.
        estimates: Share of the privacy budget (in squared inverse noise) for private ranges,
            means and vocabularies.
        tuned_on: Where the study's settings come from: "public" (or simulated) people, "charged"
            trials in the ledger, "private": uncharged trials on these very people.
        insecure_test_seed: Reproducible noise for tests; the claim says NOT PRIVATE.
    """

    mode: Literal["dp", "none"] = "dp"
    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    clip: float = 1.0
    clipping: Literal["flat", "per-layer", "automatic"] = "flat"
    adaptive: Adaptive | None = None
    count_clipped: bool = True
    estimates: float = 0.1
    tuned_on: Literal["unsaid", "public", "charged", "private"] = "unsaid"
    insecure_test_seed: int | None = None


class Training(Section, frozen=True):
    """How the private updates are used; nothing here changes the guarantee but rate and steps.

    Attributes:
        steps: Noisy steps.
        sampling_rate: Probability of a person to take part in a step.
        lot_size: Instead: exactly this many of the `data.population` people in each round, drawn
            without replacement; federated rounds only. 0 for independent coins.
        optimizer: "sgd" (with `momentum`) or "adam".
        learning_rate: First step length.
        momentum: For "sgd".
        weight_decay: Decoupled pull towards 0.
        schedule: "constant", "cosine" or "linear" decay to 0.
        warmup: Steps over which the rate rises.
        average: Decay of the exponential average of weights that is released; 0 releases the
            last weights.
        seed: Public seed of the first weights.
        micro_batch: People whose gradients are held at once; 0 lets the engine choose.
        checkpoint_every: Steps between checkpoints.
    """

    steps: int = 100
    sampling_rate: float = 0.1
    lot_size: int = 0
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = 0
    average: float = 0.0
    seed: int = 0
    micro_batch: int = 0
    checkpoint_every: int = 20


class LedgerSection(Section, frozen=True):
    """Where the charge is booked; without it nothing bounds what several runs spend together.

    Attributes:
        url: `sqlite:///budget.db` or `postgresql://…`.
        budget: Of the training people.
        holdout_budget: Of the held-out people, for a privatised figure of merit.
    """

    url: str
    budget: str
    holdout_budget: str = ""


class Study(Section, frozen=True):
    """A whole study. `federated` and `audit` are read by those rooms."""

    name: str
    data: Data
    privacy: Privacy
    title: str = ""
    unit: Unit = Unit()
    model: Model = Model()
    training: Training = Training()
    federated: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    ledger: LedgerSection | None = None

    @property
    def units(self) -> int:
        """Declared public number of units: people, or the most windows or steps they can have."""
        each = 1 if self.unit.kind == "person" else max(1, self.data.max_per_person)
        return self.data.population * each

    @property
    def protects(self) -> bool:
        """Whether its noise hides anybody: there is some, and no seed that others can repeat."""
        return self.privacy.mode == "dp" and self.privacy.insecure_test_seed is None
