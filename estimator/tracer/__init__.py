"""Runs inside the user's interpreter: a fake CUDA device for torch and, in a traced run, a recorder.

Loaded by path as `_gpumem_tracer`, so it cannot collide with a module of the user. Standard library only,
Python 3.9 and newer. Nothing here may raise into the user's program.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, Dict, FrozenSet

from . import command_line, launches, shadows, torch_import


def start(configuration: str, known: FrozenSet[str]) -> None:
    """Reads the tracer's configuration (a JSON file) and waits for `import torch`.

    `known`: the modules that were there before the tracer.
    """
    with open(configuration, encoding="utf-8") as file:
        settings = json.load(file)
    run = None
    if settings.get("plan") or settings.get("trace"):
        argv = command_line.arguments()
        if command_line.makes_environment(argv):
            return
        if command_line.installs(argv):
            command_line.skip(argv, (settings.get("plan") or settings["trace"])["out_dir"])
    if settings.get("launches"):
        with contextlib.suppress(OSError):
            launches.note(settings["launches"], command_line.arguments())
    if settings.get("plan"):
        from . import plan

        if not plan.begin(settings["plan"], argv):
            return
    if settings.get("trace"):
        from .ranks import Alone
        from .run import TracedRun

        alone = Alone(settings["trace"].get("middle", False), settings["trace"].get("world_size"))
        if alone.is_other_rank(os.environ):
            os._exit(0)
        run = TracedRun(settings["trace"], alone)
        run.begin()
    shadows.give_way(known, command_line.arguments())
    torch_import.when_torch_loads(
        lambda spec: _before_torch(spec, settings, run), lambda: _after_torch(settings, run)
    )


def _before_torch(spec: Any, settings: Dict[str, Any], run: Any) -> None:
    """Loads the fake device under the torch that is about to be imported."""
    from . import backend, device, elf, facades

    launches.entered()
    folder = os.path.dirname(spec.origin)
    try:
        stand_ins = facades.Facades(settings["library"])
        stand_ins.load_for_torch(folder)
        stand_ins.watch()
        fake = device.FakeDevice(stand_ins.device)
        fake.configure(settings, folder)
    except (facades.NoCudaTorch, elf.NotElf, OSError) as error:
        if run is None:
            sys.stderr.write("gpumem: no fake CUDA device for this torch: %s\n" % error)
        else:
            run.cannot_trace(str(error))
        return
    if run is not None:
        backend.use_native()
        run.device = fake


def _after_torch(settings: Dict[str, Any], run: Any) -> None:
    if run is not None and run.device is not None:
        run.attach()
    elif run is None and settings.get(
        "values"
    ):  # a pretend node, where programs take the way that was traced
        from . import values

        values.make_readable(1.0)
