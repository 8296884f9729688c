"""What a program is made of, as far as it may change: the user's modules, and the packages they build on.

The files that it opens are noted by the library that starts the tracer (`fake_cuda/opened.cpp`).
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Any, Dict, List

LIMIT = 1000
NOT_INPUTS = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/run/")
PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


def of_program() -> List[Dict[str, Any]]:
    """Path, size (bytes) and modification time (ns) of what this process is made of.

    That is the interpreter; the user's modules, which come from byte code as well, opened in the place of the
    source; and the first file of each package, which is another one when that is installed anew.
    """
    paths: Dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or path.endswith(".pyc"):
            continue
        is_of_package = any(part in path for part in PACKAGES)
        if ("." not in name or name == "torch.version") if is_of_package else not is_installed(path):
            paths[path] = None
    found: List[Dict[str, Any]] = []
    for path in [os.path.realpath(sys.executable or "/proc/self/exe"), *paths][:LIMIT]:
        try:
            path = os.path.abspath(path)  # fails where the working directory is gone
            status = os.stat(path)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):
            found.append({"path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns})
    return found


def is_installed(path: str) -> bool:
    """Parts of the interpreter, of packages and of the system change only by an installation."""
    if path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep)):
        return True
    if any(part in path for part in PACKAGES):
        return True
    if path.startswith(os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep):
        return True
    return path.startswith(NOT_INPUTS)
