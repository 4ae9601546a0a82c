"""`private/rounds.jsonl`: one line a round, whenever a run was killed."""

from __future__ import annotations

import json

import pytest

from sequester.federated.checkpoint import FileStore
from sequester.federated.run import federate, resume
from tests.federated.killed import POINTS, killed
from tests.federated.test_run import PLACEMENTS, make_study, table

__all__ = ["table"]  # a fixture


def lines(folder):
    return [json.loads(line) for line in (folder.private / "rounds.jsonl").read_text().splitlines()]


def killed_after_saving(study, out):
    save = FileStore.save

    def dying(self, simulation):
        save(self, simulation)
        if simulation.next_round == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            federate(study, out=out)
    return next(out.iterdir())


@pytest.mark.parametrize("point", [*POINTS, "after saving"])
@pytest.mark.parametrize("name", ["cross-device", "cross-silo", "local"])
def test_every_round_has_one_line_that_says_what_happened(name, point, table, tmp_path):
    federated, changes = PLACEMENTS[name]
    if name == "local" and "sealing" in point:
        return  # nothing is sealed
    study = make_study(table, federated, **changes)
    whole = lines(federate(study, out=tmp_path / "whole").folder)
    out = tmp_path / "killed"
    folder = killed_after_saving(study, out) if point not in POINTS else killed(study, out, point)
    assert lines(resume(folder).folder) == whole
    assert [line["round"] for line in whole] == [0, 1, 2, 3]


@pytest.mark.parametrize("tail", ["", '{"round":2,"cl', "\0\0\0"])
def test_half_a_line_that_a_crash_left_is_replaced(tail, table, tmp_path):
    study = make_study(table)
    whole = lines(federate(study, out=tmp_path / "whole").folder)
    folder = killed_after_saving(study, tmp_path / "killed")
    file = folder / "private" / "rounds.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]) + tail)
    told = lines(resume(folder).folder)
    assert told == [whole[0], whole[1], whole[3]]
