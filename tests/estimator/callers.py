"""Users who have scripts contained and estimated in tests, and what they look at afterwards."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.users import User

REPOSITORY = Path(__file__).parents[2]
GPUMEM = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from estimator.cli import main; main()"
DRIVER = """
import dataclasses, json, pathlib, sys
from estimator import sandbox
order = json.load(sys.stdin)
try:
    outcome = sandbox.run(
        order["command"], cwd=pathlib.Path(order["cwd"]), environment=order["environment"],
        out_dir=pathlib.Path(order["out"]), discard=[pathlib.Path(place) for place in order["discard"]],
        preload=order["preload"] and pathlib.Path(order["preload"]),
        limits=sandbox.Limits(**order["limits"]), required=order["required"])
    print(json.dumps(dataclasses.asdict(outcome)))
except sandbox.Refused as refused:
    print(json.dumps({"end": "refused", "tail": str(refused)}))
"""


@dataclasses.dataclass
class Caller:
    """Somebody who has a script contained; `work` is their folder, `out` where traces go."""

    user: User
    work: Path
    out: Path
    preload: Path | None = None

    def order(self, command: list[str], required: bool = True, **limits: Any) -> str:
        order = {
            "command": command,
            "cwd": str(self.work),
            "environment": self.user.environment({"HOME": str(self.work)}),
            "out": str(self.out),
            "discard": [str(self.work), "/tmp", "/var/tmp"],
            "preload": str(self.preload) if self.preload else None,
            "limits": {"wall_s": 20.0, **limits},
            "required": required,
        }
        return json.dumps(order)

    def contain(self, script: str, **limits: Any) -> dict[str, Any]:
        """Has `bash -c script` contained and returns the outcome."""
        done = self.user.run(
            [sys.executable, "-c", DRIVER],
            env={"PYTHONPATH": str(REPOSITORY)},
            text=self.order(["bash", "-c", script], **limits),
        )
        assert done.returncode == 0, done.stderr
        outcome: dict[str, Any] = json.loads(done.stdout)
        assert outcome["end"] != "refused", outcome["tail"]
        return outcome

    def python(self, program: str, **limits: Any) -> dict[str, Any]:
        """Has a Python program contained, with the interpreter of the system."""
        self.file("program.py", program)
        return self.contain("exec python3 program.py", **limits)

    def file(self, name: str, text: str = "") -> Path:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for made in (path, path.parent):
            os.chown(made, self.user.uid, self.user.gid)
        return path

    def gpumem(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `gpumem` in their folder."""
        return self.user.run(
            [sys.executable, "-c", GPUMEM, *arguments],
            env={"HOME": str(self.work), "XDG_CACHE_HOME": "/proc/none", **environment},
            cwd=self.work,
        )


def settle(user: User, folder: Path) -> Caller:
    """Gives `user` their folders below `folder`."""
    caller = Caller(user, folder / "work", folder / "out")
    for own in (caller.work, caller.out):
        own.mkdir()
        os.chown(own, user.uid, user.gid)
    return caller


def running(word: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def tree(folder: Path) -> dict[str, tuple[int, int, bytes | None]]:
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in [folder, *folder.rglob("*")]
    }


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "this never came to be"
        time.sleep(0.02)
