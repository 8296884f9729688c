"""What the launchers of distributed programs are told: how many processes, and of which program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

# Options that take no value; every other option of the launcher takes one.
_FLAGS = {
    "torchrun": (  # torch/distributed/run.py
        "standalone use-env no-python m module run-path virtual-local-rank help h"
    ),
    "accelerate": (  # accelerate/commands/launch.py
        "quiet q cpu multi-gpu tpu ipex use-xpu use-mps use-deepspeed use-fsdp use-megatron-lm "
        "use-parallelism-config debug same-network m module no-python enable-cpu-affinity "
        "dynamo-use-fullgraph dynamo-use-dynamic dynamo-use-regional-compilation help h"
    ),
    "deepspeed": (  # deepspeed/launcher/runner.py
        "no-python no-local-rank m module force-multi save-pid elastic-training no-ssh no-ssh-check "
        "bind-cores-to-rank help h"
    ),
    "composer": "version verbose v module-mode m command-mode c help h",  # composer/cli/launcher.py
    "colossalai": "m help",  # colossalai/cli/launcher
    "fabric": "help",  # lightning/fabric/cli.py
}
_FLAGS["tune"] = _FLAGS["torchrun"]  # torchtune/_cli/run.py
_FLAG_SETS = {name: frozenset(flags.split()) for name, flags in _FLAGS.items()}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_PROGRAMS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "composer": "composer",
    "colossalai": "colossalai",
    "fabric": "fabric",
    "tune": "tune",
}
# the command of a program that has several which launches
_COMMANDS = {
    "accelerate": "launch",
    "accelerate.commands.accelerate_cli": "launch",
    "colossalai": "run",
    "fabric": "run",
    "tune": "run",
}
_ONE_UNLESS_TOLD = ("torchrun", "tune", "fabric")
_PER_NODE = ("nproc-per-node", "num-gpus", "nproc", "n", "devices")
_IN_ALL = ("num-processes", "world-size")
_NODES = ("nnodes", "num-machines", "num-nodes")


@dataclass(frozen=True)
class Launched:
    """A launcher's command: `per_node` processes (None: one for each GPU) on `nodes` nodes, of `program`.

    `program` is a Python file, a module (with `is_module`) or, with `is_command`, any other command.
    """

    launcher: str
    per_node: int | None
    nodes: int
    program: str
    arguments: tuple[str, ...]
    is_module: bool = False
    is_command: bool = False


def understand(argv: Sequence[str], configured: Mapping[str, int] | None = None) -> Launched | None:
    """What a Python interpreter was started for, if that is a launcher; `argv` as the kernel has it.

    `configured` is what a file of configuration tells (see `configured`), which the command line overrides.
    None for anything else, and for a launcher that launches nothing (`accelerate config`).
    """
    words = program_words(argv)
    if not words:
        return None
    first, rest = words[0], list(words[1:])
    if first == "-m" and rest:
        name = rest.pop(0)
        launcher = _MODULES.get(name)
    else:
        name = PurePath(first).name
        launcher = _PROGRAMS.get(name)
    if launcher is None:
        return None
    if command := _COMMANDS.get(name):
        if rest[:1] != [command]:
            return None
        rest.pop(0)
    given, rest = _options(rest, _FLAG_SETS[launcher])
    if not rest:
        return None
    options = {name: str(value) for name, value in (configured or {}).items()} | dict(given)
    nodes = next((int(options[name].split(":")[0]) for name in _NODES if _is_count(options.get(name))), 1)
    per_node = next((int(options[name]) for name in _PER_NODE if _is_count(options.get(name))), None)
    total = next((int(options[name]) for name in _IN_ALL if _is_count(options.get(name))), None)
    if total is not None:
        per_node = -(-total // nodes)
    elif (
        per_node is None
        and launcher in _ONE_UNLESS_TOLD
        and not {"nproc-per-node", "devices"} & options.keys()
    ):
        per_node = 1
    return Launched(
        launcher,
        per_node,
        nodes,
        rest[0],
        tuple(rest[1:]),
        is_module=not {"module", "m", "module-mode"}.isdisjoint(options),
        is_command=not {"no-python", "c", "command-mode"}.isdisjoint(options),
    )


def configuration(words: Sequence[str]) -> str | None:
    """The file that `accelerate launch` is told to take its options from."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in ("--config_file", "--config-file"):
            return (value if equals else following) or None
        if word.endswith(".py"):
            break
    return None


def configured(text: str) -> dict[str, int]:
    """Processes and machines in such a file: YAML, or JSON, which is read the same way."""
    pairs = re.findall(r"""^\s*["']?(num_processes|num_machines)["']?\s*:\s*["']?(\d{1,5})\b""", text, re.M)
    return {name.replace("_", "-"): int(value) for name, value in pairs if int(value)}


def program_words(argv: Sequence[str]) -> list[str]:
    """`argv` of a Python interpreter from its program on: a file, or `-m` and a module, or `-c` and code."""
    words = list(argv[1:])
    while words:
        word = words[0]
        if word in ("-m", "-c") or not word.startswith("-") or word == "-":
            return words
        if match := re.fullmatch(r"-[A-Za-ln-z]*([mc])(.*)", word):  # -um module, -mmodule
            return [f"-{match[1]}", *([match[2]] if match[2] else []), *words[1:]]
        del words[: 2 if word in ("-W", "-X", "--check-hash-based-pycs") else 1]
    return []


def _options(words: list[str], flags: frozenset[str]) -> tuple[Mapping[str, str], list[str]]:
    """Options by name (`_` as `-`), and what follows them."""
    found: dict[str, str] = {}
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals and name not in flags and words:
            value = words.pop(0)
        found[name] = value
    return found, words


def _is_count(text: str | None) -> bool:
    return bool(text and re.fullmatch(r"[1-9]\d{0,4}(:\d+)?", text))
