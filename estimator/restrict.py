"""Runs one command with what containment there is without namespaces: Landlock, limits, a reaper.

For sites that allow it (`estimate.require_containment = false`) where `confine.py` cannot work. Started in
its place by `sandbox.py`, with the same order and the same reports, but `{"reaper": pid}` for `init`.
Landlock (Linux 5.13) refuses to write outside of a few folders, and TCP since Linux 6.7, where `confine.py`
lets a script write and forgets it. Whatever the command starts becomes a child of this process when its own
parent ends (`PR_SET_CHILD_SUBREAPER`), and is ended with the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import struct
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent))  # started by path, under -I

from estimator import confine

# <linux/landlock.h>; the numbers of the system calls are the same on all architectures
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION, RULE_PATH_BENEATH = 1, 1
WRITE_FILE, REFER, TRUNCATE = 1 << 1, 1 << 13, 1 << 14
REMOVE_OR_MAKE = sum(1 << bit for bit in range(4, 13))
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Takes the order and stays until the command and all it started are gone."""
    reports = int(sys.argv[1])
    os.set_inheritable(reports, False)
    order = json.load(sys.stdin)
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        confine.report(reports, error=f"no reaper: {os.strerror(ctypes.get_errno())}")
        os._exit(1)
    confine.die_with_parent()
    if os.getppid() != order["parent"]:
        os._exit(1)

    def stop(_number: int, _frame: FrameType | None) -> None:
        end_descendants()
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    confine.report(reports, reaper=os.getpid(), ready=_weaknesses())
    if order["preload"]:
        confine.preload_by_variable(order)
    command = os.fork()
    if command == 0:
        confine.die_with_parent()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        try:
            confine.new_session_keyring()
            restrict_writing([order["out"], order["scratch"], *(f"/dev/{name}" for name in confine.DEVICES)])
        except confine.CannotConfine as error:
            confine.report(reports, not_started=str(error))
            os._exit(127)
        confine.execute(order, reports)
    while True:
        pid, status = os.wait()
        if pid == command:
            break
    end_descendants()
    confine.report(reports, status=status)
    os._exit(0)


def landlock_version() -> int:
    """The version of Landlock that this kernel has switched on; 0 for none."""
    version: int = _libc.syscall(SYS_CREATE_RULESET, None, ctypes.c_size_t(0), CREATE_RULESET_VERSION)
    return max(0, version)


def restrict_writing(folders: list[str | None]) -> None:
    """From now on this process writes only in `folders` and speaks TCP with nobody, as far as the kernel can.

    Raises:
        confine.CannotConfine: the kernel has Landlock, and refuses.
    """
    version = landlock_version()
    if version == 0:
        return
    rights = WRITE_FILE | REMOVE_OR_MAKE | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    tcp = BIND_TCP | CONNECT_TCP if version >= 4 else 0
    scope = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= 6 else 0
    handled = struct.pack("QQQ", rights, tcp, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _landlock(SYS_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    for folder in folders:
        if folder is None or not os.path.exists(folder):  # noqa: PTH110 - plain paths, as in confine.py
            continue
        parent = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        allowed = rights if os.path.isdir(folder) else rights & (WRITE_FILE | TRUNCATE)  # noqa: PTH112
        rule = struct.pack("=Qi", allowed, parent)
        _landlock(SYS_ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0)
        os.close(parent)
    confine.no_new_rights()
    _landlock(SYS_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _landlock(call: int, *arguments: Any) -> int:
    result: int = _libc.syscall(call, *arguments)
    if result < 0:
        raise confine.CannotConfine(f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


def _weaknesses() -> list[str]:
    version = landlock_version()
    if version == 0:
        return ["the dry run was not contained: what it wrote stays"]
    network = "" if version >= 4 else ", and the network could be reached"
    return [f"the dry run was contained by Landlock only: writing failed instead of being forgotten{network}"]


def descendants(process: int) -> list[int]:
    """All processes below `process`, nearer ones first."""
    found: list[int] = []
    waiting = [process]
    while waiting:
        parent = waiting.pop(0)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208
                children = Path(f"/proc/{parent}/task/{task}/children").read_text(encoding="ascii").split()
                waiting += map(int, children)
                found += map(int, children)
    return found


def end_descendants() -> None:
    """Kills until nothing is left: stopped first, so that what forks does not outrun it."""
    me = os.getpid()
    while left := descendants(me):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError as error:
            if error.errno != errno.ECHILD:
                raise


if __name__ == "__main__":
    main()
