"""What ends a traced run from outside: the deadline that is set for it, and SIGTERM.

The deadline comes as a real-time signal from a POSIX timer: a program that uses SIGALRM, SIGTERM or the
interval timers keeps them, no thread is started, and a forked process does not inherit it. Once the GPU is
used, which starts threads on hardware as well, a thread waits for the moment right after it: it helps where
a program ignores or blocks every signal, or does not come back from a library.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import signal
import sys
from time import monotonic, sleep  # as they are before a program replaces them
from typing import Any, Callable

CLOCK_MONOTONIC, TIMER_ABSTIME, SIGEV_SIGNAL = 1, 1, 0  # <time.h>, <signal.h>


class _Event(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    ]


class _Times(ctypes.Structure):
    _fields_ = [("interval", ctypes.c_long * 2), ("value", ctypes.c_long * 2)]


def at(deadline: float, call: Callable[[], None]) -> bool:
    """Has `call()` run in the main thread at `deadline` (s, `time.monotonic`); False where it cannot."""
    number = signal.SIGRTMAX - 2
    event = _Event(None, number, SIGEV_SIGNAL, b"")
    timer = ctypes.c_void_p()
    seconds = max(deadline, 0.001)  # zero would disarm the timer
    times = _Times((0, 0), (int(seconds), int(seconds % 1 * 1e9)))
    try:
        library = _library()
        signal.signal(number, lambda *_: call())
        made = library.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
        if made != 0:
            return False
        return bool(library.timer_settime(timer, TIMER_ABSTIME, ctypes.byref(times), None) == 0)
    except (AttributeError, OSError, ValueError):  # another libc; not the main thread
        return False


def from_thread(moment: float, call: Callable[[], None]) -> None:
    """Has `call()` run in a thread of its own at `moment` (s, `time.monotonic`); it is to end the process."""

    def wait() -> None:
        while (left := moment - monotonic()) > 0:
            sleep(left)
        sys.setswitchinterval(1000.0)  # what is read now holds still
        call()

    with contextlib.suppress(RuntimeError, OSError, ValueError):  # no more threads
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # of the new thread
        try:
            _thread.start_new_thread(wait, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _library() -> Any:
    library = ctypes.CDLL(None)
    if not hasattr(library, "timer_create"):  # glibc before 2.34
        library = ctypes.CDLL("librt.so.1")
    return library


def on_termination(call: Callable[[], None]) -> None:
    """Has `call()` run before SIGTERM ends this process, unless somebody handles the signal otherwise.

    It runs in forked processes as well.
    """

    def handle(number: int, frame: Any) -> None:
        call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, handle)
    except ValueError:  # not the main thread
        pass
