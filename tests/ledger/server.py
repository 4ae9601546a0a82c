"""A PostgreSQL server of one's own, from Debian's programs, in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


def programs() -> Path | None:
    """The newest folder of server programs on this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Server:
    """Listens on a Unix socket only; runs as `postgres` where we are root, which it refuses."""

    def __init__(self, bin_folder: Path) -> None:
        self.bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="sq-pg-"))
        self._count = 0
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self.user, self._prefix = "postgres", ["runuser", "-u", "postgres", "--"]
        else:
            self.user, self._prefix = pwd.getpwuid(os.geteuid()).pw_name, []
        self.data = self.folder / "data"
        self._run(self.bin / "initdb", "-D", self.data, "-A", "trust", "--no-sync", "-E", "UTF8")
        self.start()

    def start(self) -> None:
        # After a crash PostgreSQL flushes every file by itself; syncfs is one call, and on a busy
        # disk the difference is a minute.
        options = (
            f"-k {self.folder} -c listen_addresses= -c max_connections=60 "
            "-c recovery_init_sync_method=syncfs"
        )
        wait = ("-w", "-t", "180")
        log = self.folder / "log"
        self._run(self.bin / "pg_ctl", "-D", self.data, "-l", log, *wait, "-o", options, "start")

    def crash(self) -> None:
        """All server processes end at once, as in a power cut of the machine's software."""
        self._run(self.bin / "pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def database(self) -> str:
        """The URL of a new, empty database."""
        self._count += 1
        name = f"ledger{self._count}"
        self._run(self.bin / "createdb", "-h", self.folder, name)
        return f"postgresql://{self.user}@/{name}?host={self.folder}"

    def stop(self) -> None:
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [*self._prefix, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
