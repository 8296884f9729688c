"""`gpumem replay`: a recorded memory history on another device or under other settings."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from estimator.whatif import Answer, Recording

COULD_NOT = 1
STACK_SHOWN = 5
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a text such as 16GiB, 16G, 512MiB or a plain number; units are powers of 1024.

    Raises:
        typer.BadParameter: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * 1024 ** _UNITS[found[2].upper()]) if found else 0
    if size <= 0:
        raise typer.BadParameter(f"{text}: write a size such as 16GiB or 512MiB")
    return size


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="What gpumem estimate --trace kept, or a memory snapshot of PyTorch.",
            show_default=False,
        ),
    ],
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that the allocator may take, such as 16GiB.")
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="As torch.cuda.set_per_process_memory_fraction: a part of --capacity."
        ),
    ] = None,
    alloc_conf: Annotated[
        str | None,
        typer.Option(metavar="CONF", help="As PYTORCH_CUDA_ALLOC_CONF. [default: as it was recorded]"),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="PyTorch that recorded it. [default: as the trace says]"),
    ] = None,
    device: Annotated[int | None, typer.Option(min=0, help="Which one, in a snapshot of several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Replay a memory history on another device, or under other allocator settings.

    Prints how much memory PyTorch's allocator would take, how often it would run out and free its cache, and
    where it would fail. Memory outside of the allocator (CUDA context, NCCL) is not part of it.

    Exit status: 0 it runs, 1 it could not be replayed, 2 wrong usage, 3 it runs out of memory.
    """
    from estimator.allocator import UNLIMITED
    from estimator.whatif import WhatIfError, ask, load

    if fraction is not None and capacity is None:
        raise typer.BadParameter("--fraction is a part of --capacity: give that, too")
    limit = UNLIMITED if capacity is None else parse_size(capacity)
    try:
        answers = [(one, ask(one, limit, fraction, alloc_conf)) for one in load(trace, torch, device)]
    except WhatIfError as error:
        if as_json:
            print(json.dumps({"status": "failed", "reason": str(error)}))
        print(f"gpumem: {error}", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from None
    asked = {"capacity_bytes": None if capacity is None else limit, "fraction": fraction}
    if as_json:
        rows = [to_json(recorded, answer, alloc_conf) | asked for recorded, answer in answers]
        print(json.dumps({"status": "replayed", "replays": rows}))
    else:
        from rich.console import Console

        for recorded, answer in answers:
            _show(recorded, answer, alloc_conf, Console())
    if any(answer.replayed.oom for _, answer in answers):
        raise typer.Exit(3)


def to_json(recorded: Recording, answer: Answer, alloc_conf: str | None) -> dict[str, object]:
    """One replay as a JSON object; sizes in bytes, unknown is null."""
    done = answer.replayed
    return {
        "name": recorded.name,
        "torch_version": recorded.torch_version,
        "alloc_conf": recorded.snapshot.alloc_conf if alloc_conf is None else alloc_conf,
        "events": len(recorded.snapshot.events),
        "initial_bytes": sum(segment.size for segment in recorded.initial),
        "as_recorded": answer.as_recorded,
        "native": answer.native,
        "reserved_peak_bytes": done.reserved_peak,
        "allocated_peak_bytes": done.allocated_peak,
        "requested_peak_bytes": done.requested_peak,
        "segments": len(done.segments),
        "retries": done.retries,
        "fragmentation_at_peak": {
            "cached_bytes": done.peak_cached,
            "inactive_split_bytes": done.peak_inactive_split,
        },
        "peak": {"event": done.peak_event, "stack": [list(frame) for frame in answer.peak_stack]},
        "oom": None
        if done.oom is None
        else {
            "event": done.oom.event,
            "requested_bytes": done.oom.requested,
            "allocated_bytes": done.oom.allocated,
            "reserved_bytes": done.oom.reserved,
            "stack": [list(frame) for frame in answer.oom_stack],
            "stack_is_before": answer.oom_stack_is_before,
        },
    }


def _show(recorded: Recording, answer: Answer, alloc_conf: str | None, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from estimator.report import size

    done = answer.replayed
    verdict = Text("runs", style="bold green")
    if done.oom is not None:
        verdict = Text("runs out of memory", style="bold red")
    elif done.retries:
        verdict = Text("runs after freeing its cache", style="bold yellow")
    conf = recorded.snapshot.alloc_conf if alloc_conf is None else alloc_conf
    console.print(
        Text.assemble((recorded.name, "bold"), ": ", verdict, (f"  under {conf}" if conf else "", "dim"))
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=13)
    table.add_column(justify="right", min_width=10)
    table.add_column(style="dim")
    table.add_row("Reserved", size(done.reserved_peak), "at most")
    table.add_row("Allocated", size(done.allocated_peak), f"at most; {size(done.requested_peak)} asked for")
    table.add_row("Segments", str(len(done.segments)), "taken from the device")
    table.add_row("Retries", str(done.retries), "times the cache was freed for lack of memory")
    share = 100 * done.peak_cached / done.reserved_peak if done.reserved_peak else 0.0
    table.add_row(
        "Fragmentation",
        size(done.peak_cached),
        f"unused at the peak ({share:.1f} %), {size(done.peak_inactive_split)} of it between blocks",
    )
    console.print(Padding(table, (0, 1)), highlight=False)
    if done.oom is not None:
        where = "before the history begins" if done.oom.event < 0 else f"at event {done.oom.event}"
        console.print(
            f" Out of memory {where}: {size(done.oom.requested)} asked for, "
            f"{size(done.oom.reserved)} reserved, {size(done.oom.allocated)} of that allocated",
            highlight=False,
        )
        _show_stack(answer, console)
    if not answer.native:
        console.print(
            " cudaMallocAsync leaves the work to the driver: this is a simple model of its pool, not exact.",
            style="yellow",
            highlight=False,
        )
    elif not answer.as_recorded:
        console.print(
            " The known rules do not repeat what was recorded (another PyTorch, a device that ran out of "
            "memory?): these numbers are close, not exact.",
            style="yellow",
            highlight=False,
        )


def _show_stack(answer: Answer, console: Console) -> None:
    from rich.text import Text

    from estimator.frames import users

    if not answer.oom_stack:
        console.print("   no Python stack was recorded", style="dim")
    elif answer.oom_stack_is_before:
        console.print("   on a thread without Python (backward?); the last Python before:", style="dim")
    for file, line, name in users(answer.oom_stack)[:STACK_SHOWN]:
        console.print(Text(f"   {file}:{line} in {name}"), highlight=False)
