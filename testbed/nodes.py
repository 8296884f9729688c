"""Pretend GPU nodes: what a compute node with gpumem installed would have, in a folder per node.

A node's folder holds `devices.json`, `procs/` and `accounting` (read by the stand-in NVML, written by the
fake CUDA device), `tracer.json` (gives jobs the fake device) and `gpumem.toml`. The programs that slurmd runs
are small scripts that point the real `gpumem-prolog` and `gpumem-epilog` at them.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import estimator
from estimator.catalog import GPU


def _estimator() -> Path:
    # resolved: .venv may be a link in a checkout that ordinary users cannot enter
    return Path(estimator.__path__[0]).resolve()


def tracer_folder() -> Path:
    """The folder that stands first on PYTHONPATH of a job on a pretend node."""
    return _estimator() / "tracer" / "inject"


def library_folder() -> Path:
    """The folder of the fake CUDA device and the stand-in NVML."""
    return _estimator() / "fake_cuda" / "lib"


@dataclass(frozen=True)
class NodePrograms:
    """The scripts that slurmd runs for each job of a pretend node."""

    prolog: Path
    epilog: Path
    task_prolog: Path


def make_node(folder: Path, gpu: GPU, count: int) -> None:
    """Writes the folder of a pretend node with `count` GPUs; accounting is off, as the driver leaves it."""
    folder.mkdir(parents=True)
    procs = folder / "procs"
    procs.mkdir()
    procs.chmod(0o1777)
    (folder / "accounting").write_text("0")
    devices = [
        {
            "index": index,
            "minor": index,
            "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{folder}/{index}')}",
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,  # the whole board, as NVML says
        }
        for index in range(count)
    ]
    (folder / "devices.json").write_text(json.dumps(devices))
    model = {
        "memory_bytes": gpu.usable_bytes,
        "context_bytes": gpu.context_bytes,
        "compute_capability": list(gpu.capability),
        "sm_count": gpu.sm_count,
    }
    tracer = {
        "library": str(library_folder() / "libgpumem_cuda.so"),
        "devices": [device | model for device in devices],
        "enforce_limit": True,
        "node_dir": str(folder),
        "trace": None,
        "values": True,  # programs read back what they would in a dry run
    }
    (folder / "tracer.json").write_text(json.dumps(tracer))


def write_programs(
    folder: Path,
    nodes: Path,
    commands: Path,
    *,
    extra_env: Mapping[str, str] | None = None,
) -> NodePrograms:
    """Writes the programs for nodes whose folders are `nodes`/NAME into `folder`.

    Args:
        commands: the folder of the installed `gpumem-prolog` and `gpumem-epilog`.
        extra_env: added to the environment of both (faults to be tried).
    """
    folder.mkdir(parents=True, exist_ok=True)
    node = f"{shlex.quote(str(nodes))}/$SLURMD_NODENAME"
    exports = [
        f"export GPUMEM_FAKE_NODE={node}",
        f"export GPUMEM_CONFIG={node}/gpumem.toml",
        f"export LD_LIBRARY_PATH={shlex.quote(str(library_folder()))}",
        *(f"export {name}={shlex.quote(value)}" for name, value in (extra_env or {}).items()),
    ]

    def run(command: str) -> list[str]:
        return [*exports, f"exec {shlex.quote(str(commands / command))}"]

    inject = shlex.quote(str(tracer_folder()))
    return NodePrograms(
        prolog=_script(folder / "prolog", run("gpumem-prolog")),
        epilog=_script(folder / "epilog", run("gpumem-epilog")),
        task_prolog=_script(
            folder / "task_prolog",
            [
                f'echo "export PYTHONPATH={inject}${{PYTHONPATH:+:$PYTHONPATH}}"',
                f'echo "export GPUMEM_TRACER={node}/tracer.json"',
                f'echo "export GPUMEM_FAKE_NODE={node}"',
            ],
        ),
    )


def uuids(node: Path) -> list[str]:
    """The node's GPUs, by index."""
    return [str(device["uuid"]) for device in json.loads((node / "devices.json").read_text())]


def used_bytes(node: Path) -> dict[int, int]:
    """Device memory in use by running processes, by GPU index; read from the node's `procs/`."""
    index_of = {name: index for index, name in enumerate(uuids(node))}
    used = dict.fromkeys(index_of.values(), 0)
    for process in processes(node):
        if process.running:
            for gpu, now, _ in process.usage:
                used[index_of[gpu]] += now
    return used


@dataclass(frozen=True)
class GpuProcess:
    """A process that used a pretend GPU; `usage`: (GPU UUID, bytes now, peak bytes)."""

    pid: int
    running: bool
    usage: Sequence[tuple[str, int, int]]


_HEADER = 8 + 4 + 4 + 8 + 8 + 8
_RECORD = 64 + 8 + 8


def processes(node: Path) -> list[GpuProcess]:
    """The processes that used the node's GPUs, ended ones included."""
    found = []
    for path in sorted((node / "procs").iterdir()):
        data = path.read_bytes()
        if data[:8] != b"GPUMEM01":
            continue
        pid = int.from_bytes(data[8:12], "little")
        count = int.from_bytes(data[12:16], "little")
        started = int.from_bytes(data[16:24], "little")
        records = (data[at : at + _RECORD] for at in range(_HEADER, _HEADER + count * _RECORD, _RECORD))
        usage = [
            (
                record[:64].rstrip(b"\0").decode(),
                int.from_bytes(record[64:72], "little"),
                int.from_bytes(record[72:80], "little"),
            )
            for record in records
        ]
        found.append(GpuProcess(pid, _start_ticks(pid) == started, usage))
    return found


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _script(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path
