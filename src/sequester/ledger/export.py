"""The ledger for other eyes: all rows as JSON, a table as CSV, an extract for an ethics board."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sequester import accounting
from sequester.core import canonical
from sequester.core.values import round_up
from sequester.ledger import rows
from sequester.ledger.ledger import Ledger, Standing
from sequester.ledger.rows import Row

COLUMNS = (
    "row", "time", "kind", "budget", "key", "about_row", "unit", "event", "text", "who", "hash",
)  # fmt: skip
_FORMULA = (
    "=", "+", "-", "@", "\t", "\r", "\n", "|", "%",
    "\uff1d", "\uff0b", "\uff0d", "\uff20",  # the same in full width, which some programs read
)  # fmt: skip


@dataclass
class Run:
    """A reservation and what became of it."""

    row: Row
    budget: str
    event: dict[str, Any]
    status: str = "reserved, counted in full"
    notes: list[str] = field(default_factory=list)


def to_json(ledger: Ledger) -> str:
    """Every row exactly as stored, so that anyone can recompute the chain."""
    listed = [row._asdict() for row in ledger.rows()]
    fields = {"format": 1, "ledger": ledger.id, "public_key": ledger.public_key, "rows": listed}
    return canonical.dumps(fields) + "\n"


def to_csv(ledger: Ledger) -> str:
    """One line for each row; no cell can be taken for a formula by a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in ledger.rows():
        fields = row.fields()
        signed = fields.get("signed", {}).get("document", {})
        event = canonical.dumps(fields["event"]) if "event" in fields else ""
        cells = (
            row.seq,
            _time(fields["time_ms"]),
            row.kind,
            row.budget,
            row.key or "",
            row.ref or fields.get("row", ""),
            fields.get("unit", ""),
            event,
            fields.get("reason", signed.get("why", "")),
            signed.get("who", ""),
            row.hash,
        )
        writer.writerow([cell if isinstance(cell, int) else safe_cell(cell) for cell in cells])
    return out.getvalue()


def safe_cell(text: str) -> str:
    """Text that no spreadsheet runs: an apostrophe goes before what could start a formula.

    Source: OWASP, "CSV injection"; leading white space is looked through, as spreadsheets do.
    """
    return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def to_board(ledger: Ledger) -> str:
    """A page for people who decide about people's data: Markdown, no numbers without words."""
    every = ledger.rows()
    runs, grants = _runs(every), [row for row in every if row.kind == rows.GRANT]
    policy = ledger.policy()
    lines = [
        "# Privacy ledger: extract for review",
        "",
        f"Ledger `{ledger.id}`, {len(every)} rows, newest "
        f"{_time(every[-1].fields()['time_ms'])}. Data holder: "
        f"{_plain(policy.holder) or 'not named'}.",
        "",
        "Epsilon (ε) bounds how much anyone who sees everything that was released can learn about "
        "one person, beyond what they would learn if that person's records had not been used: the "
        "odds of any conclusion change by at most a factor of e^ε, except with probability δ. "
        "The ledger charges every run before it touches data, and refuses what would pass the "
        "ceiling.",
    ]
    for standing in ledger.budgets():
        lines += _budget_lines(standing, [r for r in runs if r.budget == standing.budget.name])
    lines += ["", "## Grants", ""]
    lines += [_grant_line(row) for row in grants] or ["No ceiling was ever raised."]
    lines += [
        "",
        "## How to check this page",
        "",
        "`sequester ledger verify` recomputes every row and figure from the recorded events; the "
        f"newest row's hash is `{every[-1].hash}`.",
        "",
    ]
    return "\n".join(lines)


def _budget_lines(standing: Standing, runs: list[Run]) -> list[str]:
    budget = standing.budget
    part = f", a {budget.share} of {_plain(budget.parent)}" if budget.parent else ""
    data = f" (keyed fingerprint {budget.people[:16]}…)" if budget.people else ""
    lines = [
        "",
        f"## Budget {_plain(budget.name)}",
        "",
        f"Data set {_plain(budget.dataset)}{data}{part}. Protected: the presence of one "
        f"{budget.unit} ({budget.adjacency}). Ceiling ε = {budget.epsilon:g} at δ = "
        f"{budget.delta:g}. Spent ε ≤ {round_up(standing.spent):g}; remaining "
        f"{standing.remaining:.4g}.",
        "",
    ]
    if not runs:
        return [*lines, "No run was ever charged to it."]
    lines += ["| row | date | ε of this run alone | what became of it |", "|---|---|---|---|"]
    for run in runs:
        alone = _epsilon(canonical.dumps(run.event), budget.delta, budget.adjacency)
        lines.append(
            f"| {run.row.seq} | {_time(run.row.fields()['time_ms'])[:10]} | {round_up(alone):g} | "
            f"{_plain('; '.join([run.status, *run.notes]))} |"
        )
    return lines


def _runs(every: Iterable[Row]) -> list[Run]:
    found: dict[int, Run] = {}
    for row in every:
        fields = row.fields()
        run = found.get(row.ref or fields.get("row", 0))
        if row.kind == rows.RESERVE:
            found[row.seq] = Run(row, row.budget, fields["event"])
        elif run is None:
            continue
        elif row.kind == rows.BEGIN:
            run.status = "begun and not settled, counted in full"
        elif row.kind == rows.COMMIT:
            run.event, run.status = fields["event"], f"finished (row {row.seq})"
        elif row.kind == rows.VOID:
            run.status = f"never started (row {row.seq}): {fields['reason']}"
        elif row.kind == rows.CORRECT:
            run.notes.append(f"corrected upwards (row {row.seq}): {fields['reason']}")
    return list(found.values())


def _grant_line(row: Row) -> str:
    document = row.fields()["signed"]["document"]
    return (
        f"- Row {row.seq}, {_time(row.fields()['time_ms'])[:10]}: {_plain(document['who'])} raised "
        f"{_plain(row.budget)} from ε = {document['before']:g} to {document['epsilon']:g}: "
        f"{_plain(document['why'])}"
    )


@lru_cache(maxsize=1024)
def _epsilon(event: str, delta: float, adjacency: str) -> float:
    return accounting.epsilon(accounting.from_json(event), delta, adjacency=adjacency)


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _plain(text: str | None) -> str:
    """Text that Markdown and HTML show as it is."""
    special = "\\`*_{}[]<>#|"
    return "".join(f"\\{c}" if c in special else c for c in text or "")
