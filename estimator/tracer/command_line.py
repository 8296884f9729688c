"""How this interpreter was started, known before `sys.argv` is."""

from __future__ import annotations

import os
from typing import List

INSTALLERS = ("pip", "pip3", "conda", "mamba")
INSTALLING = ("install", "uninstall", "download", "wheel", "update", "create")


def arguments() -> List[str]:
    """The words of the command, the interpreter first."""
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def installs(argv: List[str]) -> bool:
    """Whether the program would install packages, which a dry run does not: it has no network, either."""
    words = [word for word in argv[1:] if not word.startswith("-") or word == "-m"]
    if words[:1] == ["-m"]:
        words = words[1:]
    return len(words) > 1 and os.path.basename(words[0]) in INSTALLERS and words[1] in INSTALLING
