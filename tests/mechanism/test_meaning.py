"""The headline of a claim says no more than its ε does."""

import math
import re

import pytest

from sequester.mechanism.meaning import unit_sentence
from sequester.mechanism.plan import UNITS


@pytest.mark.parametrize("epsilon", [0.11, 0.5, 1.0, 1.5, math.log(9.9), 2.0, 3.0, 5.5, 8.0, 10.0])
def test_a_factor_is_never_below_what_epsilon_allows(epsilon: float) -> None:
    said = unit_sentence("person", epsilon, "add-or-remove")
    found = re.search(r"at most ([\d.]+) times as likely", said)
    assert found is not None
    assert math.exp(epsilon) <= float(found.group(1)) <= 1.11 * math.exp(epsilon)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("epsilon", [0.101, 1.0, 2.5, 10.5, 60.0, math.inf])
def test_nobody_is_told_nearly_under_a_large_epsilon(unit: str, epsilon: float) -> None:
    assert "nearly" not in unit_sentence(unit, epsilon, "add-or-remove")


def test_what_neighbours_differ_in_is_said() -> None:
    assert "nearly" in unit_sentence("person", 0.1, "add-or-remove")
    for epsilon in (0.5, 4.0, 20.0):
        assert "never been in the data" in unit_sentence("person", epsilon, "add-or-remove")
        for other in ("replace-one", "zero-out"):
            assert "never been" not in unit_sentence("person", epsilon, other)
