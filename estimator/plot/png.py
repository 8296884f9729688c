"""The picture as PNG, drawn by matplotlib, which is an optional dependency (`gpumem[plot]`)."""

from __future__ import annotations

import io
from typing import Any

from estimator.plot import style
from estimator.timeline import Timeline

INCHES, DPI = 8.0, 200  # 1600 pixels wide: sharp where it is shown 800 wide
PAPER, INK, DIM, GRID = "#ffffff", "#1c2128", "#57606a", "#d0d7de"
SMALL = 7.5


def png(timeline: Timeline, title: str) -> bytes:
    """The picture as bytes of a PNG file, on white."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tall = 5.0 + 0.2 * len(timeline.top)
    figure = Figure(figsize=(INCHES, tall), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    figure.text(
        0.018, 1 - 0.24 / tall, style.cut(title, 84), color=INK, size=10.5, weight="bold", va="center"
    )
    figure.text(0.018, 1 - 0.47 / tall, style.subtitle(timeline), color=DIM, size=SMALL, va="center")
    below = (0.85 + 0.2 * len(timeline.top)) / tall
    axes = figure.add_axes((0.07, below, 0.665, 1 - below - 0.82 / tall))
    unit, name = style.scale(timeline.reserved_peak)
    _areas(axes, timeline, unit)
    _frame(axes, timeline, unit, name)
    _peak(axes, timeline, unit)
    _phases(figure, axes, timeline, below, tall)
    _legend(figure, timeline, 1 - 0.82 / tall, tall)
    _top(figure, timeline, tall)
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor=PAPER)
    return file.getvalue()


def _areas(axes: Any, timeline: Timeline, unit: int) -> None:
    rows = [[count / unit for count in row] for row in timeline.bytes]
    axes.stackplot(timeline.at, *rows, colors=style.colours(timeline.owners), linewidth=0)
    axes.plot(timeline.at, [count / unit for count in timeline.reserved], color=style.RESERVED, linewidth=1.1)


def _frame(axes: Any, timeline: Timeline, unit: int, name: str) -> None:
    most = 1.06 * timeline.reserved_peak / unit
    axes.set_xlim(0, max(timeline.events, 1))
    axes.set_ylim(0, most)
    axes.set_yticks(style.ticks(most))
    at = style.ticks(timeline.events)
    axes.set_xticks(at, [style.number(tick) for tick in at])
    axes.set_ylabel(name, color=DIM, size=SMALL, labelpad=2)
    axes.tick_params(colors=DIM, labelsize=SMALL, length=2.5)
    axes.tick_params(axis="x", pad=9, length=0)
    axes.set_xlabel("events of the allocator since the GPU was first used", color=DIM, size=SMALL, labelpad=2)
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _peak(axes: Any, timeline: Timeline, unit: int) -> None:
    x, y = timeline.at[timeline.peak], timeline.allocated_peak / unit
    axes.axvline(x, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    axes.plot([x], [y], "o", color=INK, markersize=3)
    where = style.moment(timeline, timeline.peak)
    side = -1 if x > timeline.events / 2 else 1
    axes.annotate(
        f"peak {style.size(timeline.allocated_peak)}{', ' + where if where else ''}",
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4 * side, 4),
        textcoords="offset points",
        ha="right" if side < 0 else "left",
        color=INK,
        size=SMALL + 0.5,
        weight="bold",
    )


def _phases(figure: Any, axes: Any, timeline: Timeline, below: float, tall: float) -> None:
    band = figure.add_axes((0.07, below - 0.1 / tall, 0.665, 0.08 / tall))
    band.set_xlim(axes.get_xlim())
    band.axis("off")
    for interval in timeline.intervals:
        colour = style.PHASES.get(interval.phase, DIM)
        band.axvspan(interval.begin, interval.end, color=colour, linewidth=0)


def _legend(figure: Any, timeline: Timeline, top: float, tall: float) -> None:
    line = 0.2 / tall
    left, right = 0.755, 0.985
    y = top
    figure.text(left, y, "at the peak", color=DIM, size=SMALL, va="center")
    entries = [("reserved", style.RESERVED, timeline.reserved[timeline.peak])]
    colours = style.colours(timeline.owners)
    for owner, colour, row in reversed(list(zip(timeline.owners, colours, timeline.bytes, strict=True))):
        entries.append((style.name(owner), colour, row[timeline.peak]))
    for text, colour, count in entries:
        y -= line
        figure.text(left, y, "■", color=colour, size=SMALL + 2, va="center")
        figure.text(left + 0.022, y, style.cut(text, 18), color=INK, size=SMALL, va="center")
        figure.text(right, y, style.size(count), color=INK, size=SMALL, va="center", ha="right")
    y -= 0.5 * line
    for index, phase in enumerate(dict.fromkeys(interval.phase for interval in timeline.intervals)):
        y -= line if index % 2 == 0 else 0
        x = left + 0.12 * (index % 2)
        figure.text(x, y, "▬", color=style.PHASES.get(phase, DIM), size=SMALL, va="center")
        figure.text(x + 0.022, y, phase, color=DIM, size=SMALL, va="center")


def _top(figure: Any, timeline: Timeline, tall: float) -> None:
    if not timeline.top:
        return
    line = 0.2 / tall
    y = line * (len(timeline.top) + 0.5)
    heading = "Most of the peak was allocated in"
    figure.text(0.018, y, heading, color=INK, size=SMALL + 0.5, weight="bold", va="center")
    for place in timeline.top:
        y -= line
        figure.text(0.1, y, style.size(place.bytes), color=INK, size=SMALL, va="center", ha="right")
        figure.text(0.115, y, style.cut(style.where(place), 110), color=INK, size=SMALL, va="center")
