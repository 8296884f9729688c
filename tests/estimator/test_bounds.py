"""How much of the peak hangs on an operator whose result has the size of data."""

from __future__ import annotations

import pytest

from estimator.allocator import replay
from estimator.bounds import of_trace
from tests.estimator.recording import Recording

MIB = 1024**2
PARAMETERS, GRADIENTS, STATE, SELECTED = 100 * MIB, 90 * MIB, 200 * MIB, 10 * MIB
LOOP = (
    "train.py",
    20,
    "main",
)  # where the operator is called; the model is made elsewhere in the same function


def hanging(model_made_at: int) -> int | None:
    recording = Recording()
    sizes = {"parameters": PARAMETERS, "": SELECTED, "gradients": GRADIENTS, "optimizer_state": STATE}
    blocks = {owner: recording.alloc(size) for owner, size in sizes.items()}
    recording.alloc(2 * MIB)
    recording.mark("optimizer")
    for owner, address in blocks.items():
        if owner:
            recording.own(owner, address)
    lines = (model_made_at, 20, 22, 23)
    recording.columns["stack"] = [number // 2 for number in range(2 * len(lines))] + [3, 3]  # segment, block
    trace = recording.trace(
        frames=[("train.py", line, "main") for line in lines],
        stacks=[[number] for number in range(len(lines))],
        sizes=[{"what": "nonzero", "frames": [LOOP], "count": 3}],
    )
    (bound,) = of_trace(trace, replay(trace.events))
    return bound.bytes


@pytest.mark.parametrize(
    ("model_made_at", "expected"),
    [(10, SELECTED + 2 * MIB), (21, PARAMETERS + SELECTED + GRADIENTS + STATE + 2 * MIB)],
)
def test_what_has_the_shapes_of_parameters_hangs_on_it_only_if_they_do(model_made_at, expected):
    assert hanging(model_made_at) == expected
