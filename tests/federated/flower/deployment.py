"""Real Flower processes on the loopback: one SuperLink, a SuperNode for each site."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "OMP_NUM_THREADS": "1",
    # A name server would be asked by whatever tries to leave this machine.
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1,localhost",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Deployment:
    """Processes and where they keep things.

    Attributes:
        folder: Everything is in here.
        link_options: Of the SuperLink, instead of `--insecure`.
        node_options: Of every SuperNode, instead of `--insecure`.
        connection: How the command line reaches the SuperLink, as TOML.
        more: Environment of processes started from now on, besides ours.
    """

    folder: Path
    link_options: tuple[str, ...] = ("--insecure",)
    node_options: tuple[str, ...] = ("--insecure",)
    connection: str = "insecure = true"
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\n{self.connection}\n'
        )
        paths = {"FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        return os.environ | QUIET | paths | self.more

    def start(self, name: str, *command: str) -> subprocess.Popen:
        log = (self.folder / f"{name}.log").open("ab")
        made = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment(),
            cwd=self.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self.processes[name] = made
        return made

    def link(self) -> None:
        self.start(
            "link",
            "flower-superlink",
            *self.link_options,
            "--disable-runtime-dependency-installation",
            "--database",
            str(self.folder / "state.db"),
            "--port",
            str(self.port),
        )
        self.until(self._listens, 300, "the SuperLink listens")

    def node(self, site: str, data: Path, *options: str, port: int = 0) -> None:
        """Start a site's SuperNode; `port` is the SuperLink's, or that of a proxy before it."""
        config = f'site="{site}" data="{data}" folder="{self.folder / "nodes" / site}"'
        self.start(
            f"node-{site}",
            "flower-supernode",
            *self.node_options,
            *options,
            "--superlink",
            f"127.0.0.1:{port or self.port}",
            "--port",
            str(free_port()),
            "--node-config",
            config,
        )

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def kill(self, name: str) -> None:
        """SIGKILL to a process; what it started sees its parent gone and ends, a while later."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, true, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                logs = "\n".join(
                    f"== {p.name}\n{p.read_text(errors='replace')[-3000:]}"
                    for p in sorted(self.folder.glob("*.log"))
                )
                raise AssertionError(f"not within {seconds} s: {what}\n{logs}")
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)
