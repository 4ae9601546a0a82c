"""Every command in the README and the docs runs, in order, one empty folder per page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page: Path) -> list[str]:
    """The `$` lines of a page's ```console blocks, continuation lines joined."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line[2:].strip() for line in lines if line.startswith("$ ")]


WITH_COMMANDS = [page for page in PAGES if commands(page)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=[p.name for p in WITH_COMMANDS])
def test_commands_run(page: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    for command in commands(page):
        if command.startswith("pip install"):
            continue  # The environment that runs the tests is the one it makes.
        # A trailing "# exit 3" says which refusal the page shows.
        expected = re.search(r"# exit (\d)$", command)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == int(expected[1] if expected else 0), (
            f"{page.name}: $ {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )


def test_every_verb_is_in_the_docs() -> None:
    from sequester.cli.main import VERBS, cli

    text = "\n".join(page.read_text() for page in PAGES)
    import click

    for verb in cli.list_commands(click.Context(cli)):
        assert f"sequester {verb}" in text, f"{verb} is documented nowhere"
        assert VERBS[verb]


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
