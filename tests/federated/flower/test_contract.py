"""Which names of Flower we stand on, and that nothing else in the package knows it."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src" / "sequester"
NAMES = {
    ("flwr.app", "ArrayRecord"),
    ("flwr.app", "Context"),
    ("flwr.app", "Message"),
    ("flwr.app", "RecordDict"),
    ("flwr.clientapp", "ClientApp"),
    ("flwr.serverapp", "Grid"),
    ("flwr.serverapp", "ServerApp"),
}
GRID = ("get_node_ids", "push_messages", "pull_messages")


def imports(path: Path) -> set[tuple[str, str]]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {(node.module, alias.name) for alias in node.names}
    return {(module, name) for module, name in found if module.partition(".")[0] == "flwr"}


def test_only_one_folder_knows_flower_and_only_by_its_public_names():
    used = {}
    for path in SOURCE.rglob("*.py"):
        if names := imports(path):
            used[path.relative_to(SOURCE)] = names
    assert {path.parent.as_posix() for path in used} == {"federated/flower"}
    assert set().union(*used.values()) == NAMES


CHECK = """
import importlib, inspect
for module, name in {names!r}:
    found = importlib.import_module(module)
    assert name in found.__all__, (module, name)
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
for method in {grid!r}:
    assert callable(getattr(Grid, method))
assert callable(ServerApp().main()) and callable(ClientApp().train())
wanted = {{"content", "dst_node_id", "message_type", "ttl", "group_id", "reply_to"}}
assert wanted <= set(inspect.signature(Message.__init__).parameters)
import numpy as np
from sequester.federated.flower.messages import packed, unpacked
from sequester.federated.flower import client, grid, server
body = bytes(range(256)) * 40000
assert unpacked(packed(body)) == body
assert unpacked(RecordDict({{"other": ArrayRecord([np.zeros(3)])}})) == b""
assert unpacked(RecordDict({{"sequester": ArrayRecord([np.zeros(3)])}})) == b""
from importlib.metadata import version
print("flwr", version("flwr"))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="Flower is not installed: sequester[flower]"
)
def test_the_names_do_in_the_installed_version_what_we_use_them_for():
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(names=sorted(NAMES), grid=GRID)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flwr ")


UNSET = """
import sys
from pathlib import Path
from sequester.federated.flower.client import answer
from sequester.federated.network.frames import Refused, unseal

folder = Path(sys.argv[1])
for name in ("site", "data", "folder"):
    good = {"site": "a", "data": str(folder / "a.csv"), "folder": str(folder / "node")}
    for settings in (good | {name: ""}, {key: good[key] for key in good if key != name}):
        header, _ = unseal(answer(settings, b"any question"), lambda _: "")
        assert isinstance(header, Refused) and header.code == 643, header
        assert repr(name) in header.message, header
        assert not (folder / "node").exists()
"""


@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="Flower is not installed: sequester[flower]"
)
def test_a_node_that_was_not_set_up_tells_the_server_which_setting_it_lacks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", UNSET, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
