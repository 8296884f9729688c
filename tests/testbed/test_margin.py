"""What the epilog measured moves the margin of the next submission, with every real part but the estimator."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from testbed.cluster import make_folder
from testbed.site import Site, commands
from tests.slurm_plugin.running import ESTIMATE

GIB = 1024**3
HOLD = """
import time
import torch
held = torch.empty(4 * 1024**3, dtype=torch.uint8, device="cuda")
time.sleep(2)  # a prolog that a loaded node holds up leaves no accounting: then the sampler has to see it
"""
SCRIPT = "#!/bin/bash\n: fake shards=3\n{python} hold.py\n"  # estimated too low


@pytest.fixture(scope="module")
def site(root: None) -> Iterator[Site]:
    folder = make_folder()
    shutil.copy(ESTIMATE, folder / "estimate.py")  # where ordinary users can read it
    try:
        with Site(folder, nodes=1, estimate_command=f"/usr/bin/python3 -I {folder}/estimate.py") as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_that_needed_more_widens_the_margin_of_the_next(site: Site) -> None:
    user = site.user("gpumem-alice")
    (user.home / "hold.py").write_text(HOLD)
    text = SCRIPT.format(python=commands() / "python")

    def submit() -> int:
        """As `sbatch`; again where a loaded machine cost gpumemd's answer, which has 50 ms."""

        def answered() -> int:
            job = site.cluster.sbatch(text, user=user, args=["--gres=gpu:1"], cwd=user.home)
            if "gpumem decision=" in site.cluster.job(job).get("AdminComment", ""):
                return job
            site.cluster.scancel(job)
            return 0

        return site.cluster.wait_for(answered, what="an answer of gpumemd")

    first = submit()
    site.cluster.wait_state(first, "COMPLETED")
    record = site.cluster.wait_for(
        lambda: (found := site.record(first)) and found.measured_peak_bytes and found, what="the measurement"
    )
    assert record.got == "shard:3"
    assert record.measured_peak_bytes == 4 * GIB + site.gpu.context_bytes

    def groups() -> list[dict[str, object]]:
        command = [commands() / "gpumem-hist", "calibration", "--json", "--config", site.config]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["groups"]

    (group,) = site.cluster.wait_for(groups, what="what was learned")
    assert (group["gpu"], group["status"], group["kind"]) == ("a100-80gb", "exact", "new")
    assert (group["scores"], group["promised"], group["broken"]) == (1, 1, 1)

    second = submit()
    assert site.cluster.job(second)["TresPerNode"] == "gres:shard:5"
    site.cluster.scancel(second)


def test_only_admins_see_the_calibration(site: Site) -> None:
    user = site.user("gpumem-alice")
    done = user.run([str(commands() / "gpumem-hist"), "calibration", "--config", str(site.config)])
    assert done.returncode == 1
    assert "only admins" in done.stderr
