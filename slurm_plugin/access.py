"""Looking at a user's files as that user: what they may not see is not seen for them, on NFS as well."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import time
from collections.abc import Iterator
from functools import lru_cache

# setfsuid, setfsgid, setgroups in <asm/unistd.h>. The raw calls change the calling thread alone; those of
# the C library change all threads of the process (nptl(7)).
_CALLS = {"x86_64": (122, 123, 116), "aarch64": (151, 152, 159)}
_GROUPS_LAST_S = 600

_libc = ctypes.CDLL(None, use_errno=True)


class NoAccess(Exception):
    """The calling thread cannot take on this user's rights; the text says why."""


@contextlib.contextmanager
def as_user(uid: int) -> Iterator[None]:
    """Within it, the calling thread opens files with the rights of user `uid` and no others.

    A service that does not run as root has nobody's rights but its own, and keeps them.

    Raises:
        NoAccess: the user is not known here, or the kernel refuses.
    """
    if os.geteuid() != 0:
        yield
        return
    try:
        setfsuid, setfsgid, setgroups = _CALLS[platform.machine()]
    except KeyError:
        raise NoAccess(f"not known how to become a user on {platform.machine()}") from None
    gid, groups = _groups(uid, int(time.monotonic() / _GROUPS_LAST_S))
    own_gid, own_groups = os.getegid(), os.getgroups()

    def become(uid: int, gid: int, groups: list[int]) -> None:
        numbers = (ctypes.c_uint32 * len(groups))(*groups)
        # rights are given up last and come back first
        steps = [(setgroups, len(groups), numbers), (setfsgid, gid, None), (setfsuid, uid, None)]
        for call, value, pointer in steps if uid else reversed(steps):
            if _libc.syscall(call, ctypes.c_long(value), pointer) < 0:
                raise NoAccess(os.strerror(ctypes.get_errno()))

    try:
        become(uid, gid, groups)
        # setfsuid(2) reports no error; asked to do the impossible it tells how things are
        if _libc.syscall(setfsuid, ctypes.c_long(-1)) != uid:
            raise NoAccess("setfsuid had no effect")
        yield
    finally:
        become(0, own_gid, own_groups)


@lru_cache(1024)
def _groups(uid: int, _period: int) -> tuple[int, list[int]]:
    """The user's group and all of them; asked again in every period."""
    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        raise NoAccess(f"user id {uid} is not known here") from None
