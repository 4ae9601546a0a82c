"""The pictures of an inspection as one file: SVG, or PNG where matplotlib is installed."""

from __future__ import annotations

import io
import textwrap
from html import escape
from typing import TYPE_CHECKING

from sequester.core.errors import UsageError
from sequester.sequences.inspection import Histogram, Inspection
from sequester.sequences.pictures import amount, bin_label, histogram_svg, uniqueness_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = (
    "text { fill: #5b6b7a; font: 12px system-ui, sans-serif; } rect { fill: #2f6f8f; } "
    "line { stroke: #d5dde3; } text.head { fill: #1b2733; font-size: 15px; font-weight: 600; } "
    "text.title { fill: #1b2733; font-size: 19px; font-weight: 600; }"
)
_WIDE, _MARGIN = 700, 30
_LINE = 100  # characters of a line
_BAR = "#2f6f8f"


def inspection_svg(found: Inspection, title: str) -> str:
    """All pictures in one SVG, which loads and runs nothing; every name is escaped."""
    panels = [
        ("How often points pick out one person", uniqueness_svg(found)),
        *((p.title[:1].upper() + p.title[1:], histogram_svg(p)) for p in found.histograms),
    ]
    parts = [
        f'<rect width="100%" height="100%" style="fill: #ffffff"/><style>{_STYLE}</style>'
        f'<text class="title" x="{_MARGIN}" y="42">{escape(title)}</text>'
        f'<text x="{_MARGIN}" y="64">Computed from private records, for whoever holds them. '
        "Not for release.</text>"
    ]
    y = 84
    for line in textwrap.wrap(f"A point is {found.point}.", _LINE):
        parts.append(f'<text x="{_MARGIN}" y="{y}">{escape(line)}</text>')
        y += 16
    y += 24
    for head, picture in panels:
        tall = int(picture.split('viewBox="0 0 640 ', 1)[1].split('"', 1)[0])
        inner = picture.replace("<svg ", f'<svg x="{_MARGIN}" y="{y + 12}" width="640" '
                                f'height="{tall}" ', 1)  # fmt: skip
        parts.append(f'<text class="head" x="{_MARGIN}" y="{y}">{escape(head)}</text>{inner}')
        y += tall + 56
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {y}" width="{_WIDE}" '
        f'height="{y}">{"".join(parts)}</svg>'
    )


def inspection_png(found: Inspection, title: str) -> bytes:
    """All pictures in one PNG.

    Raises:
        UsageError: SQ-129 where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            129,
            "pictures as PNG need the extra: pip install 'sequester[plots]'; SVG and HTML need "
            "nothing",
        ) from None
    panels = 1 + len(found.histograms)
    figure = Figure(figsize=(8.0, 1.0 + 2.6 * panels), dpi=120, layout="constrained")
    figure.suptitle(f"{title}\nfrom private records, not for release", parse_math=False)
    axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    _shares(axes[0], found)
    for axis, picture in zip(axes[1:], found.histograms, strict=True):
        _bars(axis, picture)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _shares(axis: Axes, found: Inspection) -> None:
    known = [(k, share) for k, share in found.uniqueness.items() if share is not None][::-1]
    bars = axis.barh([k for k, _ in known], [100 * share for _, share in known], color=_BAR)
    axis.bar_label(bars, fmt="%.1f %%", padding=3)
    axis.set_xlim(0, 112)
    axis.set_ylabel("points")
    words = f"draws that pick out one person, % (a point is {found.point})"
    axis.set_title(textwrap.fill(words, _LINE - 20), loc="left", parse_math=False)


def _bars(axis: Axes, picture: Histogram) -> None:
    bins = len(picture.counts)
    axis.bar(range(bins), picture.counts, width=0.94, color=_BAR)
    axis.set_title(picture.title, loc="left")
    shown = sorted({0, bins // 4, bins // 2, 3 * bins // 4, bins - 1})
    axis.set_xticks(shown, [bin_label(picture, at) for at in shown])
    axis.yaxis.set_major_formatter(lambda value, _: amount(value))
