"""Estimates fixed scripts with every version of PyTorch; writes docs/versions.md. Exit status 1: one failed.

    python -m bench.versions [--cache FOLDER] [--only GLOB] [--json FILE]

Environments are made below the cache folder, some 5 GB each. Meant for the night, not for `make test`. With
`--only`, the rows of the other versions are those that FILE holds of an earlier run.
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
    """One estimate; sizes in MiB, None where there is none. `cuda`: what PyTorch was built with ("12.4")."""

    torch: str
    cuda: str
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
    command = [gpumem, "estimate", "--no-cache", "--gpu", GPU, "--json", "--", python, script]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    seconds = round(time.monotonic() - began, 1)
    try:
        said: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        said = {"status": "failed", "reason": done.stderr.strip()[-300:]}
    if said["status"] == "failed":
        return Row(
            version.torch, "", version.python, script.stem, "failed", seconds=seconds, reason=said["reason"]
        )
    return Row(
        version.torch,
        cuda(said["torch_version"]),
        version.python,
        script.stem,
        said["status"],
        round(said["reserved_peak_bytes"] / MIB, 1),
        round(said["allocated_peak_bytes"] / MIB, 1),
        seconds,
        tuple(said.get("unknown_calls", ())),
    )


def cuda(torch_version: str) -> str:
    """`2.6.0+cu124` is built with CUDA 12.4."""
    local = torch_version.partition("+cu")[2]
    return f"{local[:-1]}.{local[-1]}" if local else ""


def rows(versions: list[Version], cache: Path) -> Iterator[Row]:
    """Every script under every version, one row each; a version that cannot be had is one failed row."""
    for version in versions:
        try:
            python = interpreter(version, cache)
        except NotMade as error:
            yield Row(version.torch, "", version.python, "-", "not tried", reason=str(error))
            continue
        for script in sorted(SCRIPTS.glob("*.py")):
            yield estimate(python, version, script)


def table(found: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| torch | CUDA | Python | script | status | reserved (MiB) | allocated (MiB) | s | unknown calls |",
        "|---|---|---|---|---|---:|---:|---:|---|",
    ]
    for row in found:
        sizes = [("" if size is None else f"{size:,.1f}") for size in (row.reserved_mib, row.allocated_mib)]
        said = ", ".join(row.unknown_calls) or row.reason.replace("|", "/").replace("\n", " ")
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        cells = [row.torch, row.cuda, row.python, row.script, row.status, *sizes, seconds, said]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def kept(file: Path | None, torches: set[str]) -> list[Row]:
    """The rows of those versions that an earlier run has left in `file`."""
    if file is None or not file.exists():
        return []
    return [row for one in json.loads(file.read_text("utf-8")) if (row := Row(**one)).torch in torches]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.versions", description=__doc__)
    default = Path.home() / ".cache" / "gpumem" / "versions"
    parser.add_argument("--cache", type=Path, default=default, help="where the environments are kept")
    parser.add_argument("--only", default="*", help="versions of torch, such as '2.1*'")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    versions = listed()
    tried = [version for version in versions if fnmatch(version.torch, options.only)]
    found = kept(options.json, {version.torch for version in versions} - {version.torch for version in tried})
    for row in rows(tried, options.cache):
        found.append(row)
        size, said = row.reserved_mib or "", ", ".join(row.unknown_calls) or row.reason
        print(f"{row.torch:8} {row.script:16} {row.status:8} {size:>9} {row.seconds}  {said}", flush=True)
    order = [version.torch for version in versions]
    found.sort(key=lambda row: order.index(row.torch))
    if options.json:
        text = json.dumps([asdict(row) for row in found], indent=1)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    if {row.torch for row in found} == set(order):
        head, tail = (
            (ROOT / "bench" / "versions" / f"{part}.md").read_text("utf-8") for part in ("head", "tail")
        )
        TARGET.write_text(f"{head}\n{table(found)}\n\n{tail}", encoding="utf-8")
    return int(any(row.status == "failed" for row in found))


if __name__ == "__main__":
    sys.exit(main())
