"""What the demo sees: steps out of looks at Slurm and the history, and the checks that decide its exit code."""

from __future__ import annotations

from history.wire import JobRecord
from testbed.demo import check
from testbed.story import JobStory, Place, Step, granted, place, shards_of

GIB = 1024**3
WHOLE = 80
GPU = Place("n1", 0)


def record(**changes: object) -> JobRecord:
    return JobRecord.model_validate(
        {"job_id": 1, "asked": "gpu:1", "got": "shard:80", "action": "defer", **changes}
    )


def slurm(state: str, tres: str = "gres:shard:80", gres: str = "", exit_code: str = "0:0") -> dict[str, str]:
    return {"JobState": state, "TresPerNode": tres, "GRES": gres, "Nodes": "n1", "ExitCode": exit_code}


def shared_story(name: str, job_id: int, measured: int = 20 * GIB) -> JobStory:
    story = JobStory(name, job_id)
    applied = record(job_id=job_id, state="applied", got="shard:24", estimated_peak_bytes=21 * GIB)
    done = applied.model_copy(update={"measured_peak_bytes": measured})
    story.look(slurm("PENDING"), record(job_id=job_id, state="queued"), WHOLE, 0)
    story.look(slurm("PENDING", "gres:shard:24"), applied, WHOLE, 1)
    story.look(slurm("RUNNING", "gres:shard:24", "shard:a100:24(IDX:0)"), applied, WHOLE, 2)
    story.look(slurm("COMPLETED", "gres:shard:24"), done, WHOLE, 3)
    return story


def hello_story() -> JobStory:
    story = JobStory("hello", 3)
    passed = record(action="pass", state="passed", got=None, reason="nothing in the script starts Python")
    story.look(slurm("RUNNING", "gres:gpu:1", "gpu:a100:1(IDX:0)"), passed, WHOLE, 1)
    story.look(slurm("COMPLETED", "gres:gpu:1"), passed, WHOLE, 2)
    return story


def test_each_step_is_noted_once_in_order() -> None:
    story = shared_story("gpt2", 2)
    wanted = [Step.DEFERRED, Step.TRACED, Step.REWRITTEN, Step.RUNNING, Step.EPILOG, Step.HISTORY]
    assert list(story.steps) == wanted
    assert list(story.times.values()) == [0, 1, 1, 2, 3, 3]
    assert story.steps[Step.RUNNING] == "on n1 GPU 0 with shard:24"
    assert story.place is None


def test_a_job_without_an_estimate_keeps_its_gpu() -> None:
    story = JobStory("odd", 4)
    story.look(slurm("PENDING"), record(state="released", reason="line 3: KeyError"), WHOLE, 1)
    assert story.steps[Step.TRACED] == "line 3: KeyError"
    assert Step.KEPT in story.steps
    assert Step.REWRITTEN not in story.steps


def test_slurm_texts() -> None:
    running = slurm("RUNNING", gres="gpu:a100:1(IDX:1)")
    assert place(running) == Place("n1", 1)
    assert granted(running) == "gpu:1"
    assert place(slurm("PENDING", gres="gpu:a100:1(IDX:1)")) is None
    assert place(slurm("RUNNING")) is None
    assert [shards_of(text) for text in ("gres:shard:24", "shard:24", "gres/shard=7", "gpu:1")] == [
        24,
        24,
        7,
        None,
    ]


def failed(
    stories: list[JobStory], shared: Place | None = GPU, drained: dict[str, str] | None = None
) -> list[str]:
    return [text for text, ok in check(stories, shared, drained or {}) if not ok]


def test_all_checks_hold_when_all_was_seen() -> None:
    assert failed([shared_story("resnet50", 1), shared_story("gpt2", 2), hello_story()]) == []


def test_what_was_not_seen_fails_its_check() -> None:
    good = [shared_story("resnet50", 1), shared_story("gpt2", 2), hello_story()]
    assert len(failed(good, shared=None)) == 1
    assert failed(good, drained={"n1": "Prolog error"}) == ["no node was drained"]

    too_big = shared_story("resnet50", 1, measured=25 * GIB)
    assert failed([too_big, *good[1:]]) == ["resnet50: measured peak is within what it got"]

    crashed = shared_story("gpt2", 2)
    crashed.slurm = slurm("FAILED", exit_code="1:0")
    assert failed([good[0], crashed, good[2]]) == ["gpt2: ended well"]

    assert len(failed([*good[:2], JobStory("hello", 3)])) == 1
    assert failed([good[0], JobStory("gpt2", 2), good[2]])[0].startswith("gpt2: deferred")
