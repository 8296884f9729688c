"""Counts what a job's model is made of, on PyTorch's meta device: nothing is computed or allocated.

    echo '["bench/accuracy/scripts/timm_train.py", "resnet50", "--batch", "8"]' | python take_census.py

Each line of the standard input is a command as JSON; for each a line with its census, or with "error", comes
back. The script of the command must have `parser`, `build` and `example`, as those beside this one have.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def load(path: str) -> ModuleType:
    """The script as a module, without running it."""
    specification = importlib.util.spec_from_file_location(Path(path).stem, path)
    if specification is None or specification.loader is None:
        raise ValueError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def elements(values: Any) -> int:
    """The elements of all tensors in nested outputs, each tensor counted once."""
    seen: dict[int, int] = {}
    rest = [values]
    while rest:
        value = rest.pop()
        if isinstance(value, torch.Tensor):
            seen[id(value)] = value.numel()
        elif isinstance(value, dict):
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            rest += value
    return sum(seen.values())


def census(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Parameters and buffers by type; for each call of a leaf module its parameters, inputs and outputs."""
    layers: list[tuple[str, int, int, int]] = []

    def called(module: torch.nn.Module, arguments: Any, named: Any, outputs: Any) -> None:
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        layers.append((type(module).__name__, own, elements([arguments, named]), elements(outputs)))

    for module in model.modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(called, with_kwargs=True)
    parameters: Counter[str] = Counter()
    buffers: Counter[str] = Counter()
    for parameter in model.parameters():
        parameters[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    for buffer in model.buffers():
        buffers[str(buffer.dtype).removeprefix("torch.")] += buffer.numel()
    tensors = sum(1 for _ in model.parameters())
    model.train()
    first = next(iter(inputs.values()))
    if len(inputs) == 1:
        model(first)
    else:
        try:
            model(**inputs)
        except RuntimeError:  # some masks cannot be made without values
            layers.clear()
            model(**{key: value for key, value in inputs.items() if key != "attention_mask"})
    return {
        "parameters": dict(parameters),
        "buffers": dict(buffers),
        "parameter_tensors": tensors,
        "layers": layers,
        "input_elements": elements(inputs),
    }


def built(module: ModuleType, options: argparse.Namespace) -> torch.nn.Module:
    """The script's model on the meta device; made on the CPU first if its sizes are computed with tensors."""
    try:
        with torch.device("meta"):
            model: torch.nn.Module = module.build(options)
    except NotImplementedError:
        model = module.build(options).to("meta")
    return model


def main() -> None:
    """Answers line by line."""
    # a condition on values, such as "is nothing masked?", is taken to hold: there are no values
    # and no type is chosen for products of matrices that are not made
    torch.autocast = lambda *_, **__: nullcontext()
    item, true = torch.Tensor.item, torch.Tensor.__bool__
    torch.Tensor.item = lambda self: 1 if self.is_meta else item(self)
    torch.Tensor.__bool__ = lambda self: self.is_meta or true(self)
    # a lone random number decides something, such as whether a layer is dropped: it has a value
    random = torch.rand
    torch.rand = lambda *size, **named: random(*size, **({} if any(size) else {"device": "cpu"}) | named)
    modules: dict[str, ModuleType] = {}
    for line in sys.stdin:
        path, *arguments = json.loads(line)
        try:
            module = modules.setdefault(path, load(path))
            options = module.parser().parse_args(arguments)
            model = built(module, options)
            with torch.device("meta"):
                answer = census(model, module.example(options))
        except Exception as error:  # whatever a model may raise is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
