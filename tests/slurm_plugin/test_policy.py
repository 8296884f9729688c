from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from estimator import catalog
from history.calibration import Calibration, Observation
from history.calibration import Job as CalibratedJob
from settings import GIB, Defer, Guard, Partition, Settings
from slurm_plugin.gres import Unsupported
from slurm_plugin.margins import prior
from slurm_plugin.policy import (
    Known,
    Share,
    Site,
    candidate,
    decide,
    fingerprint,
    share,
    storable_environment,
)
from slurm_plugin.slurm import Partition as InSlurm
from slurm_plugin.wire import Estimated, Submission, read_submission

PARTITION = Partition(gpu="a100-80gb", shards_per_gpu=80)
SETTINGS = Settings(
    partitions={"gpu": PARTITION, "off": Partition(enabled=False, gpu="a100-80gb", shards_per_gpu=80)}
)
A100 = catalog.load().find("a100-80gb")
IN_SLURM = InSlurm(shards_per_gpu=frozenset({80}))
SITE = Site(SETTINGS, {"gpu": A100, "off": A100}, {"gpu": IN_SLURM, "off": IN_SLURM})
PLAIN: dict[str, Any] = {
    "v": 1,
    "uid": 1000,
    "partition": "gpu",
    "tres_per_node": "gres:gpu:1",
    "script": "#!/bin/bash\npython train.py\n",
    "work_dir": "/home/u",
    "argv": ["/home/u/train.sh", "--lr", "3"],
    "environment": {"PATH": "/bin"},
}


def job(**changes: Any) -> Submission:
    return Submission.model_validate({**PLAIN, **changes})


def estimated(**changes: Any) -> Known:
    fields = {"status": "exact", "peak_bytes": 23 * GIB, "reserved_peak_bytes": 22 * GIB, "gpu": "a100-80gb"}
    return Known(Estimated.model_validate({**fields, "fits": True, **changes}))


def decision(
    known: Known | None,
    settings: Settings = SETTINGS,
    busy: bool = False,
    calibration: Calibration | None = None,
    **changes: Any,
) -> Any:
    submission = job(**changes)
    in_slurm = InSlurm(shards_per_gpu=frozenset({settings.partitions["gpu"].shards_per_gpu}))
    return decide(
        submission,
        candidate(submission, replace(SITE, settings=settings, in_slurm={"gpu": in_slurm})),
        known,
        settings,
        calibration or Calibration(settings.estimate.risk, prior(settings.estimate)),
        "f",
        busy=busy,
    )


def test_a_plain_job_may_share() -> None:
    assert candidate(job(), SITE).request.asked == "gpu:1"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_tasks": 1, "min_nodes": 1, "max_nodes": 1, "shared": 1},
        {"tres_per_node": "gres:gpu:a100:1"},
        {"tres_per_node": "gres:gpu:nvidia_a100_80gb_pcie:1"},
        {"comment": "gpumem=on"},
        {"array_inx": "1-3%2"},
        {"script": "#!/usr/bin/env python3\nimport torch\n"},
        {"script": "#!/bin/bash\nsource env.sh\n"},
        {"script": "#!/bin/bash\ncd run && apptainer exec --nv image.sif train\n"},
        {"script": "#!/bin/bash\n$TRAIN --lr 3\n"},
        {"script": "#!/bin/bash\n# srun --gres=gpu:1 was here\nsrun python train.py\n"},
        {"script": "#!/bin/bash\npython -c 'print(1)' --gpus 1\necho $SLURM_GPUS_ON_NODE\n"},
    ],
)
def test_what_may_share(changes: dict[str, Any]) -> None:
    candidate(job(**changes), SITE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": None}, "not switched on"),
        ({"partition": "other"}, "not switched on"),
        ({"partition": "gpu,other"}, "not switched on"),
        ({"partition": "off"}, "not switched on"),
        ({"comment": "x,gpumem=off"}, "opted out"),
        ({"uid": 0}, "root"),
        ({"script": None}, "no batch script"),
        ({"script": None, "too_long": True}, "too long"),
        ({"utf8": False}, "UTF-8"),
        ({"work_dir": None}, "working directory"),
        ({"tres_per_node": "gres:gpu:h100:1"}, "of type h100"),
        ({"tres_per_node": "gres:gpu:a100_40gb:1"}, "of type a100_40gb"),
        ({"tres_per_node": "gres:gpu:a10:1"}, "of type a10"),
        ({"tres_per_node": "gres:gpu:1g.5gb:1"}, "MIG"),
        ({"het_job_offset": 0}, "heterogeneous"),
        ({"shared": 0}, "--exclusive"),
        ({"shared": 2}, "--exclusive"),
        ({"mem_per_tres": "gres:gpu:1024"}, "--mem-per-gpu"),
        ({"cpus_per_tres": "gres:gpu:2"}, "--cpus-per-gpu"),
        ({"tres_freq": "gpu:low"}, "--gpu-freq"),
        ({"tres_bind": "gpu:single:1"}, "--gpu-bind"),
        ({"ntasks_per_tres": 1}, "--ntasks-per-gpu"),
        ({"num_tasks": 2}, "task"),
        ({"ntasks_per_node": 2}, "task"),
        ({"max_nodes": 2}, "node"),
        ({"script": "#!/bin/bash\n#SBATCH -J python\nhostname\nsrun ./a.out\n"}, "starts Python"),
        ({"script": "#!/bin/bash\nsrun --gres=gpu:1 python x.py\n"}, "srun"),
        ({"script": "#!/bin/bash\nsrun -n1 -G1 python x.py\n"}, "srun"),
        ({"script": "#!/bin/bash\nsrun \\\n  --gpus-per-task=1 python x.py\n"}, "srun"),
        ({"script": "#!/bin/bash\ntorchrun --nproc $SLURM_GPUS x.py\n"}, "variable"),
        ({"script": "#!/bin/bash\nexport SLURM_GPUS_PER_TASK=1\nsrun python x\n"}, "variable"),
    ],
)
def test_what_has_to_pass(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        candidate(job(**changes), SITE)


@pytest.mark.parametrize(
    ("in_slurm", "reason"),
    [
        (None, "just started"),
        ({}, "Slurm has no partition gpu"),
        ({"gpu": InSlurm(True, frozenset({80}))}, "partition gpu has JobDefaults per GPU"),
        ({"gpu": InSlurm()}, "no node of partition gpu has shards"),
        ({"gpu": InSlurm(False, frozenset({40}))}, "has 40 shards in Slurm, 80 in gpumem.toml"),
        ({"gpu": InSlurm(False, frozenset({80, 160}))}, "has 80 or 160 shards in Slurm"),
    ],
)
def test_jobs_pass_where_slurm_would_not_give_them_the_shards(
    in_slurm: dict[str, InSlurm] | None, reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        candidate(job(), replace(SITE, in_slurm=in_slurm))


def test_a_partition_can_be_observed_before_it_has_shards() -> None:
    observed = Settings(partitions={"gpu": PARTITION.model_copy(update={"observe": True})})
    assert candidate(job(), replace(SITE, settings=observed, in_slurm={"gpu": InSlurm()})).gpu == A100


def test_a_known_script_is_rewritten() -> None:
    made = decision(estimated())
    assert (made.action, made.state, made.got, made.trace) == ("rewrite", "rewritten", "shard:24", False)
    assert made.set == {"tres_per_node": "gres:shard:24"}
    assert set(made.environment) == {"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"}
    assert made.begin_in_s is None
    assert "24 GiB" in made.message and "--comment=gpumem=off" in made.message


def test_an_unknown_script_is_deferred_on_a_whole_gpu() -> None:
    made = decision(None)
    assert (made.action, made.state, made.got, made.begin_in_s) == ("defer", "queued", "shard:80", 120)
    assert made.set == {"tres_per_node": "gres:shard:80"}
    assert made.trace


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (estimated(peak_bytes=79 * GIB), "needs the whole GPU"),
        (estimated(peak_bytes=100 * GIB), "needs the whole GPU"),
        (estimated(fits=False), "does not fit on a100-80gb"),
        (Known(None, "train.py line 4: no such file"), "train.py line 4: no such file"),
    ],
)
def test_what_is_known_to_need_a_whole_gpu_keeps_it(known: Known, reason: str) -> None:
    made = decision(known)
    assert (made.action, made.set, made.begin_in_s, made.trace) == ("pass", {}, None, False)
    assert reason in made.reason and reason in made.message
    assert made.share is None


def test_shards_hold_the_estimate_and_the_margin_of_the_settings_where_nothing_is_known() -> None:
    exact, bounded = estimated(peak_bytes=10 * GIB), estimated(peak_bytes=10 * GIB, status="bounded")
    tiny = estimated(peak_bytes=GIB // 2)
    assert [decision(known).got for known in (exact, bounded, tiny)] == ["shard:11", "shard:12", "shard:1"]
    assert decision(exact).share == Share(11, 10 * GIB, int(10.3 * GIB))
    small = Settings.model_validate(
        {"estimate": {"shard_mib": 512}, "partitions": {"gpu": {"gpu": "a100-80gb", "shards_per_gpu": 160}}}
    )
    assert decision(exact, small).got == "shard:21"


def test_the_shards_of_a_known_job_follow_the_calibration() -> None:
    known = estimated(peak_bytes=10 * GIB, status="bounded")

    def learned(error: float, fingerprint: str) -> Calibration:
        made = Calibration(SETTINGS.estimate.risk, prior(SETTINGS.estimate))
        for number in range(200):
            like_it = CalibratedJob("a100-80gb", "bounded", 10 * GIB, fingerprint or f"other {number}")
            made.learn(Observation(like_it, int(10 * GIB * (1 + error))))
        return made

    assert decision(known).got == "shard:12"
    assert decision(known, calibration=learned(0.25, "")).got == "shard:13"  # jobs like it need more
    assert decision(known, calibration=learned(0.0, "")).got == "shard:10"  # 10 GiB are enough
    assert decision(known, calibration=learned(-0.15, "f")).got == "shard:9"  # this very job needs less


GUARDED = SETTINGS.model_copy(
    update={
        "guard": Guard(enabled=True),
        "estimate": SETTINGS.estimate.model_copy(update={"reserve": "least"}),
    }
)
CONTEXT = 470 * 1024**2


def guardable(**changes: Any) -> Known:
    fields = {
        "peak_bytes": 20 * GIB,
        "least_bytes": 12 * GIB,
        "outside_allocator_bytes": CONTEXT,
        "torch_version": "2.14.1+cu130",
        "guard": {"alloc_conf": "", "peak_shards": 20, "shards": [12, 14, 15, 16, 17, 18, 19]},
    }
    return estimated(**(fields | changes))


def test_a_known_job_is_held_to_the_least_in_which_a_replay_ran() -> None:
    made = decision(guardable(), GUARDED)
    # 12 GiB and the margin are 12.36 GiB; 13 shards failed in the replay
    assert (made.got, made.share.needed_bytes, made.share.promised_bytes) == (
        "shard:14",
        12 * GIB,
        int(12.36 * GIB),
    )
    (text,) = made.export.values()
    assert set(made.export) == {"PYTORCH_CUDA_ALLOC_CONF"}
    allowed = float(text.removeprefix("per_process_memory_fraction:")) * A100.usable_bytes
    assert 14 * GIB - CONTEXT - 2**20 < allowed <= 14 * GIB - CONTEXT
    assert 14 * GIB - 2**20 < made.share.limit_bytes <= 14 * GIB
    assert "PyTorch is held to it" in made.message


def test_with_the_peak_reserved_the_guard_holds_the_job_to_its_shards() -> None:
    peak = GUARDED.model_copy(update={"estimate": SETTINGS.estimate})
    made = decision(guardable(), peak)
    assert (made.got, made.share.needed_bytes) == ("shard:21", 20 * GIB)
    assert 21 * GIB - 2**20 < made.share.limit_bytes <= 21 * GIB and made.export


@pytest.mark.parametrize(
    ("known", "changes"),
    [
        (guardable(guard=None), {}),
        (guardable(torch_version="2.8.0+cu128"), {}),
        (guardable(torch_version=None), {}),
        (guardable(guard={"alloc_conf": "max_split_size_mb:64", "peak_shards": 20, "shards": [14]}), {}),
        (guardable(), {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"}}),
        (guardable(), {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}}),
        (guardable(), {"environment": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}),
        (guardable(), {"script": "#!/bin/bash\nexport PYTORCH_CUDA_ALLOC_CONF=\npython train.py\n"}),
        (guardable(), {"script": "#!/bin/bash\nenv -i /usr/bin/python train.py\n"}),
        (guardable(), {"script": "#!/bin/bash\n#SBATCH --export=NONE\npython train.py\n"}),
    ],
)
def test_a_job_that_cannot_be_held_gets_its_peak(known: Known, changes: dict[str, Any]) -> None:
    made = decision(known, GUARDED, **changes)
    assert (made.got, made.share.needed_bytes, made.share.limit_bytes) == ("shard:21", 20 * GIB, None)
    assert made.export == {}


def test_where_no_share_below_the_peak_ran_the_peak_is_held() -> None:
    made = decision(guardable(guard={"alloc_conf": "", "peak_shards": 21, "shards": [12]}), GUARDED)
    assert (made.got, made.share.needed_bytes) == ("shard:21", 20 * GIB) and made.export
    made = decision(guardable(guard={"alloc_conf": "", "peak_shards": 22, "shards": []}), GUARDED)
    assert (made.got, made.share.limit_bytes) == ("shard:21", None) and not made.export


def test_a_deferred_job_gets_its_peak() -> None:
    submission = job()
    made = share(
        guardable(),
        candidate(submission, SITE),
        submission,
        GUARDED,
        Calibration(0.01, prior(SETTINGS.estimate)),
        "f",
        at_submission=False,
    )
    assert made == Share(21, 20 * GIB, int(20.6 * GIB))


def test_work_that_has_escaped_a_limit_is_not_held_again() -> None:
    learned = Calibration(0.01, prior(SETTINGS.estimate))
    learned.learn(Observation(CalibratedJob("a100-80gb", "exact", 20 * GIB, "f"), 20 * GIB, escaped=True))
    made = decision(guardable(), GUARDED, calibration=learned)
    assert (made.got, made.export) == ("shard:21", {})


def test_work_that_ran_out_of_memory_keeps_a_whole_gpu() -> None:
    for work, action in (("f", "pass"), ("other", "rewrite")):
        learned = Calibration(0.01, prior(SETTINGS.estimate), too_small=frozenset([work]))
        assert decision(estimated(), calibration=learned).action == action


def test_a_job_that_only_fits_with_the_guard_shares_its_gpu() -> None:
    made = decision(guardable(peak_bytes=79 * GIB, guard=guardable().estimate.guard), GUARDED)
    assert made.got == "shard:14" and made.export


def test_a_site_that_holds_pytorch_itself_may_reserve_the_least() -> None:
    own = SETTINGS.model_copy(update={"estimate": GUARDED.estimate})
    made = decision(guardable(guard=None), own)
    assert (made.got, made.export, made.share.limit_bytes) == ("shard:13", {}, None)


def test_a_full_queue_holds_nobody() -> None:
    made = decision(None, busy=True)
    assert (made.action, made.set, made.trace) == ("pass", {}, False)


def test_without_deferring_the_trace_runs_beside() -> None:
    settings = SETTINGS.model_copy(update={"defer": Defer(enabled=False)})
    made = decision(None, settings)
    assert (made.action, made.set, made.trace) == ("pass", {}, True)


@pytest.mark.parametrize(
    "known, reason",
    [
        (None, "only observed"),
        (estimated(), "only observed: would get shard:24"),
        (Known(None, "it breaks"), "only observed: would keep its GPU: it breaks"),
    ],
)
def test_jobs_of_an_observed_partition_pass_with_what_they_would_have_got(
    known: Known | None, reason: str
) -> None:
    observed = PARTITION.model_copy(update={"observe": True})
    made = decision(known, SETTINGS.model_copy(update={"partitions": {"gpu": observed}}))
    assert (made.action, made.state, made.reason, made.set, made.got) == ("pass", "passed", reason, {}, None)
    assert (made.message, made.environment, made.export) == (None, {}, {})
    assert made.trace == (known is None)
    assert (made.share is not None) == reason.endswith("shard:24")


def test_the_fingerprint_is_about_the_work_only() -> None:
    def print_of(**changes: Any) -> str:
        return fingerprint(job(**changes), PARTITION, SETTINGS.estimate)

    same = [
        {"name": "other", "tres_per_node": "", "tres_per_job": "gres:gpu:1", "comment": "x"},
        {"argv": ["/elsewhere/train.sh", "--lr", "3"]},
        {"script": job().script.replace("\n", "\n#SBATCH -J other -o log/%j\n# a remark\n", 1)},
        {"environment": {"SLURM_JOB_ID": "7", "TMPDIR": "/tmp/17", "PATH": "/bin", "SSH_TTY": "x"}},
    ]
    other = [
        {"uid": 1001},
        {"script": "#!/bin/bash\n"},
        {"argv": ["/home/u/train.sh", "--lr", "4"]},
        {"work_dir": "/home/v"},
        {"array_inx": "1-3"},
        {"environment": {"PATH": "/usr/bin"}},
    ]
    assert {print_of(**changes) for changes in same} == {print_of()}
    assert len({print_of(**changes) for changes in other} | {print_of()}) == len(other) + 1
    another = PARTITION.model_copy(update={"gpu": "h100-80gb"})
    assert fingerprint(job(), another, SETTINGS.estimate) != print_of()
    more_steps = SETTINGS.estimate.model_copy(update={"steps": 4})
    assert fingerprint(job(), PARTITION, more_steps) != print_of()
    safer = SETTINGS.estimate.model_copy(update={"risk": 0.001, "margin": 0.5, "shard_mib": 512})
    assert fingerprint(job(), PARTITION, safer) == print_of(), "margins are applied afterwards"


def test_credentials_are_not_stored() -> None:
    names = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key", "DB_PASSWORD", "MY_CREDENTIALS", "PATH", "HOME"]
    assert set(storable_environment(dict.fromkeys(names, "x"))) == {"PATH", "HOME"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"v": 2, "uid": 1}',
        b'{"v": 1}',
        b'{"v": 1, "uid": -1}',
        b'{"v": 1, "uid": 1, "script": 5}',
        b'{"v": 1, "uid": 1, "argv": {}}',
        b'{"v": 1, "uid": 1, "script": "\\u0000"}',
        b'{"v": 1, "uid": 1, "script": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_malformed_submissions_are_errors(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_submission(body)


def test_bytes_that_are_no_text_are_marked() -> None:
    body = json.dumps({**PLAIN, "script": "X"}).encode().replace(b'"X"', b'"#!/bin/sh\xff"')
    assert read_submission(body).utf8 is False
    assert read_submission(json.dumps({**PLAIN, "utf8": False}).encode()).utf8 is True
