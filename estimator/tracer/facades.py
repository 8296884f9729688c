"""Puts the fake CUDA device in the place of the CUDA libraries of the torch that is about to be imported.

For every CUDA library that this torch asks for, a library of the same SONAME and symbol versions is made
in memory and loaded first: the dynamic linker then never looks for the real one, wherever torch's RPATH
points. What the fake device implements comes from `libgpumem_cuda.so`; every other symbol is a
placeholder that is noted by name when it is called. Extensions that are loaded later are looked at, too,
and what they want beyond that is added.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import itertools
import os
import re
import sys
from typing import Any, Dict, Iterable, List, Optional, Set

from . import elf
from .driver_api import NOT_SUPPORTED

DEVICE_LIBRARY = "libgpumem_cuda.so"
HANDLER, UNSUPPORTED = "gpumem_unknown_call", "gpumem_unsupported_call"  # what a placeholder calls

# The families of libraries that only work with a GPU driver, by the beginning of their SONAME.
CUDA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn|cudnn_[a-z_]+|cufft|cufile|cupti|curand|cusolver|cusolverMg"
    r"|cusparse|cusparseLt|nccl|nvrtc|nvrtc-builtins|nvshmem_host|nvJitLink|nvToolsExt)\.so(\.\d+)*$"
)
# Some of them carry no symbol versions: their symbols are known by how they begin.
UNVERSIONED = {
    "libnccl": re.compile(r"p?nccl[A-Z]"),
    "libcusparseLt": re.compile(r"cusparseLt[A-Z]"),
    "libcufile": re.compile(r"cuFile[A-Z]"),
    "libnvshmem_host": re.compile(r"nvshmem"),
    "libcuda": re.compile(r"cu[A-Z]"),
}
DRIVER = "libcuda.so.1"


class NoCudaTorch(Exception):
    """This torch is built without CUDA: there is no GPU memory to estimate."""


def libraries_of(torch_folder: str) -> List[str]:
    """The CUDA-using libraries of the torch package at `torch_folder`.

    Raises:
        NoCudaTorch: there are none.
    """
    found = sorted(glob.glob(os.path.join(torch_folder, "lib", "*.so")))
    if not any(os.path.basename(path) == "libtorch_cuda.so" for path in found):
        raise NoCudaTorch(
            "this PyTorch (%s) is built without CUDA: a dry run needs the one of the compute node"
            % torch_folder
        )
    return found


def placeholders(libraries: Iterable[str], implemented: Iterable[str]) -> Dict[str, Dict[str, Optional[str]]]:
    """SONAME -> {symbol: version node} of all that `libraries` need and `implemented` lacks."""
    wanted: Dict[str, Dict[str, Optional[str]]] = {}
    nodes: Dict[str, Set[str]] = {}
    loose: Set[str] = set()
    for path in libraries:
        library = elf.read_library(path)
        for soname in library.needed:
            if CUDA_LIBRARY.match(soname):
                wanted.setdefault(soname, {})
        for name, version, owner in library.imports:
            if owner is not None and owner in wanted and version is not None:
                wanted[owner][name] = version
                nodes.setdefault(owner, set()).add(version)
            elif owner is None:
                loose.add(name)
    for soname in wanted:
        begins = UNVERSIONED.get(soname.split(".")[0])
        if begins is not None and soname not in nodes:
            wanted[soname].update({name: None for name in loose if begins.match(name)})
    known = set(implemented)
    for soname, symbols in wanted.items():
        kept = {name: node for name, node in symbols.items() if name not in known}
        # a node must be defined even if no placeholder carries it
        for number, node in enumerate(sorted(nodes.get(soname, ()))):
            kept["gpumem_facade_%d" % number] = node
        wanted[soname] = kept
    return wanted


class Facades:
    """The stand-ins of one process; `device` is the library behind all of them.

    Raises:
        OSError: a library cannot be read or loaded.
    """

    def __init__(self, device_library: str) -> None:
        self.device = ctypes.CDLL(device_library, mode=ctypes.RTLD_GLOBAL)
        nvml = os.path.join(os.path.dirname(device_library), "libnvidia-ml.so.1")
        ctypes.CDLL(nvml, mode=ctypes.RTLD_GLOBAL)
        self._implemented = elf.read_library(device_library, exports=True).exports
        self._given: Dict[str, Set[str]] = {}  # SONAME -> symbols that have a placeholder
        self._seen: Set[str] = set()
        missing: Dict[str, Optional[str]] = dict.fromkeys(set(NOT_SUPPORTED) - set(self._implemented))
        self._stand_in({DRIVER: missing, "libcuda.so": missing}, UNSUPPORTED)

    def load_for_torch(self, torch_folder: str) -> None:
        """Loads what the torch at `torch_folder` wants.

        Raises:
            NoCudaTorch: this torch cannot use a GPU.
            OSError, elf.NotElf: a library cannot be read or loaded.
        """
        libraries = libraries_of(torch_folder)
        self._seen.update(libraries)
        self._stand_in(placeholders(libraries, self._implemented))

    def watch(self) -> None:
        """Looks at each library that Python loads from now on, right before it is loaded."""

        def heard(event: str, arguments: Any) -> None:
            if event == "import" and arguments[1]:
                self.load_for_extension(arguments[1])

        load = ctypes._dlopen  # type: ignore[attr-defined]  # what CDLL calls, in all of Python 3

        def dlopen(name: Any, *rest: Any) -> Any:
            return load(self.in_place_of(name), *rest)

        sys.addaudithook(heard)
        ctypes._dlopen = dlopen  # type: ignore[attr-defined]

    def in_place_of(self, name: Any) -> Any:
        """What to open where `name` (a path or a SONAME) was asked for."""
        if not isinstance(name, str):
            return name
        soname = os.path.basename(name)
        if not CUDA_LIBRARY.match(soname) or (name != soname and not os.path.exists(name)):
            self.load_for_extension(name)
            return name
        if soname not in self._given:
            self._stand_in({soname: {}})
        return soname

    def load_for_extension(self, path: str) -> None:
        """Adds what the library at `path`, and those that it brings with it, want of CUDA and lack so far.

        Never raises: the linker will say it better.
        """
        with contextlib.suppress(OSError, elf.NotElf):
            libraries = [one for one in self._with_needs(path) if _uses_cuda(one)]
            if libraries:
                self._stand_in(placeholders(libraries, self._implemented))

    def _with_needs(self, path: str) -> List[str]:
        """The library at `path` and those that lie where it looks for its own needs; each only once."""
        found, waiting = [], [path]
        while waiting:
            one = os.path.realpath(waiting.pop())
            if one in self._seen or not os.path.isfile(one):
                continue
            self._seen.add(one)
            found.append(one)
            library = elf.read_library(one, symbols=False)
            for soname in library.needed:
                if not CUDA_LIBRARY.match(soname):
                    waiting += [os.path.join(folder, soname) for folder in library.folders]
        return found

    def _stand_in(self, wanted: Dict[str, Dict[str, Optional[str]]], handler: str = HANDLER) -> None:
        """Makes and loads libraries with the symbols that no facade has so far.

        A library cannot be extended: what is missing in one goes into another, which everybody finds too.
        """
        images = {}
        for soname, symbols in wanted.items():
            given = self._given.get(soname)
            missing = {name: node for name, node in symbols.items() if given is None or name not in given}
            if given is None:
                images[soname] = elf.write_placeholders(soname, missing, DEVICE_LIBRARY, handler)
            elif missing:
                name = "%s.gpumem-%d" % (soname, len(given))
                images[name] = elf.write_placeholders(name, missing, DEVICE_LIBRARY, handler)
            self._given.setdefault(soname, set()).update(missing)
        _load_images(images)


def _uses_cuda(path: str) -> bool:
    return any(CUDA_LIBRARY.match(soname) for soname in elf.read_library(path, symbols=False).needed)


_numbers = itertools.count()


def _load_images(images: Dict[str, bytes]) -> None:
    """Loads libraries from memory.

    The linker knows a library by the name it was opened with, so each needs one of its own.
    """
    for name, image in images.items():
        descriptor = os.memfd_create(name)
        try:
            os.write(descriptor, image)
            path = "/proc/self/%sfd/%d" % ("./" * next(_numbers), descriptor)
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        finally:
            os.close(descriptor)
