"""The memory guard from sbatch to the real allocator: the limit reaches the job, which lives in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.site import Site, commands
from testbed.users import User

GIB = 1024**3
TRAIN = """
import json, os, torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 7):  # what is cached never fits the next batch
    x = torch.randn(step * 131072, 1024, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del x, loss
if "later" in os.listdir():
    more = torch.empty(30 * 1024**3, dtype=torch.uint8, device="cuda")
stats = torch.cuda.memory_stats()
names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
print("\\nFACTS", json.dumps({
    "environment": {name: os.environ[name] for name in names if name in os.environ},
    "reserved": stats["reserved_bytes.all.peak"],
    "retries": stats["num_alloc_retries"],
}))
"""


@pytest.fixture(scope="module")
def site(root: None) -> Iterator[Site]:
    settings = {"guard": {"enabled": True}, "estimate": {"shard_mib": 1024, "reserve": "least", "steps": 8}}
    with Site(nodes=1, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def user(site: Site) -> User:
    user = site.user("gpumem-alice")
    (user.home / "train.py").write_text(TRAIN)
    return user


def submit(site: Site, user: User) -> int:
    text = f"#!/bin/bash\n{commands() / 'python'} train.py\n"
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_non_split_rounding_mb:30"}
    return site.cluster.sbatch(text, user=user, args=["--gres=gpu:1"], cwd=user.home, env=own)


def shards_of(site: Site, job_id: int) -> int:
    return int(site.cluster.job(job_id)["TresPerNode"].rpartition(":")[2])


def facts_of(site: Site, job_id: int) -> dict[str, Any]:
    site.cluster.wait_state(job_id, "COMPLETED")
    (line,) = [line for line in site.cluster.output(job_id).splitlines() if line.startswith("FACTS ")]
    facts: dict[str, Any] = json.loads(line.removeprefix("FACTS "))
    return facts


def record_of(site: Site, job_id: int) -> Any:
    return site.cluster.wait_for(
        lambda: (found := site.record(job_id)) and found.measured_peak_bytes and found, what="the measurement"
    )


def test_a_known_job_is_held_to_the_least_it_runs_in_and_a_deferred_one_is_not(
    site: Site, user: User
) -> None:
    first = submit(site, user)
    facts = facts_of(site, first)
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_non_split_rounding_mb:30"}
    assert facts["environment"] == own  # could not be changed any more
    assert facts["retries"] == 0
    taken = record_of(site, first).measured_peak_bytes
    assert shards_of(site, first) * GIB > taken == facts["reserved"] + site.gpu.context_bytes

    second = submit(site, user)
    given = shards_of(site, second)
    assert given * GIB < 0.7 * taken
    facts = facts_of(site, second)
    (text,) = facts["environment"].values()
    assert text.startswith("max_non_split_rounding_mb:30,per_process_memory_fraction:0.")
    assert facts["retries"] > 0
    held = record_of(site, second)
    assert held.measured_peak_bytes == facts["reserved"] + site.gpu.context_bytes
    assert held.measured_peak_bytes <= held.limit_bytes <= given * GIB
    assert held.promised_bytes <= held.limit_bytes


def test_a_job_that_runs_out_under_the_guard_is_seen_and_its_like_get_more(site: Site, user: User) -> None:
    (user.home / "later").touch()  # the traced run has not asked for it: what a folder holds is not noted
    failed = submit(site, user)
    given = shards_of(site, failed)
    site.cluster.wait_state(failed, "FAILED")
    assert "OutOfMemoryError" in site.cluster.output(failed)
    record = site.cluster.wait_for(
        lambda: (found := site.record(failed)) and found.out_of_memory is not None and found,
        what="the reason",
    )
    assert record.out_of_memory is True
    table = subprocess.run(
        [commands() / "gpumem-hist", "--config", site.config], capture_output=True, text=True, check=True
    )
    assert "out of memory" in table.stdout
    (user.home / "later").unlink()

    def tres_of_another() -> str:
        again = submit(site, user)
        tres = site.cluster.job(again)["TresPerNode"]
        site.cluster.scancel(again)
        return tres

    site.cluster.wait_for(lambda: tres_of_another() == "gres:gpu:1", what="a whole GPU for the next one")
    record_of(site, submit(site, user))  # what it takes is known then
    site.cluster.wait_for(
        lambda: "shard" in (tres := tres_of_another()) and int(tres.rpartition(":")[2]) > given,
        what="a wider margin",
    )
