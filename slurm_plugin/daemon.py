"""`gpumemd`, the service on the controller: starts the parts, puts them together, and ends them in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import logging.handlers
import os
import pwd
import queue
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from estimator.catalog import GPU
    from history.wire import Measurement
    from settings import Service, Settings
    from slurm_plugin.slurm import Partition, Slurm

log = logging.getLogger("gpumemd")

_BACKLOG = 512
_DRAIN_S = 5.0
_FIRST_ANSWER_S = 2.0
_ASK_SLURM_AGAIN_S = 0.25
_LOOK_AT_PARTITIONS_S = 120.0
_PRIORITY = -10
_SWITCH_S = 0.0005
"""The longest that another thread keeps the interpreter while a submission waits (default: 5 ms)."""


class StartError(Exception):
    """The service cannot start; the text says what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service until SIGTERM or SIGINT. Exit code: 0 ended as asked, 1 could not start."""
    parser = argparse.ArgumentParser(
        prog="gpumemd", description="Decides at submission whether a Slurm job may share its GPU."
    )
    parser.add_argument("--config", type=Path, help="configuration file (default: /etc/gpumem/gpumem.toml)")
    parser.add_argument("--version", action="version", version=f"gpumem {version('gpumem')}")
    options = parser.parse_args(argv)

    import settings
    from history.store import StoreError

    with _logging():
        try:
            serve(settings.load(options.config), options.config)
        except (settings.SettingsError, StartError, StoreError) as error:
            log.error("%s", error)
            return 1
    sys.stderr.flush()
    os._exit(0)  # a thread that hangs on a dead file server must not keep us


def serve(config: Settings, config_file: Path | None = None) -> None:
    """Runs the service until it is told to end.

    Raises:
        StartError, StoreError: it cannot start.
    """
    from history.store import Store, StoreError
    from slurm_plugin.advisor import Advisor, load_known
    from slurm_plugin.arrays import ArrayTasks
    from slurm_plugin.finder import JobFinder
    from slurm_plugin.known import KnownResults
    from slurm_plugin.margins import Margins
    from slurm_plugin.policy import Site
    from slurm_plugin.postmortem import Postmortem
    from slurm_plugin.requeue import Requeue
    from slurm_plugin.service import Access, create_app
    from slurm_plugin.slurm import ScontrolSlurm, SlurmError
    from slurm_plugin.traces import UserRun, estimate_command
    from slurm_plugin.writer import Writer

    if os.geteuid() != 0:
        raise StartError("gpumemd traces jobs as their users, so it has to run as root")
    _make_folder(config.service.state_dir)
    slurm = ScontrolSlurm(config.slurm.conf)
    store = Store(config.history.url)
    store.migrate()
    known = KnownResults()
    load_known(store, known, time.time())

    writer = Writer(store)
    finder = JobFinder(slurm)
    gpus = _gpus(config)
    margins = Margins(store, gpus, config.estimate)
    margins.learn()
    requeue = Requeue(slurm, writer, config)
    postmortem = Postmortem(store, writer, slurm, requeue.again, margins.news)
    arrays = ArrayTasks(store, writer, slurm, margins.news)
    advisor = Advisor(Site(config, gpus), slurm, finder, writer, known, margins.current)
    # Tests replace the estimator by something quicker.
    command = shlex.split(os.environ.get("GPUMEM_ESTIMATE_COMMAND", "")) or estimate_command()
    config_file = config_file or (Path(named) if (named := os.environ.get("GPUMEM_CONFIG")) else None)
    trace = UserRun(command, config.service.state_dir, config.estimate.timeout_s, config_file)
    trace.prepare()
    traces = advisor.trace_with(trace, config.service.tracers or os.cpu_count() or 1)
    trusted = {0}
    access = Access(
        submit_socket=config.service.submit_socket,
        trusted=trusted,
        admins=config.service.admins,
        munge_socket=config.slurm.munge_socket,
    )

    def measured(measurements: Sequence[Measurement]) -> None:
        margins.news()
        postmortem.look_at(measurements)
        arrays.look_at(measurements)

    app = create_app(advisor, writer, store, margins, measured, postmortem.is_examined, access)

    asked, listening = threading.Event(), threading.Event()

    def greet_slurm() -> None:
        uid, partitions = _ask_slurm(slurm, asked)
        advisor.learn(partitions)
        asked.set()
        listening.wait()
        os.chown(config.service.submit_socket, uid, -1)
        trusted.add(uid)
        try:
            advisor.resume(store)
            requeue.resume(store)
        except StoreError as error:
            log.error("deferred jobs are not taken up again, Slurm starts them in time: %s", error)
        while True:  # a job must not be given shards that an administrator has taken away
            time.sleep(_LOOK_AT_PARTITIONS_S)
            with contextlib.suppress(SlurmError):
                advisor.learn(slurm.partitions())

    threading.Thread(target=greet_slurm, name="greeter", daemon=True).start()
    asked.wait(_FIRST_ANSWER_S)
    with contextlib.suppress(OSError):  # slurmctld waits for us under its locks
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()  # what was loaded stays: collections need not walk through it
    with _listening(config.service) as sockets:
        writer.start()
        finder.start()
        margins.start()
        postmortem.start()
        requeue.start()
        arrays.start()
        traces.start()
        listening.set()
        log.info("gpumemd is ready")
        _run(app, sockets)
    log.info("gpumemd ends")
    traces.stop()  # what is traced now is taken up again at the next start
    trace.stop()
    finder.stop()
    margins.stop()
    postmortem.stop()
    requeue.stop()
    arrays.stop()
    writer.stop(_DRAIN_S)
    store.close()


def _run(app: Starlette, sockets: list[socket.socket]) -> None:
    """Serves requests until SIGTERM or SIGINT; requests under way are answered first."""
    import uvicorn
    import uvloop

    from slurm_plugin.identity import PeerProtocol

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # uvicorn's own way ends the process with the signal

    server = Server(
        uvicorn.Config(
            app,
            http=PeerProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # nobody speaks for another peer
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=3,
        )
    )

    def end() -> None:
        server.should_exit = True

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        await server.serve(sockets)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _ask_slurm(slurm: Slurm, asked: threading.Event) -> tuple[int, dict[str, Partition]]:
    """SlurmUser, and the partitions; waits for slurmctld to be there.

    `asked` is set when it is not there at once.
    """
    from slurm_plugin.slurm import SlurmError

    while True:
        try:
            return pwd.getpwnam(slurm.user_name()).pw_uid, slurm.partitions()
        except (SlurmError, KeyError) as error:
            if not asked.is_set():
                log.warning("slurmctld does not answer yet, jobs pass until it does: %s", error)
                asked.set()
            time.sleep(_ASK_SLURM_AGAIN_S)


def _gpus(config: Settings) -> dict[str, GPU]:
    """The catalogue's entry of each partition's GPU."""
    from estimator import catalog

    try:
        known = catalog.load(config.estimate.gpus_file)
        return {name: known.find(partition.gpu) for name, partition in config.partitions.items()}
    except catalog.CatalogError as error:
        raise StartError(str(error)) from None


@contextlib.contextmanager
def _listening(service: Service) -> Iterator[list[socket.socket]]:
    paths = {service.submit_socket: 0o600, service.user_socket: 0o666}
    sockets = [_unix_socket(path, mode) for path, mode in paths.items()]
    if service.listen:
        sockets.append(_tcp_socket(service.listen))
    try:
        yield sockets
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _unix_socket(path: Path, mode: int) -> socket.socket:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(FileNotFoundError, ConnectionError):
            probe.connect(os.fspath(path))
            raise StartError(f"{path}: another gpumemd listens there already")
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        path.chmod(mode)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise StartError(f"{path}: cannot listen: {error.strerror or error}") from None
    return listener


def _tcp_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except (OSError, ValueError, OverflowError) as error:
        raise StartError(
            f"service.listen = {address!r}: cannot listen, HOST:PORT expected: {error}"
        ) from None


def _make_folder(path: Path) -> None:
    """Users pass through the state folder to the script that is traced as them; they cannot list it."""
    try:
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        path.chmod(path.stat().st_mode & 0o7777 | 0o011)
    except OSError as error:
        raise StartError(f"service.state_dir: {path}: {error.strerror}") from None


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Log lines go to standard error through a thread, so that a slow reader of them delays nobody."""
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    listener = logging.handlers.QueueListener(lines, out)
    log.setLevel(logging.INFO)
    log.handlers = [logging.handlers.QueueHandler(lines)]
    log.propagate = False
    listener.start()
    try:
        yield
    finally:
        listener.stop()


if __name__ == "__main__":
    sys.exit(main())
