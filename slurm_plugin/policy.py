"""Whether a job shares its GPU: a submission, what is known about it and the settings make a decision.

Pure: no clock, no files, no Slurm. Whatever is not surely safe to rewrite passes, with a reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

from estimator import essence, guard
from estimator.catalog import GPU, normalised
from history.calibration import Calibration, Job
from history.outcomes import script_label
from settings import GIB, MIB, Estimate, Partition, Settings
from slurm_plugin import gres
from slurm_plugin.gres import GpuRequest, Unsupported
from slurm_plugin.slurm import Partition as SlurmPartition
from slurm_plugin.wire import Action, Estimated, Input, Submission

State = Literal["passed", "rewritten", "queued", "tracing", "applied", "released", "expired", "failed"]

OPT_OUT = "gpumem=off"
_OBSERVED = "only observed"

_ONLY_OVERSUBSCRIBE = (None, 1)  # `shared`: 0 --exclusive, 1 --oversubscribe, 2 =user, 3 =mcs

_STEP_OPTIONS = re.compile(
    r"\bsrun\b[^\n;|&]*?\s(--gres\b|--gpus|-G|--gpu-bind|--cpus-per-gpu|--mem-per-gpu|--ntasks-per-gpu|--tres-per-task)"
)
_STEP_VARIABLES = re.compile(
    r"\bSLURM_(GPUS|GPUS_PER_\w+|GRES|CPUS_PER_GPU|MEM_PER_GPU|NTASKS_PER_GPU|TRES_PER_TASK)\b"
)

# What a training starts with, itself or by way of another script or a container. A job without any of it is
# not held for a trace that would only find out that it is not PyTorch.
_STARTS_PYTHON = re.compile(
    r"python|\bpy\w*|\.py\b|torch|accelerate|deepspeed|lightning|composer|\.sh\b|\b(uv|poetry|pixi|conda|mamba|jupyter|papermill)\b"
    r"|\b(apptainer|singularity|enroot|make|snakemake|nextflow)\b|^\s*(exec\s+)?(bash|sh|zsh|\"?\$\{?\w+)",
    re.IGNORECASE | re.MULTILINE,
)

# A script that does any of this sets the allocator itself, or starts its programs without our variable.
_SETS_LIMITS = re.compile(r"ALLOC_CONF|memory_fraction|\benv\s+-|--export\b|--cleanenv")

# Differ from one login to the next without any bearing on what a script does.
_PASSING_VARIABLES = re.compile(
    r"(SLURM|SSH|SBATCH|XDG_SESSION)_\w*|TMPDIR|TERM|PWD|OLDPWD|SHLVL|HOSTNAME|RANDOM|SECONDS|XDG_RUNTIME_DIR|_"
)
_AFTERWARDS = {"margin", "margin_bounded", "margin_mib", "margin_from_history", "risk", "shard_mib"}
"""Settings that are applied to an estimate when a decision is made: a change of them needs no new trace."""

_CREDENTIALS = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """What is given: the settings, the catalogue's entry of each partition's GPU, and what Slurm says.

    `in_slurm` are the partitions as slurmctld knows them; None: it has not said yet.
    """

    settings: Settings
    gpus: Mapping[str, GPU]
    in_slurm: Mapping[str, SlurmPartition] | None = None


@dataclass(frozen=True)
class Candidate:
    """A job that may share its GPU: what it asks for, the partition it asks in, and that partition's GPU."""

    request: GpuRequest
    partition: Partition
    gpu: GPU


@dataclass(frozen=True)
class Known:
    """What an earlier trace of the same job came to: an estimate, or else the reason why there is none.

    It holds as long as `inputs`, the files that the run read as code, are unchanged.
    """

    estimate: Estimated | None
    failure: str | None = None
    inputs: tuple[Input, ...] = ()
    estimate_id: str | None = None


@dataclass(frozen=True)
class Share:
    """A part of a GPU: its shards, and what they are made for (bytes): the estimate, and that with margin.

    `export` are variables that hold PyTorch to it, `limit_bytes` is what the job can take then.
    """

    shards: int
    needed_bytes: int
    promised_bytes: int
    limit_bytes: int | None = None
    export: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What happens to a job at submission, and what to say about it."""

    action: Action
    state: State
    reason: str | None = None
    asked: str | None = None
    got: str | None = None
    set: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    export: dict[str, str] = field(default_factory=dict)
    begin_in_s: int | None = None
    message: str | None = None
    share: Share | None = None
    trace: bool = False
    """Whether its script is to be traced."""


def candidate(submission: Submission, site: Site) -> Candidate:
    """The GPU request of a job that may be rewritten.

    Raises:
        Unsupported: the job has to pass as it is; the text says why.
    """
    name, partition = _partition(submission, site)
    _check_script(submission)
    _check_placement(submission)
    fields = _request_fields(submission)
    request = gres.single_gpu(fields, tasks=submission.num_tasks or 1)
    if request.type and not site.gpus[name].is_called(normalised(request.type)):
        raise Unsupported(f"asks for a GPU of type {request.type}; the partition's is {partition.gpu}")
    return Candidate(request=request, partition=partition, gpu=site.gpus[name])


def decide(
    submission: Submission,
    job: Candidate,
    known: Known | None,
    settings: Settings,
    calibration: Calibration,
    work: str,
    *,
    busy: bool = False,
) -> Decision:
    """What happens to a job that may be rewritten.

    Args:
        submission: the job.
        job: what `candidate` made of it.
        known: an earlier result for the same fingerprint and inputs, if there is one.
        settings: of the service.
        calibration: the margins as of now.
        work: the job's fingerprint.
        busy: so many scripts wait for their trace that this one would not be done within its budget.
    """
    asked = job.request.asked
    whole = job.partition.shards_per_gpu
    fields = _request_fields(submission)
    if job.partition.observe:
        if known is None:
            return replace(passed(_OBSERVED, asked), trace=not busy)
        part = share(known, job, submission, settings, calibration, work, at_submission=False)
        return replace(passed(observed(part), asked), share=None if isinstance(part, str) else part)
    if known is not None:
        part = share(known, job, submission, settings, calibration, work, at_submission=True)
        if isinstance(part, str):
            return replace(passed(part, asked), message=f"this job keeps a whole GPU: {part}")
        shards = part.shards
        return Decision(
            "rewrite",
            "rewritten",
            asked=asked,
            got=f"shard:{shards}",
            set=gres.as_shards(fields, job.request, shards),
            environment=dict.fromkeys(gres.LEFTOVER_VARIABLES, ""),
            export=dict(part.export),
            message=f"this job gets {_memory(shards, settings.estimate)} of a shared GPU (shard:{shards})"
            f"{', and PyTorch is held to it' if part.export else ''}; for a whole one: --comment={OPT_OUT}",
            share=part,
        )
    if not settings.defer.enabled:
        return replace(passed("not known yet, and jobs are not held for a trace", asked), trace=not busy)
    if busy:
        return passed("too many scripts wait for their trace", asked)
    budget = settings.defer.budget_s
    return Decision(
        "defer",
        "queued",
        asked=asked,
        got=f"shard:{whole}",
        set=gres.as_shards(fields, job.request, whole),
        environment=dict.fromkeys(gres.LEFTOVER_VARIABLES, ""),
        begin_in_s=budget,
        message=f"finding out how much GPU memory this job needs; it is held for {budget} s at most "
        f"(not at all with --comment={OPT_OUT})",
        trace=True,
    )


def share(
    known: Known,
    job: Candidate,
    submission: Submission,
    settings: Settings,
    calibration: Calibration,
    work: str,
    *,
    at_submission: bool,
) -> Share | str:
    """The part of a GPU that suffices for a job; or why it needs all of it. Arguments as for `decide`.

    Only at its submission a job can be put under the memory guard: later its environment cannot be changed.
    """
    estimate = known.estimate
    if estimate is None:
        return known.failure or "no estimate"
    if not estimate.fits:
        return f"does not fit on {estimate.gpu} as estimated"
    if work in calibration.too_small:
        return "ran out of GPU memory in a part of one"
    shard_bytes = settings.estimate.shard_mib * MIB

    def made_for(needed: int) -> Share:
        like_it = Job(
            job.gpu.key, estimate.status, needed, work, script_label(submission.uid, script_name(submission))
        )
        promised = calibration.bound(like_it).bytes
        return Share(-(-min(promised, job.gpu.usable_bytes) // shard_bytes), needed, promised)

    part = made_for(estimate.peak_bytes)
    wants_least = settings.estimate.reserve == "least" and estimate.least_bytes is not None
    if not settings.guard.enabled:
        if wants_least:  # the site holds PyTorch to it by other means
            part = made_for(estimate.least_bytes or estimate.peak_bytes)
    elif at_submission and estimate.guard is not None and not calibration.has_escaped(work):
        held = None
        if wants_least:
            least = made_for(estimate.least_bytes or estimate.peak_bytes)
            tried = [shards for shards in estimate.guard.shards if least.shards <= shards < part.shards]
            if tried:
                held = _held(replace(least, shards=min(tried)), estimate, job, submission, shard_bytes)
        if held is None and part.shards >= estimate.guard.peak_shards:
            held = _held(part, estimate, job, submission, shard_bytes)
        part = held or part
    if part.shards >= job.partition.shards_per_gpu:
        return "needs the whole GPU"
    return part


def _held(
    part: Share, estimate: Estimated, job: Candidate, submission: Submission, shard_bytes: int
) -> Share | None:
    """The same under the memory guard; None where it might not hold, or would change what the user set."""
    outside, usable = estimate.outside_allocator_bytes, job.gpu.usable_bytes
    text = guard.fraction(part.shards * shard_bytes, outside, usable)
    if text is None or estimate.guard is None or _SETS_LIMITS.search(submission.script or ""):
        return None
    if not guard.same_settings(submission.environment, estimate.torch_version, estimate.guard.alloc_conf):
        return None
    export = guard.variables(submission.environment, estimate.torch_version, text)
    if export is None:
        return None
    return replace(part, limit_bytes=guard.allocator_bytes(text, usable) + outside, export=export)


def script_name(submission: Submission) -> str | None:
    """The name of the script's file."""
    return PurePath(submission.argv[0]).name or None if submission.argv else None


def passed(reason: str, asked: str | None = None) -> Decision:
    """A job that is left as it is."""
    return Decision("pass", "passed", reason, asked)


def observed(part: Share | str) -> str:
    """Why a job of a partition that is only observed passes, with what it would have got."""
    would = f"keep its GPU: {part}" if isinstance(part, str) else f"get shard:{part.shards}"
    return f"{_OBSERVED}: would {would}"


def asked_text(submission: Submission) -> str | None:
    """The GPU request as it stands, for the history, whether or not it can be rewritten."""
    fields = [value for value in _request_fields(submission).values() if value]
    return re.sub(r"gres[:/]", "", ",".join(fields))[:200] or None


def fingerprint(
    submission: Submission, partition: Partition, estimate: Estimate, *, guarded: bool = False
) -> str:
    """The same for two submissions of the same work: SHA-256 (hex) over all that decides their estimate."""
    environment = {
        name: value
        for name, value in submission.environment.items()
        if not _PASSING_VARIABLES.fullmatch(name)
    }
    script = submission.script or ""
    named = {"ACCOUNT": submission.account, "PARTITION": submission.partition, "QOS": submission.qos}
    what = [
        3,  # version of this list
        submission.uid,
        essence.of_script(script),
        [value for name, value in named.items() if f"SLURM_JOB_{name}" in script],
        submission.argv[1:],  # the script itself is there as text
        submission.work_dir,
        (submission.array_inx or "").partition("%")[0],
        sorted(environment.items()),
        partition.gpu,
        estimate.model_dump(mode="json", exclude=_AFTERWARDS),
        *([estimate.shard_mib] if guarded else ()),  # the guard is tried for whole shards
    ]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def storable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be written to the database: none whose name looks like a credential's."""
    return {name: value for name, value in environment.items() if not _CREDENTIALS.search(name)}


def unusable(name: str, partition: Partition, in_slurm: SlurmPartition | None) -> str | None:
    """Why no job of a partition can be given shards; None: they can.

    Slurm refuses a job that asks for shards where there are none, and lets it wait for ever where a GPU has
    fewer than it asks for; where a GPU has more, all the shards that we know of are not a whole GPU.
    """
    if in_slurm is None:
        return f"Slurm has no partition {name}"
    if in_slurm.per_gpu_defaults:  # with shards its jobs would get less than their users count on
        return f"partition {name} has JobDefaults per GPU"
    if partition.observe:  # nobody asks for any yet
        return None
    if not in_slurm.shards_per_gpu:
        return f"no node of partition {name} has shards in Slurm"
    if in_slurm.shards_per_gpu != {partition.shards_per_gpu}:
        found = " or ".join(f"{count:g}" for count in sorted(in_slurm.shards_per_gpu))
        ours = partition.shards_per_gpu
        return f"a GPU of partition {name} has {found} shards in Slurm, {ours} in gpumem.toml"
    return None


def _partition(submission: Submission, site: Site) -> tuple[str, Partition]:
    name = submission.partition or ""
    partition = site.settings.partitions.get(name)
    if partition is None or not partition.enabled:
        raise Unsupported(f"partition {name or 'unknown'} is not switched on")
    if site.in_slurm is None:
        raise Unsupported("gpumemd has only just started")
    if problem := unusable(name, partition, site.in_slurm.get(name)):
        raise Unsupported(problem)
    if OPT_OUT in (submission.comment or ""):
        raise Unsupported("opted out")
    if submission.uid == 0:
        raise Unsupported("a job of root")
    return name, partition


def _check_script(submission: Submission) -> None:
    if submission.too_long:
        raise Unsupported("script or arguments are too long")
    if not submission.utf8:
        raise Unsupported("script, arguments or environment are not UTF-8 text")
    if not submission.script:
        raise Unsupported("no batch script")
    if not submission.work_dir:
        raise Unsupported("no working directory")
    text = _commands(submission.script)
    if not _STARTS_PYTHON.search(submission.script.partition("\n")[0] + "\n" + text):
        raise Unsupported("nothing in the script starts Python")
    if _STEP_OPTIONS.search(text):
        raise Unsupported("srun asks for GPUs in the script")
    if _STEP_VARIABLES.search(text):
        raise Unsupported("the script uses a variable that Slurm sets from the GPU request")


def _check_placement(submission: Submission) -> None:
    """Everything that shards cannot keep, or that makes the job more than one process on one GPU."""
    unsupported = {
        "heterogeneous job": submission.het_job_offset is not None,
        "--exclusive": submission.shared not in _ONLY_OVERSUBSCRIBE,
        "--mem-per-gpu": bool(submission.mem_per_tres),
        "--cpus-per-gpu": bool(submission.cpus_per_tres),
        "--gpu-freq": bool(submission.tres_freq),
        "--gpu-bind": bool(submission.tres_bind),
        "--ntasks-per-gpu": submission.ntasks_per_tres is not None,
        "more than one node": max(submission.min_nodes or 1, submission.max_nodes or 1) > 1,
        "more than one task": max(submission.num_tasks or 1, submission.ntasks_per_node or 1) > 1,
    }
    for reason, applies in unsupported.items():
        if applies:
            raise Unsupported(reason)


def _request_fields(submission: Submission) -> dict[str, str]:
    return {name: getattr(submission, name) for name in gres.REQUEST_FIELDS}


def _commands(script: str) -> str:
    """The script without whole-line comments, and with continued lines joined."""
    joined = script.replace("\\\n", " ")
    return "\n".join(line for line in joined.splitlines() if not line.lstrip().startswith("#"))


def _memory(shards: int, estimate: Estimate) -> str:
    return f"{shards * estimate.shard_mib * MIB / GIB:.4g} GiB"
