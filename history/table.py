"""The history as a table for people: at most 100 columns wide, colours only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from history.calibration import UNIT_BYTES, UNIT_FRACTION
from history.wire import Calibrated, JobDetail, JobRecord

_WIDTH = 100
_GAP = 2
_GIVING_WAY = {"SCRIPT": 12, "USER": 8, "ASKED": 8}
"""Columns that are cut when there is no room, in this order, and what is left of them."""
_WIDEST = 13  # of any other text that users choose
_UNKNOWN = "–"  # noqa: RUF001
_STATE_STYLES = {
    "rewritten": "green",
    "applied": "green",
    "failed": "red",
    "expired": "yellow",
    "requeued": "yellow",
}
_GOOD_ERROR = 0.1
_LONGEST = 2000


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


def print_job(found: JobDetail, file: TextIO | None = None) -> None:
    """Prints what is known of one job, a line each; what is not known is left out."""
    job, estimate = found.job, found.estimate or {}
    lines = {
        "job": _listed(job.job_id, job.user_name, _script(job).plain),
        "asked": job.asked,
        "got": job.got,
        "state": _listed(job.state, job.held_s and f"held {job.held_s:.0f} s"),
        "why": job.reason,
        "estimate": _listed(
            _size(job.estimated_peak_bytes), job.estimate_status, estimate.get("phase_of_peak")
        ),
        "promised": _size(job.promised_bytes),
        "held to": _size(job.limit_bytes),
        "measured": _listed(
            _size(job.measured_peak_bytes), job.measured_source, job.node, job.gpu if job.node else None
        ),
        "error": None if job.error is None else f"{job.error:+.1%}",
        "exit code": None if job.exit_code is None else str(job.exit_code),
        "GPU memory": "ran out" if job.out_of_memory else None,
    }
    table = Table.grid(padding=(0, _GAP))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines.items():
        if text:
            table.add_row(name, _label(text, _LONGEST))
    for owner, size in _parts(estimate):
        table.add_row("", f"{_size(size):>10}  {owner}")
    for note in (*_texts(estimate.get("notes")), *job.problems):
        table.add_row("note", _label(note, _LONGEST))
    Console(file=file or sys.stdout, highlight=False, width=_WIDTH).print(table)


def _listed(*texts: object) -> str:
    return ", ".join(str(text) for text in texts if text)


def _size(count: int | None) -> str | None:
    if count is None:
        return None
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


def _parts(estimate: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What the peak is made of, as the estimate says: an object that another version may have written."""
    owners = estimate.get("by_owner")
    sizes = dict(owners) if isinstance(owners, dict) else {}
    sizes["outside of the allocator"] = estimate.get("outside_allocator_bytes")
    known = [
        (str(name).replace("_", " "), size) for name, size in sizes.items() if isinstance(size, int) and size
    ]
    return sorted(known, key=lambda part: -part[1])


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


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
    if job.out_of_memory and job.state != "requeued":
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
