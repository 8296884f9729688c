"""Jobs whose programs run in container images of Apptainer."""

from __future__ import annotations

import json
import os
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


@pytest.mark.skipif(not shutil.which("apptainer"), reason="Apptainer is not installed here")
@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("options", ["", "-C --pwd {work} --bind {work}"])
def test_a_training_in_a_real_container_needs_what_it_needs_without(
    ordinary: Caller, options: str, kind: str
) -> None:
    """The image is an empty root with its links, the host's programs are bound into it."""
    image = ordinary.work / "an image"
    for folder in ("dev", "etc", "proc", "sys", "tmp", "usr"):
        (image / folder).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (image / name).symlink_to(f"usr/{name}")
    for path in (image, *image.iterdir()):
        os.chown(path, ordinary.user.uid, ordinary.user.gid, follow_symlinks=False)
    if kind == "file":
        if not image_files.servers(os.environ["PATH"], []) or not shutil.which("mksquashfs"):
            pytest.skip("squashfuse or squashfs-tools are not installed here")
        ordinary.open_fuse()
        subprocess.run(["mksquashfs", image, f"{image}.sif", "-quiet"], check=True, capture_output=True)
        image = image.with_name("an image.sif")
    ordinary.file("train.py", TRAINING)
    found = []
    for command in (
        "",
        f"apptainer exec {options.format(work=ordinary.work)} --bind /usr --bind {sys.prefix} '{image}' ",
    ):
        ordinary.file("job.sh", f"#!/bin/bash\n{command}{sys.executable} train.py\n")
        done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "--json", "job.sh", PATH=os.environ["PATH"])
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    assert found[0]["status"] == found[1]["status"] == "exact"
    assert found[0]["peak_bytes"] == found[1]["peak_bytes"]
