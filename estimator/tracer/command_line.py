"""How this interpreter was started, known before `sys.argv` is."""

from __future__ import annotations

import os
from typing import List

ENVIRONMENT_MAKERS = ("venv", "virtualenv", "ensurepip")
PART = "GPUMEM_MAKES_ENVIRONMENT"
NOT_INSTALLED = "nothing is installed in a dry run"
INSTALLERS = ("pip", "pip3", "conda", "mamba")
INSTALLING = ("install", "uninstall", "download", "wheel", "update", "create")


def arguments() -> List[str]:
    """The words of the command, the interpreter first."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def makes_environment(argv: List[str]) -> bool:
    """Whether the program makes a Python environment here, or is started by one that does."""
    words = [word for word in argv[1:] if not word.startswith("-")]
    made = bool(words) and os.path.basename(words[0]) in ENVIRONMENT_MAKERS
    if made or (installs(argv) and works_offline(argv)):
        os.environ[PART] = "1"
    return PART in os.environ


def works_offline(argv: List[str]) -> bool:
    """Whether pip is told to use only what lies on this machine: it does, and what it installs vanishes."""
    return "--no-index" in argv or os.environ.get("PIP_NO_INDEX", "").lower() in ("1", "true", "yes", "on")


def skip(argv: List[str], out_dir: str) -> None:
    """Ends the process, which is noted as the stand-ins note what they do not do (`shims.py`)."""
    words = [NOT_INSTALLED, *([os.path.basename(argv[1])] if argv[1] != "-m" else []), *argv[2:]]
    try:
        with open(os.path.join(out_dir, "skipped-%d" % os.getpid()), "w", errors="surrogateescape") as file:
            file.write("".join(word + "\0" for word in words))
    finally:
        os._exit(0)


def installs(argv: List[str]) -> bool:
    """Whether the program would install packages, which a dry run does not: it has no network, either."""
    words = [word for word in argv[1:] if not word.startswith("-") or word == "-m"]
    if words[:1] == ["-m"]:
        words = words[1:]
    return len(words) > 1 and os.path.basename(words[0]) in INSTALLERS and words[1] in INSTALLING
