"""The signed errors of every estimator as a picture (SVG, 800 pixels wide, for light and dark pages)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from bench.accuracy.metrics import percentile

WIDTH, LEFT, RIGHT, LINE, HEAD = 800, 260, 30, 24, 62
SPAN = 1.0  # errors beyond are drawn at the edge, and the picture says so
TICKS = (-1.0, -0.5, -0.25, -0.1, -0.02, 0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
STYLE = (
    ".paper{fill:#ffffff}.ink{fill:#1c2128}.dim{fill:#57606a}.grid{stroke:#d0d7de}.zero{stroke:#57606a}"
    ".us{fill:#1a7f4b}.them{fill:#8250a8}.line{stroke:#57606a}"
    "@media (prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#9da7b1}"
    ".grid{stroke:#30363d}.zero{stroke:#9da7b1}.us{fill:#3fb76f}.them{fill:#b58ad6}.line{stroke:#9da7b1}}"
)


def draw(panels: Mapping[str, Mapping[str, Sequence[float]]], ours: str) -> str:
    """One panel for each data set, in it a line for each estimator: 5th percentile, quartiles, median, 95th.

    The errors are parts of the truth, signed. The scale is that of the square root, so that small errors can
    be told apart.
    """
    height = HEAD + sum(LINE * len(lines) + 46 for lines in panels.values()) + 34
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="system-ui, -apple-system, \'Segoe UI\', Roboto, '
        '\'DejaVu Sans\', sans-serif" font-size="13">',
        "<title>Signed relative errors of every estimator by data set</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        '<text class="ink" x="14" y="26" font-size="16" font-weight="600">'
        "Estimate against measured peak</text>",
        '<text class="dim" x="14" y="46">box: middle half of the jobs; stroke: median; line: 5th to 95th '
        "percentile; number: median absolute error</text>",
    ]
    top = HEAD
    for title, lines in panels.items():
        out.append(f'<text class="ink" x="14" y="{top + 18}" font-weight="600">{escape(title)}</text>')
        top += 28
        bottom = top + LINE * len(lines)
        for tick in TICKS:
            kind = "zero" if tick == 0 else "grid"
            out.append(
                f'<line class="{kind}" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{top}" y2="{bottom}"/>'
            )
        for name, errors in lines.items():
            out += _line(name, sorted(errors), top + LINE / 2, "us" if name == ours else "them")
            top += LINE
        top += 18
    for tick in TICKS:
        label = "0" if tick == 0 else f"{tick:+.0%}".replace("-", "\N{MINUS SIGN}")
        out.append(f'<text class="dim" x="{_x(tick):.1f}" y="{top + 8}" text-anchor="middle">{label}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _line(name: str, errors: Sequence[float], y: float, kind: str) -> list[str]:
    low, first, middle, third, high = (percentile(errors, part) for part in (0.05, 0.25, 0.5, 0.75, 0.95))
    size = percentile(sorted(abs(error) for error in errors), 0.5)
    weight = ' font-weight="600"' if kind == "us" else ""
    return [
        f'<text class="ink" x="{LEFT - 66}" y="{y + 4.5}" text-anchor="end"{weight}>{escape(name)}</text>',
        f'<text class="dim" x="{LEFT - 12}" y="{y + 4.5}" text-anchor="end">{size:.1%}</text>',
        f'<line class="line" x1="{_x(low):.1f}" x2="{_x(high):.1f}" y1="{y}" y2="{y}"/>',
        f'<rect class="{kind}" x="{_x(first):.1f}" y="{y - 6}" width="{max(_x(third) - _x(first), 2):.1f}" '
        'height="12" rx="2"/>',
        f'<line class="zero" stroke-width="2" x1="{_x(middle):.1f}" x2="{_x(middle):.1f}" y1="{y - 9}" '
        f'y2="{y + 9}"/>',
    ]


def _x(error: float) -> float:
    """Where an error is drawn."""
    clipped = max(-SPAN, min(SPAN, error))
    part = math.copysign(math.sqrt(abs(clipped / SPAN)), clipped)
    middle = (LEFT + WIDTH - RIGHT) / 2
    return middle + part * (WIDTH - RIGHT - LEFT) / 2
