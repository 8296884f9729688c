"""Runs real scripts through `gpumem estimate` and writes docs/coverage.md.

    python -m bench.coverage [--only GLOB]... [--jobs N] [--json FILE [--resume]] [--list]

FILE keeps the results of all rows that ever ran; the page is written when every row has one. Exit status: 0,
1 if a row is worse than its file says, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.coverage.rows import Row, RowError, read_all, select
from bench.coverage.run import ROOT, Result, run_all
from bench.coverage.table import markdown, summary
from estimator.report import size

PAGE = ROOT / "docs" / "coverage.md"
LIBRARIES = ("torch", "torchvision", "transformers", "timm", "lightning", "accelerate", "peft", "diffusers",
             "bitsandbytes", "deepspeed")  # fmt: skip


def main() -> int:
    """Runs the rows that were asked for."""
    options = _options()
    try:
        rows = read_all()
    except RowError as error:
        print(f"coverage: {error}", file=sys.stderr)
        return 2
    chosen = select(rows, options.only)
    if not chosen:
        print(f"coverage: no row matches {' '.join(options.only)}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{row.group}: {row.name}" for row in chosen))
        return 0
    results = _earlier(options.json)
    todo = [row for row in chosen if not (options.resume and _is_good(results.get(row.name)))]
    todo.sort(key=lambda row: row.name in results)  # if there is not time for all: what never ran comes first
    for number, result in enumerate(run_all(todo, options.jobs), start=1):
        results[result.name] = result
        print(f"{number:3}/{len(todo)} {_progress(result)}", flush=True)
        if options.json is not None:
            _write(options.json, rows, results)
    asked = [results[row.name] for row in chosen]
    print(summary(asked))
    if all(row.name in results for row in rows):
        page = markdown([results[row.name] for row in rows], _versions(), options.jobs)
        PAGE.write_text(page, encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return int(any(result.fault for result in asked))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.coverage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="GLOB", action="append", default=[], help="rows or groups to run")
    parser.add_argument("--jobs", metavar="N", type=int, default=max(1, min(4, os.cpu_count() or 1)))
    parser.add_argument("--json", metavar="FILE", type=Path, help="keep the results there, too")
    parser.add_argument("--resume", action="store_true", help="run only what has no good result in FILE")
    parser.add_argument("--list", action="store_true", help="print the rows and run none")
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume needs --json FILE")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def _earlier(path: Path | None) -> dict[str, Result]:
    """The results that an earlier run has left in FILE."""
    if path is None or not path.is_file():
        return {}
    found = [Result.model_validate(one) for one in json.loads(path.read_text(encoding="utf-8"))]
    return {result.name: result for result in found}


def _is_good(result: Result | None) -> bool:
    return result is not None and result.status is not None and result.fault is None


def _write(path: Path, rows: Sequence[Row], results: dict[str, Result]) -> None:
    """All results so far, in the order of the rows; whole at any moment."""
    listed = [results[row.name].model_dump() for row in rows if row.name in results]
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(listed, indent=1), encoding="utf-8")
    part.replace(path)


def _progress(result: Result) -> str:
    reserved = "" if result.reserved_peak_bytes is None else size(result.reserved_peak_bytes)
    wall = "" if result.wall_s is None else f"{result.wall_s:6.1f} s"
    remark = f"  NOT AS EXPECTED: {result.fault}: {result.reason or ''}" if result.fault else ""
    return f"{result.status or 'not run':8} {wall:8} {reserved:>11}  {result.name}{remark}"


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found) + "."


if __name__ == "__main__":
    sys.exit(main())
