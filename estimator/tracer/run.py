"""One traced run: from the start of the interpreter to the file that says what its training allocated."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import sys
import time
from time import monotonic  # as it is before a program replaces it
from typing import Any, Dict, List, Optional

from . import alarm, ranks, torch_import
from .datasets import MadeUp
from .inputs import is_installed, of_program

FORMAT = 1
MAX_PLACES = 20
MOST_ALLOCATIONS = 200_000  # of a loop that is walked to its end: up to about 15 s of processor time
PATIENCE_S = (
    20.0  # for programs of which no trace can come: what they leave for later ones may be done by then
)
GRACE_S = 0.5  # after the deadline, for the signal that it sends
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA)


class TracedRun:
    """Ends the process when it has shown enough, or with the script, and leaves a trace behind.

    `settings`: `out_dir`, `steps` (optimizer steps to run), `max_events` (of PyTorch's memory history),
    `deadline` (on the clock `CLOCK_MONOTONIC`, s; None for none), `patience` (s, see `PATIENCE_S`).
    """

    def __init__(self, settings: Dict[str, Any], alone: ranks.Alone) -> None:
        self._settings, self._alone = settings, alone
        self._started_ns = time.time_ns()
        self._made_up = MadeUp()
        self._reason: Optional[str] = None
        self._recorder: Any = None
        self._gradless: Any = None
        self._sizes: Any = None
        self._exit_code = 0
        self._is_ending = self._has_left = self._is_forked = False
        self._leave = os._exit
        self._pid = os.getpid()
        self._deadline: Optional[float] = settings.get("deadline")
        self._first_number = 0  # of its traces; a process that becomes another program keeps its PID
        self.device: Any = None

    def begin(self) -> None:
        """Called before any code of the user runs; its `atexit` call is therefore the last one."""
        self._made_up.watch()
        self._alone.leave = self._abandon
        self._remember_exit_code()
        self._watch_ways_out()
        while os.path.exists(self._target(self._first_number)):
            self._first_number += 1
        atexit.register(self._at_exit)
        alarm.on_termination(self._terminated)
        if self._deadline is not None:
            alarm.at(self._deadline, self._time_is_up)
        for name in OTHERS:
            torch_import.when_module_loads(name, lambda module: self._lose_patience())

    def cannot_trace(self, reason: str) -> None:
        """The program goes on for a while without a trace; the reason is reported in its place."""
        self._reason = self._reason or reason
        self._lose_patience()

    def _lose_patience(self) -> None:
        """No trace will come of this program, unless it imports PyTorch after all: it ends soon."""
        moment = monotonic() + self._settings.get("patience", PATIENCE_S)
        if self._recorder is None and (self._deadline is None or moment < self._deadline):
            alarm.at(moment, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._deadline is not None and monotonic() >= self._deadline:
            self._finish("deadline")
        elif self._reason is not None or "torch" not in sys.modules:
            self._finish("untraceable")

    def attach(self) -> None:
        """Called when torch has been imported over the fake device."""
        from . import checkpoints, compile, frameworks, generation, loaders, saving, values, weights, zero
        from .life import Life
        from .recorder import Recorder
        from .unreached import Gradless

        weights.leave_uninitialised()
        checkpoints.map_files()
        self._sizes = values.make_readable(self._settings.get("selected_fraction", 1.0))
        compile.without_kernels()
        generation.end_at_greatest_length()
        self._gradless = gradless = Gradless()
        gradless.watch()
        life = Life(
            self._settings["steps"], self._finish, lambda: bool(gradless.unreached()), self._steps_left
        )
        self._recorder = Recorder(self.device, life, self._settings["max_events"], self._adopt)
        self._recorder.attach()
        sys.modules["torch"].cuda._lazy_call(self._insist_on_deadline)
        torch_import.when_module_loads(ranks.LAUNCHER, self._alone.replace_launcher)
        torch_import.when_module_loads(ranks.PIPELINE_STAGE, self._alone.answer_for_stages)
        self._alone.attach(sys.modules["torch"])
        loaders.cut_short(life, self._recorder.allocated, self._recorder.hold, self._is_own)
        saving.without_bytes()
        frameworks.shorten(life, self._settings["steps"])
        zero.make_traceable(self._recorder.as_one_step)

    def _steps_left(self, steps: int) -> int:
        """After how many steps more the loop that goes on has ended; 0 if that would be too many events."""
        from . import loops

        allocations = self._recorder.allocations() / max(steps, 1)
        possible = [left for left in loops.rounds_left() if left * allocations <= MOST_ALLOCATIONS]
        return max(possible, default=0)

    def _is_own(self) -> bool:
        return os.getpid() == self._pid

    def _adopt(self) -> None:
        """Called in a forked process that is the first to use the GPU: it is what is traced from now on."""
        self._pid, self._first_number = os.getpid(), 0
        self._is_ending = self._has_left = False
        self._is_forked = True
        if self._deadline is not None:
            alarm.at(self._deadline, self._time_is_up)  # timers are not inherited

    def _abandon(self) -> None:
        """Ends a process that is not to be traced."""
        self._is_ending = True
        self._leave(0)

    def _at_exit(self) -> None:
        if self._is_own():
            self._finish("script" if _uncaught() is None else "exception")

    def _terminated(self) -> None:
        """SIGTERM, which the program itself does not handle; afterwards the process ends by it."""
        if self._is_own() and not self._is_ending:
            self._is_ending = True
            self._leave_trace("signal")

    def _insist_on_deadline(self) -> None:
        """Called when CUDA is initialised."""
        deadline = self._settings.get("deadline")
        if deadline is not None and self._is_own():
            alarm.from_thread(deadline + GRACE_S, lambda: self._finish("deadline"))

    def _leave_trace(self, end: str) -> None:
        gc.disable()  # it would look again and again at the many objects of the history
        try:
            _lift_limits()
            for number, trace in enumerate(self._traces(end), self._first_number):
                self._write(trace, number)
        except Exception as error:  # the run must end whatever happens
            sys.stderr.write("gpumem: the trace could not be written: %r\n" % error)

    def _finish(self, end: str) -> None:
        if not self._is_own() or self._is_ending:
            return
        self._is_ending = True
        self._leave_trace(end)
        if self._recorder is None and end not in ("deadline", "untraceable"):
            return
        # A torch that is torn down right after a backward pass sometimes aborts: leave without that.
        _stop_children()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._leave(self._exit_code if end != "exception" else 1)

    def _traces(self, end: str) -> List[Dict[str, Any]]:
        """One trace for each GPU that was used; a single one if none was."""
        torch = sys.modules.get("torch")
        version = getattr(torch, "version", None)
        trace: Dict[str, Any] = {
            "format": FORMAT,
            "pid": self._pid,
            "started_ns": self._started_ns,
            "ended_ns": time.time_ns(),
            "argv": [str(argument)[:4096] for argument in getattr(sys, "argv", [])][:256],
            "python": sys.version.split()[0],
            "torch_version": getattr(version, "__version__", None),
            "cuda_version": getattr(version, "cuda", None),
            "end": end,
            "error": _describe(_uncaught()) if end == "exception" else None,
            "inputs": of_program(),
            "made_up": self._made_up.listed(),
            "events": None,
        }
        trace.update(self._alone.facts())
        if self._recorder is not None and self._recorder.recording:
            if end == "steps" and not self._recorder.life.evaluations:
                trace["unreached"] = self._gradless.unreached()[:MAX_PLACES]
            trace.update(sizes=self._sizes.listed(), integers_read=self._sizes.integers_read)
            return [dict(trace, **of_one_gpu) for of_one_gpu in self._recorder.collect()]
        trace["reason"] = self._reason or _absence(torch is not None)
        return [trace]

    def _write(self, trace: Dict[str, Any], number: int) -> None:
        target = self._target(number)
        with open(target + ".part", "w", encoding="utf-8") as file:
            file.write(json.dumps(trace, separators=(",", ":")))  # `dump` is written in Python, and slow
        os.replace(target + ".part", target)

    def _target(self, number: int) -> str:
        return os.path.join(self._settings["out_dir"], "trace-%d-%d.json" % (self._pid, number))

    def _watch_ways_out(self) -> None:
        """A program may leave without `atexit`: by `os._exit`, or by becoming another program."""
        leave = self._leave

        def _exit(status: int) -> None:
            if self._is_own() and not self._is_ending:
                self._is_ending = True
                failed = self._is_forked and status != 0  # `multiprocessing` has printed the exception
                self._leave_trace("exception" if failed else "script")
            leave(status)

        def heard(event: str, arguments: Any) -> None:
            if event != "os.exec" or not self._is_own() or self._has_left or self._is_ending:
                return
            self._has_left = True  # several places may be tried for the other program
            if self._recorder is not None and self._recorder.recording:
                self._leave_trace("script")

        os._exit = _exit  # type: ignore[assignment]
        sys.addaudithook(heard)

    def _remember_exit_code(self) -> None:
        """`atexit` is not told the exit code, and `os._exit` needs it."""
        leave = sys.exit

        def exit(code: Any = None) -> None:
            self._exit_code = code if isinstance(code, int) else int(code is not None)
            leave(code)

        sys.exit = exit  # type: ignore[assignment]


# modules of other libraries that compute on GPUs, and their names
OTHERS = {
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "paddle": "PaddlePaddle",
    "mindspore": "MindSpore",
    "cupy": "CuPy",
}


def _absence(has_torch: bool) -> str:
    """Why a program has no trace that ran to its end without PyTorch on the GPU."""
    other = next((name for module, name in OTHERS.items() if module in sys.modules), None)
    if has_torch:
        also = "" if other is None else "; it uses %s as well, which is not traced" % other
        return "this program imported PyTorch but did not use the GPU%s" % also
    if other is not None:
        return "this program uses %s, not PyTorch" % other
    return "this Python program did not import PyTorch"


def _uncaught() -> Optional[BaseException]:
    """The exception that ended the program; the interpreter notes it here before it prints it."""
    return getattr(sys, "last_value", None)


def _describe(error: Optional[BaseException]) -> Optional[Dict[str, Any]]:
    """The exception and the line of the user's own code where it came up."""
    if error is None:
        return None
    file, line = None, None
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    traceback = error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if not name.startswith("<") and os.path.isfile(name) and not is_installed(name):
            file, line = name, traceback.tb_lineno
        traceback = traceback.tb_next
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    told = {"type": type(error).__name__, "message": message[:2000], "file": file, "line": line}
    with contextlib.suppress(Exception):
        told["hub"] = _wanted_of_hub(error)
    return told


def _wanted_of_hub(error: Optional[BaseException]) -> Optional[str]:
    """The model or data set that huggingface_hub did not find in its cache; its errors do not always say."""
    for _ in range(20):
        if error is None:
            return None
        if type(error).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
            traceback = error.__traceback__
            while traceback is not None:
                wanted = traceback.tb_frame.f_locals.get("repo_id")
                if isinstance(wanted, str):
                    return wanted[:200]
                traceback = traceback.tb_next
        error = error.__cause__ or error.__context__
    return None


def _lift_limits() -> None:
    """Takes the program's own limits back, as far as that can be done, so that the trace can be written."""
    for limit in LIMITS:
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(limit)
            resource.setrlimit(limit, (hard, hard))


def _stop_children() -> None:
    """Data loading workers would wait for a parent that is gone."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        for child in multiprocessing.active_children():
            child.kill()
