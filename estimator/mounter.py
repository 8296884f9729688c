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
import selectors
from collections.abc import Callable, Mapping
from typing import NoReturn

from estimator import image_files

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
        programs: what serves each kind of file system (`image_files.servers`).
        give_up_rights: makes a process one like those inside.
    """

    def __init__(self, programs: Mapping[str, str], give_up_rights: Callable[[], None]) -> None:
        self._programs, self._give_up_rights = programs, give_up_rights
        self._devices = os.open("/dev", os.O_PATH | os.O_DIRECTORY)
        self._mounted: dict[bytes, int] = {}  # image: number of its place
        self._children: list[int] = []

    def serve(self, until: int) -> None:
        """Answers requests until nothing is left to be read from `until`; then cuts all mounts off.

        A request is two lines: the FIFO for the answer, and the image. The answer is one: the folder, or "no"
        and why.
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
        with selectors.DefaultSelector() as selector:
            selector.register(requests, selectors.EVENT_READ)
            selector.register(until, selectors.EVENT_READ)
            while not any(key.fd == until for key, _ in selector.select()):
                with contextlib.suppress(BlockingIOError):  # somebody else has read it
                    waiting += os.read(requests, MOST_BYTES)
                *lines, waiting = waiting.split(b"\n")
                for reply, image in zip(lines[::2], lines[1::2], strict=False):
                    self._answer(reply, image)
                if len(lines) % 2:
                    waiting = lines[-1] + b"\n" + waiting
                if len(waiting) > MOST_BYTES:
                    waiting = b""

    def _answer(self, reply: bytes, image: bytes) -> None:
        """Mounts an image, unless it is, and leaves all else to a child."""
        fuse, number, reason = -1, self._mounted.get(image), ""
        if number is None:
            number = len(self._mounted)
            try:
                fuse = self._mount(number)
                self._mounted[image] = number
            except OSError as error:
                reason = error.strerror or str(error)
        self._children = [child for child in self._children if os.waitpid(child, os.WNOHANG)[0] == 0]
        with contextlib.suppress(OSError):  # PID 1 is gone
            child = os.fork()
            if child == 0:
                self._become_server(reply, image, fuse, number, reason)
            self._children.append(child)
        if fuse >= 0:
            os.close(fuse)

    def _mount(self, number: int) -> int:
        """Returns /dev/fuse, open for the one that serves the mount."""
        if number >= MOST_MOUNTS:
            raise OSError(0, f"a dry run mounts no more than {MOST_MOUNTS} images")
        # The kernel wants it opened by somebody of the user namespace that mounts.
        fuse = os.open(os.path.basename(image_files.FUSE), os.O_RDWR, dir_fd=self._devices)  # noqa: PTH119
        options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV
        if _libc.mount(b"gpumem", str(number).encode(), b"fuse", flags, options.encode()) != 0:
            problem = ctypes.get_errno()
            os.close(fuse)
            raise OSError(problem, f"mount: {os.strerror(problem)}")
        return fuse

    def _become_server(self, reply: bytes, image: bytes, fuse: int, number: int, reason: str) -> NoReturn:
        """In a child: answers, and becomes the program that serves the image."""
        with contextlib.suppress(Exception):
            if fuse >= 0:
                os.dup2(fuse, SERVED)
            os.closerange(SERVED + (fuse >= 0), MOST_FILES)  # before others may look into this process
            self._give_up_rights()
            arguments: list[str] = []
            if fuse >= 0:
                try:
                    kind, offset = image_files.file_system(os.fsdecode(image))
                    program = self._programs.get(kind)
                    if program is None:
                        missing = image_files.PROGRAMS[kind][-1]
                        raise image_files.NoImage(f"there is no {missing} on this machine")
                    arguments = image_files.command(program, kind, os.fsdecode(image), offset, SERVED)
                except (OSError, image_files.NoImage) as error:
                    reason = getattr(error, "strerror", None) or str(error)
            answer = f"no {reason}" if reason else f"{PLACE}/{number}"
            descriptor = os.open(reply, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            os.write(descriptor, answer.encode() + b"\n")
            os.close(descriptor)
            if arguments:
                os.execv(arguments[0], arguments)  # noqa: S606
        os._exit(1)
