"""The published transcripts, the package and the single-file reference agree byte for byte."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from tests.transcripts.make import CASES, FOLDER, play

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_package_still_says_what_was_published(name: str) -> None:
    published = json.loads((FOLDER / f"{name}.json").read_text())
    assert json.loads(json.dumps(play(CASES[name]))) == published


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_reference_makes_the_same_bytes(name: str) -> None:
    published = json.loads((FOLDER / f"{name}.json").read_text())
    spec = importlib.util.spec_from_file_location("reference", ROOT / "reference" / "secagg.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    session = published["session"] | {
        key: bytes.fromhex(published["session"][key]) for key in ("model", "config", "roster")
    }
    done = reference.transcript(
        session,
        [bytes.fromhex(key) for key in published["identities"]],
        [bytes.fromhex(secret) for secret in published["secrets"]],
        [(v["narrow"], v["wide"]) for v in published["vectors"]],
        {int(member): phase for member, phase in published["drops"].items()},
    )
    assert {k: v.hex() for k, v in done["messages"].items()} == published["messages"]
    assert done["sum"] == (published["sum"]["narrow"], published["sum"]["wide"])


def test_the_reference_shares_no_code_with_the_package() -> None:
    tree = ast.parse((ROOT / "reference" / "secagg.py").read_text())
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert not [name for name in names if name and name.startswith("sequester")]
