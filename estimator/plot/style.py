"""What all pictures share: colours, names, ticks and texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from estimator.timeline import Place, Timeline

GIB, MIB, KIB = 1024**3, 1024**2, 1024

# readable on white and on black, and apart from each other for colour-blind eyes where they meet
COLOURS = {
    "parameters": "#3f74c4",
    "buffers": "#8db6ea",
    "optimizer_state": "#9566c0",
    "gradients": "#27a5a0",
    "workspaces": "#c2a011",
    "inputs": "#a8c84a",
    "activations": "#4b9e52",
    "temporaries": "#e5873a",
    "other": "#98a1ab",
}
OTHERS = ("#c95d84", "#7f8fd1", "#b0793f", "#5fb3d4", "#9a9f3c", "#d17b6b", "#6fae8e")  # owners by module
PHASES = {
    "setup": "#98a1ab",
    "forward": "#4b9e52",
    "backward": "#e5873a",
    "optimizer": "#9566c0",
    "evaluation": "#5fb3d4",
}
RESERVED = "#d1434b"


def colours(owners: Sequence[str]) -> list[str]:
    """A colour for each owner."""
    others = cycle(OTHERS)
    return [COLOURS.get(owner) or next(others) for owner in owners]


def name(owner: str) -> str:
    """An owner in words."""
    return owner.replace("_", " ")


def size(count: int) -> str:
    """Bytes as in the text of an estimate."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    if count >= MIB:
        return f"{count / MIB:.1f} MiB"
    return f"{count / KIB:.1f} KiB" if count else "0"


def scale(most: int) -> tuple[int, str]:
    """The unit of an axis up to `most` bytes, and its name."""
    return next(((unit, text) for unit, text in ((GIB, "GiB"), (MIB, "MiB")) if most >= unit), (KIB, "KiB"))


def ticks(most: float, count: int = 6) -> list[float]:
    """Round numbers from 0 up to `most`, about `count` of them."""
    if most <= 0:
        return [0.0]
    step = 10.0 ** len(str(int(most / count))) if most / count >= 1 else 1.0
    while step > most / count:
        for smaller in (2, 2.5, 2):  # 10, 5, 2, 1
            step /= smaller
            if step <= most / count:
                break
    return [index * step for index in range(int(most / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick, without needless digits; thousands as k, millions as M."""
    for unit, text in ((1_000_000, "M"), (1000, "k")):
        if value >= unit:
            return f"{value / unit:.6g}{text}"
    return f"{value:.6g}"


def subtitle(timeline: Timeline) -> str:
    """The two peaks in words."""
    allocated, reserved = size(timeline.allocated_peak), size(timeline.reserved_peak)
    return f"{allocated} allocated at the peak, {reserved} reserved at most"


def where(place: Place) -> str:
    """A place in one line, the outermost frame last."""
    blocks = "1 block" if place.blocks == 1 else f"{place.blocks} blocks"
    return f"{' < '.join(place.frames)} ({blocks})"


def moment(timeline: Timeline, sample: int) -> str:
    """The phase and step of a sample."""
    at = timeline.at[sample]
    for interval in timeline.intervals:
        if interval.begin <= at < interval.end:
            return f"step {interval.step + 1}, {interval.phase}" if interval.phase != "setup" else "setup"
    return ""


def cut(text: str, most: int) -> str:
    """The text, or as much of it as `most` characters hold."""
    return text if len(text) <= most else text[: most - 1] + "…"
