"""What can go wrong below the ledger: a clear refusal, and an intact ledger."""

import fcntl
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sequester.core.errors import SequesterError, UsageError
from sequester.ledger import Ledger, sqlite
from tests.ledger.conftest import Make
from tests.ledger.plans import Steps
from tests.ledger.server import Server

NOBODY = 65534


def refused(code: int) -> pytest.RaisesExc:
    return pytest.raises(SequesterError, match=f"^SQ-{code} ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.db"


@pytest.fixture
def filled(make: Make, url: str) -> str:
    with make() as ledger:
        ledger.create_budget("town", "town-2024", 3.0, 1e-6)
        ledger.reserve(Steps(10), budget="town", key="first")
    return url


def in_child(action: Callable[[], object]) -> str:
    """Run `action` in a fork; what it raised, or "done"."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        said = "done"
        try:
            action()
        except BaseException as error:
            said = str(error)
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def reserve(url: str, key: str, timeout_s: float = 30.0) -> None:
    with Ledger.open(url, timeout_s=timeout_s) as ledger:
        ledger.reserve(Steps(10), budget="town", key=key)


def test_bad_urls_are_refused() -> None:
    for bad in ("mysql://u:secret@h/db", "budget", "", "http://x"):
        with pytest.raises(UsageError, match=r"^SQ-300 ") as refusal:
            Ledger.open(bad)
        assert "secret" not in str(refusal.value)


def test_a_missing_ledger_is_not_made_by_opening_it(path: Path) -> None:
    with refused(301):
        Ledger.open(f"sqlite:///{path}")
    assert not path.exists()
    with refused(303):
        Ledger.create(f"sqlite:///{path.parent}/no/such/folder/budget.db")


@pytest.mark.parametrize("limit", range(0, 60_000, 6_000))
def test_a_full_disk(filled: str, path: Path, limit: int) -> None:
    """The file-size limit stands for the disk: every write past it fails."""

    def until_full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + limit, size + limit))
        with Ledger.open(filled) as ledger:
            for number in range(1000):
                os.write(said, f"{number} ".encode())
                ledger.reserve(Steps(1, noise=30.0), budget="town", key=f"full-{number}")

    read, said = os.pipe()
    words = in_child(until_full)
    os.close(said)
    with os.fdopen(read) as pipe:
        asked = len(pipe.read().split())
    assert words.startswith("SQ-303"), words
    assert "nothing was charged" in words
    with Ledger.open(filled) as ledger:
        ledger.verify()
        # All that was confirmed is there; what was refused is not, and may be asked again.
        assert ledger.entries() == 3 + max(0, asked - 1)
        ledger.reserve(Steps(1, noise=30.0), budget="town", key="full-0")


@pytest.mark.parametrize("limit", range(0, 60_000, 12_000))
def test_room_again_on_a_full_disk(filled: str, path: Path, limit: int) -> None:
    """The process that met the full disk goes on with what the file holds, not what it hoped."""

    def full_for_a_while() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = path.stat().st_size
        with Ledger.open(filled) as ledger:
            before = ledger.entries()
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + limit, resource.RLIM_INFINITY))
            done = 0
            with refused(303):
                while True:
                    ledger.reserve(Steps(1, noise=30.0), budget="town", key=f"full-{done}")
                    done += 1
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            for number in range(done, done + 3):
                ledger.reserve(Steps(1, noise=30.0), budget="town", key=f"full-{number}")
            assert ledger.entries() == before + done + 3
            ledger.verify()

    assert in_child(full_for_a_while) == "done"


class Commits:
    """A connection's `execute` whose next COMMIT is taken back by SQLite and raises."""

    def __init__(self, run: Callable[..., object], error: BaseException) -> None:
        self.run, self.error, self.armed = run, error, True

    def __call__(self, statement: str, *values: object) -> object:
        if self.armed and statement == "COMMIT":
            self.armed = False
            self.run("ROLLBACK")
            raise self.error
        return self.run(statement, *values)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, sqlite3.OperationalError])
def test_a_commit_that_failed_is_forgotten_whatever_it_raised(
    filled: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(filled) as ledger:
        store = ledger._store
        assert isinstance(store, sqlite.SqliteStore)
        before = ledger.entries()
        with monkeypatch.context() as patch:
            patch.setattr(store._writing, "_run", Commits(store._writing._run, error("no")))
            with pytest.raises((error, SequesterError)):
                ledger.reserve(Steps(1), budget="town", key="gone")
        ledger.reserve(Steps(1), budget="town", key="next")
        assert ledger.entries() == before + 1
        ledger.verify()


def test_a_transaction_that_a_signal_left_open_is_taken_back(filled: str) -> None:
    with Ledger.open(filled) as ledger:
        store = ledger._store
        assert isinstance(store, sqlite.SqliteStore)
        before = ledger.entries()
        # As when an exception arrives between the transaction's begin and its `with` block.
        transaction = store.writing().__enter__()
        transaction.put_balance("town", "half done")
        ledger.reserve(Steps(1), budget="town", key="next")
        assert ledger.entries() == before + 1
        ledger.verify()


def test_another_thread_is_refused_and_disturbs_nobody(filled: str) -> None:
    said: list[BaseException] = []

    def elsewhere() -> None:
        try:
            ledger.reserve(Steps(1), budget="town", key="other-thread")
        except BaseException as error:
            said.append(error)

    with Ledger.open(filled) as ledger:
        store = ledger._store
        assert isinstance(store, sqlite.SqliteStore)
        with store.writing():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            with open(store.path.with_name(store.path.name + ".lock"), "rb") as other:
                with pytest.raises(BlockingIOError):  # the transaction's lock is still held
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ledger.reserve(Steps(1), budget="town", key="this-thread")
        ledger.verify()
    assert [str(error)[:6] for error in said] == ["SQ-308"]


def test_a_read_only_ledger(filled: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give the files to somebody else")
    place = Path("/tmp") / f"sq-ro-{os.getpid()}"
    shutil.copytree(tmp_path, place)
    place.chmod(0o755)
    for file in place.iterdir():
        if file.is_file():
            file.chmod(0o644)

    def as_nobody() -> None:
        os.seteuid(NOBODY)
        reserve(f"sqlite:///{place}/budget.db", "second")

    try:
        words = in_child(as_nobody)
        assert words.startswith("SQ-304"), words
        with Ledger.open(f"sqlite:///{place}/budget.db") as ledger:
            assert ledger.verify().entries == 3
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("system", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    far, near = tmp_path / "far away", tmp_path / "far away" / "near"
    near.mkdir(parents=True)
    mounts = tmp_path / "mounts"
    escaped = str(far).replace(" ", "\\040")
    mounts.write_text(
        f"/dev/vda / ext4 rw 0 0\nhost:/share {escaped} {system} rw 0 0\n"
        f"tmpfs {escaped}/near tmpfs rw 0 0\n"
    )
    monkeypatch.setattr(sqlite, "_MOUNTS", mounts)
    with refused(307):
        Ledger.create(f"sqlite:///{far}/budget.db")
    assert list(far.iterdir()) == [near]
    Ledger.create(f"sqlite:///{near}/budget.db").close()
    shutil.copy(tmp_path / "budget.db", far)  # one that somebody moved there
    with refused(307):
        Ledger.open(f"sqlite:///{far}/budget.db")
    Ledger.open(filled).close()


def test_a_ledger_that_somebody_holds(filled: str, path: Path) -> None:
    with open(f"{path}.lock", "w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with refused(305):
            reserve(filled, "second", timeout_s=0.3)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # a program that does not know our lock
    with refused(305):
        reserve(filled, "second", timeout_s=0.3)
    other.execute("ROLLBACK")
    other.close()
    reserve(filled, "second")
    with Ledger.open(filled) as ledger:
        assert ledger.verify().entries == 4


def test_a_lock_given_up_is_not_taken_later(filled: str, path: Path) -> None:
    ledger = Ledger.open(filled, timeout_s=0.2)
    with open(f"{path}.lock", "w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with refused(305):
            ledger.reserve(Steps(10), budget="town", key="second")
    ledger.reserve(Steps(10), budget="town", key="second")
    reserve(filled, "third", timeout_s=5.0)
    assert ledger.verify().entries == 5
    ledger.close()


@pytest.mark.parametrize("offset", [0, 8, 16, 18, 24, 28, 44, 56, 68, 96, 100, 103, 105])
def test_a_corrupted_header(filled: str, path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + 4] = b"\xff\xfe\xfd\xfc"
    path.write_bytes(content)
    code = 0
    try:
        with Ledger.open(filled) as ledger:
            ledger.verify()
            # Some header fields mean nothing to a reader (change counters): then all is there.
            assert ledger.entries() == 3
    except SequesterError as refusal:
        code = refusal.code
    assert code in (0, 303, 304, 305, 330, 331)


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" * 300])
def test_a_file_that_is_no_ledger(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with refused(331):
        Ledger.open(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE patients(name TEXT)")
    other.close()
    with refused(331):
        Ledger.open(f"sqlite:///{path}")


def test_guards_that_were_removed_are_missed(filled: str, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("DROP TRIGGER sequester_entry_no_update")
    other.close()
    with refused(331):
        Ledger.open(filled)


def test_a_damaged_balance_stops_the_next_charge(filled: str, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("UPDATE sequester_balance SET body = replace(body, '3.0', '9.0')")
    other.close()
    with refused(332):
        reserve(filled, "second")


def test_a_fork_must_open_its_own(filled: str) -> None:
    with Ledger.open(filled) as ledger:
        words = in_child(lambda: ledger.reserve(Steps(10), budget="town", key="second"))
        assert words.startswith("SQ-308")
        ledger.reserve(Steps(10), budget="town", key="second")


def test_private_files_are_private(filled: str, path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0
    key = path.with_name("ledger.key")
    assert key.stat().st_mode & 0o077 == 0
    key.chmod(0o644)
    with Ledger.open(filled, key=key) as ledger, refused(344):
        ledger.checkpoint()


def test_the_ledger_starts_without_torch(filled: str) -> None:
    code = (
        "import sys; from sequester.ledger import Ledger; "
        f"Ledger.open({filled!r}).close(); sys.exit('torch' in sys.modules or 'psycopg' in "
        "sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_server_that_goes_away_and_comes_back(server: Server, tmp_path: Path) -> None:
    url = server.database()
    with Ledger.create(url, key=tmp_path / "ledger.key") as ledger:
        ledger.create_budget("town", "town-2024", 3.0, 1e-6)
        server.crash()
        try:
            with refused(303):
                ledger.reserve(Steps(10), budget="town", key="a")
        finally:
            server.start()
        ledger.reserve(Steps(10), budget="town", key="a")
        assert ledger.verify().entries == 3


def test_a_server_that_would_forget_is_refused(server: Server, tmp_path: Path) -> None:
    import psycopg

    url = server.database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("ALTER SYSTEM SET fsync = off")
        owner.execute("SELECT pg_reload_conf()")
        try:
            while owner.execute("SHOW fsync").fetchone() != ("off",):
                pass
            with refused(303):
                Ledger.create(url, key=tmp_path / "ledger.key")
        finally:
            owner.execute("ALTER SYSTEM RESET fsync")
            owner.execute("SELECT pg_reload_conf()")
    with refused(303):
        Ledger.open("postgresql://nobody@/none?host=/nowhere")


def test_a_postgres_ledger_that_somebody_holds(server: Server, tmp_path: Path) -> None:
    import psycopg

    url = server.database()
    with Ledger.create(url, key=tmp_path / "ledger.key") as ledger:
        ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (0x5351_5354_4C44_4752,))
        with refused(305):
            reserve(url, "a", timeout_s=0.5)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"ALTER DATABASE {other.info.dbname} SET default_transaction_read_only = on")
        with refused(304):
            reserve(url, "a")
