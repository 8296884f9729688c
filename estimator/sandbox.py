"""Runs a command that nobody vouches for: it may compute, and write into `out_dir`, and nothing else stays.

`confine.py` builds the place (namespaces, read-only files, writes that vanish); this module starts it, reads
the output, and watches time, memory and processes. When `run` returns, no process of the command is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from estimator import folders

MIB = 1024**2
LARGEST_FILE = 8 * 1024**4
TAIL_BYTES = 64 * 1024
MAX_ENTRIES = 10_000  # in out_dir
LEAST_FREE = 0.05  # of the file system of out_dir
TICK_S = 0.1
GRACE_S = 10.0
CONFINE = Path(__file__).with_name("confine.py")
RESTRICT = Path(__file__).with_name("restrict.py")

End = Literal["exit", "signal", "not_started", "timeout", "memory", "processes", "output"]


class Refused(Exception):
    """The command was not run, for it could not be contained; the text says why."""


@dataclass(frozen=True)
class Limits:
    """What a contained command may take."""

    wall_s: float = 100.0
    cpu_s: int = 400  # of each process
    memory_bytes: int = 8192 * MIB  # resident, of all processes together
    processes: int = 512
    scratch_bytes: int = 2048 * MIB  # writes that vanish; also /dev/shm
    output_bytes: int = 2048 * MIB  # in out_dir


@dataclass(frozen=True)
class Usage:
    """What the command takes now."""

    wall_s: float
    processes: int
    memory_bytes: int


@dataclass(frozen=True)
class Outcome:
    """How a contained command ended.

    `code` is the exit status for "exit", the signal's number for "signal", else None. `tail` is the end of
    stdout and stderr together; for "not_started" it is the reason. `notes` names what the containment lacks.
    """

    end: End
    code: int | None
    tail: str
    wall_s: float
    memory_peak_bytes: int
    notes: tuple[str, ...] = ()


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    out_dir: Path | None = None,
    files: Path | None = None,
    preload: Path | None = None,
    covers: Mapping[Path, Path] | None = None,
    held: Mapping[int, Path] | None = None,
    added: Iterable[Path] = (),
    images: bool = False,
    discard: Iterable[Path] = (),
    limits: Limits | None = None,
    watch: Callable[[Usage], None] = lambda usage: None,
    required: bool = True,
) -> Outcome:
    """Runs `command` contained, to its end or to a limit.

    Args:
        command: the program (searched on the PATH of `environment`) and its arguments.
        cwd: where it starts; the first place where files of other groups are looked after (see `confine.py`).
        environment: all of its environment.
        out_dir: the only folder where what it writes stays.
        files: a folder that it may read wherever it lies; `/run`, `/dev` and such are not those of the host.
        preload: a shared library that every program loads, whatever its environment says.
        covers: programs of the host, and the ones that stand there in their place.
        held: file descriptors, and the covered programs that `/proc/self/fd/NUMBER` still executes.
        added: programs in `files` that the host lacks, to be found on every usual PATH.
        images: whether it may have image files mounted (see `mounter.py`).
        discard: folders where it may write, and nothing stays.
        limits: by default `Limits()`.
        watch: called about ten times a second.
        required: false where a weaker containment (see `restrict.py`) will do if there are no namespaces.

    Raises:
        Refused: there is no containment on this machine.
    """
    limits = limits or Limits()
    with folders.temporary("gpumem-root-") as root:
        order = {
            "command": list(command),
            "cwd": str(cwd),
            "environment": dict(environment),
            "root": os.path.realpath(root),
            "out": os.path.realpath(out_dir) if out_dir else None,
            "files": os.path.realpath(files) if files else None,
            "preload": str(preload) if preload else None,
            "covers": {str(path): str(stand_in) for path, stand_in in (covers or {}).items()},
            "held": {str(number): str(program) for number, program in (held or {}).items()},
            "added": [str(program) for program in added],
            "images": images,
            "discard": [str(place) for place in discard],
            "mirror": os.path.realpath(cwd),
            "scratch_bytes": limits.scratch_bytes,
            "rlimits": _rlimits(limits),
            "umask": _umask(),
            "parent": os.getpid(),
        }
        try:
            return _Contained(CONFINE, order, limits, out_dir, watch).run()
        except Refused:
            if required:
                raise
        scratch = f"{order['root']}/scratch"
        Path(scratch).mkdir(mode=0o700)
        order |= {"scratch": scratch, "environment": {**environment, "TMPDIR": scratch}}
        return _Contained(RESTRICT, order, limits, out_dir, watch).run()


def _rlimits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_FSIZE": LARGEST_FILE,  # a checkpoint with holes; what is really written is limited otherwise
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 8 * limits.processes,  # threads count too; the exact limit is watched
    }


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class _Contained:
    """One run: the confining process, the pipes from it, and the watch over it."""

    def __init__(
        self,
        program: Path,
        order: dict[str, Any],
        limits: Limits,
        out_dir: Path | None,
        watch: Callable[[Usage], None],
    ) -> None:
        self._program, self._order = program, order
        self._limits, self._out_dir, self._watch = limits, out_dir, watch
        self._tail = bytearray()
        self._reports = b""
        self._processes: Callable[[], list[Path]] | None = None  # their folders in /proc
        self._notes: tuple[str, ...] = ()
        self._peak = 0
        self._free = _free(out_dir)[0] if out_dir else 0
        self._started = time.monotonic()

    def run(self) -> Outcome:
        reports, reports_there = os.pipe()
        output, output_there = os.pipe()
        with contextlib.suppress(OSError):  # a chatty script then costs fewer switches
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, MIB)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(self._program), str(reports_there)],
                stdin=subprocess.PIPE,
                stdout=output_there,
                stderr=output_there,
                pass_fds=[reports_there],
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(reports_there)
            os.close(output_there)
        try:
            assert process.stdin is not None  # noqa: S101  (asked for above)
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(self._order).encode())
            stopped = self._attend(reports, output)
        finally:
            _end(process)
            os.close(reports)
            os.close(output)
        return self._outcome(stopped)

    def _attend(self, reports: int, output: int) -> End | None:
        """Reads and watches until the confining process is gone, or returns the limit that was passed."""
        next_look = self._started
        with selectors.DefaultSelector() as selector:
            selector.register(reports, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select(timeout=max(0.0, next_look - time.monotonic())):
                    chunk = os.read(key.fd, MIB)
                    if not chunk:
                        selector.unregister(key.fd)
                    elif key.fd == output:
                        self._tail += chunk
                        if len(self._tail) > 2 * MIB:
                            del self._tail[:-TAIL_BYTES]
                    else:
                        self._reports += chunk
                if time.monotonic() >= next_look:
                    if passed := self._look():
                        return passed
                    next_look = time.monotonic() + TICK_S
        return None

    def _look(self) -> End | None:
        elapsed = time.monotonic() - self._started
        if elapsed > self._limits.wall_s:
            return "timeout"
        if self._processes is None:
            facts = _facts(self._reports)
            if "ready" in facts:
                self._processes = _processes_of(facts)
            return None
        usage = Usage(elapsed, *_measure(self._processes(), self._limits.memory_bytes))
        self._peak = max(self._peak, usage.memory_bytes)
        self._watch(usage)
        if usage.memory_bytes > self._limits.memory_bytes:
            return "memory"
        if usage.processes > self._limits.processes:
            return "processes"
        if self._out_dir and (_size(self._out_dir) > self._limits.output_bytes or self._fills(self._out_dir)):
            return "output"
        return None

    def _fills(self, out_dir: Path) -> bool:
        """Whether a disk is about to be full: files that have no name any more are in no folder."""
        free, total = _free(out_dir)
        return free < LEAST_FREE * total and self._free - free > self._limits.output_bytes

    def _outcome(self, stopped: End | None) -> Outcome:
        wall_s = time.monotonic() - self._started
        tail = self._tail[-TAIL_BYTES:].decode("utf-8", "replace")
        facts = _facts(self._reports)
        notes = tuple(facts.get("ready", ()))
        if stopped:
            return Outcome(stopped, None, tail, wall_s, self._peak, notes)
        if "error" in facts:
            raise Refused(f"the script cannot be contained here: {facts['error']}")
        if "not_started" in facts:
            return Outcome("not_started", None, facts["not_started"], wall_s, self._peak, notes)
        if "status" not in facts:
            raise Refused(f"the containment broke: {tail.strip().splitlines()[-1:] or 'no reason known'}")
        status = facts["status"]
        if os.WIFSIGNALED(status):
            return Outcome("signal", os.WTERMSIG(status), tail, wall_s, self._peak, notes)
        return Outcome("exit", os.WEXITSTATUS(status), tail, wall_s, self._peak, notes)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the confining process; it takes PID 1 and so the whole namespace with it, and waits for that."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _facts(reports: bytes) -> dict[str, Any]:
    """What `confine.py` has reported so far, as one object."""
    facts: dict[str, Any] = {}
    for line in reports.splitlines():
        with contextlib.suppress(ValueError):
            facts |= json.loads(line)
    return facts


def _processes_of(facts: dict[str, Any]) -> Callable[[], list[Path]]:
    """How to find the command's processes: those of its PID namespace, or those below its reaper."""
    if "init" in facts:
        proc = Path(f"/proc/{facts['init']}/root/proc")
        return lambda: [proc / name for name in _names(proc) if name.isdigit() and name != "1"]
    from estimator.restrict import descendants

    return lambda: [Path(f"/proc/{pid}") for pid in descendants(facts["reaper"])]


def _measure(processes: list[Path], limit_bytes: int) -> tuple[int, int]:
    """How many processes there are, and their resident memory.

    Resident sizes count shared pages once for each process, so that forked data loading workers look
    far too big; only when that sum passes the limit is the true share (PSS) read, which is slow.
    """
    resident = sum(_resident(process) for process in processes)
    if resident > limit_bytes:
        resident = sum(_proportional(process) for process in processes)
    return len(processes), resident


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def _resident(process: Path) -> int:
    try:
        return int((process / "statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _proportional(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return _resident(process)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _size(folder: Path) -> float:
    """Bytes in a folder; infinite if it is made so that counting them would take long, or cannot be done."""
    total = entries = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > MAX_ENTRIES:
                        return math.inf
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:  # closed to its owner, or a path too long
            return math.inf
    return total


def _free(folder: Path) -> tuple[int, int]:
    """Bytes that are free in the file system of a folder, and all of them."""
    try:
        about = os.statvfs(folder)
    except OSError:  # without namespaces, a script may remove it
        return 0, 0
    return about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
