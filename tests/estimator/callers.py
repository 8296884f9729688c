"""Users who have scripts contained and estimated in tests, and what they look at afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimator import image_files
from testbed.users import User, existing

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
        preload=order["preload"] and pathlib.Path(order["preload"]), images=order["images"],
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
    images: bool = False  # may be mounted
    prefix: tuple[str, ...] = ()  # of a command of root that becomes one of theirs

    def order(self, command: list[str], required: bool = True, **limits: Any) -> str:
        order = {
            "command": command,
            "cwd": str(self.work),
            "environment": self.user.environment({"HOME": str(self.work)}),
            "out": str(self.out),
            "discard": [str(self.work), "/tmp", "/var/tmp"],
            "preload": str(self.preload) if self.preload else None,
            "images": self.images,
            "limits": {"wall_s": 20.0, **limits},
            "required": required,
        }
        return json.dumps(order)

    def contain(self, script: str, **limits: Any) -> dict[str, Any]:
        """Has `bash -c script` contained and returns the outcome."""
        done = self._run(
            [sys.executable, "-c", DRIVER],
            env={"PYTHONPATH": str(REPOSITORY)},
            text=self.order(["bash", "-c", script], **limits),
        )
        assert done.returncode == 0, done.stderr
        outcome: dict[str, Any] = json.loads(done.stdout)
        assert outcome["end"] != "refused", outcome["tail"]
        return outcome

    @contextlib.contextmanager
    def started(self, script: str) -> Iterator[subprocess.Popen[str]]:
        """While the process that has `bash -c script` contained runs."""
        with subprocess.Popen(
            [*self.prefix, sys.executable, "-c", DRIVER],
            env=self.user.environment({"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.work)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd="/",
        ) as process:
            assert process.stdin is not None
            process.stdin.write(self.order(["bash", "-c", script]))
            process.stdin.close()
            yield process

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
        return self._run(
            [sys.executable, "-c", GPUMEM, *arguments],
            env={"HOME": str(self.work), "XDG_CACHE_HOME": "/proc/none", **environment},
            cwd=self.work,
        )

    def _run(
        self, command: list[str], *, env: dict[str, str], text: str | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        if not self.prefix:
            return self.user.run(command, env=env, text=text, cwd=cwd)
        full = self.user.environment(env)
        return existing("root").run([*self.prefix, *command], env=full, text=text, cwd=cwd or self.user.home)

    def open_fuse(self) -> None:
        """Has their commands find /dev/fuse as on most machines, open to everybody; else skips the test."""
        if not Path(image_files.FUSE).exists():
            pytest.skip("this kernel has no /dev/fuse")
        if os.geteuid() == 0:
            node = self.work.parent / "dev"
            node.mkdir()
            script = """mount -t tmpfs tmpfs "$0" && mknod -m 666 "$0/fuse" c 10 229 &&
                mount --bind "$0/fuse" /dev/fuse && exec "$@" """
            self.prefix = self.after(script, str(node))
        elif not os.access(image_files.FUSE, os.R_OK | os.W_OK):
            pytest.skip("/dev/fuse is closed to this user")

    def after(self, script: str, *arguments: str) -> tuple[str, ...]:
        """The prefix that has a shell of root run `script`, where mounts are its own, which ends in `exec "$@"`."""
        switch = ["setpriv", f"--reuid={self.user.uid}", f"--regid={self.user.gid}", "--clear-groups"]
        return ("unshare", "--mount", "sh", "-c", script, *arguments, *switch)


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
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "this never came to be"
        time.sleep(0.02)
