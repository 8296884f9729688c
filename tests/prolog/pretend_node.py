"""A pretend compute node on which the real prolog and epilog commands run, and a service to send to."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from history.store import Store
from history.wire import Measurement, Measurements
from prolog.jobdir import JobDir
from prolog.tally import Tally

REPOSITORY = Path(__file__).resolve().parents[2]
NVML_FOLDER = REPOSITORY / "estimator" / "fake_cuda" / "lib"
GPU_USER = Path(__file__).parent / "gpu_user.py"
GPUS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111")
MODEL = "NVIDIA A100 80GB PCIe"
TOTAL = 80 * 1024**3
MIB = 1024**2
HANGING_NVML = """
#include <unistd.h>
int nvmlInit_v2(void) { sleep(600); return 0; }
int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2() + (int)flags; }
"""


@dataclass(frozen=True)
class Ran:
    """A prolog or epilog that was run as slurmd runs it."""

    status: int
    wall_s: float
    cpu_s: float
    output: bytes


class GpuUser:
    """A process that holds GPU memory, steered by its standard input."""

    def __init__(self, node: Path, environment: Mapping[str, str], user: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(GPU_USER), str(node)],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=user,
            cwd="/",
        )
        self.children: list[int] = []
        self._answer()

    @property
    def pid(self) -> int:
        return self.process.pid

    def hold(self, used: int, gpu: str = GPUS[0]) -> None:
        self._ask(f"hold {gpu} {used}")

    def fork(self, used: int, gpu: str = GPUS[0], how: str = "fork") -> int:
        self.children.append(int(self._ask(f"{how} {gpu} {used}")))
        return self.children[-1]

    def end(self) -> None:
        """Ends the process in order, its children by force."""
        if self.process.poll() is None:
            assert self.process.stdin
            self.process.stdin.write("end\n")
            self.process.stdin.close()
            self.process.wait(60)
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.children.clear()

    def _ask(self, line: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout
        answer = self.process.stdout.readline().strip()
        assert answer, "the process on the GPU has died"
        return answer


class PretendNode:
    """A compute node in a folder: settings, spool, GPUs for the stand-in NVML."""

    def __init__(self, folder: Path, service: str) -> None:
        self.folder = folder
        self.gpu_dir = folder / "gpus"
        self.spool = folder / "spool"
        self.fallback = folder / "fallback"
        self.run_dir = folder / "run" / "jobs"
        self.library_path = str(NVML_FOLDER)
        self.config = folder / "gpumem.toml"
        self.extra: dict[str, str] = {}
        self._users: list[GpuUser] = []
        self._service = service
        (self.gpu_dir / "procs").mkdir(parents=True)
        (self.gpu_dir / "procs").chmod(0o1777)
        devices = [
            {"index": i, "uuid": uuid, "name": MODEL, "memory_bytes": TOTAL, "minor": i}
            for i, uuid in enumerate(GPUS)
        ]
        (self.gpu_dir / "devices.json").write_text(json.dumps(devices))
        self.configure()

    def configure(self, **measurement: object) -> None:
        """Writes gpumem.toml with these settings of [measurement]."""
        values = {
            "service": self._service,
            "spool_dir": str(self.spool),
            "fallback_dir": str(self.fallback),
            "run_dir": str(self.run_dir),
            "sample_interval_s": 0.05,
            **measurement,
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config.write_text("\n".join(["[measurement]", *lines]) + "\n")

    def environment(self, job_id: int | None, gpus: str = "0") -> dict[str, str]:
        """As slurmd gives it to a prolog: no PATH, no HOME."""
        job = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": "0",
            "SLURM_CLUSTER_NAME": "testbed",
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_GPUS": gpus,
            "CUDA_VISIBLE_DEVICES": gpus,
        }
        return {
            "PYTHONPATH": str(REPOSITORY),
            "GPUMEM_CONFIG": str(self.config),
            "GPUMEM_FAKE_NODE": str(self.gpu_dir),
            "LD_LIBRARY_PATH": self.library_path,
            **(job if job_id is not None else {}),
            **self.extra,
        }

    def run(self, program: str, environment: Mapping[str, str], *arguments: str) -> Ran:
        """Runs `python -m prolog.<program>`; as slurmd does, waits until nobody holds its pipe open."""
        command = [sys.executable, "-m", f"prolog.{program}", *arguments]
        started, before = time.monotonic(), os.times()
        done = subprocess.run(
            command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
        )
        wall_s, after = time.monotonic() - started, os.times()
        cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
        return Ran(done.returncode, wall_s, cpu_s, done.stdout)

    def prolog(self, job_id: int, gpus: str = "0") -> Ran:
        return self.run("prolog", self.environment(job_id, gpus))

    def epilog(self, job_id: int, gpus: str = "0", status: int = 0) -> Ran:
        return self.run("epilog", {**self.environment(job_id, gpus), "SLURM_JOB_EXIT_CODE": str(status)})

    def flush(self) -> Ran:
        return self.run("epilog", self.environment(None), "--flush")

    def gpu_user(self, job_id: int | None, *, user: int | None = None) -> GpuUser:
        """A process of this job (None: of no job) that can hold memory on the GPUs."""
        environment = {} if job_id is None else {"SLURM_JOB_ID": str(job_id)}
        self._users.append(GpuUser(self.gpu_dir, environment, user))
        return self._users[-1]

    def tally(self, job_id: int) -> Tally | None:
        return JobDir(self.run_dir, job_id).tally()

    def sampler(self, job_id: int) -> int:
        """The PID of the job's sampler, perhaps a moment later: on a busy machine a prolog ends before its work."""
        folder = JobDir(self.run_dir, job_id)
        wait_until(folder.record, f"the record of job {job_id}")
        record = folder.record()
        assert record is not None
        return record.sampler.pid

    def await_peak(self, job_id: int, peak: int, gpu: str = "0") -> None:
        """Waits until the sampler has written that the job held `peak` bytes."""

        def seen() -> bool:
            tally = self.tally(job_id)
            return tally is not None and tally.gpus[gpu].peak_bytes == peak

        wait_until(seen, f"job {job_id} to be seen with {peak} bytes: {self.tally(job_id)}")

    def waiting(self) -> list[Measurement]:
        """What lies in the spool folders."""
        found = []
        for path in (path for folder in (self.spool, self.fallback) for path in folder.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # sent just now
                found.append(Measurement.model_validate_json(path.read_bytes()))
        return found

    def measurement(self) -> Measurement:
        """The one that lies there, perhaps a moment later: on a busy machine an epilog ends before its work."""
        wait_until(self.waiting, f"a measurement; {self.run_dir.parent}/node.log")
        [measurement] = self.waiting()
        return measurement

    def close(self) -> None:
        for user in self._users:
            user.process.kill()
            user.end()
        shutil.rmtree(self.run_dir, ignore_errors=True)  # ends the samplers


class Service:
    """The measurements end of gpumemd: a Unix socket in front of a real history database."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "s.sock"
        self.url = f"unix:{self.socket}"
        self.requests = 0
        self.status = 200
        self.delay_s = 0.0
        self.malformed: set[int] = set()  # ids of jobs that it does not like
        self._database = f"sqlite:///{folder / 'history.db'}"
        self._server: socketserver.ThreadingUnixStreamServer | None = None
        self._migrated = False

    def start(self) -> None:
        if not self._migrated:
            with Store(self._database) as store:
                store.migrate()
            self._migrated = True
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, answer = service.take(self.path, body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = socketserver.ThreadingUnixStreamServer(str(self.socket), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, path: str, body: bytes) -> tuple[int, object]:
        self.requests += 1
        time.sleep(self.delay_s)
        measurements = Measurements.model_validate_json(body).root
        if self.status != 200 or path != "/v1/measurements":
            return self.status, {"error": "as the test wants it"}
        if any(measurement.job_id in self.malformed for measurement in measurements):
            return 422, {"error": "job id not liked"}
        with Store(self._database) as store:
            return 200, {"accepted": store.add_measurements(measurements)}

    def jobs(self) -> list[int]:
        """Ids of the jobs in the history, one for each measurement, sorted."""
        with Store(self._database) as store:
            return sorted(job.job_id or 0 for job in store.jobs(user_id=None))

    def peaks(self) -> dict[int, int | None]:
        with Store(self._database) as store:
            return {job.job_id or 0: job.measured_peak_bytes for job in store.jobs(user_id=None)}

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self.socket.unlink(missing_ok=True)
            self._server = None


def wait_until(true: object, what: str, timeout_s: float = 60) -> None:
    """Waits until the function `true` says so."""
    assert callable(true)
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.02)


def new_place() -> Path:
    """A new folder that every user may enter, with a name short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-node-", dir="/tmp"))
    folder.chmod(0o755)
    return folder


def hanging_nvml(folder: Path) -> Path:
    """Makes a folder with an NVML that never answers."""
    folder.mkdir()
    source = folder / "nvml.c"
    source.write_text(HANGING_NVML)
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return folder


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter, with a short name."""
    folder = new_place()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def service(place: Path) -> Iterator[Service]:
    """A service that is not running yet."""
    service = Service(place)
    yield service
    service.stop()


@pytest.fixture
def node(place: Path, service: Service) -> Iterator[PretendNode]:
    """A compute node with two pretend GPUs, whose service does not run yet."""
    if os.geteuid() != 0:
        pytest.skip("prolog and epilog run as root")
    node = PretendNode(place, service.url)
    yield node
    node.close()


@pytest.fixture
def nvml() -> None:
    """Skips where the stand-in NVML has not been built."""
    if not (NVML_FOLDER / "libnvidia-ml.so.1").exists():
        pytest.skip("the stand-in NVML is not built")
