"""A real munged, a real SQLite file, and real servers of databases where they are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from history.store import Store

POSTGRES = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A new SQLite history."""
    with Store(f"sqlite:///{tmp_path}/history.db") as store:
        store.migrate()
        yield store


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database of each kind that is installed."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    name = f"t{uuid4().hex}"
    folder, client = request.getfixturevalue(request.param)
    subprocess.run([*client, f"CREATE DATABASE {name}"], check=True, stdout=subprocess.DEVNULL)
    if request.param == "postgresql":
        return f"postgresql+psycopg://gpumem@/{name}?host={folder}"
    return f"mysql+pymysql://root@localhost/{name}?unix_socket={folder}/s"


@pytest.fixture
def any_store(any_url: str) -> Iterator[Store]:
    """A new history in each kind of database that is installed."""
    with Store(any_url) as store:
        store.migrate()
        yield store


@pytest.fixture(scope="session")
def postgresql() -> Iterator[tuple[Path, list[str]]]:
    """A PostgreSQL server of our own: the folder of its socket, and the command that runs SQL."""
    pytest.importorskip("psycopg")
    with _server_folder(POSTGRES / "postgres", "postgres") as (folder, user):
        data = folder / "data"
        initdb = [POSTGRES / "initdb", "-D", data, "--no-sync", "-A", "trust", "-U", "gpumem", "-E", "UTF8"]
        subprocess.run(initdb, user=user, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60)
        client = [str(POSTGRES / "psql"), "-X", "-h", str(folder), "-U", "gpumem", "postgres", "-c"]
        server = [POSTGRES / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-F"]
        with _server(server, folder, user, [*client, "SELECT 1"]):
            yield folder, client


@pytest.fixture(scope="session")
def mariadb() -> Iterator[tuple[Path, list[str]]]:
    """A MariaDB server of our own: the folder of its socket `s`, and the command that runs SQL."""
    pytest.importorskip("pymysql")
    with _server_folder(Path("/usr/sbin/mariadbd"), "mysql") as (folder, user):
        install = ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={folder}/data"]
        install += ["--skip-test-db", "--auth-root-authentication-method=socket"]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        client = ["mariadb", "--no-defaults", f"--socket={folder}/s", "-e"]
        server = ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={folder}/data", "--skip-networking"]
        server += [f"--socket={folder}/s", f"--pid-file={folder}/pid", "--innodb-buffer-pool-size=32M"]
        with _server(server, folder, user, [*client, "SELECT 1"]):
            yield folder, client


@contextmanager
def _server_folder(program: Path, user: str) -> Iterator[tuple[Path, int]]:
    """A short-named folder owned by the server's user, and that user's id."""
    if os.geteuid() != 0 or not program.exists():
        pytest.skip(f"needs root and {program.name}")
    account = pwd.getpwnam(user)
    folder = Path(tempfile.mkdtemp(prefix="db-"))
    os.chown(folder, account.pw_uid, account.pw_gid)
    try:
        yield folder, account.pw_uid
    finally:
        shutil.rmtree(folder)


@contextmanager
def _server(command: list[object], folder: Path, user: int, probe: list[str]) -> Iterator[None]:
    def answers() -> bool:
        return subprocess.run(probe, capture_output=True).returncode == 0

    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command], user=user, cwd="/", stdout=out, stderr=out
        )
    try:
        wait_for(answers, process)
        yield
    finally:
        stop(process)


@pytest.fixture(scope="session")
def munge_socket() -> Iterator[Path]:
    """The socket of a munged of our own, which ordinary users reach too."""
    if os.geteuid() != 0 or not shutil.which("munged", path="/usr/sbin:/usr/bin"):
        pytest.skip("needs root and the package munge")
    folder = Path(tempfile.mkdtemp(prefix="munge-"))
    folder.chmod(0o755)
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    names = {"socket": "s", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    with (folder / "out").open("wb") as out:
        munged = subprocess.Popen(
            ["/usr/sbin/munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"]
            + [f"--{option}={folder / name}" for option, name in names.items()],
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(lambda: (folder / "s").exists(), munged)
        yield folder / "s"
    finally:
        stop(munged)
        shutil.rmtree(folder)


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, f"{process.args} ended with {process.returncode}"
        assert time.monotonic() < end, f"{process.args} is not ready"
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
