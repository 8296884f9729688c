"""Programs that ask for `backend:cudaMallocAsync` are run on PyTorch's own allocator, and that is told.

Only that one keeps a memory history; how the driver would place the blocks is not known.
"""

from __future__ import annotations

import os
from typing import List

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
ASYNC = "cudaMallocAsync"
_assumed: List[str] = []


def use_native() -> None:
    """Must be called before torch is loaded, which reads the variables once."""
    for name in NAMES:
        text = os.environ.get(name, "")
        if ASYNC in text:
            os.environ[name] = text.replace(ASYNC, "native")
            _assumed[:] = ["backend:cudaMallocAsync (PyTorch's own allocator in its place)"]


def assumptions() -> List[str]:
    """What may differ on hardware."""
    return list(_assumed)
