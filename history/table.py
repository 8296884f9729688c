"""The history as a table for people: at most 100 columns wide, colours only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from history.calibration import UNIT_BYTES, UNIT_FRACTION
from history.wire import Calibrated, JobRecord

_WIDTH = 100
_GAP = 2
_GIVING_WAY = {"SCRIPT": 12, "USER": 8, "ASKED": 8}
"""Columns that are cut when there is no room, in this order, and what is left of them."""
_WIDEST = 13  # of any other text that users choose
_UNKNOWN = "–"  # noqa: RUF001
_STATE_STYLES = {"rewritten": "green", "applied": "green", "failed": "red", "expired": "yellow"}
_GOOD_ERROR = 0.1


def print_table(jobs: Sequence[JobRecord], file: TextIO | None = None) -> None:
    """Prints one line for each job; names give way when the line gets too long, numbers never."""
    cells = {name: [cell(job) for job in jobs] for name, cell in _COLUMNS.items()}
    widths = {name: max(cell_len(name), *(t.cell_len for t in column), 0) for name, column in cells.items()}
    for name, least in _GIVING_WAY.items():
        excess = sum(widths.values()) + _GAP * (len(widths) - 1) - _WIDTH
        widths[name] = max(widths[name] - max(excess, 0), min(widths[name], least))
        for text in cells[name]:
            text.truncate(widths[name], overflow="ellipsis")

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    # a narrow terminal wraps the lines itself: rich would cut numbers
    width = sum(widths.values()) + _GAP * len(widths)
    Console(file=file or sys.stdout, highlight=False, width=width).print(table)


def print_calibration(answer: Calibrated, file: TextIO | None = None) -> None:
    """Prints one line for each group of jobs whose margin was learned, or is being learned."""
    console = Console(file=file or sys.stdout, highlight=False, width=_WIDTH)
    console.print(f"At most {answer.risk:.3g} of all jobs may need more than their estimate and its margin.")
    if not answer.groups:
        console.print("No job with an estimate has been measured yet: margins are those of the settings.")
        return
    names = ("GPU", "ESTIMATE", "KNOWN BY", "JOBS", "MARGIN", "RISK", "PROMISED", "MISSED")
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="left" if name in names[:3] else "right", no_wrap=True)
    for group in answer.groups:
        table.add_row(
            _label(group.gpu, 24),
            _label(group.status),
            _label("nothing" if group.kind == "new" else group.kind),
            str(group.scores),
            _margin(group.score),
            _share(group.misses, group.judged),
            str(group.promised),
            _share(group.broken, group.promised),
        )
    console.print(table)


def _margin(score: float | None) -> str:
    """In its two parts, for a score counts in units of both."""
    if score is None:
        return "as set"
    size = max(score, 0.0)
    return f"{size * UNIT_BYTES / 2**20:.0f} MiB + {size * UNIT_FRACTION:.1%}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else _UNKNOWN


def _label(text: str | None, width: int = _WIDEST) -> Text:
    """A text that users choose: no control characters reach the terminal."""
    if not text:
        return Text(_UNKNOWN)
    label = Text("".join(c if c.isprintable() else "?" for c in text))
    label.truncate(width, overflow="ellipsis")
    return label


def _user(job: JobRecord) -> Text:
    return _label(job.user_name or (None if job.user_id is None else str(job.user_id)))


def _script(job: JobRecord) -> Text:
    return _label(PurePath(job.script).name if job.script else job.job_name, _WIDTH)


def _gib(size: int | None) -> Text:
    return Text(_UNKNOWN if size is None else f"{size / 2**30:.1f} GiB")


def _error(error: float | None) -> Text:
    """Red where the estimate was too low: that is what kills jobs."""
    if error is None:
        return Text(_UNKNOWN)
    style = "red" if error < 0 else "green" if error <= _GOOD_ERROR else "yellow"
    return Text(f"{error:+.1%}", style)


def _state(job: JobRecord) -> Text:
    if job.out_of_memory:
        return Text("out of memory", "red")
    label = _label(job.state)
    label.stylize(_STATE_STYLES.get(job.state or "", ""))
    return label


_COLUMNS: dict[str, Callable[[JobRecord], Text]] = {
    "JOB": lambda job: Text(_UNKNOWN if job.job_id is None else str(job.job_id)),
    "USER": _user,
    "SCRIPT": _script,
    "ASKED": lambda job: _label(job.asked),
    "GOT": lambda job: _label(job.got),
    "ESTIMATE": lambda job: _gib(job.estimated_peak_bytes),
    "MEASURED": lambda job: _gib(job.measured_peak_bytes),
    "ERROR": lambda job: _error(job.error),
    "STATE": _state,
    "HELD": lambda job: Text(_UNKNOWN if job.held_s is None else f"{job.held_s:.0f} s"),
}
_RIGHT = {"JOB", "ESTIMATE", "MEASURED", "ERROR", "HELD"}
