"""Which devices a process sees, and how much of their memory."""

import pytest

GPUS = [{"index": i, "uuid": f"GPU-{letter * 8}"} for i, letter in enumerate("abcd")]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        ("GPU-bbbb", [1]),
        ("0,7,1", [0]),  # the first one that is not there ends the list
        ("-1", []),
    ],
)
def test_cuda_visible_devices(device, variable, expected):
    assert [gpu["index"] for gpu in device.visible(GPUS, variable)] == expected


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("", {}),
        ("0=8G", {0: 8 * 2**30}),
        ("0=1G,2=512MB", {0: 2**30, 2: 512 * 2**20}),
        ("GPU-bbbb=2G", {1: 2 * 2**30}),
        ("7=1G", {}),  # not there
        ("8G,1=,1=x,=1G,1=-1G,1=8", {}),
    ],
)
def test_memory_limits_of_mps(device, variable, expected):
    assert device.memory_limits(GPUS, variable) == expected


def test_a_client_of_mps_sees_its_limit_as_the_memory(traced):
    done, trace = traced(
        """
import torch
kept = torch.empty(2**20, device="cuda")
print(torch.cuda.mem_get_info()[1], torch.cuda.get_device_properties(0).total_memory)
""",
        CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G",
    )
    assert done.stdout.split() == [str(8 * 2**30)] * 2
    assert trace["memory_limit"] == 8 * 2**30
