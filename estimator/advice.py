"""Which settings or changes would save GPU memory: each with its number, and how that was come by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from estimator import recorded_by
from estimator.allocator import AllocatorConfig, Replay, ReplayError, replay
from estimator.catalog import GPU
from estimator.estimate import Estimate
from estimator.owners import Owner
from estimator.trace import Trace
from settings import MIB

SPLIT_SIZES_MIB = (32, 64, 128, 256, 512)
DIVISIONS = (2, 4, 8)
THRESHOLDS = (0.6, 0.8)
WORTH = 0.01  # of the peak
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
# what grows with the batch, of the owners at the peak
OF_THE_BATCH = (Owner.ACTIVATIONS, Owner.INPUTS)


@dataclass(frozen=True, slots=True)
class Advice:
    """One change. `saves_bytes` and `peak_bytes` are of the peak with the CUDA context.

    `kind`: `replay` (of this trace under that setting: exact for the allocator), `retrace` (of the changed
    job) or `arithmetic` (from the bytes by owner, as `how` says: a guide, to be traced before it is used).
    """

    change: str
    saves_bytes: int
    peak_bytes: int
    kind: Literal["replay", "retrace", "arithmetic"]
    how: str

    def to_json(self) -> dict[str, object]:
        """The JSON object in `advice` of `gpumem estimate --json --advise`."""
        return {
            "change": self.change,
            "saves_bytes": self.saves_bytes,
            "peak_bytes": self.peak_bytes,
            "kind": self.kind,
            "how": self.how,
        }


def advise(trace: Trace, estimate: Estimate, gpu: GPU) -> list[Advice]:
    """What would lower the peak of the process that `estimate` is about, the largest saving first.

    Of one option with several values only the best is told; what saves nothing is not told at all.
    """
    found = [*_by_replay(trace, estimate, gpu), *_by_arithmetic(estimate.by_owner, estimate.peak_bytes)]
    found += _checkpointing(estimate.by_module, estimate.peak_bytes)
    return sorted((one for one in found if one.saves_bytes > 0), key=lambda one: -one.saves_bytes)


def retraced(change: str, before: Estimate, after: Estimate) -> Advice:
    """What a change saves whose job was traced as well."""
    return Advice(
        change, before.peak_bytes - after.peak_bytes, after.peak_bytes, "retrace", "the job traced with that"
    )


def _by_replay(trace: Trace, estimate: Estimate, gpu: GPU) -> Iterator[Advice]:
    events = trace.events
    if events is None:
        return
    _, config = recorded_by.find(events, recorded_by.candidates(trace.alloc_conf, trace.torch_version))
    if config is None:
        return  # its rules are not known: nothing about others can be told
    outside = estimate.outside_allocator_bytes
    for variants in _options(config):
        best: tuple[str, Replay] | None = None
        for option, other in variants:
            try:
                done = replay(events, gpu.usable_bytes - outside, other)
            except ReplayError:
                return
            if done.oom is None and (best is None or done.reserved_peak < best[1].reserved_peak):
                best = option, done
        if best is not None:
            peak = best[1].reserved_peak + outside
            retries = f", its cache freed {best[1].retries} times" if best[1].retries else ""
            yield Advice(
                f"{VARIABLE}={_joined(trace.alloc_conf, best[0])}",
                estimate.peak_bytes - peak,
                peak,
                "replay",
                f"this trace replayed under that setting{retries}",
            )


def _options(config: AllocatorConfig) -> Iterator[list[tuple[str, AllocatorConfig]]]:
    """The options that are not in force yet, each with the values to be tried."""
    if not config.expandable_segments:
        yield [("expandable_segments:True", replace(config, expandable_segments=True))]
        yield [
            (f"max_split_size_mb:{size}", replace(config, max_split_size=size * MIB))
            for size in SPLIT_SIZES_MIB
        ]
    yield [
        (
            f"roundup_power2_divisions:{count}",
            replace(config, roundup_power2_divisions=(count,) * len(config.roundup_power2_divisions)),
        )
        for count in DIVISIONS
    ]
    if config.memory_fraction is not None:  # it is of no effect without
        yield [
            (
                f"garbage_collection_threshold:{threshold}",
                replace(config, garbage_collection_threshold=threshold),
            )
            for threshold in THRESHOLDS
        ]


def _joined(conf: str, option: str) -> str:
    """The setting with one option more, instead of the same one."""
    name = option.partition(":")[0]
    kept = [part for part in conf.split(",") if part and part.partition(":")[0].strip() != name]
    return ",".join([*kept, option])


def _by_arithmetic(by_owner: Mapping[Owner, int], peak: int) -> Iterator[Advice]:
    of_batch = sum(by_owner.get(owner, 0) for owner in OF_THE_BATCH)
    yield Advice(
        "half the batch",
        of_batch // 2,
        peak - of_batch // 2,
        "arithmetic",
        "half of the activations and inputs at the peak; trace the job with that batch to be sure",
    )


def _checkpointing(by_module: Mapping[str, int], peak: int) -> Iterator[Advice]:
    """Repeated layers (`model.layers.3`) that are run again in the backward pass, one at a time.

    What a layer itself allocates (its output, the next one's input) is kept, and the largest layer's inside.
    """
    inside: dict[str, dict[str, int]] = {}  # bytes by layer, by the name of the list of layers
    for name, size in by_module.items():
        if match := re.match(r"(?:(.*?)\.)?(\d+)\.", name):
            layers = inside.setdefault(match[1] or "", {})
            layers[match[2]] = layers.get(match[2], 0) + size
    for name, layers in inside.items():
        saved = sum(layers.values()) - max(layers.values())
        if len(layers) > 1 and saved >= WORTH * peak:
            yield Advice(
                f"gradient checkpointing of the {len(layers)} layers in {name or 'the model'}",
                saved,
                peak - saved,
                "arithmetic",
                "activations inside of all layers but the largest; trace the job with it to be sure",
            )
