"""A site with gpumem: pretend GPUs in jobs, measured by prolog and epilog, recorded by gpumemd."""

from __future__ import annotations

import signal
import textwrap
import tomllib

import pytest

from history.client import Unreachable
from testbed.nodes import processes, used_bytes
from testbed.site import Site, commands, toml
from testbed.users import User

GIB = 1024**3
OPT_OUT = ["--comment=gpumem=off"]


@pytest.fixture(scope="module")
def user(site: Site) -> User:
    user = site.user("gpumem-alice")
    (user.home / "hold.py").write_text(
        textwrap.dedent("""
            import time
            import torch

            print(torch.cuda.get_device_name(), torch.cuda.device_count())
            held = torch.empty(3 * 1024**3, dtype=torch.uint8, device="cuda")
            print("held", flush=True)
            time.sleep(3)
        """)
    )
    return user


def hold(site: Site, user: User, *args: str) -> int:
    python = commands() / "python"
    return site.cluster.sbatch(f"exec {python} hold.py", user=user, args=["--gres=gpu:1", *OPT_OUT, *args])


def test_a_job_sees_a_pretend_gpu_and_is_measured(site: Site, user: User) -> None:
    job_id = hold(site, user, "-w", "n1")
    node = site.node_folder("n1")
    site.cluster.wait_for(lambda: "held" in site.cluster.output(job_id), what="the job to hold its memory")
    assert f"{site.gpu.name} 1" in site.cluster.output(job_id)
    expected = 3 * GIB + site.gpu.context_bytes
    assert used_bytes(node) == {0: expected, 1: 0}
    site.cluster.wait_state(job_id, "COMPLETED")
    assert used_bytes(node) == {0: 0, 1: 0}
    assert [process.running for process in processes(node)] == [False]
    record = site.cluster.wait_for(lambda: site.record(job_id), what="the measurement")
    assert record is not None
    assert record.measured_peak_bytes == expected
    assert record.node == "n1"
    assert record.exit_code == 0
    assert site.cluster.drained() == {}


def test_a_killed_service_is_found_dead_and_starts_again(site: Site) -> None:
    site.kill_service()
    with pytest.raises(Unreachable):
        site.history()
    site.start_service()
    site.history()
    site.stop_service(signal.SIGTERM)
    site.start_service()


def test_toml_is_read_back() -> None:
    text = toml({"a": {"text": 'x "y" \\', "number": 1.5, "flag": True, "list": ["a", "b"]}, "b.c": {"n": 1}})
    assert tomllib.loads(text) == {
        "a": {"text": 'x "y" \\', "number": 1.5, "flag": True, "list": ["a", "b"]},
        "b": {"c": {"n": 1}},
    }
