"""The planted faults of `benchmarks/secagg/mutations.py` still fit the code they damage."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_planted_fault_applies() -> None:
    path = ROOT / "benchmarks" / "secagg" / "mutations.py"
    spec = importlib.util.spec_from_file_location("mutations", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert len(module.MUTATIONS) >= 20
    for what, name, old, new in module.MUTATIONS:
        text = (ROOT / "src" / "sequester" / "secagg" / name).read_text()
        assert text.count(old) == 1, what
        assert old != new
