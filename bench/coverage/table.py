"""Results as the page docs/coverage.md."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from itertools import groupby

from bench.coverage.rows import DEFAULT_GPU, WORSE
from bench.coverage.run import ROOT, Cause, Result
from estimator.report import size

HEAD = """\
# Coverage

Scripts in the style of public training code, run unmodified by `gpumem estimate`; written by `make coverage`.
Every script is in `bench/coverage/scripts/`, every row in `bench/coverage/rows/`.

- *status*: `exact`, `bounded` (something was assumed: the last column says what) or `failed`.
- *wall*: seconds for the whole command, imports included; some ({jobs} in the last pass) ran at a time on
  {cores} cores that other programs used as well, so that it tells little. `bench/` has the timings.
- A row keeps its result until it is run again: not all are of one pass.
- *host*: the most resident memory of all its processes together.
- *reserved*: what PyTorch's allocator reserves at most on the GPU ({gpu} where the row names none).
"""
COLUMNS = "| row | status | wall (s) | host | reserved | bounded by, or why not |\n"
MOST_OF_A_REASON = 240  # characters
RULE = "|---|---|---:|---:|---:|---|\n"


def markdown(results: Sequence[Result], versions: str, jobs: int) -> str:
    """The page. `versions` names what was installed; rows stand in the order given, by group."""
    head = HEAD.format(jobs=jobs, cores=os.cpu_count(), gpu=DEFAULT_GPU)
    parts = [head, f"{versions}\n", f"**{summary(results)}**\n"]
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    for group, members in groups.items():
        parts.append(f"## {group}\n\n{COLUMNS}{RULE}{''.join(_line(result) for result in members)}")
    return "\n".join(parts)


def summary(results: Sequence[Result]) -> str:
    """How many rows there are of each status, in one sentence."""
    ran = [result for result in results if result.status is not None]
    counts = [f"{sum(one.status == status for one in ran)} {status}" for status in WORSE]
    text = f"{len(ran)} {'row' if len(ran) == 1 else 'rows'}: {', '.join(counts)}"
    if len(ran) < len(results):
        text += f"; {len(results) - len(ran)} not run"
    faults = sum(result.fault is not None for result in results)
    return f"{text}; {faults} not as expected." if faults else f"{text}."


def _line(result: Result) -> str:
    cells = (
        result.name,
        result.status or "not run",
        "" if result.wall_s is None else f"{result.wall_s:.1f}",
        _size(result.host_memory_bytes),
        _size(result.reserved_peak_bytes),
        _remark(result),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _size(count: int | None) -> str:
    return "" if count is None else size(count)


def _remark(result: Result) -> str:
    texts = [f"**{result.fault}**"] if result.fault else []
    if result.reason:
        reason = result.reason.replace("\N{REPLACEMENT CHARACTER}", " ").replace(f"{ROOT}/", "")
        texts.append(textwrap.shorten(reason, MOST_OF_A_REASON))
    for kind, causes in groupby(sorted(result.bounded_by, key=_order), key=lambda cause: cause.kind):
        names = [_cause(cause) for cause in causes]
        texts.append(", ".join(names) if kind != "run" else "; ".join(names))
    return "; ".join(texts)


def _order(cause: Cause) -> tuple[str, int]:
    return (cause.kind, -(cause.bytes or 0))


def _cause(cause: Cause) -> str:
    what = f"`{cause.what}`" if cause.kind in ("op", "call") else cause.what
    return f"{what} ({size(cause.bytes)})" if cause.bytes else what
