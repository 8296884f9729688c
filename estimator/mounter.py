"""Mounts image files for the containment, so that /dev/fuse itself need not be in it.

Who holds /dev/fuse can make processes that nobody can end: one that waits for an answer which only itself
could give is not even killed by SIGKILL. So what runs in the containment may only ask, by a FIFO; the mount
is made here, outside of its PID namespace and where it cannot be undone; the program that answers for it runs
inside, contained as everything else; and at the end each mount is cut off by force, which frees whoever
waits for it. See `confine.py` for the processes.

This process never follows a path that comes from inside, which may lie on such a mount: its children do.
"""

# Plain system calls on plain paths, as in `confine.py`.
# ruff: noqa: PTH102

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

PLACE = "/run/gpumem-images"
REQUESTS = "requests"
MOST_MOUNTS = 64
MOST_BYTES = 64 * 1024  # of requests that are not complete yet
SERVED, MOST_FILES = 3, 4096  # /dev/fuse in the program that serves an image; descriptors that may be open
MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MNT_FORCE, MNT_DETACH = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def prepare(place: str) -> None:
    """Makes the places for mounts in an empty folder, which is then to be made read-only."""
    for number in range(MOST_MOUNTS):
        os.mkdir(f"{place}/{number}", 0o700)
    os.mkfifo(f"{place}/{REQUESTS}", 0o600)


class Mounter:
    """Mounts what it is asked for; made before the root of the file system is changed.

    Args:
        search_path: where programs that serve images are found.
        give_up_rights: makes a process one like those inside.
    """

    def __init__(self, search_path: str, give_up_rights: Callable[[], None]) -> None:
        self._search_path, self._give_up_rights = search_path, give_up_rights
        self._devices = os.open("/dev", os.O_PATH | os.O_DIRECTORY)
        self._mounted: dict[bytes, int] = {}  # image: number of its place
        self._children: list[int] = []

    def serve(self, until: int) -> None:
        """Answers requests until nothing is left to be read from `until`; then cuts all mounts off.

        A request is three lines: the FIFO for the answer, the image, and the program that wants it, which may
        bring along what serves it. The answer is one: the folder, or "no" and why.
        """
        try:
            self._serve(until)
        finally:
            for number in self._mounted.values():
                _libc.umount2(str(number).encode(), MNT_FORCE | MNT_DETACH)

    def _serve(self, until: int) -> None:
        os.chdir(PLACE)
        requests = os.open(REQUESTS, os.O_RDWR | os.O_NONBLOCK)  # else it ends with its first writer
        waiting = b""
        while until not in select.select([requests, until], [], [])[0]:
            with contextlib.suppress(BlockingIOError):  # somebody else has read it
                waiting += os.read(requests, MOST_BYTES)
            while waiting.count(b"\n") >= 3:
                reply, image, container, waiting = waiting.split(b"\n", 3)
                self._answer(reply, image, container)
            if len(waiting) > MOST_BYTES:
                waiting = b""

    def _answer(self, reply: bytes, image: bytes, container: bytes) -> None:
        """Mounts an image, unless it is, and leaves all else to a child."""
        fuse, number = -1, self._mounted.get(image, len(self._mounted))
        answer = f"{PLACE}/{number}"
        if image not in self._mounted:
            try:
                fuse = self._mount(number)
                self._mounted[image] = number
            except OSError as error:
                answer = f"no {error.strerror}"
        self._children = [child for child in self._children if os.waitpid(child, os.WNOHANG)[0] == 0]
        with contextlib.suppress(OSError):  # PID 1 is gone
            child = os.fork()
            if child == 0:
                self._become_server(reply, fuse, image, container, answer)
            self._children.append(child)
        if fuse >= 0:
            os.close(fuse)

    def _mount(self, number: int) -> int:
        """Returns /dev/fuse, open for the one that serves the mount."""
        if number >= MOST_MOUNTS:
            raise OSError(0, f"a dry run mounts no more than {MOST_MOUNTS} images")
        # The kernel wants it opened by somebody of the user namespace that mounts.
        fuse = os.open("fuse", os.O_RDWR, dir_fd=self._devices)
        options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV
        if _libc.mount(b"gpumem", str(number).encode(), b"fuse", flags, options.encode()) != 0:
            problem = ctypes.get_errno()
            os.close(fuse)
            raise OSError(problem, f"mount: {os.strerror(problem)}")
        return fuse

    def _become_server(
        self, reply: bytes, fuse: int, image: bytes, container: bytes, answer: str
    ) -> NoReturn:
        """In a child: answers, and becomes the program that serves the image, if one is needed."""
        with contextlib.suppress(Exception):
            if fuse >= 0:
                os.dup2(fuse, SERVED)
            os.closerange(SERVED + (fuse >= 0), MOST_FILES)  # before others may look into this process
            self._give_up_rights()
            command: list[str] = []
            if fuse >= 0:
                from estimator import image_files

                try:
                    command = image_files.server(
                        os.fsdecode(image), SERVED, self._search_path, [Path(os.fsdecode(container))]
                    )
                except (OSError, image_files.NoImage) as error:
                    answer = f"no {getattr(error, 'strerror', None) or error}"
            descriptor = os.open(reply, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            os.write(descriptor, answer.encode() + b"\n")
            os.close(descriptor)
            if command:
                os.execv(command[0], command)  # noqa: S606
        os._exit(1)
