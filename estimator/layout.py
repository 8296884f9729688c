"""How a job is laid out: nodes, tasks and GPUs, as its batch script or its command asks for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from estimator.batch_script import BatchScript, gpus_of

MOST_GPUS = 16  # of one node: what the fake device can show
GPUS_OF_A_NODE = 8  # where only the number of ranks is known
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "srun", "mpirun", "mpiexec", "mpiexec.hydra")
_COUNTS = ("nproc-per-node", "num-processes", "num-gpus", "np", "n", "ntasks")
_NODES = ("nnodes", "num-machines", "num-nodes", "nodes", "N")
HOST = "localhost"


@dataclass(frozen=True)
class Layout:
    """`gpus` are those of one node; `gpus_per_task` is None where each task sees all of its node."""

    nodes: int = 1
    tasks: int = 1
    gpus: int = 1
    gpus_per_task: int | None = None

    @property
    def tasks_per_node(self) -> int:
        """Tasks on the first node, which has the most."""
        return -(-self.tasks // self.nodes)

    def with_ranks(self, world_size: int) -> Layout:
        """The layout for so many ranks: as many GPUs a node as now (up to eight if only one), more nodes."""
        gpus = self.gpus if self.gpus > 1 else min(world_size, GPUS_OF_A_NODE)
        nodes = -(-world_size // gpus)
        one_task_a_node = self.tasks <= self.nodes and self.gpus_per_task is None
        return replace(self, nodes=nodes, gpus=gpus, tasks=nodes if one_task_a_node else world_size)


def of_script(script: BatchScript) -> Layout:
    """What the script's options ask for; one task a node and one GPU a node where they are silent.

    A heterogeneous job is seen from its first component, with the GPUs of the one that has the most.
    """
    own = _of_options(script, script.options)
    others = [_of_options(script, options) for options in script.others if gpus_of(options)]
    if script.gpus is None and others:
        return replace(max(others, key=lambda other: other.gpus), nodes=own.nodes, tasks=own.tasks)
    return replace(own, gpus=max(own.gpus, *(other.gpus for other in others))) if others else own


def _of_options(script: BatchScript, options: Mapping[str, str]) -> Layout:
    script = replace(script, options=options)
    nodes, request = script.nodes, script.gpus
    per_node = _number(options.get("ntasks-per-node"))
    per_gpu = _number(options.get("ntasks-per-gpu"))
    total = _number(options.get("gpus", "").rpartition(":")[2])
    if request and request.per == "node" and total and "nodes" not in options:
        nodes = max(nodes, -(-total // request.count))
    if "ntasks" in options:
        tasks = script.ntasks
        if "nodes" not in options and per_node:
            nodes = -(-tasks // per_node)
        nodes = min(nodes, tasks)  # sbatch takes the nodes down to the tasks
    elif request and request.per == "task" and total:
        tasks = max(nodes, total // request.count)
    else:
        tasks = nodes * (per_node or 1)
    if request is None:
        return Layout(nodes, tasks)
    of_node = {
        "node": request.count,
        "socket": request.count * (_number(options.get("sockets-per-node")) or 1),
        "task": request.count * -(-tasks // nodes),
        "job": -(-request.count // nodes),
    }[request.per]
    if per_gpu and "ntasks" not in options:
        tasks = nodes * of_node * per_gpu
    of_task = request.count if request.per == "task" else None
    return Layout(nodes, tasks, min(of_node, MOST_GPUS), of_task)


def of_command(words: Sequence[str], configured: Mapping[str, int] | None = None) -> Layout:
    """What a launcher in the command is told (`torchrun --nproc-per-node 4 ...`); else one GPU.

    `configured` are options that a file of configuration sets (see `launchers.configured`).
    """
    options = {**(configured or {}), **_options(words)} if is_launched(words) else {}
    nodes = next((value for name in _NODES if (value := options.get(name))), 1)
    name, count = next(((name, value) for name in _COUNTS if (value := options.get(name))), ("", 1))
    if name == "num-processes":  # of all nodes together
        count = -(-count // nodes)
    if Path(words[0]).name in ("srun", "mpirun", "mpiexec", "mpiexec.hydra"):
        return Layout(nodes, max(count, nodes), min(-(-max(count, nodes) // nodes), MOST_GPUS))
    return Layout(nodes, nodes, min(count, MOST_GPUS))


def is_launched(words: Sequence[str]) -> bool:
    """Whether the command starts a launcher, which starts the ranks."""
    if Path(words[0]).name in LAUNCHERS:
        return True
    return any(
        word == "-m" and re.match(r"(torch\.distributed|accelerate|deepspeed)\.", module)
        for word, module in pairwise(words)
    )


def slurm_variables(layout: Layout, asked: BatchScript | None) -> dict[str, str]:
    """What Slurm sets in a batch script of this layout; all nodes are this one."""
    gpus = ",".join(map(str, range(layout.gpus)))
    tasks = str(layout.tasks)
    times = f"(x{layout.nodes})" if layout.nodes > 1 else ""
    variables = {
        "SLURM_JOB_NODELIST": HOST,
        "SLURM_NODELIST": HOST,
        "SLURM_JOB_NUM_NODES": str(layout.nodes),
        "SLURM_NNODES": str(layout.nodes),
        "SLURM_TASKS_PER_NODE": f"{layout.tasks_per_node}{times}",
        "SLURM_GPUS_ON_NODE": str(layout.gpus),
        "SLURM_JOB_GPUS": gpus,
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": "0",
        "SLURMD_NODENAME": HOST,
        "CUDA_VISIBLE_DEVICES": gpus,
        "GPU_DEVICE_ORDINAL": gpus,
    }
    options = asked.options if asked else {}
    cpus = str(layout.tasks_per_node * (_number(options.get("cpus-per-task")) or 1))
    variables |= {"SLURM_CPUS_ON_NODE": cpus, "SLURM_JOB_CPUS_PER_NODE": f"{cpus}{times}"}
    # only if asked for, as sbatch does: Lightning takes them for a sign that srun starts its ranks
    if layout.tasks > 1 or {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & options.keys():
        variables |= {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks}
    for option, variable in (
        ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ("cpus-per-gpu", "SLURM_CPUS_PER_GPU"),
        ("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("ntasks-per-gpu", "SLURM_NTASKS_PER_GPU"),
        ("gpus", "SLURM_GPUS"),
        ("gpus-per-node", "SLURM_GPUS_PER_NODE"),
        ("gpus-per-task", "SLURM_GPUS_PER_TASK"),
    ):
        if value := options.get(option):
            variables[variable] = value
    return variables | (_component_variables(asked) if asked else {})


def _component_variables(script: BatchScript) -> dict[str, str]:
    """Those of a heterogeneous job, whose components are all on this one node."""
    if not script.others:
        return {}
    variables = {
        "SLURM_HET_SIZE": str(1 + len(script.others)),
        "SLURM_PACK_SIZE": str(1 + len(script.others)),
    }
    for number, options in enumerate((script.options, *script.others)):
        of_component = _of_options(script, options)
        for name, value in (
            ("SLURM_JOB_NODELIST", HOST),
            ("SLURM_JOB_NUM_NODES", str(of_component.nodes)),
            ("SLURM_NNODES", str(of_component.nodes)),
            ("SLURM_NTASKS", str(of_component.tasks)),
        ):
            variables[f"{name}_HET_GROUP_{number}"] = value
            variables[f"{name}_PACK_GROUP_{number}"] = value
    return variables


def worker_variables(world_size: int, rank: int, local: int) -> dict[str, str]:
    """The variables by which `init_process_group` finds its rank, `local` ranks being on each node."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": "29500",
    }


def _options(words: Sequence[str]) -> dict[str, int]:
    """Options with a number, up to the Python program; `-` and `_` are the same."""
    found: dict[str, int] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.endswith(".py"):
            break
        name, equals, value = word.partition("=")
        value = value if equals else following
        if word.startswith("-") and (number := _number(value.split(":")[0])):
            found.setdefault(name.lstrip("-").replace("_", "-"), number)
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[1-9]\d{0,5}", text) else None
