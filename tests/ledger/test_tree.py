"""Parts of a budget: disjoint people in parallel, other times of the same people in sum."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sequester import accounting
from sequester.core.errors import SequesterError
from sequester.ledger import Budget, Ledger
from sequester.ledger.budgets import Tree
from sequester.ledger.charges import NOTHING, ORDERS, Charge
from tests.ledger.conftest import both_stores
from tests.ledger.plans import Steps


def refused(code: int) -> pytest.RaisesExc:
    return pytest.raises(SequesterError, match=f"^SQ-{code} ")


@pytest.fixture
def town(ledger: Ledger) -> Ledger:
    ledger.create_budget("town", "t", 3.0, 1e-6)
    for site in ("north", "south"):
        ledger.create_budget(site, "t", 2.5, 1e-6, parent="town", share="population")
    for year in ("2023", "2024"):
        ledger.create_budget(year, "t", 2.5, 1e-6, parent="town", share="window")
    return ledger


def spent(ledger: Ledger) -> dict[str, float]:
    return {s.budget.name: s.spent for s in ledger.budgets()}


@both_stores
def test_populations_pay_in_parallel(town: Ledger) -> None:
    town.reserve(Steps(900), budget="north", key="n")
    alone = spent(town)
    town.reserve(Steps(900), budget="south", key="s")
    both = spent(town)
    assert both["town"] == alone["town"]
    assert both["south"] == both["north"] == alone["north"] > 0.0
    town.verify()


@both_stores
def test_windows_of_the_same_people_add_up(town: Ledger) -> None:
    town.reserve(Steps(300), budget="2023", key="a")
    one = spent(town)
    town.reserve(Steps(300), budget="2024", key="b")
    two = spent(town)
    assert two["town"] > one["town"]
    assert two["2024"] == two["2023"] == one["2023"]
    most = town.most_steps(Steps(9000), budget="2024")
    assert most is not None
    with refused(312):
        town.reserve(Steps(most + 1), budget="2024", key="c")
    town.reserve(Steps(most), budget="2024", key="d")
    assert spent(town)["town"] <= 3.0
    town.verify()


def test_a_window_of_everyone_weighs_on_each_population(town: Ledger) -> None:
    town.reserve(Steps(500), budget="2024", key="w")
    most = town.most_steps(Steps(9000), budget="north")
    assert most is not None
    town.reserve(Steps(most), budget="north", key="n")
    assert town.most_steps(Steps(9000), budget="south") == most
    assert town.most_steps(Steps(9000), budget="town") == 0
    town.verify()


def test_the_ceiling_above_rules(town: Ledger) -> None:
    town.reserve(Steps(2000), budget="town", key="all")
    with pytest.raises(SequesterError, match="budget 'town' would pass"):
        town.reserve(Steps(3000), budget="north", key="n")
    town.verify()


def test_parallel_runs_fixed_in_advance_are_each_held_to_the_tight_bound(town: Ledger) -> None:
    plan = Steps(2000)
    assert accounting.epsilon(plan.event(), 1e-6) <= 2.5
    assert town.reserve(plan, budget="north", key="n").rule == "fixed"
    assert town.reserve(plan, budget="south", key="s").rule == "fixed"
    assert spent(town)["town"] == accounting.epsilon(plan.event(), 1e-6)
    with refused(312):
        town.reserve(Steps(1), budget="north", key="n2")
    town.verify()


def test_terms_of_a_part(town: Ledger) -> None:
    with refused(310):
        town.create_budget("x", "t", 1.0, 1e-6, parent="nobody", share="window")
    for changed in (
        {"share": None},
        {"share": "team"},
        {"dataset": "other"},
        {"delta": 1e-7},
        {"unit": "window"},
        {"epsilon": 3.1},
    ):
        terms = {"dataset": "t", "epsilon": 1.0, "delta": 1e-6, "share": "window"} | changed
        with refused(320):
            town.create_budget("x", **terms, parent="town")  # type: ignore[arg-type]
    town.create_budget("swap", "s", 3.0, 1e-6, adjacency="replace-one")
    with refused(320):
        town.create_budget(
            "part", "s", 1.0, 1e-6, adjacency="replace-one", parent="swap", share="population"
        )


small = st.integers(0, 1000).map(lambda value: Charge((value,) * len(ORDERS)))


@given(st.integers(0, 10**6), st.lists(small, min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_totals_against_counting_person_by_person(seed: int, costs: list[Charge]) -> None:
    """A person is a choice of one population wherever a budget is divided into populations."""
    rng = random.Random(seed)
    tree = Tree({})
    tree.add(Budget("b0", "d", 9.0, 1e-6))
    for number in range(1, rng.randrange(1, 8)):
        parent, share = f"b{rng.randrange(number)}", rng.choice(("population", "window"))
        tree.add(Budget(f"b{number}", "d", 9.0, 1e-6, parent=parent, share=share))
    names = list(tree.budgets)
    own = dict.fromkeys(names, 0)
    for cost in costs:
        name = rng.choice(names)
        tree.charge(name, cost)
        own[name] += cost.rdp[0]

    def persons(name: str) -> list[int]:
        """What each kind of person in `name` bears there, by enumeration."""
        kinds = [own[name]]
        children = [b for b in tree.budgets.values() if b.parent == name]
        for child in (c for c in children if c.share == "window"):
            kinds = [a + b for a in kinds for b in persons(child.name)]
        groups = [p for c in children if c.share == "population" for p in persons(c.name)]
        return [a + b for a in kinds for b in [0, *groups]]

    for name in names:
        assert tree.total(name).rdp[0] == max(persons(name))
        above = dict((b.name, c.rdp[0]) for b, c in tree.borne(name))
        assert above[name] == max(persons(name))
        assert all(above[b] <= max(persons(b)) for b in above)
        assert above["b0"] >= above[name]
    assert tree.total("b0") != NOTHING or all(c == NOTHING for c in costs)
