"""Container images that are one file: where their file system lies in it, and what can serve it by FUSE.

Standard library only: `mounter.py` uses it within the containment.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

FUSE = "/dev/fuse"
PROGRAMS = {"squashfs": ("squashfuse_ll", "squashfuse"), "ext": ("fuse2fs",)}
_LIBRARY_FOLDERS = ("libexec", "lib", "lib64", f"lib/{os.uname().machine}-linux-gnu")

# The Singularity Image Format: a header, and descriptors of what the file holds (little-endian, not padded).
SIF_MAGIC, SIF_MAGIC_AT = b"SIF_MAGIC\0", 32
SIF_DESCRIPTORS, SIF_DESCRIPTORS_AT = struct.Struct("<qq"), 88  # how many, and where
# kind, used, three numbers, offset and six more, name, file system, role
SIF_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128sii376x")
SIF_PARTITION, SIF_PRIMARY = 0x4004, 2
SIF_FILE_SYSTEMS = {1: "squashfs", 2: "ext"}
SIF_ENCRYPTED = 5
MOST_DESCRIPTORS = 1000
SQUASHFS_MAGIC = b"hsqs"
EXT_MAGIC, EXT_MAGIC_AT = b"\x53\xef", 1024 + 56


class NoImage(Exception):
    """The file cannot be mounted as an image; the text says why."""


def file_system(path: str) -> tuple[str, int]:
    """The kind of the file system in an image, a key of `PROGRAMS`, and the byte where it begins.

    Raises:
        NoImage: there is none that could be served.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:  # noqa: PTH123
        head = file.read(2048)
        if head.startswith(SQUASHFS_MAGIC):
            return "squashfs", 0
        if head.startswith(EXT_MAGIC, EXT_MAGIC_AT):
            return "ext", 0
        if not head.startswith(SIF_MAGIC, SIF_MAGIC_AT):
            raise NoImage("it is no image of a known format (SIF, SquashFS, ext3)")
        count, place = SIF_DESCRIPTORS.unpack_from(head, SIF_DESCRIPTORS_AT)
        file.seek(max(0, place))
        table = file.read(min(max(0, count), MOST_DESCRIPTORS) * SIF_DESCRIPTOR.size)
    for start in range(0, len(table) - SIF_DESCRIPTOR.size + 1, SIF_DESCRIPTOR.size):
        found = SIF_DESCRIPTOR.unpack_from(table, start)
        kind, used, offset, system, role = found[0], found[1], found[5], found[-2], found[-1]
        if used and kind == SIF_PARTITION and role == SIF_PRIMARY:
            if system == SIF_ENCRYPTED:
                raise NoImage("it is encrypted")
            if system not in SIF_FILE_SYSTEMS or offset < 0:
                raise NoImage(f"its file system (number {system} of SIF) cannot be served")
            return SIF_FILE_SYSTEMS[system], offset
    raise NoImage("it holds no file system")


def servers(search_path: str, containers: Iterable[Path]) -> dict[str, str]:
    """The programs that serve each kind of file system: those which `containers` bring along come first."""
    folders = [
        str(real.parent.parent / library / name / "bin")
        for real in (program.resolve() for program in containers)
        for library in _LIBRARY_FOLDERS
        for name in ("apptainer", "singularity")
    ]
    path = os.pathsep.join((*folders, search_path))
    found = {
        kind: next(filter(None, (shutil.which(name, path=path) for name in names)), None)
        for kind, names in PROGRAMS.items()
    }
    return {kind: program for kind, program in found.items() if program}


def obstacle() -> str:
    """Why this user can mount nothing by FUSE on this machine; empty if it can be done."""
    if not os.path.exists(FUSE):  # noqa: PTH110
        return f"there is no {FUSE} on this machine"
    return "" if os.access(FUSE, os.R_OK | os.W_OK) else f"{FUSE} is closed to this user"


def server(image: str, descriptor: int, search_path: str, containers: Iterable[Path]) -> list[str]:
    """The command that serves `image` to the mount of `descriptor`, which is /dev/fuse.

    Raises:
        NoImage: it is no image, or there is no program that serves such a one.
        OSError: it cannot be read.
    """
    kind, offset = file_system(image)
    program = servers(search_path, containers).get(kind)
    if program is None:
        raise NoImage(f"there is no {PROGRAMS[kind][-1]} on this machine")
    options = ["ro", f"offset={offset}"]
    if kind == "ext":
        options += ["norecovery", "fakeroot"]
    return [program, "-f", "-s", "-o", ",".join(options), image, f"/dev/fd/{descriptor}"]
