"""What static estimators need to know of a job: the size of its model and of what each layer puts out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.accuracy.jobs import ROOT, SCRIPTS, Job

BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8,
}  # fmt: skip


class CensusError(Exception):
    """The model of a job cannot be counted; the text is its own error."""


@dataclass(frozen=True)
class Layer:
    """One call of a module without children: its own parameters, and elements that go in and come out."""

    kind: str
    parameters: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Census:
    """A model in training mode and one batch: counts of elements, by type where types differ.

    `layers` are in the order of the forward pass; a module that is called twice is there twice.
    """

    parameters: Mapping[str, int]
    buffers: Mapping[str, int]
    parameter_tensors: int
    layers: tuple[Layer, ...]
    input_elements: int

    @property
    def parameter_count(self) -> int:
        """Elements of all parameters."""
        return sum(self.parameters.values())

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters."""
        return _bytes(self.parameters)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return _bytes(self.buffers)

    @property
    def output_elements(self) -> int:
        """Elements that all layers put out."""
        return sum(layer.outputs for layer in self.layers)


def _bytes(counts: Mapping[str, int]) -> int:
    return sum(count * BYTES.get(kind, 4) for kind, count in counts.items())


def parse(found: Mapping[str, Any]) -> Census:
    """A census from its JSON object.

    Raises:
        CensusError: it tells of an error instead.
    """
    if "error" in found:
        raise CensusError(str(found["error"]))
    return Census(
        found["parameters"],
        found["buffers"],
        found["parameter_tensors"],
        tuple(Layer(*layer) for layer in found["layers"]),
        found["input_elements"],
    )


def scaled(census: Census, batch: int, to_batch: int) -> Census:
    """The census of the same model at another batch size: what is not a parameter grows with the batch."""
    factor = to_batch / batch
    return Census(
        census.parameters,
        census.buffers,
        census.parameter_tensors,
        tuple(
            Layer(layer.kind, layer.parameters, round(layer.inputs * factor), round(layer.outputs * factor))
            for layer in census.layers
        ),
        round(census.input_elements * factor),
    )


def take(jobs: Sequence[Job], python: str = sys.executable) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of the jobs' census, one after the other, counted in one process of that interpreter.

    A model that cannot be counted has "error"; so do the rest if the process dies.
    """
    process = subprocess.Popen(
        [python, str(ROOT / SCRIPTS / "take_census.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin and process.stdout
    try:
        for job in jobs:
            try:
                process.stdin.write(json.dumps(job.command) + "\n")
                process.stdin.flush()
                yield json.loads(process.stdout.readline())
            except (BrokenPipeError, ValueError):
                yield {"error": "the process that counts has ended"}
    finally:
        process.kill()
        process.communicate()
