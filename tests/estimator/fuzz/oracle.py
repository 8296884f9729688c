"""A process in which a real torch does what it is told, on the fake CUDA device."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from estimator.allocator.device import Device
from tests.estimator.fuzz.commands import CONTEXT, TOTAL, Session, as_text

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "estimator" / "fake_cuda" / "lib" / "libgpumem_cuda.so"


class Oracle:
    """One interpreter with its torch."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="gpumem-fuzz-")
        self._process: subprocess.Popen[str] | None = None
        self._busy = False  # it has answered, and cleans up
        self.torch_version: str = self._start()["torch"]

    def _start(self) -> dict:
        gpu = {
            "name": "NVIDIA A100", "uuid": "GPU-00000000-0000-0000-0000-000000000000", "memory_bytes": TOTAL,
            "context_bytes": CONTEXT, "compute_capability": [8, 0], "sm_count": 108, "index": 0,
        }  # fmt: skip
        settings = {
            "library": str(LIBRARY),
            "devices": [gpu],
            "enforce_limit": True,
            "node_dir": None,
            "trace": None,
        }
        tracer = Path(self._folder.name) / "tracer.json"
        tracer.write_text(json.dumps(settings))
        environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
        environment |= {
            "PYTHONPATH": str(ROOT / "estimator" / "tracer" / "inject"),
            "GPUMEM_TRACER": str(tracer),
            "FUZZ_LIBRARY": str(LIBRARY),
            "FUZZ_TOTAL": str(TOTAL),
            "FUZZ_CONTEXT": str(CONTEXT),
        }
        child = str(Path(__file__).with_name("oracle_child.py"))
        self._errors = (Path(self._folder.name) / "stderr").open("w+")
        self._process = subprocess.Popen(
            [self._python, child],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=self._folder.name,
        )
        return self._read()

    def _read(self) -> dict:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RuntimeError(Path(self._errors.name).read_text()[-2000:])
        return json.loads(line)

    def begin(self, session: Session) -> None:
        """Starts a session; `end` must be called for it."""
        if self._busy:
            self._finish()
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        order = {
            "reset": as_text(session.reset),
            "conf": session.conf_text(),
            "capacity": session.capacity,
            "memory": Device.SEGMENTS,
            "virtual": Device.EXPANDABLE,
            "commands": session.commands,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def end(self) -> tuple[list[list], str | None]:
        """What torch answered to each command of the session, and the error that ended it early."""
        try:
            answer = self._read()
        except RuntimeError as error:
            self._process = None
            return [], str(error)
        self._busy = True
        return answer["answers"], answer["error"]

    def _finish(self) -> None:
        """Waits until torch has cleaned up; a process that could not is given up."""
        self._busy = False
        try:
            left = self._read()["left"]
        except RuntimeError:
            self._process = None
            return
        if left:
            self.close()

    def run(self, session: Session) -> tuple[list[list], str | None]:
        """`begin` and `end`."""
        self.begin(session)
        return self.end()

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()  # it may be in the middle of a session
            self._process.communicate()
            self._process = None
            self._busy = False
