"""Estimates fixed scripts with every version of PyTorch; writes docs/versions.md. Exit status 1: one failed.

    python -m bench.versions [--cache FOLDER] [--only GLOB] [--json FILE]

Environments are made below the cache folder, some 5 GB each. Meant for the night, not for `make test`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.versions.environments import NotMade, Version, interpreter, listed

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
TARGET = ROOT / "docs" / "versions.md"
GPU = "a100-80gb"
MIB = 1024**2


@dataclass(frozen=True)
class Row:
    """One estimate; sizes in MiB, None where there is none."""

    torch: str
    python: str
    script: str
    status: str
    reserved_mib: float | None = None
    allocated_mib: float | None = None
    seconds: float | None = None
    unknown_calls: tuple[str, ...] = ()
    reason: str = ""


def estimate(python: Path, version: Version, script: Path) -> Row:
    """What `gpumem estimate` says of `script` under that interpreter."""
    gpumem = Path(sys.executable).with_name("gpumem")
    command = [gpumem, "estimate", "--gpu", GPU, "--json", "--", python, script]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    seconds = round(time.monotonic() - began, 1)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = {"status": "failed", "reason": done.stderr.strip()[-300:]}
    if said["status"] == "failed":
        failed = Row(version.torch, version.python, script.stem, "failed", seconds=seconds)
        return Row(**asdict(failed) | {"reason": said["reason"]})
    return Row(
        said["torch_version"],
        version.python,
        script.stem,
        said["status"],
        round(said["reserved_peak_bytes"] / MIB, 1),
        round(said["allocated_peak_bytes"] / MIB, 1),
        seconds,
        tuple(said.get("unknown_calls", ())),
    )


def rows(versions: list[Version], cache: Path) -> Iterator[Row]:
    """Every script under every version, one row each; a version that cannot be had is one failed row."""
    for version in versions:
        try:
            python = interpreter(version, cache)
        except NotMade as error:
            yield Row(version.torch, version.python, "-", "failed", reason=str(error))
            continue
        for script in sorted(SCRIPTS.glob("*.py")):
            yield estimate(python, version, script)


def table(found: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| torch | Python | script | status | reserved (MiB) | allocated (MiB) | time (s) | unknown calls |",
        "|---|---|---|---|---:|---:|---:|---|",
    ]
    for row in found:
        sizes = [("" if size is None else f"{size:,.1f}") for size in (row.reserved_mib, row.allocated_mib)]
        said = ", ".join(row.unknown_calls) or row.reason.replace("|", "/").replace("\n", " ")
        cells = [row.torch, row.python, row.script, row.status, *sizes, f"{row.seconds or 0:.1f}", said]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=__doc__)
    default = Path.home() / ".cache" / "gpumem" / "versions"
    parser.add_argument("--cache", type=Path, default=default, help="where the environments are kept")
    parser.add_argument("--only", default="*", help="versions of torch, such as '2.1*'; writes no document")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    versions = [version for version in listed() if fnmatch(version.torch, options.only)]
    found = []
    for row in rows(versions, options.cache):
        found.append(row)
        size, said = row.reserved_mib or "", ", ".join(row.unknown_calls) or row.reason
        print(f"{row.torch:14} {row.python:5} {row.script:16} {row.status:8} {size:>9} {row.seconds}  {said}")
    if options.json:
        text = json.dumps([asdict(row) for row in found], indent=1)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    if options.only == "*":
        head = (ROOT / "bench" / "versions" / "head.md").read_text(encoding="utf-8")
        TARGET.write_text(f"{head}\n{table(found)}\n", encoding="utf-8")
    return int(any(row.status == "failed" for row in found))


if __name__ == "__main__":
    sys.exit(main())
