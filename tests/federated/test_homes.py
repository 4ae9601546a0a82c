"""A person belongs to one site, or the run says how many do not."""

from __future__ import annotations

import pytest

from sequester.core.errors import UsageError
from sequester.federated.run import federate
from tests.federated.test_run import make_study, table

__all__ = ["table"]  # a fixture


def moved(table, tmp_path, rows):
    """The table with another site in some lines; data lines count from 0."""
    head, *lines = table.read_text().splitlines()
    for row, site in rows.items():
        person, time, _, *rest = lines[row].split(",")
        lines[row] = ",".join([person, time, site, *rest])
    path = tmp_path / "moved.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("rows", "several", "none"),
    [
        ({3: "s1"}, 1, 0),  # in the middle of the first person
        ({15: "s2", 8: "s0"}, 1, 0),
        ({3: "s1", 20: "s9"}, 2, 0),
        ({7: ""}, 0, 1),
        (dict.fromkeys(range(8), ""), 0, 1),
        ({3: "s1", 8: ""}, 1, 1),
    ],
)
def test_people_at_several_sites_or_none_are_counted_and_refused(
    rows, several, none, private, steps, table, tmp_path
):
    if steps > 1 and not private:
        return
    federated = {"placement": "cross-silo", "local_steps": steps}
    study = make_study(
        moved(table, tmp_path, rows), federated, privacy={"mode": "dp" if private else "none"}
    )
    with pytest.raises(UsageError, match=f"SQ-654 {several} people.*{none} have") as caught:
        federate(study, out=tmp_path / "runs")
    assert caught.value.where == "data.group"
    assert not (tmp_path / "runs").exists()


def test_sites_of_records_do_not_matter_where_people_are_clients(table, tmp_path):
    study = make_study(moved(table, tmp_path, {3: "s1"}), {}, training={"steps": 1})
    assert federate(study, out=tmp_path / "runs").stopped == "finished"
