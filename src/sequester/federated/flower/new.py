"""Writes the Flower app of a study: four small files that call sequester."""

from __future__ import annotations

import re
from pathlib import Path

from sequester.core.errors import UsageError
from sequester.core.files import write_atomic
from sequester.federated.network.member import sums_for
from sequester.federated.network.site import check_networked, without_source
from sequester.federated.settings import settings_of
from sequester.models import KINDS
from sequester.training.network import check_network
from sequester.training.study import Study
from sequester.training.study_file import to_toml

PACKAGE = "study_app"

_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "The study {name} as a Flower app; sequester does the work."
license = "Apache-2.0"
# Nothing is installed at run time: every machine has sequester[flower] already.
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "sequester"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# Read on the server's machine. `run` is the run folder there: start the app again with the same
# one and it goes on where it stopped.
[tool.flwr.app.config]
run = "{run}"
sites = {sites}
least-sites = {least}
round-seconds = 600.0
wait-seconds = 3600.0
limit-mb = 256
"""

_SERVER = '''\
"""The server's side of the study."""

from pathlib import Path

from sequester.federated.flower.server import server_app

app = server_app(Path(__file__).parent / "study.toml")
'''

_CLIENT = '''\
"""A site's side of the study."""

from sequester.federated.flower.client import client_app

app = client_app()
'''

_README = """\
# {name} as a Flower app

Written by `sequester flower new`. Every machine needs `pip install 'sequester[flower]'`, in one
version. The guide is `docs/flower.md`; in short, and without TLS, for one machine only:

    export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
    flower-superlink --insecure --disable-runtime-dependency-installation
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9094 \\
      --node-config 'site="north" data="/data/north/people.csv" folder="/var/lib/sequester"'
    flwr run .

Each site's `policy.toml` lies beside its data. The server's run folder is `{run}`.
"""


def write_app(study: Study, folder: Path, *, run: Path, sites: int) -> list[Path]:
    """Write the app of `study` into the new folder `folder`; the files written.

    Args:
        study: With a `[federated]` part.
        folder: Must not exist, or be empty.
        run: The run folder on the server's machine.
        sites: Sites to wait for.

    Raises:
        UsageError: SQ-638 for a study that needs the data in one place, SQ-250 to 254 for a
            network of ours that cannot be built, SQ-646 for a folder
            that holds something already, SQ-643 for no sites or a run folder inside the app,
            SQ-648 for a password in the study.
    """
    settings = settings_of(study)
    _check(study)
    if sites < 1:
        raise UsageError(643, f"a run needs one site or more, got {sites}")
    # One dead site must not hold up the others; a secure sum says itself how few can open it.
    sums = sums_for(settings, sites, 1, study.data.population)
    least = max(1, sites - 1) if sums is None else sums.fewest
    if study.ledger is not None and re.search(r"//[^/@]*:[^/@]*@", study.ledger.url):
        raise UsageError(
            648,
            "ledger.url holds a password, and Flower sends the app to every node; leave it out and "
            "set PGPASSWORD on the server's machine",
            where="ledger.url",
        )
    if run.absolute().is_relative_to(folder.absolute()):
        raise UsageError(
            643,
            "the run folder must lie outside the app: Flower sends everything in the app to every "
            "node, and the run folder is private",
            where=str(run),
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            646, "this folder holds something already; name a new one", where=str(folder)
        )
    package = folder / PACKAGE
    package.mkdir(parents=True)
    name = re.sub(r"[^a-z0-9-]+", "-", study.name.lower()).strip("-") or "study"
    fields = {
        "name": name,
        "package": PACKAGE,
        "run": run.absolute(),
        "sites": sites,
        "least": least,
    }
    texts = {
        folder / "pyproject.toml": _PROJECT.format(**fields),
        folder / "README.md": _README.format(**fields),
        package / "__init__.py": '"""The app\'s two sides."""\n',
        package / "server_app.py": _SERVER,
        package / "client_app.py": _CLIENT,
        package / "study.toml": to_toml(without_source(study)),
    }
    for path, text in texts.items():
        write_atomic(path, text)
    return list(texts)


def _check(study: Study) -> None:
    """Refuse what no server could run; one's own module is put into the app once it is written."""
    check_networked(study)
    if study.model.kind in KINDS:
        check_network(study)
