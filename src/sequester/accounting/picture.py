"""The trade-off curve drawn: in a terminal with Braille dots, or as a self-contained SVG."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from sequester.accounting.curve import Tradeoff

# Bits of the 2 by 4 dots of a Braille character, by (column, row from the top).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def braille(curve: Tradeoff, *, width: int = 48, height: int = 16) -> str:
    """The region an attacker can reach, as text: TPR against FPR, diagonal for guessing."""
    columns, rows = 2 * width, 4 * height
    cells = [[0] * width for _ in range(height)]

    def dot(x: int, value: float) -> None:
        y = min(rows - 1, max(0, round((1.0 - value) * (rows - 1))))
        cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]

    previous = 0.0
    for x in range(columns):
        fpr = x / (columns - 1)
        tpr = curve.tpr(fpr)
        # Join steep stretches, so that the line has no holes.
        low, high = sorted((previous if x else tpr, tpr))
        for k in range(max(1, math.ceil((high - low) * (rows - 1)))):
            dot(x, low + k / (rows - 1))
        dot(x, tpr)
        if x % 4 == 0:
            dot(x, fpr)
        previous = tpr
    lines = []
    for row, cell in enumerate(cells):
        label = "100%" if row == 0 else "  0%" if row == height - 1 else "    "
        lines.append(f"{label} ┤" + "".join(chr(0x2800 + bits) for bits in cell))
    lines.append("     └" + "─" * width)
    lines.append("      0%" + "falsely accused".center(width - 6) + "100%")
    return "members found (curve: at most; dots: blind guessing)\n" + "\n".join(lines)


def svg(curve: Tradeoff, *, title: str) -> str:
    """The same as an SVG document without scripts, fonts or links."""
    size, left, top = 360.0, 56.0, 40.0

    def place(fpr: float, tpr: float) -> str:
        return f"{left + fpr * size:.2f},{top + (1.0 - tpr) * size:.2f}"

    fprs, tprs = curve.points(121)
    line = " ".join(place(x, y) for x, y in zip(fprs, tprs, strict=True))
    area = f"{place(0, 0)} {line} {place(1, 1)}"
    ticks = "".join(_tick(share, size, left, top) for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    middle = left + size / 2
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 440 460" role="img" \
font-family="sans-serif" font-size="12">
<title>{escape(title)}</title>
<rect width="440" height="460" fill="white"/>
<text x="{middle}" y="22" text-anchor="middle" font-size="14">{escape(title)}</text>
<polygon points="{area}" fill="#b3cde3"/>
<polyline points="{line}" fill="none" stroke="#08519c" stroke-width="2"/>
<polyline points="{place(0, 0)} {place(1, 1)}" stroke="#777" stroke-dasharray="4 4"/>
<rect x="{left}" y="{top}" width="{size}" height="{size}" fill="none" stroke="#333"/>
{ticks}
<text x="{middle}" y="{top + size + 40}" text-anchor="middle">outsiders falsely accused</text>
<text x="16" y="{top + size / 2}" text-anchor="middle" \
transform="rotate(-90 16 {top + size / 2})">members found, at most</text>
</svg>
"""


def _tick(share: float, size: float, left: float, top: float) -> str:
    x, y = left + share * size, top + (1.0 - share) * size
    label = f"{100 * share:g}%"
    return (
        f'<text x="{x}" y="{top + size + 18}" text-anchor="middle">{label}</text>'
        f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{label}</text>'
    )
