"""A few rows of the coverage table, run as the table runs them; all of them: `make coverage`."""

import pytest

from bench.coverage.rows import read_all
from bench.coverage.run import run

FEW = ("AMP fp16 with GradScaler, mlp", "CUDA graph of a training step", "LSTM language model")


@pytest.mark.parametrize("name", FEW)
def test_a_row_is_as_it_should_be(name):
    (row,) = [row for row in read_all() if row.name == name]
    result = run(row)
    assert result.fault is None, (result.fault, result.reason)
    assert result.host_memory_bytes is not None
    assert result.host_memory_bytes < 4 * 1024**3
