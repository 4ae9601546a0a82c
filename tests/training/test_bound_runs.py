"""A run ends as it began: whatever was altered, copied or lost, no noise meets two sums.

What a crash leaves is edited here in every way that would change a release or its claim.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sequester.core.errors import UsageError
from sequester.mechanism import NoiseStream
from sequester.training import Category, Feature, Model, own_code, resume, train
from sequester.training.monitor import Measure
from sequester.training.resumption import Begun
from tests.training.population import people, study

MODULE = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.head = nn.Linear(shape.features, shape.outputs)

    def forward(self, x, mask, categorical=None):
        out = self.head(torch.tanh(x))
        if self.shape.pool == "none":
            return out
        return (out * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
"""


class Crash(Exception):
    """Stands for a power cut."""


def crashed(out: Path, asked: Any, *, step: int = 2, who: Any = None) -> Path:
    """A run that died before its first checkpoint."""

    def crash(measured: Measure) -> None:
        if measured.step == step:
            raise Crash

    with pytest.raises(Crash):
        train(asked, out=out, people=people() if who is None else who, watch=crash)
    (folder,) = out.iterdir()
    return folder


def private(**changes: Any) -> Any:
    return study(privacy__insecure_test_seed=None, **changes)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module of the user's own, `own_module:Own`."""
    file = tmp_path / "beside" / "own_module.py"
    file.parent.mkdir()
    file.write_text(MODULE)
    monkeypatch.syspath_prepend(file.parent)
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    return file


def test_a_copied_run_with_another_module_meets_other_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: Path
):
    folder = crashed(tmp_path / "runs", private(model=Model(module="own_module:Own")))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    drawn: dict[str, list[np.ndarray]] = {"first": [], "second": []}
    original = NoiseStream.draw
    now = "first"

    def remember(self: NoiseStream, step: int, count: int, **how: Any) -> torch.Tensor:
        found = original(self, step, count, **how)
        drawn[now].append(found.numpy().copy())
        return found

    monkeypatch.setattr(NoiseStream, "draw", remember)
    assert resume(folder, people=people()).stopped == "finished"
    module = importlib.import_module("own_module")
    forward = module.Own.forward
    monkeypatch.setattr(module.Own, "forward", lambda self, x, *rest: forward(self, 2 * x, *rest))
    now = "second"
    resume(copy, people=people())
    for one, other in zip(drawn["first"], drawn["second"], strict=True):
        assert one.shape == other.shape
        assert not np.any(one == other)


def test_a_run_is_not_resumed_under_another_module(tmp_path: Path, own: Path):
    folder = crashed(tmp_path / "runs", private(model=Model(module="own_module:Own")))
    own.write_text(MODULE.replace("torch.tanh(x)", "x"))
    with pytest.raises(UsageError, match=r"^SQ-510 .*own_module:Own"):
        resume(folder, people=people())
    own.write_text(MODULE)
    done = resume(folder, people=people())
    assert done.claim is not None
    assert "own module keeps nothing" in " ".join(done.claim.fields["assumptions"])
    ours = train(private(training__steps=1), out=tmp_path / "ours", people=people())
    assert ours.claim is not None
    assert "own module" not in " ".join(ours.claim.fields["assumptions"])


IMPORTS = {
    "beside": ("from helper import curve", "helper.py"),
    "a module by its name": ("import helper\ncurve = helper.curve", "helper.py"),
    "by another": ("from middle import curve", "helper.py"),
    "the one between": ("from middle import curve", "middle.py"),
    "of a package": ("from tools.curves import curve", "tools/curves.py"),
    "the package itself": ("from tools.curves import curve", "tools/__init__.py"),
    "a module of a package": ("from tools import curves\ncurve = curves.curve", "tools/curves.py"),
    "by its neighbour": ("from tools.near import curve", "tools/curves.py"),
    "by a parent": ("from tools.deep.down import curve", "tools/curves.py"),
    "when it runs": (
        "def curve(x):\n    from helper import curve\n    return curve(x)", "helper.py"
    ),
    "everything": ("from helper import *", "helper.py"),
}  # fmt: skip
CURVE = "import torch\n\ndef curve(x):\n    return torch.tanh(x)\n"
HELPERS = {
    "helper.py": CURVE,
    "middle.py": "from helper import curve\n",
    "tools/__init__.py": "",
    "tools/curves.py": CURVE,
    "tools/near.py": "from .curves import curve\n",
    "tools/deep/__init__.py": "",
    "tools/deep/down.py": "from ..curves import curve\n",
    "unused.py": "",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_a_run_is_not_resumed_under_another_helper(
    how: str, tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("helper", "middle", "tools"):
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
    for place, text in HELPERS.items():
        (own.parent / place).parent.mkdir(exist_ok=True)
        (own.parent / place).write_text(text)
    line, changed = IMPORTS[how]
    own.write_text(line + MODULE.replace("torch.tanh(x)", "curve(x)"))
    folder = crashed(tmp_path / "runs", private(model=Model(module="own_module:Own")))
    helper = own.parent / changed
    helper.write_text(HELPERS[changed] + "# changed\n")
    with pytest.raises(UsageError, match=rf"^SQ-510 '{changed}' of .*own_module:Own"):
        resume(folder, people=people())
    helper.write_text(HELPERS[changed])
    (own.parent / "unused.py").write_text("# changed")
    assert resume(folder, people=people()).stopped == "finished"


def test_of_an_installed_module_no_other_package_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = tmp_path / "site-packages"
    for place, text in {
        "mine/__init__.py": "", "mine/net.py": "import big, torch\nfrom . import parts\n",
        "mine/parts.py": "import big.inner", "big/__init__.py": "", "big/inner.py": "",
    }.items():  # fmt: skip
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(text)
    monkeypatch.syspath_prepend(root)
    assert sorted(own_code.digests("mine.net")) == [
        "mine/__init__.py",
        "mine/net.py",
        "mine/parts.py",
    ]
    assert own_code.digests("mine.nothing") == own_code.digests("no.such") == {}


def test_a_module_that_keeps_what_it_saw_beside_itself_is_refused_before_the_charge(
    tmp_path: Path, own: Path
):
    own.write_text(MODULE.replace("torch.tanh(x)", "torch.tanh(x) * SEEN.setdefault(1, x.mean())"))
    own.write_text(own.read_text() + "\nSEEN = {}\n")
    with pytest.raises(UsageError, match=r"^SQ-406 'global SEEN'"):
        train(private(model=Model(module="own_module:Own")), out=tmp_path / "runs", people=people())
    assert not (tmp_path / "runs").exists()


TOLD: dict[str, Any] = {
    "noise_multiplier": lambda value: 10 * value,
    "steps": lambda value: value + 5,
    "setup": lambda value: ['{"type": "gaussian", "noise_multiplier": 9.0}'],
    "run": lambda value: value + "0",
    "data": lambda value: value[::-1],
    "cut": lambda value: not value,
    "asked": lambda value: value.replace("sampling_rate = 0.5", "sampling_rate = 0.4"),
    "found": lambda value: value.replace("upper", "lower", 1) or "x = 1",
    "module": lambda value: {"own.py": "0" * 64},
    "mechanism": lambda value: '{"type": "gaussian"}',
    "seal": lambda value: "",
}


def test_every_decision_is_sealed():
    assert set(TOLD) == set(Begun.__struct_fields__) - {"kind"}  # SQ-507 comes first


@pytest.mark.parametrize("field", TOLD)
@pytest.mark.parametrize("seed", [None, 7])
def test_altered_decisions_are_refused(tmp_path: Path, field: str, seed: int | None):
    folder = crashed(tmp_path, study(privacy__insecure_test_seed=seed))
    file = folder / "checkpoints" / "begun.json"
    told = json.loads(file.read_bytes())
    told[field] = TOLD[field](told[field])
    file.write_text(json.dumps(told))
    with pytest.raises(UsageError, match=r"^SQ-503 "):
        resume(folder, people=people())


@pytest.mark.parametrize(
    ("lost", "number"), [("position", "SQ-503"), ("noise.key", "SQ-504"), ("begun.json", "SQ-503")]
)
def test_what_is_lost_of_a_run_is_not_begun_again(tmp_path: Path, lost: str, number: str):
    folder = crashed(tmp_path, private())
    (folder / "checkpoints" / lost).unlink()
    with pytest.raises(UsageError, match=rf"^{number} "):
        resume(folder, people=people())
    assert not (folder / "model.safetensors").exists()


ESTIMATES = {
    "data__features": {
        "signal": Feature(-100, 100, estimate="mean"),
        "other": Feature(-3, 3),
    },
    "data__categories": {"town": Category(estimate=True)},
    "privacy__epsilon": 200.0,
}
EDITS = {
    "another estimate": ("features.other", "estimate = false", 'estimate = "mean"'),
    "the same estimate again": ("features.signal", "estimate = false", 'estimate = "mean"'),
    "a range of what was estimated": ("features.signal", "upper = 100", "upper = 77"),
    "a centre that was found": ("features.signal", r"centre = [-0-9.e]+", "centre = 0.125"),
    "a word that was found": ("categories.town", r'"north"', '"elsewhere"'),
    "a word that was not": ("categories.town", r'"north"', '"elsewhere", "north"'),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_decides_a_release_is_compared_once_it_was_found(tmp_path: Path, edit: str):
    folder = crashed(tmp_path, private(**ESTIMATES), who=people(400))
    text = (folder / "study.toml").read_text()
    section, before, after = EDITS[edit]
    start = text.index(f"[data.{section}]")
    altered, times = re.subn(before, after, text[start:], count=1)
    assert times == 1
    (folder / "study.toml").write_text(text[:start] + altered)
    with pytest.raises(UsageError, match=r"^SQ-503 .*altered"):
        resume(folder, people=people(400))
    (folder / "study.toml").write_text(text)
    assert resume(folder, people=people(400)).stopped == "finished"


@pytest.mark.parametrize("lags", [False, True])
def test_what_was_found_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lags: bool):
    """Also where the study in the folder does not show it yet."""
    folder = crashed(tmp_path, private(**ESTIMATES), who=people(400))
    if lags:
        told = json.loads((folder / "checkpoints" / "begun.json").read_bytes())
        (folder / "study.toml").write_text(told["asked"])
    monkeypatch.setattr("sequester.training.session.resolve", None)
    assert resume(folder, people=people(400)).stopped == "finished"
