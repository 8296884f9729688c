"""Whether a failed job ran out of GPU memory, from its error output."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from history.models import Decision
from history.store import DecisionChanges, Store
from history.wire import Measurement
from slurm_plugin.postmortem import Postmortem
from slurm_plugin.slurm import SlurmError
from slurm_plugin.writer import Writer
from testbed.cluster import make_folder

NOBODY = 65534
RAN_OUT = "step 3\nTraceback:\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


class Files:
    """Slurm's answer: a folder with a file for each job; a job without one is not known to Slurm any more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def error_file(self, job_id: int) -> Path | None:
        if not (self.folder / str(job_id)).exists():
            raise SlurmError("scontrol: Invalid job id specified")
        return self.folder / str(job_id)


class Room:
    """A history, a writer and the thread that is tested."""

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder)
        self.store = Store(f"sqlite:///{folder}/history.db")
        self.store.migrate()
        self.writer = Writer(self.store)
        self.told: list[int] = []
        self.thread = Postmortem(self.store, self.writer, self.files, self.again, lambda: self.told.append(1))
        self.writer.start()
        self.thread.start()

    def again(self, decision: Decision, measurement: Measurement) -> DecisionChanges:
        assert decision.job_id == measurement.job_id
        return {"state": "requeueing"}

    def fail(
        self,
        job_id: int,
        text: str | None,
        promised: int | None = 5,
        exit_code: int = 256,
        action: str = "rewrite",
    ) -> None:
        self.store.add_decision(
            Decision(
                id=f"d{job_id}", user_id=NOBODY, action=action, state="rewritten", job_id=job_id,
                promised_bytes=promised,
            )
        )  # fmt: skip
        if text is not None:
            (self.files.folder / str(job_id)).write_text(text)
        ended = Measurement(job_id=job_id, node="n", gpus=[], exit_code=exit_code, ended_at=datetime.now(UTC))
        self.thread.look_at([ended])

    def found(self, job_id: int) -> bool | None:
        decision = self.store.decision_of_job(job_id)
        assert decision is not None
        return decision.out_of_memory

    def wait(self, job_id: int) -> bool | None:
        """What was found about a job, once something was."""
        end = time.monotonic() + 60
        while self.found(job_id) is None and time.monotonic() < end:
            time.sleep(0.02)
        return self.found(job_id)


@pytest.fixture
def room(root: None) -> Iterator[Room]:
    import shutil

    folder = make_folder()
    made = Room(folder)
    yield made
    made.thread.stop()
    made.writer.stop(5)
    made.store.close()
    shutil.rmtree(folder)


def test_a_job_that_says_so_ran_out_and_one_that_does_not_did_not(room: Room) -> None:
    room.fail(1, "x" * 10**6 + RAN_OUT)
    room.fail(2, "Traceback:\nValueError: no such learning rate\n")
    assert (room.wait(1), room.wait(2)) == (True, False)
    assert room.told == [1]
    states = [room.store.decision_of_job(job_id) for job_id in (1, 2)]
    assert [decision and decision.state for decision in states] == ["requeueing", "rewritten"]


def test_what_cannot_be_read_stays_unknown_and_holds_nobody_up(room: Room) -> None:
    room.fail(1, None)
    os.mkfifo(room.files.folder / "2")
    room.fail(2, None)
    (room.files.folder / "3").touch(mode=0o600)  # not the user's to read
    room.fail(3, RAN_OUT)
    room.fail(4, RAN_OUT, promised=None)  # had its whole GPU
    room.fail(5, RAN_OUT, exit_code=0)
    room.fail(6, RAN_OUT, action="pass")  # was only observed
    room.fail(7, RAN_OUT)
    assert room.wait(7) is True
    assert [room.found(job_id) for job_id in range(1, 7)] == [None] * 6
    assert all(room.thread.is_examined(job_id) for job_id in range(1, 5))


def test_a_job_is_examined_once_its_error_output_was_looked_at(room: Room) -> None:
    room.fail(1, RAN_OUT, exit_code=0)
    assert not room.thread.is_examined(1)
    assert room.thread.is_examined(2), "no decision is about it"
