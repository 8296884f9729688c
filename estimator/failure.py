"""Why a dry run left nothing to estimate from: one line for the user, the most helpful reason first."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from estimator import sandbox
from estimator.trace import Trace, UserError
from settings import MIB
from settings import Estimate as Settings

CPU_TIMES_WALL = 4  # CPU seconds of one process for each second of the time limit


def of_run(
    name: str,
    cwd: Path,
    settings: Settings,
    outcome: sandbox.Outcome,
    tail: str,
    traces: Sequence[Trace],
) -> str | None:
    """Why the run was no success, the most helpful reason first; None if nothing failed."""
    return of_software(traces) or of_traces(cwd, traces) or of_outcome(name, cwd, settings, outcome, tail)


def of_software(traces: Sequence[Trace]) -> str | None:
    """That nothing could have used PyTorch on a GPU: it is another framework, or built without CUDA."""
    if any(one.cuda_version for one in traces):
        return None
    without_cuda = [one for one in traces if one.torch_version is not None]
    elsewhere = [one for one in traces if one.is_of_another_framework]
    return next((f"{one.program}: {one.reason}" for one in without_cuda + elsewhere if one.reason), None)


def of_traces(cwd: Path, traces: Sequence[Trace]) -> str | None:
    """The uncaught exception of the first Python process that failed."""
    for one in traces:
        if one.end == "exception" and one.error:
            own_runtime = any(call.startswith("cuGetExportTable") for call in one.unknown_calls)
            return told(one.error, cwd) + (_OWN_RUNTIME if own_runtime else "")
    return None


def of_outcome(name: str, cwd: Path, settings: Settings, outcome: sandbox.Outcome, tail: str) -> str | None:
    """How the run as a whole ended, if not well."""
    match outcome.end:
        case "not_started":
            return f"{name} cannot be started: {_of_system(tail, name)}"
        case "timeout":
            said = f"; its last output was: {line}" if (line := _last_line(tail)) else ""
            return f"{name} did not reach optimizer step {settings.steps} within {settings.timeout_s} s{said}"
        case "memory":
            return (
                f"{name} needs more than {settings.memory_mib} MiB of host memory in the dry run "
                "(estimate.memory_mib in gpumem.toml)"
            )
        case "processes":
            return f"{name} starts more than {sandbox.Limits.processes} processes"
        case "output":
            return (
                f"{name} leaves traces of more than {sandbox.Limits.output_bytes // MIB} MiB or "
                f"{sandbox.MAX_ENTRIES} files, closes their folder, or fills the disk"
            )
        case "signal" if outcome.code == signal.SIGXCPU:
            return f"{name} used more than {CPU_TIMES_WALL * settings.timeout_s} s of CPU time"
        case "signal":
            return f"{name} was ended by {sandbox.signal_name(outcome.code or 0)}{_said(tail)}"
    code = outcome.code or 0
    if code == 0:
        return None
    if error := error_in(tail):
        return told(error, cwd)
    if code - 128 in set(signal.Signals):
        return f"a program of {name} was ended by {sandbox.signal_name(code - 128)}{_said(tail)}"
    return f"{name} ended with exit code {code}{_said(tail)}"


def of_absence(name: str, cwd: Path, script: Path | None, tail: str, traces: Sequence[Trace]) -> str:
    """Why there is nothing to estimate from although the script itself ended well."""
    if error := error_in(tail):
        return told(error, cwd)
    if line := _complaint_in(tail):
        return f"{name}: {line}"
    for one in traces:
        if one.torch_version is not None:
            return f"{one.program}: {one.reason or 'this program did not use the GPU'}"
    if traces:
        return f"{name} does not run PyTorch: none of its Python programs imports it"
    hint = ""
    if script is not None:
        text = script.read_text(encoding="utf-8", errors="replace")
        if found := re.search(_CONTAINERS, text, re.MULTILINE):
            hint = f" that could be traced: what {found[1]} runs in a container is not"
    return f"{name} does not run PyTorch: it started no Python program{hint}"


_CONTAINERS = r"^[^#\n]*\b(apptainer|singularity|podman|docker|enroot|shifter)\b"


def told(error: UserError, cwd: Path) -> str:
    """The error as one line: `train.py line 40: FileNotFoundError: data/train.bin`."""
    message = " ".join(error.message.split())
    hint = ""
    if found := re.match(r"\[Errno (-?\d+)\] (.*)", message):
        number, message = int(found[1]), found[2]
        hint = _HINTS.get(number, "")
        named = re.fullmatch(r"[^:]+: '(.*)'", message)
        if named and error.type in ("FileNotFoundError", "PermissionError", "NotADirectoryError"):
            message = named[1]
    if message == "No module named 'torch'":
        hint = _NO_TORCH
    wanted = re.match(r"Couldn't (?:reach|find) (?:the dataset )?'([\w./-]+)' (?:on|in) the", message)
    if name := error.hub or (wanted and wanted[1]):
        message = f"{name} is not in the Hugging Face cache of this user"
        hint = ", and a dry run has no network: load it once on the login node"
    where = ""
    if error.file:
        path = Path(error.file)
        shown = path.relative_to(cwd) if path.is_relative_to(cwd) else path
        where = f"{shown} line {error.line}: " if error.line else f"{shown}: "
    return f"{where}{error.type}{': ' if message else ''}{message}{hint}"


_OWN_RUNTIME = " (a library with a CUDA runtime of its own, linked statically, cannot be traced)"
_NO_TORCH = " (activate the environment that the job runs in: in the script, or before it is submitted)"
_NO_NETWORK = " (a dry run has no network: let the job find it in a cache)"
_HINTS = {
    30: " (a dry run may write only into the job's folder, $HOME, $SCRATCH and /tmp)",  # EROFS
    101: _NO_NETWORK,  # ENETUNREACH
    -2: _NO_NETWORK,  # EAI_NONAME
    -3: _NO_NETWORK,  # EAI_AGAIN
}


def error_in(output: str) -> UserError | None:
    """The last uncaught exception that a Python interpreter printed, with the line of the user's own code."""
    found: UserError | None = None
    file: tuple[str, int] | None = None
    inside = False
    for line in output.splitlines():
        if place := re.match(r'  File "(.+)", line (\d+)', line):
            if not inside or not re.search(r"^<|/(site|dist)-packages/|/lib/python3", place[1]):
                file = (place[1], int(place[2]))
            inside = True
        elif inside and (said := re.match(r"([A-Za-z_][\w.]*)(?:: (.*))?$", line)):
            name, number = file or (None, None)
            found = UserError(
                type=said[1].rpartition(".")[2][:200], message=(said[2] or "")[:2000], file=name, line=number
            )
            inside, file = False, None
        elif line and not line.startswith(" "):
            inside = False
    return found


_COMPLAINTS = re.compile(
    r"can't open file|(command|:) not found|No such file or directory|Permission denied|No module named"
    r"|the trace could not be written"
)


def _complaint_in(output: str) -> str | None:
    """The last line in which a shell or an interpreter says that something is not there."""
    return next((line.strip() for line in reversed(output.splitlines()) if _COMPLAINTS.search(line)), None)


def _said(output: str) -> str:
    line = _complaint_in(output[-4096:]) or _last_line(output)
    return f": {line}" if line else ""


def _of_system(error: str, program: str) -> str:
    """An OSError as it is printed by Python, without number and quotes; a file only if it is another one."""
    found = re.fullmatch(r"\[Errno \d+\] ([^:]+): b?'(.*)'", error.strip())
    if found is None:
        return error
    return found[1] if Path(found[2]).name == program else f"{found[2]}: {found[1]}"


def _last_line(output: str) -> str:
    """The last line that is not empty, at most 200 characters of it."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "")[:200]
