"""The main job with every real part: sbatch in, shards out, true peak in the history."""

from __future__ import annotations

import pytest

from testbed.site import Site, commands
from testbed.story import place
from testbed.users import User

TRAINING = """
import time, torch
model = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(8))).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(40):
    x = torch.randn(4096, 8192, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.2)
"""


@pytest.fixture
def script(site: Site) -> tuple[User, str]:
    user = site.user("gpumem-alice")
    (user.home / "train.py").write_text(TRAINING)
    return user, f"#!/bin/bash\n{commands() / 'python'} train.py\n"


def test_two_jobs_come_to_share_a_gpu_and_their_peaks_are_as_estimated(
    site: Site, script: tuple[User, str]
) -> None:
    user, text = script
    first = site.cluster.sbatch(text, user=user, args=["--gres=gpu:1"], cwd=user.home)
    assert site.cluster.job(first)["TresPerNode"] == "gres:shard:80"  # deferred: all of a GPU, later
    site.cluster.wait_state(first, "RUNNING")

    second = site.cluster.sbatch(text, user=user, args=["--gres=gpu:1"], cwd=user.home)
    given = site.cluster.job(second)["TresPerNode"]  # known by now, so rewritten as it is submitted
    assert given.startswith("gres:shard:") and given != "gres:shard:80"
    assert site.cluster.job(first)["TresPerNode"] == given
    site.cluster.wait_state(second, "RUNNING")
    assert place(site.cluster.job(first)) == place(site.cluster.job(second))

    for job_id in (first, second):
        site.cluster.wait_state(job_id, "COMPLETED")
        record = site.cluster.wait_for(
            lambda job_id=job_id: (found := site.record(job_id)) and found.measured_peak_bytes and found,
            what="the measurement",
        )
        assert record.asked == "gpu:1"
        assert record.error is not None and abs(record.error) < 0.01
    assert site.cluster.drained() == {}


def test_a_changed_script_is_traced_anew(site: Site, script: tuple[User, str]) -> None:
    user, text = script
    (user.home / "train.py").write_text(TRAINING.replace("4096, 8192", "1024, 8192"))
    job_id = site.cluster.sbatch(text, user=user, args=["--gres=gpu:1"], cwd=user.home)
    assert site.cluster.job(job_id)["TresPerNode"] == "gres:shard:80"
    site.cluster.wait_state(job_id, "RUNNING")
    site.cluster.scancel(job_id)


def test_a_job_that_is_no_training_is_released_with_its_reason(site: Site, script: tuple[User, str]) -> None:
    user, _ = script
    job_id = site.cluster.sbatch(
        f"#!/bin/bash\n{commands() / 'python'} -c 'print(1)'\n",
        user=user,
        args=["--gres=gpu:1"],
        cwd=user.home,
    )
    site.cluster.wait_state(job_id, "COMPLETED")
    record = site.cluster.wait_for(lambda: site.record(job_id), what="the record")
    assert record.state == "released"
    assert "does not run PyTorch" in record.reason
