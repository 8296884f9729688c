"""Asks a cuDNN, in a process that has no CUDA at all, which workspaces its plans for convolutions would take.

    echo '{"properties": {...}, "convolutions": [...]}' | python deviceless_cudnn.py LIBCUDNN

A convolution has `image` and `filter` (sizes: groups follow from them), `type` (cudnnDataType_t) and `last`
(channels last); the image keeps its size. Answers with bytes for each plan of heuristics, best first: forward, by data, by filter.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

# cudnn_graph.h
CONVOLUTION, CONFIG, HEURISTICS, PLAN, GRAPH, TENSOR, DEVICE = 1, 3, 4, 5, 15, 17, 38
FORWARD, BY_FILTER, BY_DATA = 10, 11, 12
ATTRIBUTES = {FORWARD: 700, BY_DATA: 706, BY_FILTER: 712}  # alpha, beta, convolution, filter, image, result
ENUM, INT64, FLOAT, MODE, HEURISTIC_MODE, DESCRIPTOR, CHAR = 1, 3, 4, 7, 8, 15, 24
C_TYPES = {ENUM: ctypes.c_int, MODE: ctypes.c_int, HEURISTIC_MODE: ctypes.c_int, INT64: ctypes.c_int64,
           FLOAT: ctypes.c_float, DESCRIPTOR: ctypes.c_void_p, CHAR: ctypes.c_char}  # fmt: skip


class Graphs:
    """The graph API of one library."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.identifiers = itertools.count(1)

    def check(self, status: int) -> None:
        assert status == 0, status

    def new(self, kind: int, attributes: dict[int, tuple[int, Sequence[Any]]]) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self.check(self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
        for name, (type_, values) in attributes.items():
            array = (C_TYPES[type_] * len(values))(*values)
            count = ctypes.c_int64(len(values))
            self.check(self.library.cudnnBackendSetAttribute(descriptor, name, type_, count, array))
        self.check(self.library.cudnnBackendFinalize(descriptor))
        return descriptor

    def get(self, descriptor: ctypes.c_void_p, name: int, type_: int, array: Any, most: int) -> int:
        count = ctypes.c_int64()
        self.check(self.library.cudnnBackendGetAttribute(
            descriptor, name, type_, ctypes.c_int64(most), ctypes.byref(count), array
        ))  # fmt: skip
        return count.value

    def tensor(self, sizes: Sequence[int], type_: int, last: bool) -> ctypes.c_void_p:
        n, c, h, w = sizes
        strides = (h * w * c, 1, w * c, c) if last else (c * h * w, h * w, w, 1)
        return self.new(TENSOR, {
            900: (INT64, [16]), 901: (ENUM, [type_]), 902: (INT64, [n, c, h, w]), 903: (INT64, strides),
            906: (INT64, [next(self.identifiers)]),
        })  # fmt: skip

    def workspaces(self, device: ctypes.c_void_p, convolution: dict[str, Any], direction: int) -> list[int]:
        type_, last = convolution["type"], convolution["last"]
        batch, _, *edges = convolution["image"]
        outputs, _, *kernel = convolution["filter"]
        padding = [edge // 2 for edge in kernel]
        described = self.new(CONVOLUTION, {
            100: (ENUM, [0]), 101: (MODE, [1]), 102: (INT64, [1, 1]), 103: (INT64, [1, 1]), 104: (INT64, padding),
            105: (INT64, padding), 106: (INT64, [2]),
        })  # fmt: skip
        parts = [described] + [
            self.tensor(sizes, type_, last)
            for sizes in (convolution["filter"], convolution["image"], [batch, outputs, *edges])
        ]
        first = ATTRIBUTES[direction]
        operation = self.new(direction, {
            first: (FLOAT, [1]), first + 1: (FLOAT, [0]),
            **{first + 2 + index: (DESCRIPTOR, [part]) for index, part in enumerate(parts)},
        })  # fmt: skip
        graph = self.new(GRAPH, {801: (DESCRIPTOR, [operation])})
        heuristics = self.new(
            HEURISTICS, {201: (DESCRIPTOR, [graph]), 200: (HEURISTIC_MODE, [0]), 204: (DESCRIPTOR, [device])}
        )
        count = self.get(heuristics, 202, DESCRIPTOR, None, 0)
        configs = (ctypes.c_void_p * count)()
        for index in range(count):
            config = ctypes.c_void_p()
            self.check(self.library.cudnnBackendCreateDescriptor(CONFIG, ctypes.byref(config)))
            configs[index] = config.value
        count = self.get(heuristics, 202, DESCRIPTOR, configs, count)
        found = []
        for config in configs[:count]:
            plan = self.new(PLAN, {401: (DESCRIPTOR, [config]), 407: (DESCRIPTOR, [device])})
            size = ctypes.c_int64()
            self.get(plan, 402, INT64, ctypes.byref(size), 1)
            found.append(size.value)
        return found


def main() -> None:
    """Answers what the standard input asks."""
    asked, graphs = json.load(sys.stdin), Graphs(sys.argv[1])
    text = json.dumps(asked["properties"]).encode() + b"\0"
    device = graphs.new(DEVICE, {2702: (CHAR, [bytes([byte]) for byte in text])})
    directions = (FORWARD, BY_DATA, BY_FILTER)
    print(json.dumps([
        [graphs.workspaces(device, convolution, direction) for direction in directions]
        for convolution in asked["convolutions"]
    ]))  # fmt: skip


if __name__ == "__main__":
    main()
