from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from history.wire import Measurement
from prolog import spool as spool_module
from prolog.delivery import to_service
from prolog.sender import FIRST_PAUSE_S, LONGEST_PAUSE_S, keep_trying
from prolog.spool import MAX_FILE_BYTES, Malformed, Spool, SpoolProblem, Undelivered, waiting
from tests.prolog.pretend_node import REPOSITORY, Service


def measurement(job_id: int) -> Measurement:
    return Measurement(job_id=job_id, node="n1", gpus=[], ended_at=datetime.now(UTC))


class Receiver:
    """Takes measurements; counts how often each id was offered."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.calls = 0
        self.down = False
        self.dislikes: set[int] = set()

    def __call__(self, measurements: Sequence[Measurement]) -> set[str]:
        self.calls += 1
        if self.down:
            raise Undelivered("down")
        if any(m.job_id in self.dislikes for m in measurements):
            raise Malformed("not liked")
        for m in measurements:
            self.taken[m.id] = self.taken.get(m.id, 0) + 1
        return {m.id for m in measurements}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "var" / "spool"


@pytest.fixture
def spool(folder: Path, tmp_path: Path) -> Spool:
    return Spool((folder, tmp_path / "fallback"))


def test_a_measurement_is_one_private_file(spool: Spool, folder: Path) -> None:
    kept = measurement(1)
    path = spool.store(kept)
    assert path == folder / f"{kept.id}.json"
    assert Measurement.model_validate_json(path.read_bytes()) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o755
    assert os.listdir(folder) == [path.name]


def test_flush_sends_all_and_leaves_nothing(spool: Spool, folder: Path) -> None:
    ids = {Path(spool.store(measurement(job))).stem for job in range(1, 150)}
    receiver = Receiver()
    done = spool.flush(receiver)
    assert (done.sent, done.left, done.set_aside, done.reason) == (149, 0, 0, None)
    assert receiver.taken == dict.fromkeys(ids, 1)
    assert receiver.calls == 3
    assert waiting(folder) == 0


def test_while_the_service_is_down_everything_stays(spool: Spool, folder: Path) -> None:
    for job in range(1, 200):
        spool.store(measurement(job))
    receiver = Receiver()
    receiver.down = True
    done = spool.flush(receiver)
    assert (done.sent, done.left, done.reason) == (0, 199, "down")
    assert receiver.calls == 1  # it does not knock again and again
    assert waiting(folder) == 199


def test_what_the_service_does_not_name_stays(spool: Spool, folder: Path) -> None:
    first = spool.store(measurement(1))
    spool.store(measurement(2))
    done = spool.flush(lambda _: {first.stem})
    assert (done.sent, done.left) == (1, 1)
    assert waiting(folder) == 1


def test_a_malformed_file_blocks_no_other(spool: Spool, folder: Path) -> None:
    good = spool.store(measurement(1))
    (folder / "half.json").write_text('{"job_id": 3, "nod')
    (folder / "other.json").write_text(json.dumps({"job_id": -1, "node": "x", "gpus": []}))
    (folder / "deep.json").write_text("[" * 50_000)
    (folder / "large.json").write_text(" " * (MAX_FILE_BYTES + 1))
    (folder / "link.json").symlink_to("/etc/passwd")
    (folder / "folder.json").mkdir()
    receiver = Receiver()
    done = spool.flush(receiver)
    assert list(receiver.taken) == [good.stem]
    assert done.sent == 1
    assert done.set_aside == 3
    assert sorted(path.name for path in folder.glob("*.bad")) == ["deep.bad", "half.bad", "other.bad"]
    assert done.left == 3  # what cannot be read is neither sent nor touched
    assert done.reason


def test_one_that_the_service_will_never_take_is_set_aside_alone(spool: Spool, folder: Path) -> None:
    for job in range(1, 6):
        spool.store(measurement(job))
    receiver = Receiver()
    receiver.dislikes = {3}
    done = spool.flush(receiver)
    assert (done.sent, done.left, done.set_aside) == (4, 0, 1)
    assert [json.loads(path.read_text())["job_id"] for path in folder.glob("*.bad")] == [3]


def test_set_aside_files_are_bounded(spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MAX_SET_ASIDE", 3)
    folder.mkdir(parents=True)
    for number in range(6):
        (folder / f"{number}.json").write_text("x")
        os.utime(folder / f"{number}.json", (number, number))
    spool.flush(Receiver())
    assert sorted(path.name for path in folder.glob("*.bad")) == ["3.bad", "4.bad", "5.bad"]


def test_two_flushers_at_once_send_each_measurement_once(spool: Spool, folder: Path) -> None:
    for job in range(1, 300):
        spool.store(measurement(job))
    receiver = Receiver()

    def slow(measurements: Sequence[Measurement]) -> set[str]:
        time.sleep(0.05)
        return receiver(measurements)

    threads = [threading.Thread(target=Spool((folder,)).flush, args=(slow,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(receiver.taken.values()) == {1}
    assert len(receiver.taken) == 299
    assert waiting(folder) == 0


def test_storing_while_flushing_loses_nothing(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from datetime import UTC, datetime\n"
        "from history.wire import Measurement; from prolog.spool import Spool\n"
        "for job in range(1, 101):\n"
        "    Spool((Path(sys.argv[1]),)).store(Measurement(job_id=job, node='n', gpus=[], ended_at=datetime.now(UTC)))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], env={"PYTHONPATH": str(REPOSITORY)})
        for _ in range(2)
    ]
    receiver = Receiver()
    while any(writer.poll() is None for writer in writers):
        Spool((folder,)).flush(receiver)
    Spool((folder,)).flush(receiver)
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(receiver.taken) == 200
    assert waiting(folder) == 0


def test_a_folder_that_fails_is_passed_over(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    fallback = tmp_path / "fallback"
    path = Spool((blocked / "spool", fallback)).store(measurement(1))
    assert path.parent == fallback
    with pytest.raises(SpoolProblem, match="file"):
        Spool((blocked / "spool",)).store(measurement(1))


def test_the_number_of_files_is_bounded(spool: Spool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MAX_FILES", 2)
    paths = [spool.store(measurement(job)) for job in range(1, 5)]
    assert [path.parent == folder for path in paths] == [True, True, False, False]
    with pytest.raises(SpoolProblem, match="holds 2 measurements"):
        spool.store(measurement(5))


def test_leftovers_of_killed_writers_go(spool: Spool, folder: Path) -> None:
    spool.store(measurement(1))
    for name, age_s in ((".old.json.1.tmp", 7200), (".new.json.2.tmp", 5)):
        (folder / name).write_text("half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    spool.flush(Receiver())
    assert os.listdir(folder) == [".new.json.2.tmp"]


def test_without_patience_nothing_is_sent_and_nothing_lost(spool: Spool, folder: Path) -> None:
    spool.store(measurement(1))
    receiver = Receiver()
    done = spool.flush(receiver, patience_s=0)
    assert (done.left, done.reason, receiver.calls) == (1, "not enough time", 0)
    busy = os.open(folder, os.O_RDONLY)
    fcntl.flock(busy, fcntl.LOCK_EX)
    done = spool.flush(receiver, patience_s=0.1)
    os.close(busy)
    assert (done.left, receiver.calls) == (1, 0)
    assert "another process is sending" in (done.reason or "")
    assert spool.flush(receiver).sent == 1


# ---- the service


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Undelivered), (403, Undelivered), (500, Undelivered), (503, Undelivered), (422, Malformed)],
)
def test_what_the_service_says_is_understood(service: Service, status: int, error: type[Exception]) -> None:
    deliver = to_service(service.url, 2.0, None)
    with pytest.raises(Undelivered):
        deliver([measurement(1)])
    service.start()
    kept = measurement(1)
    assert deliver([kept]) == deliver([kept]) == {kept.id}
    assert service.jobs() == [1]
    service.status = status
    with pytest.raises(error):
        deliver([kept])


def test_a_wrong_service_address_is_no_crash() -> None:
    with pytest.raises(Undelivered, match="neither unix:PATH"):
        to_service("ftp://x", 1.0, None)([measurement(1)])


# ---- the last resort


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_memory_is_kept_for_an_hour_with_growing_pauses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    receiver = Receiver()
    receiver.down = True
    clock = Clock()
    stuck = Spool((tmp_path / "file" / "spool",))
    assert not keep_trying(measurement(1), stuck, receiver, sleep=clock.sleep, clock=clock)
    assert 3600 <= clock.now < 3660
    assert clock.pauses[:3] == [FIRST_PAUSE_S, FIRST_PAUSE_S * 2, FIRST_PAUSE_S * 4]
    assert max(clock.pauses) == LONGEST_PAUSE_S


def test_memory_goes_where_there_is_room_first(tmp_path: Path, spool: Spool, folder: Path) -> None:
    receiver = Receiver()
    clock = Clock()
    assert keep_trying(measurement(1), spool, receiver, sleep=clock.sleep, clock=clock)
    assert len(receiver.taken) == 1
    receiver.down = True
    assert keep_trying(measurement(2), spool, receiver, sleep=clock.sleep, clock=clock)
    assert waiting(folder) == 1
    assert not clock.pauses
