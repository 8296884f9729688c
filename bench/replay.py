"""How fast histories are replayed, and how long the search for the least capacity takes.

    python -m bench.replay [--events 100000] [--json]

The history is a training job made up here: weights, then steps that allocate activations, free them
backwards, and a batch size that changes a little from step to step. The goals: 300,000 events a second on
one core, and a search in under 5 s. Seconds are processor time of this process: other load does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from estimator.allocator import AllocatorConfig, History, replay
from estimator.allocator.history import ALLOC, FREE_COMPLETED, FREE_REQUESTED
from estimator.capacity import least_capacity

MIB = 1024**2
GOAL_EVENTS, GOAL_SEARCH_S = 300_000, 5.0
LAYERS = 60


def training(events: int, seed: int = 1) -> History:
    """A job of about so many events; addresses are numbers of allocations."""
    rng = random.Random(seed)
    rows: list[tuple[int, int, int, int]] = []
    addresses = iter(range(512, 1 << 60, 512))

    def alloc(size: int) -> int:
        address = next(addresses)
        rows.append((ALLOC, address, size, 0))
        return address

    def free(address: int) -> None:
        rows.extend([(FREE_REQUESTED, address, 0, 0), (FREE_COMPLETED, address, 0, 0)])

    for _ in range(LAYERS * 3):  # weights, and two moments each
        alloc(rng.choice([4096, 2 * MIB, 8 * MIB, 16 * MIB]))
    while len(rows) < events:
        batch = rng.randint(6, 16)
        kept: list[int] = []
        for _ in range(LAYERS):
            kept.append(alloc(batch * 1_500_000))
            for size in (batch * 40_000, batch * 500_000, 2048, 512):
                temporary = alloc(size)
                if rng.random() < 0.6:
                    free(temporary)
                else:
                    kept.append(temporary)
        for address in reversed(kept):
            gradient = alloc(rng.choice([512, 65_536, batch * 750_000]))
            free(address)
            free(gradient)
    return History(*(list(column) for column in zip(*rows, strict=True)))


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of one run."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def main() -> int:
    """Exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    history = training(options.events)
    measured: dict[str, float] = {"events": len(history)}
    configs = {
        "default": AllocatorConfig(),
        "expandable segments": AllocatorConfig(expandable_segments=True),
        "max_split_size 64 MiB": AllocatorConfig(max_split_size=64 * MIB),
        "roundup_power2_divisions 4": AllocatorConfig(roundup_power2_divisions=(4,) * 16),
    }
    for name, config in configs.items():
        took = min(seconds(lambda config=config: replay(history, config=config)) for _ in range(3))
        measured[f"events/s, {name}"] = round(len(history) / took)
    for name in ("default", "expandable segments"):
        config = configs[name]
        found = least_capacity(history, config)
        assert found is not None
        measured[f"search s, {name}"] = round(
            seconds(lambda config=config: least_capacity(history, config)), 2
        )
        measured[f"replays, {name}"] = found.replays
        measured[f"MiB at most, {name}"] = found.ceiling // MIB
        measured[f"MiB at least, {name}"] = found.capacity // MIB
    tracemalloc.start()
    replay(history)
    measured["KiB of a replay"] = tracemalloc.get_traced_memory()[1] // 1024
    tracemalloc.stop()
    if options.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:45} {value:>14,}")
    fast = all(value >= GOAL_EVENTS for name, value in measured.items() if name.startswith("events/s"))
    soon = all(value <= GOAL_SEARCH_S for name, value in measured.items() if name.startswith("search s"))
    return 0 if fast and soon else 1


if __name__ == "__main__":
    raise SystemExit(main())
