"""Whatever is changed behind the ledger's back is found, and the first bad row is named."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sequester.core import canonical
from sequester.core.errors import SequesterError, VerificationError
from sequester.ledger import Grant, Ledger, rows
from sequester.ledger.desk import seal_state
from sequester.ledger.rows import Row
from sequester.ledger.signing import read_key
from sequester.ledger.verify import verify
from tests.ledger.conftest import Make, both_stores
from tests.ledger.plans import Steps

TEXTS = ("kind", "budget", "body", "prev", "hash", "key")


@dataclass
class Shown:
    """Rows and balances as a transaction shows them."""

    listed: list[Row]
    kept: dict[str, str]

    def rows(self) -> Iterator[Row]:
        return iter(self.listed)

    def balances(self) -> dict[str, str]:
        return dict(self.kept)


def fill(ledger: Ledger, key: Path) -> None:
    """One row of each kind, and more."""
    ledger.create_budget("town", "town-2024", 3.0, 1e-6)
    first = ledger.reserve(Steps(30), budget="town", key="a")
    first.begin()
    first.commit(Steps(20).event())
    ledger.reserve(Steps(30), budget="town", key="b").void("not started")
    ledger.correct(first.row, Steps(1).event(), "one step was missing", key="fix")
    ledger.grant(
        Grant(ledger.id, "town", 3.0, 3.5, "A. Holder", "a second study").sign(read_key(key))
    )
    ledger.reserve(Steps(40), budget="town", key="c")


@pytest.fixture
def shown(ledger: Ledger, tmp_path: Path) -> Shown:
    fill(ledger, tmp_path / "ledger.key")
    with ledger._store.reading() as transaction:
        return Shown(list(transaction.rows()), transaction.balances())


def test_any_changed_character_of_any_row_is_found_and_named(shown: Shown) -> None:
    verify(shown)
    changed = 0
    for at, row in enumerate(shown.listed):
        for name in TEXTS:
            text = getattr(row, name)
            for place in range(len(text or "")):
                flipped = chr(ord(text[place]) ^ 1)
                bad = row._replace(**{name: text[:place] + flipped + text[place + 1 :]})
                tampered = Shown([*shown.listed[:at], bad, *shown.listed[at + 1 :]], shown.kept)
                with pytest.raises(VerificationError) as found:
                    verify(tampered)
                assert f"row {row.seq} is the first bad row" in str(found.value), (row, name)
                changed += 1
    assert changed > 4000


@pytest.mark.parametrize("seq", [0, -1, 99])
def test_a_changed_number_is_found(shown: Shown, seq: int) -> None:
    for at, row in enumerate(shown.listed):
        for bad in (row._replace(seq=seq), row._replace(ref=seq)):
            with pytest.raises(VerificationError, match="first bad row"):
                verify(Shown([*shown.listed[:at], bad, *shown.listed[at + 1 :]], shown.kept))


def test_a_missing_or_doubled_row_is_found(shown: Shown) -> None:
    for at in range(len(shown.listed)):
        without = [*shown.listed[:at], *shown.listed[at + 1 :]]
        with pytest.raises(VerificationError):
            verify(Shown(without, shown.kept))
        doubled = [*shown.listed[: at + 1], *shown.listed[at:]]
        with pytest.raises(VerificationError, match=f"row {at + 2} is the first bad row"):
            verify(Shown(doubled, shown.kept))
    with pytest.raises(VerificationError, match="row 1 is the first bad row"):
        verify(Shown([], {}))


def test_any_changed_character_of_a_balance_is_found(shown: Shown) -> None:
    for name, text in shown.kept.items():
        for place in range(len(text)):
            bad = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
            with pytest.raises(VerificationError, match=r"^SQ-332 "):
                verify(Shown(shown.listed, shown.kept | {name: bad}))


def rehash(listed: list[Row], at: int, bad: Row) -> list[Row]:
    """What a forger would do: change a row and write all later hashes anew."""
    found = listed[:at]
    for row in [bad, *listed[at + 1 :]]:
        row = row._replace(prev=found[-1].hash if found else rows.BEFORE_FIRST)
        found.append(row._replace(hash=row.digest()))
    return found


def forged(row: Row, **fields: object) -> Row:
    return row._replace(body=canonical.dumps(row.fields() | fields))


def test_a_forger_who_hashes_anew_cannot_lower_a_charge(shown: Shown) -> None:
    for at, row in enumerate(shown.listed):
        if "charge" not in row.fields():
            continue
        charge = [max(0, value - 10_000) for value in row.fields()["charge"]]
        with pytest.raises(VerificationError, match=f"row {row.seq} .* charges less"):
            verify(Shown(rehash(shown.listed, at, forged(row, charge=charge)), shown.kept))


def test_a_forger_cannot_move_a_charge_to_other_data(ledger: Ledger) -> None:
    ledger.create_budget("town", "t", 3.0, 1e-6)
    for key in ("a", "b"):
        ledger.reserve(Steps(1), budget="town", key=key, people="a" * 64)
    with ledger._store.reading() as transaction:
        listed, kept = list(transaction.rows()), transaction.balances()
    bad = forged(listed[-1], people="b" * 64)
    with pytest.raises(VerificationError, match=r"row 4 .* other data"):
        verify(Shown(rehash(listed, 3, bad), kept))
    other = seal_state(1, "0" * 64)  # another secret key would make all fingerprints unknown
    with pytest.raises(VerificationError, match=r"^SQ-332 "):
        verify(Shown(listed, kept | {"": other}))


def test_a_forger_cannot_raise_a_ceiling(shown: Shown) -> None:
    at = next(i for i, row in enumerate(shown.listed) if row.kind == rows.GRANT)
    row = shown.listed[at]
    signed = row.fields()["signed"]
    bad = forged(row, signed=signed | {"document": signed["document"] | {"epsilon": 9.0}})
    with pytest.raises(VerificationError, match=f"row {row.seq} .* signature"):
        verify(Shown(rehash(shown.listed, at, bad), shown.kept))


def test_a_checkpoint_finds_what_a_perfect_forger_did(ledger: Ledger, shown: Shown) -> None:
    witness = ledger.checkpoint()
    rolled_back = Shown(shown.listed[:3], {})
    with pytest.raises(VerificationError, match=r"^SQ-33[23] "):
        verify(rolled_back, [witness])
    at = next(i for i, row in enumerate(shown.listed) if row.kind == rows.VOID)
    rewritten = rehash(shown.listed, at, forged(shown.listed[at], reason="another reason"))
    verify(Shown(rewritten, shown.kept))  # the chain alone cannot see it
    with pytest.raises(VerificationError, match=r"^SQ-333 "):
        verify(Shown(rewritten, shown.kept), [witness])


@both_stores
def test_the_stores_guards_refuse_changes(url: str, make: Make, tmp_path: Path) -> None:
    ledger = make()
    fill(ledger, tmp_path / "ledger.key")
    with ledger._store.writing() as transaction, pytest.raises(Exception, match="never"):
        transaction._run("UPDATE sequester_entry SET body = 'x' WHERE seq = 2", ())
    with ledger._store.writing() as transaction, pytest.raises(Exception, match="never"):
        transaction._run("DELETE FROM sequester_entry WHERE seq = 2", ())
    ledger.verify()


def test_postgres_rows_changed_by_its_owner_are_found(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    import psycopg

    url = request.getfixturevalue("server").database()
    with Ledger.create(url, key=tmp_path / "ledger.key") as ledger:
        fill(ledger, tmp_path / "ledger.key")
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("ALTER TABLE sequester_entry DISABLE TRIGGER ALL")
            with pytest.raises(VerificationError, match=r"^SQ-331 "):
                ledger.verify()
            for column in ("body", "hash", "prev", "kind", "budget"):
                owner.execute(
                    f"UPDATE sequester_entry SET {column} = overlay({column} placing '!' from 3 "
                    "for 1) WHERE seq = 5"
                )
                with (
                    pytest.raises(VerificationError, match="row 5 is the first bad row"),
                    ledger._store.reading() as transaction,
                ):
                    verify(transaction)


def row_bytes(path: Path, listed: list[Row]) -> list[tuple[int, int]]:
    """Where each row's record lies in an SQLite file whose log has been folded in."""
    content = path.read_bytes()
    found = []
    for row in listed:
        body = content.index(row.body.encode() + row.prev.encode())
        before = len(row.key or "") + len(row.kind) + len(row.budget) + 14
        found.append((body - before, body + len(row.body) + 128))
    return found


def flips_missed(path: Path, listed: list[Row], step: int) -> tuple[int, list[int]]:
    """Flip a bit of every `step`-th byte of the stored rows; (tried, places not found)."""
    content, missed, tried = path.read_bytes(), [], 0
    copy = path.with_name("flipped.db")
    for start, end in row_bytes(path, listed):
        for place in range(start + start % step, end, step):
            damaged = bytearray(content)
            damaged[place] ^= 1 << (place % 8)
            copy.write_bytes(damaged)
            tried += 1
            try:
                with Ledger.open(f"sqlite:///{copy}") as ledger:
                    ledger.verify()
                missed.append(place)
            except SequesterError:
                pass
            for left in path.parent.glob("flipped.db*"):
                left.unlink()
    return tried, missed


def test_flipped_bits_in_the_file_are_found(ledger: Ledger, tmp_path: Path) -> None:
    fill(ledger, tmp_path / "ledger.key")
    listed = ledger.rows()
    ledger.close()
    path = tmp_path / "budget.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    tried, missed = flips_missed(path, listed, step=41)
    assert tried > 100
    assert missed == []
