"""The memory guard: a variable of the job's environment tells PyTorch's allocator how much it may reserve.

`per_process_memory_fraction` in `PYTORCH_CUDA_ALLOC_CONF` limits the allocator of each process to a part of
the GPU's memory; what it has cached is freed before it fails. What lies outside the allocator is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from estimator import alloc_conf as conf
from estimator.allocator import AllocatorConfig, History, Replay, replay

KEY = "per_process_memory_fraction"
SINCE = (2, 11)
"""Versions of PyTorch that were seen to know KEY: 2.11, 2.14, 2.15; 2.4, 2.6 and 2.8 do not start with it."""

MOST_SHARES = 12
"""Shares below the peak that are tried."""

_OLD, _NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Guard:
    """In which shares of the GPU the job runs when its allocator is held to what is in them.

    `alloc_conf`: the allocator's settings in the run that was traced. From `peak_shards` on it never comes to
    its limit; `shards` are smaller ones, in which it frees its cache to go on.
    """

    alloc_conf: str
    peak_shards: int
    shards: tuple[int, ...]


def fraction(share_bytes: int, outside_bytes: int, usable_bytes: int) -> str | None:
    """The value of KEY that leaves `outside_bytes` of a share to what lies outside the allocator.

    None: the share is too small for that, or is all of the GPU.
    """
    part = math.floor((share_bytes - outside_bytes) / usable_bytes * 10**_DIGITS) / 10**_DIGITS
    return f"{part:.{_DIGITS}f}" if 0 < part < 1 else None


def allocator_bytes(fraction_text: str, usable_bytes: int) -> int:
    """What the allocator may reserve under `fraction_text`."""
    return int(float(fraction_text) * usable_bytes)


def variables(environment: Mapping[str, str], torch_version: str | None, text: str) -> dict[str, str] | None:
    """The variables that tell PyTorch of the limit `text`, beside what the user has set.

    None: this PyTorch is not known to know it, the user has a limit of their own or settings that it does not
    start with, or its own allocator is not used.
    """
    version = conf.version_of(torch_version)
    given = {name: environment[name] for name in (_OLD, _NEW) if name in environment}
    if not torch_version or version < SINCE or environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return None
    if any(KEY in value for value in given.values()):
        return None
    # where both are set, options that only CUDA has are read from the old name
    name = _NEW if _NEW in given and _OLD not in given else _OLD
    before = given.get(name, "").strip().rstrip(",")
    changed = {name: f"{before},{KEY}:{text}" if before else f"{KEY}:{text}"}
    try:
        found = conf.from_environment({**given, **changed}, version)
    except conf.AllocConfError:
        return None
    return changed if found.is_exact and found.config.memory_fraction == float(text) else None


def same_settings(environment: Mapping[str, str], torch_version: str | None, traced: str) -> bool:
    """Whether the traced run had the settings of `environment`: then the script changes nothing."""
    version = conf.version_of(torch_version)
    try:
        return conf.from_environment(environment, version) == conf.parse(traced, version)
    except conf.AllocConfError:
        return False


def find(
    processes: Sequence[tuple[History, AllocatorConfig | None]],
    alloc_conf: str,
    torch_version: str | None,
    *,
    peak_bytes: int,
    least_bytes: int | None,
    outside_bytes: int,
    usable_bytes: int,
    shard_bytes: int,
) -> Guard | None:
    """In which shares a job of these processes, one after the other, runs under the guard.

    Every share was tried by a replay under its very fraction. Shares below the peak are only looked at from
    `least_bytes` (context included) on, if that is given.
    """
    whole = usable_bytes // shard_bytes

    def runs(shards: int, *, without_retry: bool = False) -> bool:
        text = fraction(shards * shard_bytes, outside_bytes, usable_bytes)
        if text is None or variables({_OLD: alloc_conf}, torch_version, text) is None:
            return False
        done = [_under(history, config, text, usable_bytes) for history, config in processes]
        return all(one is not None and one.oom is None for one in done) and not (
            without_retry and any(one is not None and one.retries for one in done)
        )

    # the fraction is rounded down, so a peak that fills its shards to the brim needs one more
    first = -(-peak_bytes // shard_bytes)
    at_peak = next((k for k in (first, first + 1) if k <= whole and runs(k, without_retry=True)), None)
    if at_peak is None:
        return None
    below: list[int] = []
    if least_bytes is not None:
        least = -(-least_bytes // shard_bytes)
        below = [shards for shards in range(least, min(at_peak, least + MOST_SHARES)) if runs(shards)]
    return Guard(alloc_conf, at_peak, tuple(below))


def _under(history: History, config: AllocatorConfig | None, text: str, usable_bytes: int) -> Replay | None:
    """The replay on a GPU that nobody else uses; None: by no rules that are known."""
    # garbage is only collected below a fraction: the peak itself would be another one
    if config is None or config.memory_fraction is not None or config.garbage_collection_threshold:
        return None
    return replay(history, usable_bytes, replace(config, memory_fraction=float(text)))
