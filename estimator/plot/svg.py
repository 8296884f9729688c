"""The picture as SVG: no fonts, scripts or files from elsewhere; light or dark as the viewer prefers."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from estimator.plot import style
from estimator.timeline import Timeline

WIDTH, LEFT, RIGHT, TOP, HEIGHT = 800, 58, 590, 74, 300
LEGEND = RIGHT + 18
BAND = TOP + HEIGHT + 4  # phases
BELOW = BAND + 74  # what holds the peak
LINE = 20
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LIGHT = {"paper": "#ffffff", "ink": "#1c2128", "dim": "#57606a", "grid": "#d0d7de"}
DARK = {"paper": "#0d1117", "ink": "#e6edf3", "dim": "#9da7b1", "grid": "#30363d"}


@dataclass(frozen=True, slots=True)
class Scales:
    """From events and bytes to places in the picture."""

    events: int
    most: int  # bytes at the upper edge

    def x(self, event: float) -> float:
        """Where an event is."""
        return LEFT + (RIGHT - LEFT) * event / max(self.events, 1)

    def y(self, count: float) -> float:
        """Where a number of bytes is."""
        return TOP + HEIGHT * (1 - count / self.most)


def scales(timeline: Timeline) -> Scales:
    """Those of a timeline, with a little room above."""
    return Scales(timeline.events, max(int(timeline.reserved_peak * 1.06), 1))


def height(timeline: Timeline) -> int:
    """Of the whole picture."""
    return BELOW + LINE * (len(timeline.top) + 1) + 8


def svg(timeline: Timeline, title: str) -> str:
    """The whole file."""
    tall = height(timeline)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" '
        f'width="{WIDTH}" height="{tall}" role="img" font-family="{FONT}" font-size="12">'
        f"<title>{escape(title)}: {escape(style.subtitle(timeline))}</title>"
        f"<style>{stylesheet()}</style>"
        f'<rect class="paper" width="{WIDTH}" height="{tall}"/>{body(timeline, title)}</svg>\n'
    )


def stylesheet() -> str:
    """Both schemes."""

    def rules(colours: dict[str, str]) -> str:
        return (
            f".paper{{fill:{colours['paper']}}}.ink{{fill:{colours['ink']}}}.dim{{fill:{colours['dim']}}}"
            f".grid{{stroke:{colours['grid']}}}.axis{{stroke:{colours['dim']}}}"
            f".peak{{stroke:{colours['ink']}}}.halo{{stroke:{colours['paper']}}}"
        )

    return f"{rules(LIGHT)}@media (prefers-color-scheme:dark){{{rules(DARK)}}}"


def body(timeline: Timeline, title: str) -> str:
    """All that is drawn."""
    to = scales(timeline)
    head = escape(style.cut(title, 84))
    return "".join(
        [
            f'<text class="ink" x="14" y="26" font-size="16" font-weight="600">{head}</text>',
            f'<text class="dim" x="14" y="46">{escape(style.subtitle(timeline))}</text>',
            _axes(timeline, to),
            _areas(timeline, to),
            _phases(timeline, to),
            _peak(timeline, to),
            _legend(timeline),
            _top(timeline),
        ]
    )


def _axes(timeline: Timeline, to: Scales) -> str:
    unit, name = style.scale(to.most)
    parts = [f'<text class="dim" x="{LEFT - 7}" y="{TOP + 3}" text-anchor="end">{name}</text>']
    for tick in style.ticks(to.most / unit):
        y = to.y(tick * unit)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="dim" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{style.number(tick)}</text>'
        )
    for tick in style.ticks(timeline.events):
        x = to.x(tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{BAND + 14}" y2="{BAND + 18}"/>')
        parts.append(
            f'<text class="dim" x="{x:.1f}" y="{BAND + 31}" text-anchor="middle">{style.number(tick)}</text>'
        )
    parts.append(
        f'<text class="dim" x="{(LEFT + RIGHT) / 2}" y="{BAND + 48}" text-anchor="middle">'
        "events of the allocator since the GPU was first used</text>"
    )
    return "".join(parts)


def _areas(timeline: Timeline, to: Scales) -> str:
    """One area upon the other, and the line of what is reserved above them."""
    xs = [f"{to.x(at):.1f}" for at in timeline.at]
    below = [0] * len(xs)
    parts = []
    for row, colour in zip(timeline.bytes, style.colours(timeline.owners), strict=True):
        above = [low + count for low, count in zip(below, row, strict=True)]
        edge = [f"{x},{to.y(count):.1f}" for x, count in zip(xs, above, strict=True)]
        edge += [f"{x},{to.y(count):.1f}" for x, count in zip(reversed(xs), reversed(below), strict=True)]
        parts.append(f'<path fill="{colour}" d="M{" ".join(edge)}z"/>')
        below = above
    line = " ".join(f"{x},{to.y(count):.1f}" for x, count in zip(xs, timeline.reserved, strict=True))
    parts.append(f'<path fill="none" stroke="{style.RESERVED}" stroke-width="1.6" d="M{line}"/>')
    return "".join(parts)


def _phases(timeline: Timeline, to: Scales) -> str:
    """A band under the axis: which phase, and which step where there is room for it."""
    parts = []
    for interval in timeline.intervals:
        begin, end = to.x(interval.begin), to.x(interval.end)
        colour = style.PHASES.get(interval.phase, "#98a1ab")
        parts.append(
            f'<rect fill="{colour}" x="{begin:.1f}" y="{BAND}" '
            f'width="{max(end - begin, 0.4):.1f}" height="11">'
            f"<title>{escape(interval.phase)}, step {interval.step + 1}</title></rect>"
        )
    return "".join(parts)


def _peak(timeline: Timeline, to: Scales) -> str:
    x, y = to.x(timeline.at[timeline.peak]), to.y(timeline.allocated_peak)
    at_the_right = x > (LEFT + RIGHT) / 2
    where = style.moment(timeline, timeline.peak)
    label = f"peak {style.size(timeline.allocated_peak)}{', ' + where if where else ''}"
    return (
        f'<g id="peak"><line class="peak" stroke-dasharray="3 3" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 14}" '
        f'y2="{TOP + HEIGHT}"/><circle class="ink" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
        f'<text class="ink" font-weight="600" x="{x + (-6 if at_the_right else 6):.1f}" y="{TOP - 6}" '
        f'text-anchor="{"end" if at_the_right else "start"}">{label}</text></g>'
    )


def _legend(timeline: Timeline) -> str:
    """Names and colours, from the top as in the picture, with the bytes at the peak."""
    phases = list(dict.fromkeys(interval.phase for interval in timeline.intervals))
    parts = [f'<text class="dim" id="moment" x="{LEGEND}" y="{TOP}">at the peak</text>']
    y = TOP + LINE
    reserved = style.size(timeline.reserved[timeline.peak])
    parts.append(f'<path stroke="{style.RESERVED}" stroke-width="2" d="M{LEGEND},{y - 4}h11"/>')
    parts.append(_entry("reserved", reserved, "reserved", y))
    rows = list(zip(timeline.owners, style.colours(timeline.owners), timeline.bytes, strict=True))
    for index, (owner, colour, row) in reversed(list(enumerate(rows))):
        y += LINE
        parts.append(f'<rect fill="{colour}" x="{LEGEND}" y="{y - 10}" width="11" height="11" rx="2"/>')
        parts.append(_entry(style.cut(style.name(owner), 18), style.size(row[timeline.peak]), f"o{index}", y))
    y += LINE
    for index, phase in enumerate(phases):
        x = LEGEND + 96 * (index % 2)
        y += LINE if index % 2 == 0 else 0
        colour = style.PHASES.get(phase, "#98a1ab")
        parts.append(f'<rect fill="{colour}" x="{x}" y="{y - 9}" width="11" height="8"/>')
        parts.append(f'<text class="dim" x="{x + 17}" y="{y}">{escape(phase)}</text>')
    return "".join(parts)


def _entry(name: str, value: str, identifier: str, y: int) -> str:
    return (
        f'<text class="ink" x="{LEGEND + 17}" y="{y}">{escape(name)}</text>'
        f'<text class="ink" id="{identifier}" x="{WIDTH - 14}" y="{y}" text-anchor="end">{value}</text>'
    )


def _top(timeline: Timeline) -> str:
    """Where the program allocated what is held at the peak."""
    if not timeline.top:
        return ""
    parts = [
        f'<text class="ink" font-weight="600" x="14" y="{BELOW}">Most of the peak was allocated in</text>'
    ]
    most = timeline.top[0].bytes
    for number, place in enumerate(timeline.top):
        y = BELOW + LINE * (number + 1)
        width = 60 * place.bytes / most
        parts.append(
            f'<rect class="dim" x="14" y="{y - 9}" width="{width:.1f}" height="9" rx="1"/>'
            f'<text class="ink" x="144" y="{y}" text-anchor="end">{style.size(place.bytes)}</text>'
            f'<text class="ink" x="154" y="{y}">{escape(style.cut(style.where(place), 96))}'
            f"<title>{escape(style.where(place))}</title></text>"
        )
    return "".join(parts)
