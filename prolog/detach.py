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


def start(work: Callable[[Callable[[], None]], None], deadline_s: float) -> None:
    """Does `work(ready)` in a process of its own; waits until that is called or `work` ends.

    Waits no longer than until this process is `deadline_s` old. On a loaded node it can be older than that
    from the start: the work is done all the same. Its process holds nothing of ours: own session, no file
    descriptor, working directory /. Its exceptions go nowhere: `work` reports its own failures.
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
    select.select([reading], [], [], max(deadline_s - age_s(), 0))
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
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    os.umask(0o077)
    return kept
