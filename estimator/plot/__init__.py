"""Pictures of a `Timeline`: memory over the course of a run, stacked by owner, the peak and what holds it.

SVG and HTML are written here and follow the light or dark scheme of the viewer; PNG is drawn by matplotlib.
"""

from __future__ import annotations

from estimator.timeline import Timeline


def draw(timeline: Timeline, title: str, suffix: str) -> bytes:
    """The picture as a file of that suffix: `.svg`, `.html` (with values under the mouse) or `.png`.

    Raises:
        ValueError: another suffix.
    """
    if suffix == ".svg":
        from estimator.plot.svg import svg

        return svg(timeline, title).encode()
    if suffix == ".html":
        from estimator.plot.html import html

        return html(timeline, title).encode()
    if suffix == ".png":
        from estimator.plot.png import png

        return png(timeline, title)
    raise ValueError(f"no picture is a {suffix} file")
