"""Tells what a Python program is, and stops it where it imports PyTorch: for a plan, not for a trace."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import re
import sys
from typing import Any, Dict, List, Optional

CONFIGURATION_LENGTH = 64 * 1024  # characters
FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}
NOT_TOLD = ("_", "SHLVL", "PWD", "OLDPWD", "PATH", "LINES", "COLUMNS", "PS1")
SECRET = re.compile(r"(?i)(^|_)(api_?key|key|token|secret|passwd|password|credentials?|auth|cookie)($|_)")


def begin(settings: Dict[str, Any], argv: List[str]) -> bool:
    """Takes note of this interpreter; whether it needs a fake device, because it will be let run.

    `settings`: `out_dir`, `environment` (that of the batch script, to tell what it changed). One-liners that
    ask PyTorch how many GPUs there are go on; other programs end where they import it.
    """
    program = Program(settings, argv)
    atexit.register(program.ended)
    goes_on = any(word in ("-c", "-") for word in argv[1:2]) or len(argv) == 1
    sys.meta_path.insert(0, Finder(program, goes_on))
    return goes_on


class Program:
    """This process, as a file in `out_dir` that is written at its start and again at its end."""

    def __init__(self, settings: Dict[str, Any], argv: List[str]) -> None:
        with open("/proc/self/stat") as file:
            started = int(file.read().rpartition(")")[2].split()[19])  # ticks since boot: orders programs
        self._path = os.path.join(settings["out_dir"], "program-%d-%d.json" % (started, os.getpid()))
        self._pid = os.getpid()
        self._told: Dict[str, Any] = {
            "argv": argv[:1000],
            "cwd": os.getcwd(),
            "executable": sys.executable or argv[0],
            "prefix": sys.prefix,
            "python": ".".join(map(str, sys.version_info[:3])),
            "environment": self._changes(settings["environment"]),
            "configuration": _configuration(argv),
            "started": started,
            "framework": None,
            "framework_version": None,
            "error": None,
        }
        self.write()

    def write(self) -> None:
        """Leaves what is known so far."""
        with contextlib.suppress(OSError):
            with open(self._path + ".part", "w") as file:
                json.dump(self._told, file)
            os.replace(self._path + ".part", self._path)

    def reached(self, name: str, spec: Any) -> None:
        """The program imports a framework: that is all that has to be known of it."""
        self._told["framework"] = FRAMEWORKS[name]
        self._told["framework_version"] = _version(spec)
        self.write()

    def stop(self) -> None:
        """Ends the process; children that it forked go on."""
        if self._pid == os.getpid():
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # any object may stand there
                    stream.flush()
            os._exit(0)

    def ended(self) -> None:
        """The program came to its end without a framework."""
        error = getattr(sys, "last_value", None)
        if self._pid == os.getpid() and error is not None:
            text = " ".join(("%s: %s" % (type(error).__name__, error)).split())
            self._told["error"] = text[:1000]
            self.write()

    @staticmethod
    def _changes(before: Dict[str, str]) -> Dict[str, str]:
        changed: Dict[str, str] = {}
        for name, value in os.environ.items():
            if name not in NOT_TOLD and before.get(name) != value and len(changed) < 500:
                changed[name] = "..." if SECRET.search(name) else value[:1000]
        return changed


class Finder:
    """Stands before all other finders, until a framework is looked for."""

    def __init__(self, program: Program, goes_on: bool) -> None:
        self._program, self._goes_on = program, goes_on
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        if name not in FRAMEWORKS or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None:
            self._program.reached(name, spec)
            if not self._goes_on:
                self._program.stop()
        return spec


def _configuration(argv: List[str]) -> str:
    """What `accelerate launch` reads besides its command line, such as how many processes it starts."""
    if not any("accelerate" in word for word in argv[:4]):
        return ""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    path = os.path.join(home, "accelerate", "default_config.yaml")
    for word, following in zip(argv, [*argv[1:], ""]):  # noqa: B905 - Python 3.9
        name, equals, value = word.partition("=")
        if name in ("--config_file", "--config-file"):
            path = value if equals else following
            break
    try:
        with open(path, errors="replace") as file:
            return file.read(CONFIGURATION_LENGTH)
    except (OSError, ValueError):
        return ""


def _version(spec: Any) -> Optional[str]:
    """Of an installed package, without importing it."""
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
            found = re.search(r"__version__ = ['\"]([^'\"]+)", file.read())
        return found.group(1) if found else None
    except (OSError, TypeError):
        return None
