"""Ordinary users for tests: made with `useradd` when missing, and left in place."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def open_copy(file: Path, folder: Path) -> Path:
    """A copy in `folder` that every user can read and run, even of a file in a closed checkout."""
    copy = Path(shutil.copyfile(file, folder / file.name))
    copy.chmod(0o755)
    return copy


class UserError(Exception):
    """A test user cannot be made; the text says what to do."""


@dataclass(frozen=True)
class User:
    """An account, with the home folder that it has within one testbed."""

    name: str
    uid: int
    gid: int
    home: Path

    @property
    def groups(self) -> list[int]:
        """All group ids, as a login would have them."""
        return os.getgrouplist(self.name, self.gid)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a fresh login of the user has in its environment, plus `extra`."""
        login = {
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "PATH": BASE_PATH,
            "LANG": "C.UTF-8",
        }
        return login | dict(extra or {})

    def run(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        text: str | None = None,
        timeout_s: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `command` as this user from `cwd` (default: home), `text` on its standard input."""
        switch = os.geteuid() != self.uid
        return subprocess.run(
            command,
            user=self.uid if switch else None,
            group=self.gid if switch else None,
            extra_groups=self.groups if switch else None,
            env=self.environment(env),
            cwd=cwd or self.home,
            input=text or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def existing(name: str, home: Path | None = None) -> User:
    """The account `name`, with `home` (default: the one in the password database).

    Raises:
        KeyError: there is no such account.
    """
    entry = pwd.getpwnam(name)
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, home or Path(entry.pw_dir))


def ensure(name: str, homes: Path) -> User:
    """The account `name`, made if it is missing, with an empty home folder of mode 0700 under `homes`.

    The account's own home is `/nonexistent`: the folder comes and goes with the testbed, and two
    testbeds that run at once do not meet in it.

    Raises:
        UserError: `useradd` failed.
    """
    try:
        user = existing(name)
    except KeyError:
        _useradd(name)
        user = existing(name)
    home = homes / name
    home.mkdir(mode=0o700, exist_ok=True)
    os.chown(home, user.uid, user.gid)
    return replace(user, home=home)


def _useradd(name: str) -> None:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += ["--shell", "/bin/bash", "--comment", "gpumem test user", name]
    path = shutil.which("useradd", path=BASE_PATH) or "useradd"
    done = subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False)
    exists = 9  # another testbed was quicker
    if done.returncode not in (0, exists):
        raise UserError(
            f"useradd {name} failed: {done.stderr.strip()}; make the user by hand, or run as root"
        )


def can_read(user: User, path: Path) -> bool:
    """Whether `user` can read `path`, all its parent folders included; asked of the kernel, not computed."""
    probe = "import os, sys; sys.exit(0 if os.access(sys.argv[1], os.R_OK) else 1)"
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    return user.run([python, "-I", "-c", probe, str(path)], cwd=Path("/")).returncode == 0
