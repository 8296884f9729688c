"""From traces to an estimate: how much GPU memory a job needs on a certain GPU, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from estimator import guard as guards
from estimator import outside as beside
from estimator import phases, recorded_by
from estimator.allocator import (
    AllocatorConfig,
    Replay,
    ReplayError,
    as_recorded,
    replay,
)
from estimator.bounds import Bound, of_trace, told
from estimator.capacity import PROBES, least_capacity
from estimator.catalog import GPU
from estimator.owners import Owner, Split
from estimator.owners import split as split_peak
from estimator.sharing import together
from estimator.trace import Events, InputFile, Trace
from settings import GIB, MIB
from settings import Estimate as Settings

LEAST_KEPT = 2 * MIB  # one small segment: what batches keep is told if it may be more
MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
LEAST_EVENTS = 100_000  # of a trace whose least memory is searched in every estimate
LEAST_RESOLUTION = 0.01  # of the peak


class EstimateError(Exception):
    """No estimate can be made; the text says why, for the user."""


class NotTraining(EstimateError):
    """The job did not use PyTorch on the GPU, so there is nothing to estimate."""


@dataclass(frozen=True, slots=True)
class LeastMemory:
    """The least GPU memory (bytes) that the job runs in if its allocator is held to that, outside included.

    `retries`: how often PyTorch then frees its cache to go on. `expandable_bytes`: the same under
    `expandable_segments:True`.
    """

    bytes: int
    retries: int
    expandable_bytes: int


@dataclass(frozen=True, slots=True)
class PerGpu:
    """What the job needs of one GPU (bytes): its number on its node, and the rank that was seen there."""

    gpu: int
    rank: int
    peak_bytes: int
    reserved_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """How much GPU memory a job needs. All sizes in bytes.

    `peak_bytes` is what NVML will show at most: `reserved_peak_bytes` and `outside_allocator_bytes`.
    `bounded` means that something had to be assumed, and `notes` say what. A job that does not fit has no
    recommendation. `least` is None where it was not looked for. Of a job with several GPUs all this is
    about the GPU that needs the most; `per_gpu` tells of each that was seen, `world_size` how many ranks
    torch.distributed has.
    """

    status: Literal["exact", "bounded"]
    peak_bytes: int
    reserved_peak_bytes: int
    allocated_peak_bytes: int
    outside_allocator_bytes: int
    outside: tuple[beside.Part, ...]
    recommended_bytes: int | None
    shards: int | None
    shard_bytes: int
    by_owner: Mapping[Owner, int]
    by_module: Mapping[str, int]  # activations alone
    least: LeastMemory | None
    phase_of_peak: str | None
    steps: int
    trace_events: int
    wall_s: float | None
    host_memory_bytes: int | None
    torch_version: str | None
    gpu: str
    fits: bool
    bounded_by: tuple[Bound, ...]
    unknown_calls: tuple[str, ...]
    notes: tuple[str, ...]
    inputs: tuple[InputFile, ...]
    world_size: int
    per_gpu: tuple[PerGpu, ...]
    guard: guards.Guard | None = None


@dataclass(frozen=True, slots=True)
class _Process:
    """One traced process that used the GPU."""

    trace: Trace
    replayed: Replay
    outside: tuple[beside.Part, ...]
    config: AllocatorConfig | None  # the rules it was recorded by, if they are known
    shortage: tuple[str, ...]  # why it does not fit
    doubts: tuple[str, ...]  # each makes the estimate a bounded one
    bounded_by: tuple[Bound, ...]
    remarks: tuple[str, ...]

    @property
    def started_ns(self) -> int:
        return self.trace.started_ns

    @property
    def ended_ns(self) -> int:
        return self.trace.ended_ns

    @property
    def bytes(self) -> int:
        return self.replayed.reserved_peak

    @property
    def outside_bytes(self) -> int:
        return beside.total(self.outside)


def estimate(
    traces: Sequence[Trace],
    gpu: GPU,
    settings: Settings,
    wall_s: float | None = None,
    failures: Sequence[str] = (),
    host_memory_bytes: int | None = None,
    notes: Sequence[str] = (),
    guarded: bool = False,
) -> Estimate:
    """The estimate for a job whose Python processes left these traces.

    `wall_s` is how long they took (s), `host_memory_bytes` what they had resident at most, all together;
    `failures` tell what went wrong in the job apart from them, `notes` what does not change the estimate. A
    job of which a part failed has an estimate, a bounded one, from the processes that came to their end.
    `guarded`: whether to look in which shares the job runs under the memory guard.

    Raises:
        NotTraining: no process used PyTorch on the GPU.
        EstimateError: the job failed, or was stopped too early to know.
    """
    used = [trace for trace in traces if trace.events is not None and len(trace.events)]
    if not used:
        raise _why_not(traces)
    sound = [trace for trace in used if trace.end != "exception" or trace.steps] or used
    processes = [
        _examine(trace, gpu, len({(trace.pid, trace.program) for trace in used}) > 1) for trace in sound
    ]
    by_gpu = {index: together(_on(index, processes)) for index in sorted({one.device for one in sound})}
    fullest = max(by_gpu.values(), key=_peak)
    largest = fullest[0]
    doubts = [doubt for process in processes for doubt in process.doubts]
    remarks = [remark for process in processes for remark in process.remarks]
    examined = len(doubts)
    for index, side_by_side in by_gpu.items():
        if len(side_by_side) > 1:
            doubts.append(
                f"{len(side_by_side)} processes use GPU {index} at the same time: their peaks are added"
            )
    for trace in traces:
        if trace.end == "exception" and trace not in sound:
            doubts.append(f"{trace.program} failed: {trace.error or 'no reason known'}")
        if trace.is_of_another_framework:
            doubts.append(f"{trace.program}: {trace.reason}: what it takes of the GPU is not counted")
    doubts += failures
    remarks += notes
    outside_parts = beside.together([process.outside for process in fullest])
    if not_measured := beside.estimated(outside_parts):
        listed = ", ".join(f"{part.name} {part.bytes / MIB:.0f} MiB" for part in not_measured)
        remarks.append(f"outside the allocator, not measured on this GPU, but estimated: {listed}")

    shortages = [shortage for process in processes for shortage in process.shortage]
    reserved = sum(process.replayed.reserved_peak for process in fullest)
    outside = beside.total(outside_parts)
    if not shortages and reserved + outside > gpu.usable_bytes:
        needed = (reserved + outside) / GIB
        shortages.append(f"needs {needed:.1f} GiB, and {gpu.name} offers {gpu.usable_bytes / GIB:.1f} GiB")
    fits = not shortages
    status: Literal["exact", "bounded"] = "bounded" if doubts else "exact"
    peak = reserved + outside
    shard_bytes = settings.shard_mib * MIB
    least = _least(largest, gpu, settings) if len(fullest) == 1 else None
    needed_bytes = peak
    if least is not None and settings.reserve == "least":
        needed_bytes = least.bytes
        remarks.append("recommended is the least that the job runs in: PyTorch has to be held to it")
    shards = (
        _shards(needed_bytes, settings.margin_bounded if doubts else settings.margin, settings, gpu)
        if fits
        else None
    )
    split = _split(fullest)
    return Estimate(
        status=status,
        peak_bytes=peak,
        reserved_peak_bytes=reserved,
        allocated_peak_bytes=sum(process.replayed.allocated_peak for process in fullest),
        outside_allocator_bytes=outside,
        outside=outside_parts,
        recommended_bytes=shards * shard_bytes if shards is not None else None,
        shards=shards,
        shard_bytes=shard_bytes,
        by_owner=split.by_owner,
        by_module=split.by_module,
        least=least,
        phase_of_peak=phases.at(largest.trace, largest.replayed.busiest_event),
        steps=largest.trace.steps,
        trace_events=len(largest.trace.events or ()),
        wall_s=wall_s,
        host_memory_bytes=host_memory_bytes,
        torch_version=largest.trace.torch_version,
        gpu=gpu.name,
        fits=fits,
        bounded_by=(
            *(bound for process in processes for bound in process.bounded_by),
            *(Bound(doubt, "run") for doubt in doubts[examined:]),
        ),
        unknown_calls=tuple(dict.fromkeys(name for trace in used for name in trace.unknown_calls)),
        notes=tuple(dict.fromkeys(shortages + doubts + remarks)),
        inputs=_inputs(traces),
        world_size=max(trace.world_size for trace in traces),
        per_gpu=tuple(
            PerGpu(index, one[0].trace.rank, _peak(one), sum(process.bytes for process in one))
            for index, one in by_gpu.items()
        ),
        guard=_guard(processes, peak, outside, least, gpu, settings)
        if guarded and fits and len(fullest) == len(by_gpu) == 1
        else None,
    )


def _guard(
    processes: Sequence[_Process],
    peak: int,
    outside: int,
    least: LeastMemory | None,
    gpu: GPU,
    settings: Settings,
) -> guards.Guard | None:
    """In which shares a job runs whose processes, one after the other, are held to them."""
    settings_used = {process.trace.alloc_conf for process in processes}
    versions = {process.trace.torch_version for process in processes}
    if len(settings_used) > 1 or len(versions) > 1:
        return None
    if any(one.trace.world_size > 1 or one.trace.memory_limit for one in processes):
        return None
    histories = [(one.trace.events, one.config) for one in processes if one.trace.events is not None]
    return guards.find(
        histories,
        settings_used.pop(),
        versions.pop(),
        peak_bytes=peak,
        least_bytes=least.bytes if least is not None and settings.reserve == "least" else None,
        outside_bytes=outside,
        usable_bytes=gpu.usable_bytes,
        shard_bytes=settings.shard_mib * MIB,
    )


def _on(device: int, processes: Sequence[_Process]) -> list[_Process]:
    return [process for process in processes if process.trace.device == device]


def _peak(side_by_side: Sequence[_Process]) -> int:
    return sum(process.bytes + process.outside_bytes for process in side_by_side)


def _split(side_by_side: Sequence[_Process]) -> Split:
    parts = [split_peak(process.trace, process.replayed) for process in side_by_side]
    by_module: dict[str, int] = {}
    for part in parts:
        for name, count in part.by_module.items():
            by_module[name] = by_module.get(name, 0) + count
    return Split({owner: sum(part.by_owner[owner] for part in parts) for owner in Owner}, by_module)


def _least(process: _Process, gpu: GPU, settings: Settings) -> LeastMemory | None:
    """The least memory of a process; a long trace is only searched if the recommendation follows from it."""
    events, config = process.trace.events, process.config
    if events is None or config is None or process.replayed.oom is not None:
        return None
    if len(events) > LEAST_EVENTS and settings.reserve != "least":
        return None
    resolution = int(LEAST_RESOLUTION * process.replayed.reserved_peak)
    probes = PROBES if settings.reserve == "least" else 0
    plain = least_capacity(events, config, resolution=resolution, probes=probes)
    expandable = plain
    if not config.expandable_segments:
        expandable = least_capacity(
            events, replace(config, expandable_segments=True), resolution=resolution, probes=probes
        )
    outside = process.outside_bytes
    return LeastMemory(plain.capacity + outside, plain.retries, expandable.capacity + outside)


def _shards(peak: int, margin: float, settings: Settings, gpu: GPU) -> int:
    """Whole shards for the peak and its margin, but no more than hold all that the GPU offers."""
    shard_bytes = settings.shard_mib * MIB
    wanted = peak + max(int(peak * margin), settings.margin_mib * MIB)
    return -(-min(wanted, gpu.usable_bytes) // shard_bytes)


def _examine(trace: Trace, gpu: GPU, one_of_several: bool) -> _Process:
    """Replays one trace on the GPU and says what is doubtful about it."""
    doubts = _doubts(trace, gpu)
    remarks: list[str] = []
    shortages: list[str] = []
    outside = beside.parts(gpu, trace)
    usable = min(gpu.usable_bytes, trace.memory_limit or gpu.usable_bytes)
    capacity = usable - beside.total(outside)
    assert trace.events is not None  # noqa: S101
    try:
        replayed, config = _replay_without_limit(trace.events, trace.alloc_conf, trace.torch_version)
        if config is None and trace.alloc_conf:
            remarks.append(f"reserved as recorded under PYTORCH_CUDA_ALLOC_CONF={trace.alloc_conf}")
        elif config is None:
            doubts.append("PyTorch's allocator follows rules that are not known here: reserved as recorded")
        if replayed.reserved_peak > capacity:
            limited = replay(trace.events, capacity, config) if config is not None else None
            if limited is not None and limited.oom is None:
                if usable == gpu.usable_bytes:  # where no MPS runs, its limit keeps nothing back
                    replayed = limited
                remarks.append("the job fits only because PyTorch frees cached memory when it runs out")
            else:
                needed = (replayed.reserved_peak + beside.total(outside)) / GIB
                by = f"{MPS_LIMIT} of {gpu.name}" if usable < gpu.usable_bytes else gpu.name
                shortages.append(f"needs {needed:.1f} GiB, and {by} offers {usable / GIB:.1f} GiB")
    except ReplayError as error:
        raise EstimateError(f"{trace.program}: the trace contradicts itself: {error}") from None

    if trace.integers_read:
        remarks.append(f"{trace.integers_read} integers were read back from the GPU: they are made up")

    def named(texts: list[str]) -> tuple[str, ...]:
        return tuple(f"{trace.program}: {text}" if one_of_several else text for text in texts)

    return _Process(
        trace,
        replayed,
        outside,
        config,
        named(shortages),
        *_bounds(of_trace(trace, replayed, config, _assumed(outside)), named, doubts),
        named(remarks),
    )


def _assumed(outside: Sequence[beside.Part]) -> dict[str, int]:
    """Bytes that hang on answers of libraries, as far as a part outside the allocator stands for them."""
    return {beside.NCCL: beside.total(part for part in outside if part.name == "nccl")}


def _bounds(
    found: list[Bound], named: Callable[[list[str]], tuple[str, ...]], doubts: list[str]
) -> tuple[tuple[str, ...], tuple[Bound, ...]]:
    """The doubts about one process, for people and one by one."""
    return named(doubts + told(found)), (*(Bound(text, "run") for text in named(doubts)), *found)


def _replay_without_limit(
    events: Events, alloc_conf: str, torch_version: str | None
) -> tuple[Replay, AllocatorConfig | None]:
    """The replay under the rules by which the recording allocator took its segments.

    If none of the known rules reproduces these (other settings, another PyTorch), what was recorded itself.
    """
    replayed, config = recorded_by.find(events, recorded_by.candidates(alloc_conf, torch_version))
    return (replayed, config) if config is not None else (as_recorded(events), None)


def _doubts(trace: Trace, gpu: GPU) -> list[str]:
    """What keeps the estimate of one process from being exact.

    Raises:
        EstimateError: the process ended too early to know its peak.
    """
    if not trace.complete:
        raise EstimateError(f"{trace.program} allocates too often to be traced as a whole: trace fewer steps")
    doubts = []
    if trace.end == "exception":
        if trace.steps == 0:
            raise EstimateError(f"{trace.program} failed: {trace.error or 'no reason known'}")
        doubts.append(f"the run failed after {_steps(trace.steps)}: {trace.error or 'no reason known'}")
    elif trace.end in ("signal", "deadline"):
        if trace.steps < 2 and not trace.only_infers:
            raise EstimateError(
                f"{trace.program} was stopped after {_steps(trace.steps)}, at least 2 are needed: "
                "raise estimate.timeout_s or let the job begin faster"
            )
        seen = "while it inferred" if trace.only_infers else f"after {_steps(trace.steps)}"
        doubts.append(f"the run was stopped {seen}: what comes later may need more")
    elif trace.end == "steady":
        doubts.append("the run was stopped when its forward passes needed no more memory than those before")
    elif trace.end == "steps" and trace.steps < 2:
        doubts.append("only one step was traced: with the optimizer's state, the second one may need more")
    elif trace.steps == 0 and not trace.only_infers:
        doubts.append("no optimizer step was taken: this is what the run used up to its normal end")
    if trace.unreached:
        first = trace.unreached[0]
        doubts.append(
            f"{Path(first.file).name} line {first.line} runs without gradients, but not within "
            f"{_steps(trace.steps)}: an evaluation there may need more"
        )
    if trace.memory_limit:
        doubts.append(
            f"{MPS_LIMIT}: traced with {trace.memory_limit / GIB:.1f} GiB; only a client of MPS is held to it"
        )
    doubts += trace.made_up
    doubts += _left_out(trace)
    if trace.gpu != gpu.name:
        doubts.append(f"the run was traced for another GPU: {trace.gpu or 'unknown'}")
    return doubts


def _left_out(trace: Trace) -> list[str]:
    """What the batches that were not run might change."""
    doubts = []
    for kind in ("training", "evaluation"):
        cut = [one for one in trace.passes if one.kind == kind and one.left_out != 0]
        shapes = max((one.shapes for one in cut), default=0)
        if shapes > 1:
            doubts.append(
                f"batches of {kind} differ in shape: {shapes} shapes were seen, others may need more"
            )
        growing = [one for one in cut if one.kept_bytes is None or one.kept_bytes >= LEAST_KEPT]
        for one in growing[:1]:
            batches, kept = (
                ("an unknown number of", "")
                if one.left_out is None or one.kept_bytes is None
                else (str(one.left_out), f", for which {one.kept_bytes / MIB:.0f} MiB are added")
            )
            doubts.append(
                f"{kind} keeps {one.grows_by / MIB:.1f} MiB of each batch on the GPU: "
                f"{batches} batches were not run{kept}"
            )
    return doubts


def _why_not(traces: Sequence[Trace]) -> EstimateError:
    """What to tell a user whose job never used the GPU; a failure explains more than an absence."""
    if not traces:
        return NotTraining("the job started no Python program that could be traced")
    for trace in traces:
        if trace.end == "exception":
            return EstimateError(f"{trace.program} failed: {trace.error or 'no reason known'}")
    for trace in traces:
        if trace.end == "signal":
            return EstimateError(
                f"{trace.program} was stopped before it used the GPU: raise estimate.timeout_s"
            )
    for trace in traces:
        if trace.torch_version is not None and trace.cuda_version is None:
            return NotTraining(
                f"{trace.program} uses PyTorch {trace.torch_version}, built without CUDA: "
                "install the CUDA build of the compute node"
            )
    for trace in traces:
        if trace.torch_version is not None:
            return NotTraining(f"{trace.program}: {trace.reason or 'PyTorch did not use the GPU'}")
    return NotTraining(f"{traces[-1].program}: {traces[-1].reason or 'this program did not import PyTorch'}")


def _inputs(traces: Sequence[Trace]) -> tuple[InputFile, ...]:
    found = {file.path: file for trace in traces for file in trace.inputs}
    return tuple(found[path] for path in sorted(found))


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
