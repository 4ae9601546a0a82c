"""Lots are drawn by the sampler whose event is charged, or the step releases nothing."""

from pathlib import Path

import pytest

from sequester.accounting import FixedSizeSampled, Gaussian
from sequester.core.errors import SequesterError
from sequester.sampling import PoissonSampler
from sequester.training import session as session_module
from sequester.training import train
from tests.training.population import people, study


def test_a_sampler_of_another_rate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keener(count: int, rate: float, coins: object) -> PoissonSampler:
        return PoissonSampler(count, rate * 1.01, coins)  # type: ignore[arg-type]

    monkeypatch.setattr(session_module, "PoissonSampler", keener)
    with pytest.raises(SequesterError, match=r"^SQ-240 .*sampler"):
        train(study(training__steps=2), out=tmp_path, people=people())


def test_a_sampler_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fixed(self: PoissonSampler, mechanism: Gaussian) -> FixedSizeSampled:
        return FixedSizeSampled(self.people, 10, mechanism)

    monkeypatch.setattr(PoissonSampler, "event", fixed)
    with pytest.raises(SequesterError, match=r"^SQ-240 .*sampler"):
        train(study(training__steps=2), out=tmp_path, people=people())
