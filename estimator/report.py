"""An estimate as text for people, and as the JSON object described in docs/architecture.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from estimator.advice import Advice
from estimator.estimate import Estimate, LeastMemory
from estimator.owners import Owner
from settings import GIB, MIB

WIDTH = 80
BAR_WIDTH = 36
MODULES_SHOWN = 5
CONTEXT = "CUDA context"
OUTSIDE = "outside"

COLOURS = {
    Owner.PARAMETERS: "blue",
    Owner.BUFFERS: "bright_blue",
    Owner.OPTIMIZER_STATE: "magenta",
    Owner.GRADIENTS: "cyan",
    Owner.WORKSPACES: "yellow",
    Owner.INPUTS: "bright_green",
    Owner.ACTIVATIONS: "green",
    Owner.TEMPORARIES: "bright_yellow",
    Owner.OTHER: "white",
    Owner.SLACK: "bright_black",
}
NAMES = {Owner.OPTIMIZER_STATE: "optimizer state", Owner.SLACK: "allocator slack"}


def to_json(estimate: Estimate) -> dict[str, object]:
    """The estimate as the JSON object of `gpumem estimate --json`; sizes in bytes, unknown is null."""
    return {
        "status": estimate.status,
        "peak_bytes": estimate.peak_bytes,
        "reserved_peak_bytes": estimate.reserved_peak_bytes,
        "allocated_peak_bytes": estimate.allocated_peak_bytes,
        "outside_allocator_bytes": estimate.outside_allocator_bytes,
        "outside": {part.name: {"bytes": part.bytes, "source": part.source} for part in estimate.outside},
        "recommended_bytes": estimate.recommended_bytes,
        "shards": estimate.shards,
        "shard_bytes": estimate.shard_bytes,
        "by_owner": {owner.value: size for owner, size in estimate.by_owner.items()},
        "by_module": dict(estimate.by_module),
        "least_bytes": estimate.least.bytes if estimate.least else None,
        "least_retries": estimate.least.retries if estimate.least else None,
        "least_expandable_bytes": estimate.least.expandable_bytes if estimate.least else None,
        "phase_of_peak": estimate.phase_of_peak,
        "steps": estimate.steps,
        "trace_events": estimate.trace_events,
        "wall_s": estimate.wall_s,
        "host_memory_bytes": estimate.host_memory_bytes,
        "torch_version": estimate.torch_version,
        "gpu": estimate.gpu,
        "fits": estimate.fits,
        "bounded_by": [asdict(bound) for bound in estimate.bounded_by],
        "unknown_calls": list(estimate.unknown_calls),
        "world_size": estimate.world_size,
        "per_gpu": [asdict(one) for one in estimate.per_gpu],
        "guard": asdict(estimate.guard) if estimate.guard else None,
        "notes": list(estimate.notes),
        "inputs": [file.model_dump() for file in estimate.inputs],
    }


def failure_to_json(reason: str) -> dict[str, object]:
    """The JSON object of an estimate that could not be made."""
    return {"status": "failed", "reason": reason}


def size(count: int) -> str:
    """Bytes for people: GiB, MiB below one GiB, KiB below one MiB."""
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / 1024:.1f} KiB"


def show(estimate: Estimate, console: Console, title: str = "GPU memory") -> None:
    """Prints the estimate; `title` names the job. Colours appear where the console has them."""
    width = min(WIDTH, console.width)
    parts: list[RenderableType] = [
        _head(estimate, title),
        Text(),
        _totals(estimate),
        Text(),
        _owners(estimate),
    ]
    if groups := layers(estimate.by_module):
        parts += [Text(), _modules(groups)]
    if estimate.least is not None and estimate.fits:
        parts += [Text(), Text(_least(estimate, estimate.least), style="dim")]
    if estimate.notes:
        parts += [Text(), _notes(estimate)]
    parts += [Text(), Text(_origin(estimate), style="dim")]
    console.print(Padding(Group(*parts), (0, 1)), width=width, highlight=False, soft_wrap=False)


def show_advice(advice: Sequence[Advice], console: Console) -> None:
    """Prints what would save memory."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for one in advice:
        how = "" if one.kind == "replay" else f" ({one.kind}: {one.how})"
        table.add_row(f"-{size(one.saves_bytes)}", Text.assemble(one.change, (how, "dim")))
    head = Text("Would save memory", style="bold") if advice else Text("No setting would save memory.")
    console.print(
        Padding(Group(Text(), head, table), (0, 1)), width=min(WIDTH, console.width), highlight=False
    )


def _head(estimate: Estimate, title: str) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
    line.add_column(justify="right", no_wrap=True)
    word, style = ("exact", "bold green") if estimate.status == "exact" else ("bounded", "bold yellow")
    if not estimate.fits:
        word, style = "does not fit", "bold red"
    line.add_row(Text.assemble((title, "bold"), f" on {estimate.gpu}"), Text(word, style=style))
    return line


def _totals(estimate: Estimate) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=15)
    table.add_column(justify="right", min_width=10)
    table.add_column(style="dim")
    table.add_row("Peak", Text(size(estimate.peak_bytes), style="bold"), "what nvidia-smi will show at most")
    table.add_row(
        "  reserved",
        size(estimate.reserved_peak_bytes),
        f"{size(estimate.allocated_peak_bytes)} allocated at most",
    )
    if estimate.phase_of_peak is not None:
        table.add_row("  reached in", "", estimate.phase_of_peak)
    table.add_row("  outside", size(estimate.outside_allocator_bytes), _outside(estimate))
    if estimate.recommended_bytes is None or estimate.shards is None:
        table.add_row("Recommended", Text("none", style="bold red"), "the job does not fit on this GPU")
    else:
        shards = "1 shard" if estimate.shards == 1 else f"{estimate.shards} shards"
        table.add_row(
            "Recommended",
            Text(size(estimate.recommended_bytes), style="bold"),
            f"{shards} of {size(estimate.shard_bytes)}, margin included",
        )
    return table


def _outside(estimate: Estimate) -> str:
    """What lies outside the allocator, in one line and MiB."""
    shown = [f"{part.name} {part.bytes / MIB:.0f}" for part in estimate.outside if part.bytes]
    return ", ".join(shown) if len(shown) > 1 else CONTEXT


def _least(estimate: Estimate, least: LeastMemory) -> str:
    times = "once" if least.retries == 1 else f"{least.retries} times"
    text = f"Takes {size(estimate.peak_bytes)} if it may"
    if least.bytes < estimate.peak_bytes:
        text += f"; runs in {size(least.bytes)}"
        text += f", freeing its cache {times}" if least.retries else ""
    if least.expandable_bytes < least.bytes:
        text += f"; needs {size(least.expandable_bytes)} with expandable_segments:True"
    return text + "."


def _owners(estimate: Estimate) -> RenderableType:
    """One bar for each owner, each beginning where the last one ends: together they are the peak."""
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=15)
    table.add_column(justify="right", min_width=10)
    table.add_column(justify="right", min_width=6)
    table.add_column(width=BAR_WIDTH)
    rows = [
        (NAMES.get(owner, owner.value), count, COLOURS[owner]) for owner, count in estimate.by_owner.items()
    ]
    rows.append((OUTSIDE, estimate.outside_allocator_bytes, "red"))
    begin = 0
    for name, count, colour in rows:
        if count:
            bar = Bar(estimate.peak_bytes, begin, begin + count, width=BAR_WIDTH, color=colour)
            table.add_row(name, size(count), _percent(count, estimate.peak_bytes), bar)
        begin += count
    return table


def layers(by_module: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Modules that differ only in layer numbers as one: name, how many, bytes; the largest first."""
    groups: dict[str, list[int]] = {}
    for name, count in by_module.items():
        groups.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(count)
    rows = [(name, len(counts), sum(counts)) for name, counts in groups.items()]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def _modules(groups: list[tuple[str, int, int]]) -> RenderableType:
    """The modules that allocated most of the activations."""
    table = Table.grid(padding=(0, 2))
    table.add_column(max_width=44, overflow="fold")
    table.add_column(justify="right", style="dim")
    table.add_column(justify="right", min_width=10)
    table.add_row(Text("activations of", style="dim"))
    for name, modules, count in groups[:MODULES_SHOWN]:
        table.add_row(name or "the model itself", f"{modules} x" if modules > 1 else "", size(count))
    rest = sum(count for _, _, count in groups[MODULES_SHOWN:])
    if rest:
        table.add_row(Text("others", style="dim"), "", size(rest))
    return table


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.1 else "<0.1 %"


def _notes(estimate: Estimate) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="yellow" if estimate.status == "bounded" else "dim")
    table.add_column(overflow="fold")
    for note in estimate.notes:
        table.add_row("-", Text(note))
    return table


def _origin(estimate: Estimate) -> str:
    steps = "1 optimizer step" if estimate.steps == 1 else f"{estimate.steps or 'no'} optimizer steps"
    traced = f"{steps} traced" if estimate.wall_s is None else f"{steps} traced in {estimate.wall_s:.1f} s"
    return f"{traced}, PyTorch {estimate.torch_version}" if estimate.torch_version else traced
