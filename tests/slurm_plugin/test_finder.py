"""The search for the jobs of decisions, with a Slurm that is slow or away."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping

import pytest

from slurm_plugin import finder
from slurm_plugin.finder import JobFinder
from slurm_plugin.slurm import Job, SlurmError

JOB = Job(7, 1000, "PENDING")


class Slurm:
    """Answers slowly, is away for `away` searches, and has then these jobs."""

    def __init__(self, jobs: Mapping[str, Job], away: int = 0, takes_s: float = 0) -> None:
        self.jobs = jobs
        self.away = away
        self.takes_s = takes_s

    def find(self, wanted: Mapping[str, int]) -> dict[str, Job]:
        time.sleep(self.takes_s)
        if self.away:
            self.away -= 1
            raise SlurmError("Unable to contact slurm controller (connect failure)")
        return {decision: self.jobs[decision] for decision in wanted if decision in self.jobs}


@pytest.fixture
def told() -> queue.Queue[Job | None]:
    return queue.Queue()


@pytest.fixture
def threads() -> Iterator[list[JobFinder]]:
    started: list[JobFinder] = []
    yield started
    for thread in started:
        thread.stop()
        thread.join()


def expect(slurm: Slurm, told: queue.Queue[Job | None], threads: list[JobFinder]) -> None:
    threads.append(JobFinder(slurm))  # type: ignore[arg-type]
    threads[-1].start()
    threads[-1].expect("d1", 1000, told.put)


@pytest.mark.parametrize("jobs", [{"d1": JOB}, {}])
def test_only_slurm_itself_says_that_there_is_no_job(
    jobs: Mapping[str, Job],
    told: queue.Queue[Job | None],
    threads: list[JobFinder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finder, "_GIVE_UP_S", 0.1)
    monkeypatch.setattr(finder, "_PAUSE_S", 0.1)
    slurm = Slurm(jobs, away=4)
    expect(slurm, told, threads)
    assert told.get(timeout=60) == jobs.get("d1")
    assert slurm.away == 0


def test_a_search_that_took_long_does_not_put_off_the_next_for_minutes(
    told: queue.Queue[Job | None], threads: list[JobFinder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "_LONGEST_PAUSE_S", 0.5)
    expect(Slurm({"d1": JOB}, away=1, takes_s=1), told, threads)
    assert told.get(timeout=20) == JOB
