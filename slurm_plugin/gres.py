"""GPU requests as Slurm writes them in a job, and the same job asking for shards instead.

Slurm 22.05 writes `gres:gpu:a100:1`, newer versions `gres/gpu:a100:1`; a site's own plug-ins may leave out
the prefix. A rewrite keeps the spelling it found, which is the one this Slurm understands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

REQUEST_FIELDS = ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")

LEFTOVER_VARIABLES = ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK")
"""sbatch sets them from a GPU request; `srun` inside a job of shards would ask for GPUs because of them."""

_MULTIPLIERS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_COUNT = re.compile(r"(\d{1,12})([kmg]?)", re.IGNORECASE)
_SOCKETS = re.compile(r"\(S:[\d,-]*\)$")
_MIG = re.compile(r"(?<![0-9a-z])\d+g\.\d+gb|(?<![a-z])mig(?![a-z])", re.IGNORECASE)


class Unsupported(Exception):
    """The request is none that can become shards; the text says why, for users and for the history."""


@dataclass(frozen=True)
class Item:
    """One resource of a request; `prefix` is `gres:`, `gres/` or empty."""

    prefix: str
    name: str
    type: str | None
    count: int
    text: str


@dataclass(frozen=True)
class GpuRequest:
    """One whole GPU on one node, in whichever field the user's option put it."""

    type: str | None
    prefix: str

    @property
    def asked(self) -> str:
        """As a user would write it after `--gres=`."""
        return f"gpu:{self.type}:1" if self.type else "gpu:1"


def parse(text: str) -> list[Item]:
    """Reads the resources in one field of a job.

    Raises:
        Unsupported: the text is not a list of resources.
    """
    return [_parse_item(part.strip()) for part in text.split(",") if part.strip()]


def single_gpu(fields: Mapping[str, str], tasks: int) -> GpuRequest:
    """What `fields` ask for, if that is exactly one whole GPU for a job of `tasks` tasks on one node.

    Raises:
        Unsupported: several GPUs, none, a MIG instance, other generic resources, or not understood.
    """
    found: list[Item] = []
    for field in REQUEST_FIELDS:
        for item in parse(fields.get(field, "")):
            if item.name == "gpu":
                found.append(_checked(item, field, tasks))
            elif item.prefix or field != "tres_per_task":  # newer Slurm keeps cpu= in tres_per_task
                raise Unsupported(f"asks for {item.name} too")
    if not found:
        raise Unsupported("no GPU")
    types = {item.type for item in found if item.type}
    if len(types) > 1:
        raise Unsupported("asks for several types of GPU")
    return GpuRequest(type=next(iter(types), None), prefix=found[0].prefix or "gres:")


def as_shards(fields: Mapping[str, str], request: GpuRequest, shards: int) -> dict[str, str]:
    """The fields to change so that the job asks for shards instead of its GPU ("" clears a field)."""
    changed = {"tres_per_node": f"{request.prefix}shard:{shards}"}
    for field in ("tres_per_job", "tres_per_task"):
        if fields.get(field):
            changed[field] = ",".join(item.text for item in parse(fields[field]) if item.name != "gpu")
    return changed


def _parse_item(text: str) -> Item:
    prefix = text[:5] if text[:5] in ("gres:", "gres/") else ""
    parts = re.split(r"[:=]", _SOCKETS.sub("", text[len(prefix) :]))
    name, *rest = parts
    count = 1
    if rest and (match := _COUNT.fullmatch(rest[-1])):
        count = int(match[1]) * _MULTIPLIERS[match[2].lower()]
        rest = rest[:-1]
    if not name or len(rest) > 1 or not all(rest):
        raise Unsupported(f"GPU request not understood: {text[:100]}")
    return Item(prefix=prefix, name=name, type=rest[0] if rest else None, count=count, text=text)


def _checked(item: Item, field: str, tasks: int) -> Item:
    if field == "tres_per_socket":
        raise Unsupported("asks for GPUs per socket")
    if item.type and _MIG.search(item.type):
        raise Unsupported("asks for a MIG instance")
    if item.count * (tasks if field == "tres_per_task" else 1) != 1:
        raise Unsupported("not exactly one GPU")
    return item
