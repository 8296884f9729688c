"""`gpumem calibrate`: measures this node's GPU and prints a catalogue entry."""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from estimator.calibration import Measured
    from estimator.catalog import GPU

PROBE = Path(__file__).with_name("calibration_probe.py")
LIMIT_S = 300


def calibrate(
    gpu: Annotated[
        str | None, typer.Option(metavar="KEY", help="Its name in the catalogue. [default: by NVML's name]")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the entry here, too.")] = None,
    device: Annotated[int, typer.Option(min=0, help="Which GPU of the node, as nvidia-smi counts.")] = 0,
    python: Annotated[
        str, typer.Option(metavar="PYTHON", help="An interpreter that has PyTorch. [default: this one]")
    ] = sys.executable,
    force: Annotated[bool, typer.Option("--force", help="Although other processes use the GPU.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="gpumem.toml. [default: /etc/gpumem/gpumem.toml]")
    ] = None,
) -> None:
    """Measure this node's GPU: context, loaded code, workspaces of convolutions.

    Prints an entry for the GPU catalogue (gpus.toml) with numbers that are measured here. Takes a minute
    and 1 GiB of the GPU; no setting of it is changed.

    Exit status: 0 measured, 1 could not, 2 wrong usage.
    """
    import settings
    from estimator.calibration import CalibrationError, entry
    from estimator.catalog import CatalogError, load, normalised, parse

    try:
        catalog = load(settings.load(config).estimate.gpus_file)
        measured = _measure(device, python, force)
        known: GPU | None
        try:
            known = catalog.find(gpu or measured.name)
        except CatalogError:
            known = None
        key = gpu or (known.key if known else normalised(measured.name))
        text = entry(key, known, measured)
        parse(text, "the new entry")
        if output is not None:
            output.write_text(text, encoding="utf-8")
    except (CalibrationError, CatalogError, settings.SettingsError, OSError) as error:
        print(f"gpumem: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(text, end="")


def _measure(device: int, python: str, force: bool) -> Measured:
    from estimator.calibration import STAGES, CalibrationError, Measured

    nvml, handle = _nvml(device)
    about = {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
    }
    others = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    if others and not force:
        raise CalibrationError(f"{about['name']} is in use by process {others[0]}; --force to go on")
    before = nvml.nvmlDeviceGetMemoryInfo(handle).used
    outside: dict[str, int] = {}
    facts: dict[str, Any] = {}
    with _probe(python, about["uuid"]) as probe:
        for line in probe.stdout or ():
            said = json.loads(line) if line.startswith("{") else {}
            if "stage" in said:
                facts.update(said)
                used = _used(nvml, handle, probe.pid, before, bool(others))
                outside[str(said["stage"])] = used - int(said["reserved"])
            facts.update(said)
            if probe.stdin is not None and said:
                probe.stdin.write("\n")
                probe.stdin.flush()
        error = (probe.stderr.read() if probe.stderr else "").strip().splitlines()
        if probe.wait() != 0 or set(outside) != set(STAGES) or "workspaces" not in facts:
            reason = error[-1] if error else f"it ended with status {probe.returncode}"
            raise CalibrationError(f"the measuring failed under {python}: {reason}")
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    major, minor = facts["compute_capability"]
    return Measured(
        name=about["name"],
        memory_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        usable_bytes=int(facts["usable_bytes"]),
        compute_capability=(int(major), int(minor)),
        sm_count=int(facts["sm_count"]),
        outside=outside,
        workspaces={name: [tuple(row) for row in rows] for name, rows in facts["workspaces"].items()},
        cuda=str(facts["cuda"]),
        where=(
            f"{socket.gethostname()}'s {about['name']}, driver {about['driver']}, "
            f"torch {facts['torch']}, {today}"
        ),
    )


def _nvml(device: int) -> tuple[Any, Any]:
    """NVML, and the GPU of that index."""
    from estimator.calibration import CalibrationError

    try:
        import pynvml
    except ImportError:
        raise CalibrationError("NVML's Python package is missing: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByIndex(device)
    except pynvml.NVMLError as error:
        raise CalibrationError(
            f"no GPU can be measured here: {error}; run it on a node with the NVIDIA driver and a free GPU"
        ) from None


def _used(nvml: Any, handle: Any, pid: int, before: int, shared: bool) -> int:
    """What NVML shows of the process, or, where it cannot tell, how much more of the whole GPU is in use."""
    from estimator.calibration import CalibrationError

    for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == pid and process.usedGpuMemory:
            return int(process.usedGpuMemory)
    if shared:
        raise CalibrationError("NVML does not tell what one process uses (a container?): free the GPU")
    return int(nvml.nvmlDeviceGetMemoryInfo(handle).used - before)


@contextmanager
def _probe(python: str, uuid: str) -> Iterator[subprocess.Popen[str]]:
    from estimator.calibration import CalibrationError

    environment = os.environ | {"CUDA_VISIBLE_DEVICES": uuid}
    try:
        process = subprocess.Popen(
            [python, "-c", PROBE.read_text(encoding="utf-8")],  # not by path: its folder has modules, too
            env=environment,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise CalibrationError(f"{python}: {error.strerror}") from None
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    with process:
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
