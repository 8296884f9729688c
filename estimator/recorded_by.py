"""By which of the known rules a history was recorded: those whose replay takes the recorded segments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from estimator import alloc_conf as conf
from estimator.allocator import Action, AllocatorConfig, History, Replay, replay
from estimator.held import HeldSegment

_TAKEN = (int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP))


def segments_taken(history: History) -> list[int]:
    """The sizes (bytes) of the segments that the recording allocator took from the device, in order."""
    return [size for action, size in zip(history.action, history.size, strict=True) if action in _TAKEN]


def candidates(alloc_conf: str = "", torch_version: str | None = None) -> list[AllocatorConfig]:
    """The rules of that version of PyTorch under these settings, and those of newer or older ones.

    Settings that this version would not have started with are left out of account.
    """
    version = conf.version_of(torch_version)
    try:
        config = conf.parse(alloc_conf, version).config
    except conf.AllocConfError:
        config = conf.rules_of(version)
    return [config, replace(config, oldest_segment_first=not config.oldest_segment_first)]


def find(
    history: History, configs: Iterable[AllocatorConfig], initial: Iterable[HeldSegment] = ()
) -> tuple[Replay, AllocatorConfig | None]:
    """The first of `configs` under which a replay takes the recorded segments, and that replay.

    None and the replay under the first, if there is none (other settings, another PyTorch, a device that ran
    out of memory).
    """
    held, taken = tuple(initial), segments_taken(history)
    first: Replay | None = None
    for config in configs:
        replayed = replay(history, config=config, initial=held)
        if [segment.size for segment in replayed.segments] == taken:
            return replayed, config
        first = first or replayed
    if first is None:
        raise ValueError("no rules to choose from")
    return first, None
