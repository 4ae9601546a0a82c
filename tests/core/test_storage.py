"""What the system says of disks, by number and with the folder, whatever the verb."""

from __future__ import annotations

import errno
import os
import re

import pytest

from sequester.cli import main as entry
from sequester.core import files
from sequester.core.files import write_atomic

KINDS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE]
KINDS += [errno.ENFILE, errno.ENOENT]


def said(crash, monkeypatch, capsys):
    def fails(**_):
        raise crash

    monkeypatch.setattr(entry, "cli", type("Cli", (), {"main": staticmethod(fails)}))
    monkeypatch.delenv("SEQUESTER_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    assert stopped.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["fsync", "mkstemp"])
def test_a_disk_that_takes_nothing_is_named_with_its_folder(
    kind, where, tmp_path, monkeypatch, capsys
):
    def fails(*_, **__):
        raise OSError(kind, os.strerror(kind))

    owner = files.os if where == "fsync" else files.tempfile
    with monkeypatch.context() as patch:
        patch.setattr(owner, where, fails)
        with pytest.raises(OSError, match=re.escape(os.strerror(kind))) as caught:
            write_atomic(tmp_path / "claim.json", "x")
    text = said(caught.value, monkeypatch, capsys)
    assert "SQ-903" in text
    assert str(tmp_path) in text
    assert not list(tmp_path.iterdir())


def test_no_folder_of_a_person_is_named(monkeypatch, capsys):
    crash = PermissionError(errno.EACCES, "denied", "/data/canary-person-7/steps.csv")
    text = said(crash, monkeypatch, capsys)
    assert "SQ-903" in text
    assert "canary" not in text


def test_other_faults_stay_faults(monkeypatch, capsys):
    assert "SQ-902" in said(OSError(errno.EINVAL, "canary"), monkeypatch, capsys)
    assert "SQ-902" in said(ValueError("canary"), monkeypatch, capsys)
