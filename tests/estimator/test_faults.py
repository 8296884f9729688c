"""Scripts that go wrong, or do what no training script should: a clear result in time, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimator import dry_run, folders
from tests.estimator.callers import Caller, tree
from tests.estimator.test_cli import failed

GPU = ("--gpu", "a100-80gb")
TORCH_PYTHON = sys.executable
OUT = """
import os, time
out = next(l.split()[4] for l in open('/proc/self/mountinfo') if l.split()[4].endswith('/out'))
"""
IGNORES = """
import signal, time
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
"""
BLOCKS = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
NOT_TORCH = "train.sh does not run PyTorch: none of its Python programs imports it"
TIMEOUT = "train.sh did not reach optimizer step 3 within 2 s"
TOO_MUCH = (
    "train.sh leaves traces of more than 2048 MiB or 10000 files, closes their folder, or fills the disk"
)


class Faulty:
    """An ordinary user with a script; `estimate` also sees to it that nothing is left afterwards."""

    def __init__(self, caller: Caller, marker: str, temporary: Path) -> None:
        self.caller, self._marker, self._temporary = caller, marker, temporary

    def estimate(
        self, program: str, *options: str, python: str = "python3"
    ) -> subprocess.CompletedProcess[str]:
        """Runs `gpumem estimate` on a batch script that starts the program, in a folder `job`."""
        self.caller.file("job/train.py", program)
        self.caller.file(
            "job/train.sh", f"#!/bin/bash\ncd job\nexport MARKER={self._marker}\n{python} train.py\n"
        )
        before = tree(self.caller.work)
        done = self.caller.gpumem("estimate", *GPU, *options, "job/train.sh", TMPDIR=str(self._temporary))
        assert tree(self.caller.work) == before
        assert list(self._temporary.iterdir()) == []
        assert _with_environment(self._marker) == []
        return done


def _with_environment(marker: str) -> list[str]:
    """Command lines of the processes that have the marker in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture
def faulty(ordinary: Caller, marker: str, open_folder: Path) -> Iterator[Faulty]:
    own = open_folder / "tmp"
    own.mkdir()
    own.chmod(0o777)
    yield Faulty(ordinary, marker, own)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", "a program of train.sh was ended by SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "a program of train.sh was ended by SIGSEGV"),
        ("import sys; sys.exit(7)", "train.sh ended with exit code 7"),
        ("import os; os._exit(4)", "train.sh ended with exit code 4"),
        ("import os; os._exit(0)", NOT_TORCH),
        ("import os; os.execv('/bin/false', ['false'])", "train.sh ended with exit code 1"),
        ("import os; os.kill(os.getppid(), 9)", "train.sh was ended by SIGKILL"),
        ("import os; os.killpg(0, 15)", "train.sh was ended by SIGTERM"),
        ("import os; os.kill(-1, 9)", "train.sh was ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 2)", "train.py line 1: KeyboardInterrupt"),
        ("import atexit\natexit.register(lambda: 1 / 0)", "train.py line 2: ZeroDivisionError"),
        ("class A:\n  def __del__(self): raise ValueError('late')\na = A()", "train.py line 2: ValueError: late"),
        ("import warnings\nwarnings.simplefilter('error')\nwarnings.warn('x')", "train.py line 3: UserWarning: x"),
        ("def f(): f()\nf()", "train.py line 1: RecursionError"),
        ("import os; os.chroot('/tmp')", "train.py line 1: PermissionError: /tmp"),
        ("import os\nos.mkdir('d'); os.chdir('d'); os.rmdir('../d')\nos.path.exists('x')", NOT_TORCH),
        ("import os; os.closerange(0, 1024)", NOT_TORCH),
        ("import sys; sys.modules.clear(); sys.meta_path.clear()", NOT_TORCH),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
            "train.sh: gpumem: the trace could not be written: OSError(24, 'Too many open files')",
        ),
        ("import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (0, r.getrlimit(r.RLIMIT_FSIZE)[1]))", NOT_TORCH),
        (
            "with open('big', 'wb') as f:\n  while True: f.write(bytes(1 << 24))",
            "train.py line 1: OSError: No space left on device",
        ),
        (
            "import os, time\nfor _ in range(1000):\n  if os.fork() == 0: time.sleep(60)\ntime.sleep(60)",
            "train.sh starts more than 512 processes",
        ),
        (
            "import threading, time\n"
            "try:\n  while True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
            "except RuntimeError: print('no more')\nraise SystemExit(3)",
            "train.sh ended with exit code 3",
        ),
        (
            "import socket\nsockets = [socket.socket(socket.AF_UNIX) for _ in range(2)]\n"
            "for s, a in zip(sockets, ('s.sock', '\\0gpumem-x')): s.bind(a); s.listen()\n"
            "socket.create_server(('', 29500)); raise SystemExit(5)",
            "train.sh ended with exit code 5",
        ),
    ],
)  # fmt: skip
def test_faults_before_torch(faulty: Faulty, program: str, reason: str) -> None:
    assert failed(faulty.estimate(program)).removeprefix("job/").startswith(reason)


@pytest.mark.parametrize(
    "program",
    [
        IGNORES + "while True: time.sleep(60)",
        BLOCKS + "while True: time.sleep(60)",
        "sum(range(10**13))",  # in C, with the interpreter's lock held
        "import os; os.kill(os.getpid(), 19)",
        "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.closerange(0, 99)\n"
        "while True: time.sleep(60)",
    ],
    ids=["ignores signals", "blocks signals", "in C", "stopped", "daemon"],
)
def test_hangs_are_stopped_in_time(faulty: Faulty, program: str) -> None:
    assert failed(faulty.estimate(program, "--timeout", "2")).startswith(TIMEOUT)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("open(out + '/trace-1-0.json', 'w').write('{')", "not a usable trace: Invalid JSON"),
        ("open(out + '/trace-1-0.json', 'w').write('[' * 10_000_000)", "not a usable trace: Invalid JSON"),
        ("os.mkfifo(out + '/trace-1-0.json')", "not a regular file"),
        ("os.symlink('/etc/shadow', out + '/trace-1-0.json')", "cannot be read"),
        ("os.mkdir(out + '/trace-%d-0.json' % os.getpid())", "cannot be read: Is a directory"),
        ("open(out + '/trace-1-0.json', 'w').truncate(1 << 42)", "a trace of more than 512 MiB"),
        ("for i in range(300): open(out + '/trace-x-%d.json' % i, 'w')", "runs more than 256 Python programs"),
        ("for i in range(10_100): open(out + '/%d' % i, 'w')\ntime.sleep(60)", TOO_MUCH),
        ("open(out + '/x', 'w').truncate(1 << 42)\ntime.sleep(60)", TOO_MUCH),
        ("os.makedirs(out + '/a/b/c'); os.chmod(out + '/a/b', 0); os.chmod(out + '/a', 0)\ntime.sleep(60)", TOO_MUCH),
        ("os.chdir(out)\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')", "does not run PyTorch"),
        ("import shutil; shutil.rmtree(out, ignore_errors=True)", NOT_TORCH),
    ],
)  # fmt: skip
def test_what_a_script_leaves_in_the_folder_of_traces_is_not_trusted(
    faulty: Faulty, program: str, reason: str
) -> None:
    told = failed(faulty.estimate(OUT + program))
    assert reason in told


def test_a_closed_folder_of_traces_is_a_reason(faulty: Faulty) -> None:
    told = failed(faulty.estimate(OUT + "os.chmod(out, 0)"))
    written_late = "the trace could not be written: PermissionError" in told
    assert written_late or TOO_MUCH in told  # whoever notices it first


def test_holes_in_files_cost_nothing_and_bytes_are_limited(ordinary: Caller) -> None:
    """Sparse checkpoints may be as large as they like; what is really written is held to the limit."""
    outcome = ordinary.contain("truncate -s 7T sparse && stat -c '%s %b' sparse", scratch_bytes=20 << 20)
    assert outcome["tail"].split() == [str(7 << 40), "0"]
    outcome = ordinary.contain(
        "truncate -s 7T sparse && dd if=/dev/zero of=sparse bs=1M count=40 conv=notrunc",
        scratch_bytes=20 << 20,
    )
    assert "No space left" in outcome["tail"]
    outcome = ordinary.contain("head -c 40M /dev/zero > /dev/shm/x", scratch_bytes=20 << 20)
    assert "No space left" in outcome["tail"]
    outcome = ordinary.contain(f"truncate -s 7T {ordinary.out}/sparse; sleep 9", output_bytes=30 << 20)
    assert (outcome["end"], outcome["wall_s"] < 8) == ("output", True)


def test_a_folder_goes_whatever_is_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("stays")
    with folders.temporary("gpumem-test-") as made:
        (made / "link").symlink_to(outside)
        (made / "folder").symlink_to(tmp_path)
        os.mkfifo(made / "pipe")
        for wide in range(3):
            (made / f"{wide}" / "closed" / "deep").mkdir(parents=True)
            (made / f"{wide}" / "closed" / "file").touch()
            (made / f"{wide}" / "closed").chmod(0)
    assert not made.exists()
    assert outside.read_text() == "stays"


@pytest.mark.parametrize("part", ["LIBRARY", "starter.LIBRARY"])
def test_a_part_that_was_not_built_is_named(
    ordinary: Caller, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"estimator.dry_run.{part}", tmp_path / "gone.so")
    launch = dry_run.Launch.of_command(["true"])
    with (
        pytest.raises(FileNotFoundError, match=r"^gpumem is not completely installed: .*gone.so is missing$"),
        dry_run.prepared(launch, None, {}),
    ):  # type: ignore[arg-type]
        pass


TRAINING = """
import os, sys
import torch
def train(steps):
    model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
"""
# A training script in which everything is unusual, but nothing wrong.
ODD = """
import atexit, faulthandler, gc, json, resource, signal, socket, subprocess, threading, time, warnings
import alarm, device, life, trace
assert [m.MINE for m in (json, alarm, device, life, trace)] == [True] * 5
import sitecustomize
assert sitecustomize.MINE
for name in ("json", "alarm", "device", "life", "trace"):
    del sys.modules[name]
del sys.path[:2]  # or torch would find them as well
warnings.simplefilter("ignore")
import torch
torch.randn(2).tolist()
os.closerange(3, 1024)
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGPROF, signal.SIGVTALRM, signal.SIGUSR1, signal.SIGCHLD):
    signal.signal(number, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
signal.setitimer(signal.ITIMER_PROF, 0.05, 0.05)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
warnings.simplefilter("error")
os.environ.clear()
os.chdir("/")
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
subprocess.run(["/bin/sh", "-c", "sleep 1000 & exit 0"])
server = socket.create_server(("127.0.0.1", 0))
call = torch.nn.Module.__call__
torch.nn.Module.__call__ = lambda self, *a, **k: call(self, *a, **k)
step = torch.optim.SGD.step
torch.optim.SGD.step = lambda self, *a, **k: step(self, *a, **k)
torch.cuda.memory._record_memory_history(max_entries=10)
class Raises:
    def __del__(self): raise ValueError("late")
kept = Raises()
atexit.register(lambda: 1 / 0)
sys.exit = sys.setprofile = None
time.sleep = time.monotonic = os.getpid
train(1)
torch.cuda.memory._record_memory_history(enabled=None)
train(2)
if os.fork() == 0:
    train = None
    os._exit(1)
os._exit(0)
"""


def estimated(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_odd_script_is_estimated_as_a_plain_one(faulty: Faulty) -> None:
    """Name collisions, signals, limits, threads, forks, own hooks, own LD_PRELOAD, and `os._exit`."""
    plain = estimated(
        faulty.estimate(TRAINING + "train(1)\ntrain(2)\n", "--json", "--steps", "9", python=TORCH_PYTHON)
    )
    for name in ("json", "alarm", "device", "life", "trace", "sitecustomize"):
        faulty.caller.file(f"job/{name}.py", "MINE = True\n")
    python = f"PYTHONPATH=. PYTHONSTARTUP=trace.py LD_PRELOAD=libm.so.6 {TORCH_PYTHON}"
    program = TRAINING.replace("import torch\n", "") + ODD
    odd = estimated(faulty.estimate(program, "--json", "--steps", "9", python=python))
    for told in ("peak_bytes", "reserved_peak_bytes", "allocated_peak_bytes", "by_owner", "steps"):
        assert odd[told] == plain[told], told
