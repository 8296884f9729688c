"""`gpumem` as users run it: real processes, the real tracer, a real torch where it trains."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.estimator.callers import GPUMEM, Caller, running, tree, wait_until

GPU = ("--gpu", "a100-80gb")
PYTHON = sys.executable
TRAINING = """
import torch
with open("train.log", "w") as log:
    log.write("started")
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
print("never reached")
"""


def script(caller: Caller, *lines: str) -> str:
    caller.file("train.sh", "\n".join(["#!/bin/bash", "#SBATCH --gres=gpu:1", *lines, ""]))
    return "train.sh"


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a run that could not estimate."""
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpumem: ")
    return line.removeprefix("gpumem: ")


def own_inputs(caller: Caller, told: dict[str, Any]) -> list[str]:
    """The files in the user's folder that were read, by their names there."""
    paths = [Path(file["path"]) for file in told["inputs"] if file["mtime_ns"] is not None]
    return sorted(str(path.relative_to(caller.work)) for path in paths if caller.work in path.parents)


def test_a_training_script_is_estimated_and_its_folder_stays_as_it_was(ordinary: Caller) -> None:
    ordinary.file("train.py", TRAINING)
    name = script(ordinary, "set -e", "mkdir -p results", f"srun -n 1 {PYTHON} train.py > results/out.txt")
    before = tree(ordinary.work)
    done = ordinary.gpumem("estimate", *GPU, "--json", "--steps", "2", name)
    assert (done.returncode, done.stderr) == (0, "")
    estimate: dict[str, Any] = json.loads(done.stdout)
    assert (estimate["status"], estimate["steps"], estimate["fits"]) == ("exact", 2, True)
    assert estimate["gpu"] == "NVIDIA A100 80GB PCIe"
    assert estimate["by_owner"]["parameters"] == 1024 * 1024 * 4
    assert sum(estimate["by_owner"].values()) == estimate["reserved_peak_bytes"]
    assert own_inputs(ordinary, estimate) == ["train.py"]
    assert any(file["path"].endswith("/torch/version.py") for file in estimate["inputs"])
    assert tree(ordinary.work) == before


def test_what_an_estimate_leaves_behind_if_asked(ordinary: Caller) -> None:
    """The trace, a snapshot and a picture; and advice. The trace replays to the estimate."""
    ordinary.file("train.py", TRAINING)
    done = ordinary.gpumem(
        "estimate", *GPU, "--json", "--advise", "--trace", "kept.json", "--snapshot", "out.pickle",
        "--plot", "out.html", "--", PYTHON, "train.py",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    estimate: dict[str, Any] = json.loads(done.stdout)
    assert estimate["least_bytes"] <= estimate["peak_bytes"]
    assert all(one["saves_bytes"] > 0 for one in estimate["advice"])
    for kept in ("kept.json", "out.pickle"):
        done = ordinary.gpumem("replay", "--json", kept)
        assert (done.returncode, done.stderr) == (0, "")
        (replayed,) = json.loads(done.stdout)["replays"]
        assert replayed["as_recorded"] is True
        assert replayed["reserved_peak_bytes"] == estimate["reserved_peak_bytes"]
    assert "gradients" in (ordinary.work / "out.html").read_text()


def test_an_output_that_cannot_be_written_is_told_before_the_run(ordinary: Caller) -> None:
    done = ordinary.gpumem("estimate", *GPU, "--plot", "out.gif", "--", PYTHON, "no-such.py")
    assert failed(done) == "out.gif: a picture is one of .png, .svg, .html"


def test_a_later_command_that_fails_makes_the_estimate_a_bounded_one(ordinary: Caller) -> None:
    ordinary.file("train.py", TRAINING)
    ordinary.file("evaluate.py", "open('checkpoint.pt')\n")
    done = ordinary.gpumem(
        "estimate", *GPU, script(ordinary, f"{PYTHON} train.py", "python3 evaluate.py", "no-such-tool")
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert "train.sh on NVIDIA A100 80GB PCIe bounded" in text
    assert "evaluate.py failed" in text
    assert "checkpoint.pt" in text


def test_a_command_and_a_terminal(ordinary: Caller) -> None:
    """On a terminal the progress is shown on stderr; the estimate alone is on stdout."""
    ordinary.file("train.py", TRAINING)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [PYTHON, "-c", GPUMEM, "estimate", *GPU, "--json", "--", PYTHON, "train.py"],
        stdout=subprocess.PIPE, stderr=theirs, cwd=ordinary.work, user=ordinary.user.uid,
        group=ordinary.user.gid, env=ordinary.user.environment(),
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += (chunk := os.read(ours, 65536))
            except OSError:
                break
            if not chunk:
                break
        output = process.communicate()[0]
    os.close(ours)
    assert process.returncode == 0
    assert json.loads(output)["status"] == "exact"
    assert b"train.py on a pretend a100-80gb" in shown
    assert b"GiB of RAM" in shown


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os\n\nopen('data/train.bin')\n", "train.py line 3: FileNotFoundError: data/train.bin"),
        ("x = 1\nif x == :\n", "train.py line 2: SyntaxError: invalid syntax"),
        ("import no_such_module\n", "train.py line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('bad arguments')\n", "train.sh ended with exit code 1: bad arguments"),
        ("import os\nos.kill(os.getpid(), 11)\n", "a program of train.sh was ended by SIGSEGV"),
        ("print('fine')\n", "train.sh does not run PyTorch: none of its Python programs imports it"),
        (
            "import socket\nsocket.create_connection(('192.0.2.1', 80))\n",
            "train.py line 2: OSError: Network is unreachable (a dry run has no network: "
            "let the job find it in a cache)",
        ),
        (
            "open('/var/lib/x', 'w')\n",
            "train.py line 1: OSError: Read-only file system: '/var/lib/x' (a dry run may write only into "
            "the job's folder, $HOME, $SCRATCH and /tmp)",
        ),
    ],
)
def test_the_one_reason_of_a_failure(ordinary: Caller, program: str, reason: str) -> None:
    ordinary.file("train.py", program)
    told = failed(ordinary.gpumem("estimate", *GPU, script(ordinary, "python3 train.py")))
    assert told.startswith(reason)


def test_steps_side_by_side_are_on_their_own_gpus(ordinary: Caller) -> None:
    ordinary.file("train.py", TRAINING)
    step = f"srun -n1 --exact --gres=gpu:1 {PYTHON} train.py &"
    name = script(ordinary, step, step, "wait")
    done = ordinary.gpumem("estimate", *GPU, "--json", "--sbatch", "--gres=gpu:2", "--steps", "2", name)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["status"] == "exact"
    assert [(one["gpu"], one["peak_bytes"]) for one in told["per_gpu"]] == [
        (0, told["peak_bytes"]),
        (1, told["peak_bytes"]),
    ]


WITH_DATA = """
import multiprocessing, runpy, sys
def read():
    open("data/by-worker").read()
worker = multiprocessing.get_context("fork").Process(target=read)
worker.start()
worker.join()
open("data/made").read(), open("data/changed").read()
open("data/log", "w").write("x")
"""


def test_what_programs_of_all_kinds_read_is_an_input(ordinary: Caller) -> None:
    for name in ("by-shell", "by-cat", "by-worker", "changed", "log", "unread"):
        ordinary.file(f"data/{name}", "TRAIN=train.py\n")
    ordinary.file("train.py", WITH_DATA + TRAINING)
    ordinary.file("run.sh", f"{PYTHON} $TRAIN\n")
    lines = [
        "source data/by-shell",
        "cat data/by-cat > data/made",
        "echo 2 >> data/changed",
        "bash run.sh",
    ]
    done = ordinary.gpumem(
        "estimate", *GPU, "--json", "--steps", "2", script(ordinary, "set -e", "export TRAIN", *lines)
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    read = ["data/by-cat", "data/by-shell", "data/by-worker", "data/changed", "run.sh", "train.py"]
    assert own_inputs(ordinary, told) == read
    changed = next(file for file in told["inputs"] if file["path"].endswith("/changed"))
    assert changed["sha256"] == hashlib.sha256(b"TRAIN=train.py\n").hexdigest()  # as it is outside


def test_a_failure_as_json_names_the_files_that_it_depends_on(ordinary: Caller) -> None:
    ordinary.file("train.py", "open('data/train.bin')\n")
    done = ordinary.gpumem("estimate", *GPU, "--json", script(ordinary, "python3 train.py"))
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["status"] == "failed"
    assert told["reason"] == "train.py line 1: FileNotFoundError: data/train.bin"
    assert own_inputs(ordinary, told) == ["train.py"]


def test_a_misspelt_program_in_a_script_that_goes_on(ordinary: Caller) -> None:
    told = failed(ordinary.gpumem("estimate", *GPU, script(ordinary, "python3 trian.py", "echo done")))
    assert told.startswith("train.sh: python3: can't open file")
    assert "trian.py" in told


def test_a_script_without_python(ordinary: Caller) -> None:
    told = failed(ordinary.gpumem("estimate", *GPU, script(ordinary, "echo hello")))
    assert told == "train.sh does not run PyTorch: it started no Python program"


def test_no_optimizer_step_within_the_time(ordinary: Caller, marker: str) -> None:
    ordinary.file(
        "train.py",
        "import os, sys, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    while True: time.sleep(60)\n"
        "print('waiting for data', flush=True)\nwhile True: time.sleep(60)\n",
    )
    told = failed(
        ordinary.gpumem("estimate", *GPU, "--timeout", "5", script(ordinary, f"python3 train.py {marker}"))
    )
    assert told == "train.sh did not reach optimizer step 3 within 5 s; its last output was: waiting for data"
    assert running(marker) == []


def test_a_gigabyte_of_output(ordinary: Caller) -> None:
    told = failed(
        ordinary.gpumem(
            "estimate", *GPU, script(ordinary, "head -c 1G /dev/zero; printf '\\nend\\n'; exit 9")
        )
    )
    assert told == "train.sh ended with exit code 9: end"


def test_what_a_script_prints_does_no_harm_to_the_terminal(ordinary: Caller) -> None:
    told = failed(
        ordinary.gpumem(
            "estimate", *GPU, script(ordinary, r"printf '\033[31mred\033[0m \033]0;title\007\n'; exit 1")
        )
    )
    assert "red" in told
    assert told.isprintable()


def test_a_memory_hog(ordinary: Caller) -> None:
    ordinary.file("train.py", "hog = []\nwhile True: hog.append(bytearray(b'x') * (16 << 20))\n")
    config = ordinary.file("gpumem.toml", "[estimate]\nmemory_mib = 300\n")
    told = failed(
        ordinary.gpumem("estimate", *GPU, "--config", str(config), script(ordinary, "python3 train.py"))
    )
    assert told.startswith("train.sh needs more than 300 MiB of host memory")


def test_a_script_sees_a_job_of_one_task(ordinary: Caller) -> None:
    lines = [
        "#SBATCH -J fit --ntasks=1 --array=3-9 --cpus-per-task=2",
        'echo "$0 $1 $SLURM_JOB_NAME $SLURM_PROCID $SLURM_NTASKS $SLURM_ARRAY_TASK_ID $SLURM_CPUS_PER_TASK'
        ' $CUDA_VISIBLE_DEVICES $SLURM_SUBMIT_DIR $SLURM_JOB_PARTITION. $(nvidia-smi -L)"',
        "exit 5",
    ]
    done = ordinary.gpumem(
        "estimate", *GPU, script(ordinary, *lines), "an argument", SLURM_JOB_PARTITION="left over"
    )
    told = failed(done).removeprefix("train.sh ended with exit code 5: ")
    assert told.startswith(
        f"train.sh an argument fit 0 1 3 2 0 {ordinary.work} . GPU 0: NVIDIA A100 80GB PCIe"
    )


@pytest.mark.parametrize("shebang", ["/bin/bash -l", "/bin/sh", "/usr/bin/env bash"])
def test_stand_ins_are_found_whatever_the_shell_does_to_path(ordinary: Caller, shebang: str) -> None:
    text = f"#!{shebang}\nPATH=/usr/local/bin:/usr/bin:/bin\nsleep 1000\nexit 3\n"
    ordinary.file("train.sh", text)
    assert failed(ordinary.gpumem("estimate", *GPU, "train.sh")) == "train.sh ended with exit code 3"


def test_a_python_batch_script_and_its_folder(ordinary: Caller) -> None:
    ordinary.file(
        "job.py", "#!/usr/bin/env python3\n#SBATCH --chdir=sub\nimport os\nraise ValueError(os.getcwd())\n"
    )
    ordinary.file("sub/x")
    told = failed(ordinary.gpumem("estimate", *GPU, "job.py"))
    assert told == f"job.py line 4: ValueError: {ordinary.work}/sub"
    told = failed(ordinary.gpumem("estimate", *GPU, "--chdir", str(ordinary.work), "job.py"))
    assert told == f"job.py line 4: ValueError: {ordinary.work}"
    told = failed(ordinary.gpumem("estimate", *GPU, "--chdir", "nowhere", "job.py"))
    assert told == f"{ordinary.work}/nowhere: no such folder to start the job in"


def test_scripts_that_sbatch_would_refuse(ordinary: Caller) -> None:
    assert failed(ordinary.gpumem("estimate", *GPU, "gone.sh")) == "gone.sh: No such file or directory"
    ordinary.file("train.py", "print()\n")
    assert "gpumem estimate -- python" in failed(ordinary.gpumem("estimate", *GPU, "train.py"))
    ordinary.file("odd.sh", "#!/no/such/shell\n")
    told = failed(ordinary.gpumem("estimate", *GPU, "odd.sh"))
    assert told.startswith("odd.sh cannot be started: ")


def test_nothing_is_left_in_tmp(ordinary: Caller, open_folder: Path) -> None:
    own = open_folder / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    failed(ordinary.gpumem("estimate", *GPU, script(ordinary, "exit 1"), TMPDIR=str(own)))
    assert list(own.iterdir()) == []


def test_ended_by_a_signal_it_cleans_up(ordinary: Caller, marker: str, open_folder: Path) -> None:
    own = open_folder / "own"
    own.mkdir()
    own.chmod(0o777)
    order = [PYTHON, "-c", GPUMEM, "estimate", *GPU, "--", "python3", "-c", "while True: pass", marker]
    process = subprocess.Popen(
        order,
        cwd=ordinary.work,
        user=ordinary.user.uid,
        group=ordinary.user.gid,
        env=ordinary.user.environment({"TMPDIR": str(own)}),
    )
    wait_until(lambda: len(running(marker)) > 1)
    process.terminate()
    assert process.wait(10) == 130
    assert running(marker) == []
    assert list(own.iterdir()) == []


def test_the_gpu_is_that_of_the_partition(ordinary: Caller) -> None:
    config = ordinary.file(
        "gpumem.toml",
        '[partitions.first]\ngpu = "t4"\nshards_per_gpu = 16\n[partitions.big]\ngpu = "h100"\nshards_per_gpu = 80\n',
    )

    def seen(*lines: str) -> str:
        name = script(ordinary, *lines, "nvidia-smi -L; exit 1")
        return failed(ordinary.gpumem("estimate", "--config", str(config), name))

    assert "GPU 0: Tesla T4" in seen()
    assert "GPU 0: NVIDIA H100" in seen("#SBATCH -p big")
    assert "GPU 0: Tesla T4" in seen("#SBATCH -p unknown")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["estimate"], ""),
        (["estimate", *GPU], "name a batch script"),
        (["estimate", "--no-such-option", "x.sh"], "no such option: --no-such-option"),
        (["estimate", *GPU, "--steps", "0", "x.sh"], "--steps"),
        (["estimate", *GPU, "--timeout", "soon", "x.sh"], "--timeout"),
        (["estimate", "--gpu", "abacus", "--", "true"], "a100-80gb"),
        (["estimate", "--config", "gpumem.toml", "--", "true"], "name the GPU with --gpu: one of"),
        (["guess"], "No such command"),
    ],
)
def test_wrong_usage(ordinary: Caller, arguments: list[str], complaint: str) -> None:
    ordinary.file("gpumem.toml")
    done = ordinary.gpumem(*arguments)
    assert done.returncode == 2
    assert complaint in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--batch", "3"), ("--", "--batch", "3"), ("--", "--steps", "3")])
def test_our_options_may_follow_the_script_and_the_rest_is_the_script_s(
    ordinary: Caller, arguments: tuple[str, ...]
) -> None:
    ordinary.file("job.sh", '#!/bin/bash\nif [ "$2" = 3 ]; then python3 -c "1 +"; fi\n')
    told = failed(ordinary.gpumem("estimate", "job.sh", *GPU, *arguments))
    assert "SyntaxError" in told


def test_a_broken_configuration(ordinary: Caller) -> None:
    ordinary.file("gpumem.toml", "[estimate]\nstep = 3\n")
    told = failed(ordinary.gpumem("estimate", "--config", "gpumem.toml", "--", "true"))
    assert told == "gpumem.toml: estimate.step: unknown key"


def test_help_imports_nothing_heavy() -> None:
    order = [PYTHON, "-X", "importtime", "-c", GPUMEM, "estimate", "--help"]
    done = subprocess.run(order, capture_output=True, text=True, check=True)
    assert "SCRIPT [ARGS]... | -- COMMAND..." in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "estimator.cli" in imported
    assert not {"estimator.allocator", "estimator.trace_run", "rich.console", "settings"} & imported


def test_no_compiler_is_needed_not_even_by_torch_compile(ordinary: Caller) -> None:
    """Nothing is on PATH: no cc, g++, nvcc or ptxas, nor what would find them."""
    ordinary.file("train.py", TRAINING.replace("optimizer =", "model = torch.compile(model)\noptimizer ="))
    empty = ordinary.work / "nothing"
    empty.mkdir()
    done = ordinary.gpumem(
        "estimate", *GPU, "--json", "--", PYTHON, "train.py", PATH=str(empty), CC="", CXX=""
    )
    assert (done.returncode, done.stderr) == (0, "")
    estimate: dict[str, Any] = json.loads(done.stdout)
    assert (estimate["status"], estimate["steps"]) == ("exact", 3)
