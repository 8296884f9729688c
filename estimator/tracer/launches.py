"""Notes that this program was started, and how: jobs that start the same programs need the same memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from typing import Any, Dict, List, Mapping

INSIDE = "GPUMEM_INSIDE"
# Differ from one login, or one submission, to the next without any bearing on what a program computes.
WITHOUT_EFFECT = re.compile(
    r"(SSH|SBATCH|XDG_SESSION|DBUS|GPUMEM|VSCODE|TMUX)_\w*|TERM|TMUX|COLORTERM|LS_COLORS|PWD|OLDPWD|SHLVL|HOSTNAME|"
    r"XDG_RUNTIME_DIR|DISPLAY|MAIL|KRB5CCNAME|MASTER_PORT|SLURM_JOB_NAME|SLURM_SUBMIT_HOST|OMP_NUM_THREADS|_"
)


def note(settings: Dict[str, Any], argv: List[str]) -> None:
    """Leaves a file in `settings["out_dir"]`; `settings["folder"]` is that of the dry run, another each time.

    What a program starts after it imported PyTorch belongs to it, and is not noted.
    """
    if INSIDE in os.environ:
        return
    with open("/proc/self/stat") as file:
        started = file.read().rpartition(")")[2].split()[19]
    told = {
        "argv": [word.replace(settings["folder"], "") for word in argv],
        "cwd": os.getcwd(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "python": sys.version,
        "environment": digest(os.environ, settings["folder"]),
    }
    path = os.path.join(settings["out_dir"], "launch-%s-%d.json" % (started, os.getpid()))
    with open(path + ".part", "w") as file:
        json.dump(told, file)
    os.replace(path + ".part", path)


def entered() -> None:
    """Called where PyTorch is about to be imported."""
    os.environ[INSIDE] = "1"


def digest(environment: Mapping[str, str], folder: str) -> str:
    """SHA-256 (hex) of what matters of an environment."""
    kept = sorted(
        (name, value.replace(folder, ""))
        for name, value in environment.items()
        if not WITHOUT_EFFECT.fullmatch(name)
    )
    return hashlib.sha256(json.dumps(kept).encode("utf-8", "surrogateescape")).hexdigest()
