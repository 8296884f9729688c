"""Sessions: settings of the allocator, a device, and random commands."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from estimator.alloc_conf import rules_of

MIB = 1024**2
TOTAL = 16 * 1024 * MIB  # of the device; a session has less of it
CONTEXT = 256 * MIB

Command = list  # its name, then numbers

# the settings, in the words of PYTORCH_ALLOC_CONF; what a version of torch does not know is left out
SETTINGS: dict[str, list[dict[str, str]]] = {
    "default": [{}],
    "max_split": [{"max_split_size_mb": str(mb)} for mb in (20, 32, 64, 200)],
    "round": [{"roundup_power2_divisions": value} for value in ("2", "4", "16", "[1:4,4:2,32:8,>:1]", "[256:1,512:2,1024:4,>:8]")],
    "gc": [{"garbage_collection_threshold": value} for value in ("0.3", "0.6", "0.9")],
    "non_split": [{"max_split_size_mb": "32", "max_non_split_rounding_mb": mb} for mb in ("20", "40", "100")],
    "large_segment": [
        *({"large_segment_size_mb": mb} for mb in ("12", "11", "64", "200")),
        {"large_segment_size_mb": "48", "max_split_size_mb": "50"},
        {"max_split_size_mb": "50", "large_segment_size_mb": "48"},
    ],
    "expandable": [{"expandable_segments": "True"}],
    "expandable+": [
        {"expandable_segments": "True", "roundup_power2_divisions": "4"},
        {"expandable_segments": "True", "max_split_size_mb": "64"},
        {"expandable_segments": "True", "garbage_collection_threshold": "0.5"},
        {"expandable_segments": "True", "large_segment_size_mb": "40"},
    ],
    "all": [
        {"max_split_size_mb": "32", "roundup_power2_divisions": "8", "garbage_collection_threshold": "0.5"},
        {"max_split_size_mb": "64", "max_non_split_rounding_mb": "60", "garbage_collection_threshold": "0.7",
         "roundup_power2_divisions": "[2:2,64:4,>:2]", "large_segment_size_mb": "48"},
    ],
}  # fmt: skip

EDGES = [1, 511, 512, 513, MIB - 512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1,
         20 * MIB, 20 * MIB + 1, 31 * MIB, 32 * MIB, 33 * MIB, 64 * MIB, 200 * MIB, 201 * MIB]  # fmt: skip


@dataclass(frozen=True)
class Session:
    """What both allocators are given. `reset`: settings that an earlier session may have left in torch."""

    conf: dict[str, str]
    capacity: int
    commands: list[Command]
    seed: str = ""
    reset: dict[str, str] = field(default_factory=dict)

    def conf_text(self) -> str:
        """As in PYTORCH_ALLOC_CONF."""
        return as_text(self.conf)

    def with_commands(self, commands: list[Command]) -> Session:
        """The same with other commands."""
        return replace(self, commands=commands)


def as_text(conf: dict[str, str]) -> str:
    """As in PYTORCH_ALLOC_CONF."""
    return ",".join(f"{name}:{value}" for name, value in conf.items())


def random_session(
    seed: str, conf: dict[str, str], reset: dict[str, str], length: int, version: tuple[int, int]
) -> Session:
    """A session that depends on nothing but its arguments; `version` is that of torch."""
    empties_in_pools = version >= (2, 10)  # before, it does not survive that
    # uses by streams during a capture are known by the address of torch's own object: if the block is not freed
    # during the capture, they are taken for those of another block later on
    keeps_uses = rules_of(version).any_pool_is_a_capture
    rng = random.Random(seed)
    capacity = rng.choice([256, 512, 1024, 4096, 12 * 1024]) * MIB
    commands: list[Command] = []
    if rng.random() < (0.9 if "garbage_collection_threshold" in conf else 0.4):
        commands.append(["fraction", rng.choice([0.5, 0.9, 1.2]) * capacity / TOTAL])
    pools = rng.random() < 0.3 and version >= (2, 6)  # cannot be begun without a capture before
    looks = True
    streams = rng.choice([1, 2, 4])
    live: list[int] = []
    held: set[int] = set()
    recorded: set[int] = set()
    underway: list[int] = []
    uses: list[int] = []
    handle = next_pool = 0
    while len(commands) < length:
        x = rng.random()
        if x < 0.50 or not live:
            commands.append(["malloc", handle, _size(rng, capacity), rng.randrange(streams)])
            live.append(handle)
            handle += 1
        elif x < 0.90:
            # either somewhere or, as programs do, what came last
            at = rng.randrange(len(live)) if rng.random() < 0.6 else len(live) - 1
            commands.append(["free", live.pop(at)])
        elif x < 0.93:
            commands.append(["record", rng.choice(live), rng.randrange(4)])
            if keeps_uses and underway:
                recorded.add(commands[-1][1])
        elif x < 0.95:
            stream = rng.randrange(4)
            commands.append(["let_go" if stream in held else "hold", stream])
            held ^= {stream}
        elif x < 0.96:
            if looks:
                commands.append(["snapshot"])
        elif x < 0.97 and len(live) > 30:
            for _ in range(len(live) // 2):
                commands.append(["free", live.pop(rng.randrange(len(live)))])
        elif x < 0.985 and pools:
            if underway and rng.random() < 0.6:
                for used in sorted(recorded.intersection(live)):
                    commands.append(["free", used])
                    live.remove(used)
                recorded.clear()
                commands.append(["end", underway.pop()])
            elif not underway and uses and rng.random() < 0.4:
                commands.append(["release_pool", uses.pop(rng.randrange(len(uses)))])
            elif not underway:
                known = sorted(set(uses))
                if known and rng.random() < 0.5:
                    pool = rng.choice(known)
                else:
                    pool, next_pool = next_pool, next_pool + 1
                commands.append(["begin", pool])
                underway.append(pool)
                uses.append(pool)
        elif x < 0.99:
            if empties_in_pools or not underway:
                commands.append(["empty_cache"])
        elif x < 0.992:
            commands.append(["fraction", rng.choice([0.3, 0.5, 0.9, 1.2]) * capacity / TOTAL])
    if looks:
        commands.append(["snapshot"])
    return Session(conf, capacity, commands, seed, reset)


def _size(rng: random.Random, capacity: int) -> int:
    x = rng.random()
    if x < 0.2:
        return rng.randint(1, 4096)
    if x < 0.45:
        return rng.randint(4097, MIB)
    if x < 0.70:
        return rng.randint(MIB, 10 * MIB)
    if x < 0.92:
        return rng.randint(10 * MIB, 90 * MIB)
    if x < 0.98:
        return rng.choice(EDGES)
    return rng.randint(MIB, capacity // 2)
