"""Puts the fake CUDA device in the place of the CUDA libraries of the torch that is about to be imported.

For every CUDA library that this torch asks for, a library of the same SONAME and symbol versions is made
in memory and loaded first: the dynamic linker then never looks for the real one, wherever torch's RPATH
points. What the fake device implements comes from `libgpumem_cuda.so`; every other symbol is a
placeholder that is noted by name when it is called.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from typing import Dict, Iterable, List, Optional

from . import elf

DEVICE_LIBRARY = "libgpumem_cuda.so"
HANDLER = "gpumem_unknown_call"

# The families of libraries that only work with a GPU driver, by the beginning of their SONAME.
CUDA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|cufile|cupti|curand|cusolver|cusolverMg|cusparse|cusparseLt"
    r"|nccl|nvrtc|nvshmem_host|nvJitLink|nvToolsExt)\.so(\.\d+)*$"
)
# Some of them carry no symbol versions: their symbols are known by how they begin.
UNVERSIONED = {
    "nccl": "libnccl",
    "cusparseLt": "libcusparseLt",
    "cuFile": "libcufile",
    "nvshmem": "libnvshmem_host",
    "cu": "libcuda",
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
        raise NoCudaTorch("this PyTorch is built without CUDA (%s)" % torch_folder)
    return found


def placeholders(libraries: Iterable[str], implemented: Iterable[str]) -> Dict[str, Dict[str, Optional[str]]]:
    """SONAME -> {symbol: version node} of all that `libraries` need and `implemented` lacks."""
    wanted: Dict[str, Dict[str, Optional[str]]] = {DRIVER: {}}
    nodes: Dict[str, str] = {}
    loose: List[str] = []
    for path in libraries:
        library = elf.read_library(path)
        for soname in library.needed:
            if CUDA_LIBRARY.match(soname):
                wanted.setdefault(soname, {})
        for name, version, owner in library.imports:
            if owner is not None and owner in wanted and version is not None:
                wanted[owner][name] = version
                nodes[owner] = version
            elif owner is None:
                loose.append(name)
    for name in loose:
        for prefix, stem in UNVERSIONED.items():
            if name.startswith(prefix):
                for soname in wanted:
                    if soname.startswith(stem + ".so") and soname not in nodes:
                        wanted[soname][name] = None
                break
    known = set(implemented)
    for soname, symbols in wanted.items():
        kept = {name: node for name, node in symbols.items() if name not in known}
        if soname in nodes:  # the node must be defined even if no placeholder carries it
            kept.setdefault("gpumem_facade", nodes[soname])
        wanted[soname] = kept
    return wanted


def load(torch_folder: str, device_library: str) -> ctypes.CDLL:
    """Loads the fake device and the facades for the torch at `torch_folder`; returns the fake device.

    Raises:
        NoCudaTorch: this torch cannot use a GPU.
        OSError: a library cannot be read or loaded.
    """
    libraries = libraries_of(torch_folder)
    device = ctypes.CDLL(device_library, mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.path.join(os.path.dirname(device_library), "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    implemented = elf.read_library(device_library, exports=True).exports
    _load_images(
        {
            soname: elf.write_placeholders(soname, symbols, DEVICE_LIBRARY, HANDLER)
            for soname, symbols in placeholders(libraries, implemented).items()
        }
    )
    return device


def _load_images(images: Dict[str, bytes]) -> None:
    """Loads libraries from memory.

    The linker knows a library by the name it was opened with, so no two may have the same descriptor.
    """
    descriptors = []
    try:
        for name, image in images.items():
            descriptor = os.memfd_create(name)
            descriptors.append(descriptor)
            os.write(descriptor, image)
            ctypes.CDLL("/proc/self/fd/%d" % descriptor, mode=ctypes.RTLD_GLOBAL)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
