"""Which of the user's files a run read: an estimate holds as long as they stay as they are."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from typing import Any, Dict, List, Optional

LIMIT = 1000
HASHED_FILE, HASHED_TOTAL = 1024**2, 16 * 1024**2  # bytes: code and configuration, not data
NOT_INPUTS = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/run/")


class OpenedFiles:
    """Files that the program opened for reading, by an audit hook (the `open` event, PEP 578)."""

    def __init__(self) -> None:
        self._paths: Dict[str, None] = {}

    def watch(self) -> None:
        """Starts listening; there is no way back, so the hook does next to nothing."""
        paths = self._paths

        def heard(event: str, arguments: Any) -> None:
            if event == "open" and len(paths) < LIMIT:
                path, _mode, flags = arguments
                writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
                if isinstance(path, str) and not writes and not is_installed(path):
                    paths[path] = None

        sys.addaudithook(heard)

    def listed(self) -> List[Dict[str, Any]]:
        """Path, size (bytes), modification time (ns) and SHA-256 (of small ones) of each file still there."""
        found: Dict[str, Dict[str, Any]] = {}
        left = HASHED_TOTAL
        for path in list(self._paths) + _modules():
            try:
                path = os.path.abspath(path)  # fails where the working directory is gone
                status = os.stat(path)
            except (OSError, ValueError):
                continue
            if is_installed(path) or path.endswith(".pyc"):
                continue
            if not stat.S_ISREG(status.st_mode) or path in found:
                continue
            digest = None
            if status.st_size <= min(left, HASHED_FILE):
                digest = _sha256(path)
                left -= status.st_size
            found[path] = {
                "path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": digest,
            }  # fmt: skip
        return list(found.values())[:LIMIT]


def _sha256(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read(HASHED_FILE)).hexdigest()
    except OSError:
        return None


def _modules() -> List[str]:
    """Modules come from byte code as well, which is opened in the place of the source."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [file for file in files if isinstance(file, str)]


def is_installed(path: str) -> bool:
    """Parts of the interpreter, of packages and of the system change only by an installation."""
    if path.startswith((sys.prefix + os.sep, sys.base_prefix + os.sep)):
        return True
    if os.sep + "site-packages" + os.sep in path or os.sep + "dist-packages" + os.sep in path:
        return True
    if path.startswith(os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep):
        return True
    return path.startswith(NOT_INPUTS)
