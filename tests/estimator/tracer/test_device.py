"""Which devices a process sees."""

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
