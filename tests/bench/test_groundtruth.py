"""The measuring of real GPUs, on a pretend one: what it writes, and that it goes on where it was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.groundtruth.compare import compared, summary
from bench.groundtruth.jobs import FLAGS, JOBS, PRECISIONS, ZERO_GRAD, matching
from estimator import catalog
from testbed import nodes

ROOT = Path(__file__).parents[2]
JOB = "mlp-b4096-2048-SGD"


def test_the_jobs_are_what_they_say() -> None:
    assert len(JOBS) >= 60
    assert len({job.name for job in JOBS}) == len(JOBS)
    for job in JOBS:
        assert job.flags <= set(FLAGS)
        assert job.precision in PRECISIONS
        assert job.zero_grad in ZERO_GRAD
    assert [job.name for job in matching(["mlp*SGD"])] == [JOB]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str]:
    """One job's line, and what a second run says."""
    folder = tmp_path_factory.mktemp("measured")
    node = folder / "node"
    nodes.make_node(node, catalog.load().find("h200"), 1)
    environment = os.environ | {
        "PYTHONPATH": str(nodes.tracer_folder()),
        "LD_LIBRARY_PATH": str(nodes.library_folder()),
        "GPUMEM_FAKE_NODE": str(node),
        "GPUMEM_TRACER": str(node / "tracer.json"),
    }
    command = [sys.executable, "-m", "bench.groundtruth", JOB, "--out", str(folder / "out.jsonl")]
    runs = [
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
        for _ in range(2)
    ]
    assert runs[0].returncode == 0, runs[0].stdout + runs[0].stderr
    line = json.loads((folder / "out.jsonl").read_text())
    return line, runs[1].stdout


def test_a_line_has_what_pytorch_and_nvml_said(measured: tuple[dict, str]) -> None:
    line, again = measured
    assert (line["job"], line["status"], line["gpu"]) == (JOB, "ok", "NVIDIA H200")
    stages = [stage["stage"] for stage in line["stages"]]
    assert stages[:3] == ["context", "model", "forward 0"]
    assert stages[-1] == "end"
    first, last = line["stages"][0], line["stages"][-1]
    assert first["nvml_process"] > 0
    assert last["nvml_process"] - last["reserved"] == first["nvml_process"] - first["reserved"]
    assert line["nvml_peak_sampled"] >= last["reserved_peak"]
    assert line["versions"]["torch"]
    assert "0 jobs into" in again


def test_an_estimate_is_held_against_it(measured: tuple[dict, str]) -> None:
    line, _ = measured
    last = line["stages"][-1]
    peak = line["nvml_peak_sampled"]
    answer = {
        "status": "exact", "peak_bytes": int(1.02 * peak), "reserved_peak_bytes": last["reserved_peak"],
        "allocated_peak_bytes": last["allocated_peak"], "recommended_bytes": peak - 1, "wall_s": 5.0,
    }  # fmt: skip
    row = compared(line, answer)
    assert row["error"] == pytest.approx(0.02, abs=1e-6)
    assert row["too_low"]
    assert summary([row]) == {
        "jobs": 1, "estimated": 1, "reserved_exact": 1.0, "median_error": row["error"],
        "p95_error": row["error"], "too_low": 1.0,
    }  # fmt: skip
    failed = compared(line, {"status": "failed", "reason": "no"})
    assert summary([failed])["estimated"] == 0
