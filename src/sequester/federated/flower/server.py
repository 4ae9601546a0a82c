"""The server's side: the app that runs the study's own loop of rounds."""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sequester.core.errors import UsageError
from sequester.federated.flower.grid import GridTransport
from sequester.federated.flower.messages import mebibytes, setting
from sequester.federated.network.run import Terms, serve
from sequester.training.study_file import read_study

_LOG = logging.getLogger("sequester.server")


def server_app(study: Path) -> ServerApp:
    """A ServerApp that trains `study`; its settings are the app's run configuration.

    Args:
        study: The study's TOML file.
    """

    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        path = Path(str(setting(settings, "run"))).expanduser()
        if not path.is_absolute():
            raise UsageError(
                643, f"the app's setting 'run' must be an absolute path, got {str(path)!r}"
            )
        terms = Terms(
            sites=int(setting(settings, "sites")),
            least=int(setting(settings, "least-sites")),
            round_seconds=float(setting(settings, "round-seconds")),
            wait_seconds=float(setting(settings, "wait-seconds")),
            limit=mebibytes(setting(settings, "limit-mb")),
        )
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(logging.StreamHandler())  # what `flwr log` shows
        served = serve(
            read_study(study),
            path,
            GridTransport(grid),
            terms,
            watch=lambda number, _: _LOG.info("round %d", number + 1),
        )
        _LOG.info("finished: %d rounds; %s", served.rounds, served.folder.path)

    app = ServerApp()
    app.main()(main)
    return app
