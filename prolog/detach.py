"""Work that outlives its starter: slurmd waits for a prolog until all its file descriptors are closed.

Imported by every prolog of a GPU job before anything else: light imports only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable


def age_s() -> float:
    """Seconds since the kernel started this process; the interpreter's own start counts, too."""
    with open("/proc/self/stat") as file:  # noqa: PTH123 (pathlib costs 10 ms)
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def exit_by(deadline_s: float) -> None:
    """This process exits with 0 when it is `deadline_s` old, whatever it is doing."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, max(deadline_s - age_s(), 0.001))


def start(work: Callable[[Callable[[], None]], None], wait_s: float) -> None:
    """Does `work(ready)` in a process of its own; waits until it calls `ready` or ends, `wait_s` at most.

    That process holds nothing of ours: own session, no file descriptor, working directory /. Its exceptions
    go nowhere: `work` reports its own failures.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                writing = _let_go(writing)
                work(_once(lambda: os.close(writing)))
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    select.select([reading], [], [], max(wait_s, 0))
    os.close(reading)


def _once(act: Callable[[], None]) -> Callable[[], None]:
    left = [act]
    return lambda: left.pop()() if left else None


def _let_go(kept: int) -> int:
    """Closes every file descriptor but `kept`, whose new number is returned."""
    kept = fcntl.fcntl(kept, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # the listing's own is closed already
                os.close(number)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    os.umask(0o077)
    return kept
