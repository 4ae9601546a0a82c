"""The embedded store: one SQLite file.

WAL with synchronous=FULL, because measured power cuts lose acknowledged commits under NORMAL
and under SQLite's own default journal. A file lock in front of BEGIN IMMEDIATE, because
SQLite's busy handler sleeps and starves writers. The lock is `flock`: a killed process lets go.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sequester.core.errors import LedgerRefusal, SequesterError, UsageError, VerificationError
from sequester.core.files import sync_folder
from sequester.ledger.file_lock import FileLock
from sequester.ledger.rows import Row
from sequester.ledger.sql import APPEND, SqlTransaction

_APPLICATION = 0x53515354  # "SQST" in the file's header
_SCHEMA = (
    # INT, not INTEGER: an INTEGER PRIMARY KEY leaves a byte in each row that SQLite never reads,
    # so that a change of it could not be found.
    "CREATE TABLE sequester_entry(seq INT NOT NULL PRIMARY KEY, key TEXT UNIQUE, "
    "kind TEXT NOT NULL, budget TEXT NOT NULL, ref INTEGER, body TEXT NOT NULL, "
    "prev TEXT NOT NULL, hash TEXT NOT NULL) STRICT",
    "CREATE UNIQUE INDEX sequester_entry_once ON sequester_entry(ref, kind) WHERE ref IS NOT NULL",
    "CREATE TABLE sequester_balance(budget TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT",
    "CREATE TRIGGER sequester_entry_no_update BEFORE UPDATE ON sequester_entry "
    "BEGIN SELECT RAISE(ABORT, 'rows are never changed'); END",
    "CREATE TRIGGER sequester_entry_no_delete BEFORE DELETE ON sequester_entry "
    "BEGIN SELECT RAISE(ABORT, 'rows are never removed'); END",
)
_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone",
}  # fmt: skip
_MOUNTS = Path("/proc/mounts")
_REMEMBERED = 256  # rows


class SqliteStore:
    """One SQLite file and the lock file beside it."""

    def __init__(self, url: str, *, create: bool, timeout_s: float) -> None:
        """Open or create the file.

        Raises:
            UsageError: SQ-301 or 302 if it is missing, or already there.
            LedgerRefusal: SQ-303 to 307 if the file system does not allow safe writing.
            VerificationError: SQ-331 if it is not an intact SQLite file.
        """
        self.url = url
        self.path = Path(url.removeprefix("sqlite:///"))
        self._timeout = timeout_s
        self._owner = os.getpid(), threading.get_ident()
        if not create and not self.path.is_file():
            raise UsageError(
                301, f"no ledger at {self.path}; 'sequester ledger init {url}' makes one"
            )
        _refuse_network(self.path)
        if create:
            self._create()
        with _Clear(self.path):
            self._connection = self._connect()
        self._lock = FileLock(self.path.with_name(self.path.name + ".lock"), timeout_s)
        self._writing = _Writing(self._connection, self._lock, self.path)

    def writing(self) -> _Writing:
        """See `store.Store`."""
        self._same_owner()
        return self._writing

    @contextmanager
    def reading(self) -> Iterator[SqlTransaction]:
        """See `store.Store`."""
        self._same_owner()
        with _Clear(self.path):
            self._connection.text_factory = _text
            self._connection.execute("BEGIN")
            try:
                yield self._transaction()
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def check(self) -> None:
        """SQLite's own check of pages, indexes and constraints."""
        self._same_owner()
        with _Clear(self.path):
            found = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise VerificationError(
                331, f"the file is damaged: {found}; restore a copy", where=str(self.path)
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._lock.close()

    def _transaction(self) -> SqlTransaction:
        execute = self._connection.execute
        return SqlTransaction(execute, execute)

    def _create(self) -> None:
        with _Clear(self.path):
            try:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            except FileExistsError:
                raise UsageError(
                    302, f"{self.path} exists already; a ledger is never overwritten"
                ) from None
            os.close(handle)
            connection = sqlite3.connect(self.path, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute("COMMIT")
            connection.close()
            sync_folder(self.path.parent)

    def _connect(self) -> sqlite3.Connection:
        # A path, not a URI: a name with '?' or '%' is a name.
        connection = sqlite3.connect(
            self.path, isolation_level=None, timeout=self._timeout, cached_statements=64
        )
        try:
            if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
                raise VerificationError(
                    331, "this file is not a ledger of sequester", where=str(self.path)
                )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            triggers = connection.execute(
                "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND sql IN (?, ?)",
                _SCHEMA[-2:],
            ).fetchone()[0]
            if triggers != 2:
                raise VerificationError(
                    331,
                    "the ledger's guards against changing rows are missing; someone altered it",
                    where=str(self.path),
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _same_owner(self) -> None:
        if (os.getpid(), threading.get_ident()) != self._owner:
            raise SequesterError(
                308, "another process (before a fork) or thread opened this ledger; open it again"
            )


class _Writing:
    """Transactions that write, one after the other; a class is half as slow as a generator."""

    def __init__(self, connection: sqlite3.Connection, lock: FileLock, path: Path) -> None:
        self._connection, self._lock, self._clear = connection, lock, _Clear(path)
        self._run = connection.cursor().execute
        self._transaction = _Transaction(self._run)

    def __enter__(self) -> SqlTransaction:
        try:
            self._lock.take()
            try:
                self._connection.text_factory = str  # damaged text is refused: that is enough here
                if self._connection.in_transaction:  # a signal's exception came before our `with`
                    self._transaction.forget()
                    self._run("ROLLBACK")
                self._run("BEGIN IMMEDIATE")
                self._transaction.begun()
            except BaseException:
                self._end()
                raise
        except (sqlite3.Error, OSError) as error:
            self._clear.__exit__(type(error), error, None)
            raise
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        committed = False
        try:
            if error is None:
                self._run("COMMIT")
                committed = True
        except sqlite3.Error as failed:
            kind, error = type(failed), failed
        finally:
            if not committed:  # SQLite takes some failed transactions back by itself
                self._transaction.forget()
            self._end()
        if error is not None:
            self._clear.__exit__(kind, error, trace)

    def _end(self) -> None:
        """Take back what was not committed, and let the next one in."""
        try:
            if self._connection.in_transaction:
                self._transaction.forget()
                with self._clear:
                    self._connection.execute("ROLLBACK")
        finally:
            self._lock.release()


class _Transaction(SqlTransaction):
    """Remembers its own rows and the balances until another connection has written.

    SQLite would answer from its page cache then; this saves asking it.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__(run, run)
        self._version: int | None = None
        self._newest: Row | None = None
        self._kept: dict[str, str] | None = None
        self._rows: dict[int, Row] = {}

    def begun(self) -> None:
        """Forget what another connection may have changed."""
        (version,) = self._run("PRAGMA data_version", ()).fetchone()
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Ask the file again."""
        self._version = self._newest = self._kept = None
        self._rows.clear()

    def last(self) -> Row | None:
        if self._newest is None:
            self._newest = super().last()
        return self._newest

    def row(self, seq: int) -> Row | None:
        return self._rows.get(seq) or super().row(seq)

    def append(self, row: Row) -> None:
        self._run(APPEND, row)
        if len(self._rows) >= _REMEMBERED:
            self._rows.clear()
        self._newest = self._rows[row.seq] = row

    def balances(self) -> dict[str, str]:
        if self._kept is None:
            self._kept = super().balances()
        return self._kept

    def put_balance(self, budget: str, text: str) -> None:
        super().put_balance(budget, text)
        if self._kept is not None:
            self._kept[budget] = text


def _text(raw: bytes) -> str:
    """Text as stored, even if damaged: a damaged row must be named, not crash the reader."""
    return raw.decode("utf-8", "surrogateescape")


def _refuse_network(path: Path) -> None:
    """SQLite's locks do not hold on network file systems.

    Raises:
        LedgerRefusal: SQ-307.
    """
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return
    folder = str(path.resolve().parent)
    best, kind = "", ""
    for line in mounts:
        _, place, system, *_ = line.split()
        place = place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = folder == place or folder.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, system
    if kind in _NETWORK:
        raise LedgerRefusal(
            307,
            f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold; "
            "use a local disk, or PostgreSQL by URL",
        )


class _Clear:
    """Turns what SQLite and the system say into refusals that say what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise _of_sqlite(error).at(str(self._path)) from error
        if isinstance(error, OSError):
            number = (
                304 if isinstance(error, PermissionError) or error.errno == errno.EROFS else 303
            )
            raise LedgerRefusal(
                number,
                f"the ledger cannot be written ({error.strerror}); nothing was charged",
                where=str(self._path),
            ) from error


def _of_sqlite(error: sqlite3.Error) -> SequesterError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerRefusal(
            305, "another program holds the ledger; nothing was charged. Try again"
        )
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return LedgerRefusal(304, f"the ledger cannot be written ({error}); nothing was charged")
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return LedgerRefusal(
            303,
            f"the disk does not take the ledger's row ({error}); nothing was charged. Free space, "
            "then repeat with the same key, which charges once at the most",
        )
    return VerificationError(331, f"the file is damaged: {error}; restore a copy")
