"""What makes every Python of a dry run start the tracer: a library that each program loads, and its order."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = HERE / "fake_cuda" / "lib" / "libgpumem_start.so"
CODE = HERE / "tracer" / "start.py"


def write(folder: Path, configuration: Path, code: Path = CODE, notes: Path | None = None) -> Path:
    """Makes `folder` with the library, and beside it the file `start` that it reads (see `start.cpp`).

    Args:
        folder: must not exist.
        configuration: what `code` is given.
        code: the Python code that every interpreter runs first.
        notes: where programs note the files that they read (see `opened.py`).

    Returns:
        The library, to be preloaded.
    """
    folder.mkdir()
    order = [code, configuration] if notes is None else [code, configuration, notes]
    (folder / "start").write_text("".join(f"{line}\n" for line in order), encoding="utf-8")
    copy = Path(shutil.copyfile(LIBRARY, folder / LIBRARY.name))
    copy.chmod(0o755)  # an installation may be closed to others by its owner's umask
    return copy
