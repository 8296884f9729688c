"""`gpumem calibrate`: the entry that it makes of measurements, and a run on a pretend GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from estimator import catalog
from estimator.calibration import Measured, copied_from, entry
from estimator.calibration_probe import EDGES
from testbed import nodes

MIB = 1024**2
PLACE = "node1's NVIDIA X100, driver 1.2, torch 2.8, 2026-01-02"
MEASURED = Measured(
    name="NVIDIA X100", memory_bytes=81559 * MIB, usable_bytes=81000 * MIB, compute_capability=(9, 0), sm_count=132,
    outside={"context": 500 * MIB, "kernels": 560 * MIB + 1, "cudnn": 700 * MIB},
    workspaces={"forward": [(4096, 100, 100), (64, 0, 100)], "data": [(64, 0, 9), (4096, 0, 9)], "filter": []},
    cuda="12.8", where=PLACE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "least"),
    [
        ([], 0),
        ([(64, 100, 100), (256, 100, 100)], 64),
        ([(64, 0, 100), (256, 60, 100), (1024, 100, 100)], 256),
        ([(64, 100, 100), (256, 100, 100), (1024, 0, 100)], 0),
    ],
)
def test_from_which_size_on_tensors_are_copied(rows, least):
    assert copied_from(rows) == least


def test_an_entry_can_be_read_as_a_catalogue_and_names_its_source():
    gpu = catalog.parse(entry("x100", None, MEASURED), "new").find("x100")
    assert (gpu.name, gpu.capability, gpu.sm_count) == ("NVIDIA X100", (9, 0), 132)
    assert (gpu.context_mib, gpu.kernels_mib, gpu.cudnn_mib) == (500, 61, 140)
    assert gpu.context_bytes_under("12.1") == 500 * MIB
    assert (gpu.convolutions.forward_positions, gpu.convolutions.data_positions) == (4096, 0)
    assert gpu.source.context == gpu.source.cudnn == f"measured on {PLACE}"
    assert not gpu.context_is_estimate


def test_what_was_not_measured_stays():
    known = catalog.load().find("h100")
    gpu = catalog.parse(entry("h100", known, MEASURED), "new").find("h100")
    assert (gpu.match, gpu.mig, gpu.nccl_channels) == (known.match, known.mig, known.nccl_channels)
    assert (gpu.source.nccl, gpu.source.mig) == (known.source.nccl, known.source.mig)


def test_what_looks_like_less_counts_as_nothing():
    less = replace(MEASURED, outside={"context": 500 * MIB, "kernels": 490 * MIB, "cudnn": 490 * MIB})
    assert tomllib.loads(entry("x", None, less))["x"]["kernels_mib"] == 0


@pytest.fixture
def pretend(tmp_path: Path) -> dict[str, str]:
    node = tmp_path / "node"
    nodes.make_node(node, catalog.load().find("a100-40gb"), 1)
    return os.environ | {
        "PYTHONPATH": str(nodes.tracer_folder()), "LD_LIBRARY_PATH": str(nodes.library_folder()),
        "GPUMEM_FAKE_NODE": str(node), "GPUMEM_TRACER": str(node / "tracer.json"),
    }  # fmt: skip


def run(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "estimator", "calibrate", *arguments]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=100)


def test_a_pretend_gpu_is_measured(pretend, tmp_path):
    output = tmp_path / "entry.toml"
    done = run("--output", str(output), environment=pretend)
    assert done.returncode == 0, done.stderr
    assert output.read_text() == done.stdout
    shipped, gpu = catalog.load().find("a100-40gb"), catalog.load(output).find("a100-40gb")
    assert (gpu.name, gpu.sm_count, gpu.context_mib) == (shipped.name, shipped.sm_count, shipped.context_mib)
    assert (gpu.kernels_mib, gpu.cudnn_mib) == (0, 0)  # the pretend GPU has nothing but a context
    assert gpu.convolutions.forward_positions in {edge**2 for edge in EDGES}  # as its cuDNN chooses
    assert gpu.source.context.startswith("measured on ")


def test_without_a_gpu_it_says_so():
    done = run(environment=os.environ | {"LD_LIBRARY_PATH": ""})
    assert done.returncode == 1
    assert done.stderr.startswith("gpumem: no GPU can be measured here: ")
    assert done.stderr.count("\n") == 1


def test_without_pytorch_it_says_so(pretend):
    done = run("--python", "/bin/false", environment=pretend)
    assert done.returncode == 1
    assert done.stderr == "gpumem: the measuring failed under /bin/false: it ended with status 1\n"


def test_a_gpu_in_use_is_left_alone(pretend):
    code = "import torch, sys; torch.empty(1, device='cuda'); print(flush=True); sys.stdin.readline()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], env=pretend, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with other:
        assert other.stdout is not None
        other.stdout.readline()
        done = run(environment=pretend)
        other.kill()
    assert done.returncode == 1
    assert (
        done.stderr == f"gpumem: NVIDIA A100-SXM4-40GB is in use by process {other.pid}; --force to go on\n"
    )
