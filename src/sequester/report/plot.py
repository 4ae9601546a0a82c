"""Line charts as SVG text: small, sharp in print, and without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 40
COLOURS = ("#1b4f72", "#b9770e", "#7b8a8b")


@dataclass(frozen=True)
class Line:
    """One curve; points that are not finite are left out."""

    x: Sequence[float]
    y: Sequence[float]
    name: str
    dashed: bool = False


def chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    unit_square: bool = False,
    limit: float | None = None,
) -> str:
    """Draw `lines` with axes, round ticks and a legend.

    Args:
        lines: One to three curves.
        x_label: What the horizontal axis counts, with its unit.
        y_label: What the vertical axis counts, with its unit.
        unit_square: Both axes run from 0 to 1, as for a trade-off curve.
        limit: A horizontal line that the curves may not pass, such as a ceiling.
    """
    points = [(a, b) for line in lines for a, b in zip(line.x, line.y, strict=True) if _fin(a, b)]
    if not points:
        return ""
    x_high = 1.0 if unit_square else max(a for a, _ in points)
    x_low = 0.0 if unit_square else min(a for a, _ in points)
    heights = [b for _, b in points] + ([limit] if limit is not None else [])
    y_high = 1.0 if unit_square else nice_ceiling(max(heights))
    y_low = 0.0 if unit_square else min(0.0, *heights)
    scale = _Scale(x_low, x_high, y_low, y_high)
    parts = [_axes(scale, x_label, y_label)]
    if limit is not None:
        y = scale.y(limit)
        beside = y - 4 if y > TOP + 10 else y + 11  # below the line where the edge is near
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#922b21" '
            f'stroke-dasharray="2 3"/><text x="{WIDTH - RIGHT}" y="{beside:.1f}" '
            'text-anchor="end" fill="#922b21">ceiling</text>'
        )
    for number, line in enumerate(lines):
        parts.append(_path(line, scale, COLOURS[number % len(COLOURS)]))
        parts.append(_legend(line, number, at_bottom=unit_square))
    title = escape(f"{y_label} against {x_label}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}" '
        f'font-family="inherit" font-size="10"><title>{title}</title>{"".join(parts)}</svg>'
    )


def nice_ceiling(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten: an axis that ends on a round number."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        step * power
        for step in (1, 1.25, 1.5, 2, 2.5, 4, 5, 8, 10)
        if step * power >= value * (1 - 1e-12)
    )


@dataclass(frozen=True)
class _Scale:
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        span = (self.x_high - self.x_low) or 1.0
        return LEFT + (value - self.x_low) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        span = (self.y_high - self.y_low) or 1.0
        return HEIGHT - BOTTOM - (value - self.y_low) / span * (HEIGHT - TOP - BOTTOM)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, at most five; whole ones between whole ends."""
    if high <= low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 4.0))
    apart = [step * power for step in (1, 2, 2.5, 5, 10)]
    if float(low).is_integer() and float(high).is_integer() and high - low > 2.0:
        apart = [step for step in apart if step.is_integer()] or [1.0]
    step = next(step for step in apart if step * 4.0 >= (high - low) * (1 - 1e-12))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _axes(scale: _Scale, x_label: str, y_label: str) -> str:
    parts = []
    for value in ticks(scale.y_low, scale.y_high):
        y = scale.y(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e8e8"/>'
            f'<text x="{LEFT - 5}" y="{y + 3:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    for value in ticks(scale.x_low, scale.x_high):
        parts.append(
            f'<text x="{scale.x(value):.1f}" y="{HEIGHT - BOTTOM + 13}" text-anchor="middle">'
            f"{value:.4g}</text>"
        )
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="{middle_x}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text transform="translate(11 {middle_y}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return "".join(parts)


def _path(line: Line, scale: _Scale, colour: str) -> str:
    pairs = [(a, b) for a, b in zip(line.x, line.y, strict=True) if _fin(a, b)]
    # A printed curve needs no more points than pixels.
    stride = max(1, len(pairs) // 300)
    kept = pairs[::stride] + ([pairs[-1]] if (len(pairs) - 1) % stride else [])
    steps = " L".join(f"{scale.x(a):.1f} {scale.y(b):.1f}" for a, b in kept)
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    return f'<path d="M{steps}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'


def _legend(line: Line, number: int, *, at_bottom: bool) -> str:
    if not line.name:
        return ""
    y = (HEIGHT - BOTTOM - 12 - 13 * number) if at_bottom else (TOP + 12 + 13 * number)
    x, anchor = (WIDTH - RIGHT - 6, "end") if at_bottom else (LEFT + 8, "start")
    colour = COLOURS[number % len(COLOURS)]
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(line.name)}</text>'
    )


def _fin(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)
