"""The queue of traces, and one run as its user: real processes of a real ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.traces import Result, Task, Traced, TraceError, TraceQueue, UserRun, read_result
from slurm_plugin.wire import Submission
from testbed.cluster import make_folder
from testbed.users import User, open_copy
from tests.slurm_plugin.running import ESTIMATE

ESTIMATED = (
    b'{"status": "exact", "peak_bytes": 9, "reserved_peak_bytes": 8, "gpu": "g", "fits": true, "shards": 2}'
)


def task(name: str, fingerprint: str = "f", uid: int = 1000, **fields: object) -> Task:
    submission = Submission.model_validate({"v": 1, "uid": uid, **fields})
    return Task(decision_id=name, fingerprint=fingerprint, submission=submission, gpu="a100-80gb")


class Recorder:
    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[tuple[list[str], Result]] = []
        self.done = threading.Event()

    def start(self, task: Task) -> None:
        self.started.append(task.decision_id)

    def finish(self, tasks: list[Task], result: Result) -> None:
        self.finished.append(([task.decision_id for task in tasks], result))
        self.done.set()


def test_equal_scripts_share_one_run() -> None:
    recorder, go, runs = Recorder(), threading.Event(), []

    def trace(task: Task) -> Traced:
        runs.append(task.decision_id)
        go.wait(60)
        return read_result(ESTIMATED, b"", 0)

    queue = TraceQueue(trace, 1, recorder.start, recorder.finish)
    queue.add(task("a"))
    queue.add(task("b"))
    queue.start()
    while not runs:
        time.sleep(0.01)
    queue.add(task("c"))  # joins the run under way
    assert queue.waiting() == 1
    go.set()
    assert recorder.done.wait(60)
    queue.stop()
    assert runs == ["a"]
    assert sorted(recorder.started) == ["a", "b", "c"]
    assert recorder.finished[0][0] == ["a", "b", "c"]


def test_a_task_that_joins_is_told_of_its_start_before_its_result() -> None:
    running, joining, go = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    def trace(task: Task) -> Traced:
        running.set()
        go.wait(60)
        return read_result(ESTIMATED, b"", 0)

    def started(task: Task) -> None:
        if task.decision_id == "b":
            joining.set()
            time.sleep(0.3)  # the run ends meanwhile
        told.append(f"{task.decision_id} began")

    def finished(tasks: list[Task], result: Result) -> None:
        told.extend(f"{task.decision_id} ended" for task in tasks)

    queue = TraceQueue(trace, 1, started, finished)
    queue.add(task("a"))
    queue.start()
    assert running.wait(60)
    adding = threading.Thread(target=queue.add, args=[task("b")])
    adding.start()
    assert joining.wait(60)
    go.set()
    adding.join()
    end = time.monotonic() + 60
    while len(told) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    queue.stop()
    assert told == ["a began", "b began", "a ended", "b ended"]


def test_no_more_runs_at_once_than_workers_and_a_failure_ends_no_worker() -> None:
    recorder, lock = Recorder(), threading.Lock()
    now, most = 0, 0

    def trace(task: Task) -> Traced:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        raise RuntimeError("bug")

    queue = TraceQueue(trace, 2, recorder.start, recorder.finish)
    for number in range(8):
        queue.add(task(str(number), fingerprint=str(number)))
    assert queue.expected_wait_s() > 0
    queue.start()
    end = time.monotonic() + 60
    while len(recorder.finished) < 8 and time.monotonic() < end:
        time.sleep(0.01)
    queue.stop()
    assert most == 2
    assert all(isinstance(result, TraceError) for _, result in recorder.finished)
    assert len(recorder.finished) == 8


def test_a_stopped_queue_tells_nobody() -> None:
    recorder, running = Recorder(), threading.Event()

    def trace(task: Task) -> Traced:
        running.set()
        time.sleep(0.1)
        raise TraceError("killed")

    queue = TraceQueue(trace, 1, recorder.start, recorder.finish)
    queue.add(task("a"))
    queue.start()
    running.wait(60)
    queue.stop()
    time.sleep(0.2)
    assert recorder.finished == []


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (b"", "exit code 3: boom"),
        (b"null", "exit code 3: boom"),
        (b"[" * 100_000, "exit code 3: boom"),
        (b'{"status": "exact"}', "exit code 3: boom"),
        (ESTIMATED.replace(b"9", b"-9"), "exit code 3: boom"),
        (ESTIMATED.replace(b'"shards": 2', b'"shards": 0'), "exit code 3: boom"),
        (b'{"status": "failed", "reason": "train.py line 3: no"}', "^train.py line 3: no$"),
    ],
)
def test_only_whole_results_are_believed(output: bytes, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read_result(output, b"first\nboom\n", 3)


# ---- as the user


@pytest.fixture
def state(root: None) -> Iterator[Path]:
    folder = make_folder()
    open_copy(ESTIMATE, folder).rename(folder / "estimate.py")
    yield folder
    shutil.rmtree(folder)


def user_run(state: Path, timeout_s: float = 60) -> UserRun:
    run = UserRun(["/usr/bin/python3", "-I", str(state / "estimate.py")], state, timeout_s)
    run.prepare()
    return run


def as_user(user: User, fake: str, **fields: object) -> Task:
    script = f"#!/bin/bash\n: fake {fake}\n"
    given = {"script": script, "work_dir": str(user.home), "argv": ["/x/train.sh", "--lr", "a b; $(c)"]}
    return task("d1", uid=user.uid, **{**given, **fields})


def test_a_trace_is_the_users_alone(state: Path, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVICE", "x")
    report = alice.home / "identity.json"
    sent = {"MINE": "1", "LD_PRELOAD": "/evil.so", "GPUMEM_CONFIG": "/evil", "PATH": "/usr/bin", "a b": "x"}
    result = user_run(state)(as_user(alice, f"shards=3 report={report}", environment=sent))
    assert result.estimate.shards == 3
    facts = json.loads(report.read_text())
    assert (facts["uid"], facts["gid"]) == (alice.uid, alice.gid)
    assert set(facts["groups"]) == set(os.getgrouplist(alice.name, alice.gid))
    environment = facts["environment"]
    environment.pop("LC_CTYPE", None)  # set by Python itself
    assert environment == {
        "HOME": "/nonexistent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "USER": alice.name,
        "LOGNAME": alice.name,
        "PATH": "/usr/bin",
        "MINE": "1",
    }
    assert facts["arguments"] == ["--", "--lr", "a b; $(c)"]  # not options of gpumem
    assert facts["options"]["--gpu"] == "a100-80gb"
    assert facts["cwd"] == str(alice.home)
    assert (facts["script_mode"], facts["folder_mode"]) == ("0o700", "0o700")
    assert list((state / "traces").iterdir()) == []


def test_a_trace_without_end_is_killed(state: Path, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.traces._GRACE_S", 0.2)
    report = alice.home / "endless.json"
    began = time.monotonic()
    with pytest.raises(TraceError, match="did not end within 2 s"):
        user_run(state, timeout_s=2)(as_user(alice, f"sleep=60 report={report}"))
    assert time.monotonic() - began < 20
    assert not Path(f"/proc/{json.loads(report.read_text())['pid']}").exists()
    assert list((state / "traces").iterdir()) == []


def test_stop_kills_what_runs(state: Path, alice: User) -> None:
    run, failures = user_run(state), []

    def trace() -> None:
        try:
            run(as_user(alice, "sleep=60"))
        except TraceError as error:
            failures.append(str(error))

    thread = threading.Thread(target=trace)
    thread.start()
    time.sleep(0.3)
    run.stop()
    thread.join(60)
    assert not thread.is_alive() and len(failures) == 1


def test_leftovers_of_an_earlier_life_are_removed(state: Path) -> None:
    (state / "traces" / "old").mkdir(parents=True)
    (state / "traces" / "old" / "job.sh").write_text("x")
    user_run(state)
    assert list((state / "traces").iterdir()) == []


def test_a_user_the_controller_does_not_know_is_a_clear_failure(state: Path) -> None:
    with pytest.raises(TraceError, match="does not know user id 54321"):
        user_run(state)(task("d1", uid=54321, script="#!/bin/sh\n", work_dir="/"))
