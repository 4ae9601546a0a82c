"""Pictures of an inspection: bars of text for a terminal, SVG and one self-contained page."""

from __future__ import annotations

from html import escape

from sequester.sequences.inspection import Histogram, Inspection

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_WIDTH = 34  # characters of the longest bar

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #5b6b7a; --bar: #2f6f8f; --line: #d5dde3;
  --warn: #9a4b00; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9fb0bf; --bar: #6fb3d2;
  --line: #33414d; --warn: #ffb066; --page: #10171d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 46rem; margin: 2.5rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.45rem; margin: 0 0 .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.lead, .soft { color: var(--soft); } ul.warn li { color: var(--warn); margin: .3rem 0; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .6rem
  .25rem 0; border-bottom: 1px solid var(--line); } td.n { text-align: right;
  font-variant-numeric: tabular-nums; } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg rect { fill: var(--bar); }
svg line { stroke: var(--line); }
"""


def bar(share: float, width: int = _WIDTH) -> str:
    """A bar of text, `share` of `width` characters long, exact to an eighth."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def amount(value: float, unit: str = "") -> str:
    """A number as a person would write it; seconds as minutes, hours or days."""
    if unit == "s":
        for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
            if value >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s"
    unit = unit.removesuffix("s") if value == 1 else unit
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def moment(found: Inspection, end: str) -> str:
    """The first or last time in words."""
    value = found.span[end]
    if isinstance(value, float):
        return amount(value, "" if found.span["kind"] == "step" else "s")
    return "none" if value is None else value


def bin_label(picture: Histogram, at: int) -> str:
    """What bin `at` holds: one number, or from – to."""
    low = amount(picture.edges[at], picture.unit)
    return low if picture.whole else f"{low} – {amount(picture.edges[at + 1], picture.unit)}"


def histogram_text(picture: Histogram) -> str:
    """One line a bin: from, to, a bar, the count."""
    most = max(picture.counts)
    labels = [bin_label(picture, i) for i in range(len(picture.counts))]
    pad = max(map(len, labels))
    lines = [
        f"  {label:>{pad}}  {bar(count / most):<{_WIDTH}} {count:,}"
        for label, count in zip(labels, picture.counts, strict=True)
    ]
    return "\n".join([picture.title, *lines])


def inspection_text(found: Inspection) -> str:
    """Everything of an inspection for a terminal."""
    per, gap = found.per_person, found.gap
    unit = "steps" if found.span["kind"] == "step" else "s"
    lines = [
        f"{found.persons:,} people, {found.records:,} records; a person has "
        f"{per['min']:,.0f} to {per['max']:,.0f}, median {per['median']:g}, 95th {per['p95']:,.0f}",
        f"the 1 % of people with the most records hold {100 * found.top_share:.1f} % of them",
        f"time: {moment(found, 'first')} to {moment(found, 'last')} ({found.span['kind']})",
    ]
    if gap["median"] is not None and gap["p95"] is not None and gap["max"] is not None:
        lines.append(
            f"between records: median {amount(gap['median'], unit)}, 95th "
            f"{amount(gap['p95'], unit)}, longest {amount(gap['max'], unit)}"
        )
    if found.sites:
        sites = ", ".join(f"{name} {count:,}" for name, count in found.sites.items())
        lines.append(f"sites: {sites}")
    if absent := {name: share for name, share in found.missing.items() if share}:
        lines.append("missing: " + ", ".join(f"{n} {100 * s:.1f} %" for n, s in absent.items()))
    lines += [f"left out, {reason}: {rows:,}" for reason, rows in found.dropped.items()]
    lines += [f"set to missing, {reason}: {n:,}" for reason, n in found.masked.items()]
    lines += found.notes
    for picture in found.histograms:
        lines += ["", histogram_text(picture)]
    lines += ["", f"how often k points pick out one person ({found.point})"]
    for k, share in found.uniqueness.items():
        shown = "nobody has so many" if share is None else f"{bar(share):<{_WIDTH}} {share:.3f}"
        lines.append(f"  {k}  {shown}")
    if found.warnings:
        lines += ["", "warnings", *(f"  ! {words}" for words in found.warnings)]
    return "\n".join(lines)


def histogram_svg(picture: Histogram) -> str:
    """The histogram as an SVG element, 640 × 190."""
    wide, high, left, top = 640, 190, 10, 18
    bins, most = len(picture.counts), max(picture.counts)
    step = (wide - 2 * left) / bins
    base = high - 34
    parts = [
        f'<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{escape(picture.title)}">',
        f'<line x1="{left}" y1="{base}" x2="{wide - left}" y2="{base}"/>',
    ]
    for i, count in enumerate(picture.counts):
        tall = (base - top) * count / most
        x = left + i * step
        label = bin_label(picture, i)
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{base - tall:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{tall:.1f}"><title>{escape(label)}: {count:,}</title></rect>'
        )
    # Edges are labelled at bin borders, whole numbers under their bins.
    shift, last = (step / 2, bins - 1) if picture.whole else (0.0, bins)
    for i in sorted({0, last // 4, last // 2, 3 * last // 4, last}):
        middle = picture.whole or 0 < i < last
        anchor = "middle" if middle else "start" if i == 0 else "end"
        parts.append(
            f'<text x="{left + i * step + shift:.1f}" y="{base + 16}" text-anchor="{anchor}">'
            f"{escape(amount(picture.edges[i], picture.unit))}</text>"
        )
    tallest = picture.counts.index(most)
    parts.append(
        f'<text x="{left + (tallest + 0.5) * step:.1f}" y="{top - 3}" text-anchor="middle">'
        f"{most:,}</text>"
    )
    if not picture.whole:
        parts.append(f'<text x="{left}" y="{high - 2}">bins of equal ratio</text>')
    return "".join([*parts, "</svg>"])


def uniqueness_svg(found: Inspection) -> str:
    """Share of people picked out by k points, one bar a k."""
    known = [(k, share) for k, share in found.uniqueness.items() if share is not None]
    rows = []
    for i, (k, share) in enumerate(known):
        y = 8 + 30 * i
        points = "1 point" if k == "1" else f"{k} points"
        rows.append(
            f'<text x="10" y="{y + 15}">{points}</text>'
            f'<rect x="80" y="{y}" width="{max(480 * share, 1):.1f}" height="20"/>'
            f'<text x="{88 + 480 * share:.1f}" y="{y + 15}">{100 * share:.1f} %</text>'
        )
    tall = 16 + 30 * max(len(known), 1)
    label = "how often k points pick out one person"
    return f'<svg viewBox="0 0 640 {tall}" role="img" aria-label="{label}">{"".join(rows)}</svg>'


def inspection_html(found: Inspection, title: str) -> str:
    """One page without scripts and without network; every name is escaped."""
    per = found.per_person
    facts = {
        "People": f"{found.persons:,}",
        "Records": f"{found.records:,}",
        "Records a person, least": f"{per['min']:,.0f}",
        "Records a person, median": f"{per['median']:g}",
        "Records a person, 95th percentile": f"{per['p95']:,.0f}",
        "Records a person, most": f"{per['max']:,.0f}",
        "Held by the 1 % with the most": f"{100 * found.top_share:.1f} %",
        "First": moment(found, "first"),
        "Last": moment(found, "last"),
    }
    facts |= {f"People at site {name}": f"{count:,}" for name, count in found.sites.items()}
    rows = {f"Rows left out: {why}": f"{n:,}" for why, n in found.dropped.items()}
    rows |= {f"Values masked: {why}": f"{n:,}" for why, n in found.masked.items()}
    missing = {name: f"{100 * share:.1f} %" for name, share in found.missing.items()}
    notes = "".join(f'<p class="soft">{escape(words)}</p>' for words in found.notes)
    warnings = "".join(f"<li>{escape(words)}</li>" for words in found.warnings)
    pictures = "".join(
        f"<h2>{escape(p.title[:1].upper() + p.title[1:])}</h2>{histogram_svg(p)}"
        for p in found.histograms
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>"
        '<p class="lead">Computed from private records, for whoever holds them. Not for release.'
        "</p>"
        + (f'<h2>To think about</h2><ul class="warn">{warnings}</ul>' if warnings else "")
        + f'<h2>How identifying</h2><p class="soft">A point is {escape(found.point)}.</p>'
        + f"{uniqueness_svg(found)}{pictures}<h2>Facts</h2>{_table(facts)}"
        + (f"<h2>Reading</h2>{_table(rows)}{notes}" if rows or notes else "")
        + f"<h2>Missing values</h2>{_table(missing)}</body></html>"
    )


def _table(rows: dict[str, str]) -> str:
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table>{cells}</table>"
