"""Jobs whose programs run in container images."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from estimator import image_files
from tests.estimator.callers import Caller

TRAINING = """
import torch

model = torch.nn.Linear(1024, 4096).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_apptainer_is_run_from_its_own_place(ordinary: Caller) -> None:
    """It looks for its configuration around the place that it was executed from."""
    real = ordinary.file("host/bin/apptainer", '#!/bin/sh\necho "at $(readlink "$0")" >&2\nexit 3\n')
    real.chmod(0o755)
    program = "import subprocess, sys; sys.exit(subprocess.call(['apptainer', 'exec', '.', 'python3']))"
    ordinary.file("job.sh", f'#!/bin/bash\n{sys.executable} -c "{program}"\n')  # `subprocess` closes files
    done = ordinary.gpumem(
        "estimate", "--gpu", "a100-80gb", "job.sh", PATH=f"{real.parent}:{os.environ['PATH']}"
    )
    assert done.stderr == f"gpumem: job.sh ended with exit code 3: at {real.resolve()}\n"


COMMANDS = {
    "plain": "apptainer exec --bind /usr --bind {venv} {image}",
    "contained": "apptainer exec -C --pwd {work} --bind {work} --bind /usr --bind {venv} {image}",
    "Charliecloud": "ch-run --no-passwd -b /usr -b {venv} -b {work} -c {work} {image} --",
}


def empty_root(ordinary: Caller, kind: str) -> Path:
    """An image with the links of a root, into which the host's programs can be bound."""
    image = ordinary.work / "an image"
    for folder in ("dev", "etc", "home", "mnt", "proc", "sys", "tmp", "usr"):
        (image / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (image / name).symlink_to(f"usr/{name}")
    for path in (image, *image.iterdir()):
        os.chown(path, ordinary.user.uid, ordinary.user.gid, follow_symlinks=False)
    if kind == "folder":
        return image
    if not image_files.servers(os.environ["PATH"], []) or not shutil.which("mksquashfs"):
        pytest.skip("squashfuse or squashfs-tools are not installed here")
    ordinary.open_fuse()
    subprocess.run(["mksquashfs", image, f"{image}.sif", "-quiet"], check=True, capture_output=True)
    return image.with_name("an image.sif")


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("way", COMMANDS)
def test_a_training_in_a_real_container_needs_what_it_needs_without(
    ordinary: Caller, way: str, kind: str
) -> None:
    program = COMMANDS[way].split()[0]
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed here")
    if (
        program == "ch-run"
        and "--write-fake" not in ordinary.user.run([str(shutil.which(program)), "--help"]).stdout
    ):
        pytest.skip("this Charliecloud is too old")
    image = empty_root(ordinary, kind)
    ordinary.file("train.py", TRAINING)
    prefix = COMMANDS[way].format(image=shlex.quote(str(image)), venv=sys.prefix, work=ordinary.work)
    found = []
    for command in ("", prefix):
        ordinary.file("job.sh", f"#!/bin/bash\n{command} {sys.executable} train.py\n")
        done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "--json", "job.sh", PATH=os.environ["PATH"])
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0]["status"] == found[1]["status"] == "exact"
    assert found[0]["peak_bytes"] == found[1]["peak_bytes"]
