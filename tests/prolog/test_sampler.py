from __future__ import annotations

from prolog.nvml import Account, Gpu, GpuReader, NvmlProblem, Usage
from prolog.processes import Process
from prolog.sampler import HEARTBEAT_S, REOPEN_S, SAVE_INTERVAL_S, Sampler, run
from prolog.tally import Tally


class Gpus:
    """A GpuReader that answers from a table: bytes by PID, for each GPU."""

    def __init__(self) -> None:
        self.used: dict[str, dict[int, int | None]] = {"GPU-0": {}, "GPU-1": {}}
        self.problem: NvmlProblem | None = None
        self.mig = False
        self.opened = 0

    def open(self) -> GpuReader:
        self.opened += 1
        self._check()
        return self

    def gpu(self, name: int | str) -> Gpu:
        self._check()
        return Gpu(f"GPU-{name}", "model", 80, mig=self.mig)

    def any_mig(self) -> bool:
        return False

    def usages(self, uuid: str) -> list[Usage]:
        self._check()
        return [Usage(pid, used) for pid, used in self.used[uuid].items()]

    def accounting(self, uuid: str) -> bool:
        return True

    def enable_accounting(self, uuid: str) -> None:
        raise NvmlProblem("no_permission", "no")

    def accounts(self, uuid: str) -> list[Account]:
        return []

    def account(self, uuid: str, pid: int) -> Account | None:
        self._check()
        return Account(pid, None, pid * 1000, None)

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.problem:
            raise self.problem


class Bench:
    """A sampler with a clock in the test's hand; PIDs below 100 are the job's, 0 has ended."""

    def __init__(self, names: tuple[str, ...] = ("0",)) -> None:
        self.gpus = Gpus()
        self.now = 100.0
        self.saved: list[dict[str, object]] = []
        self.full = False
        self.sampler = Sampler(names, self.gpus.open, self.look_up, self.save, lambda: self.now)

    def look_up(self, pid: int) -> tuple[Process, bool] | None:
        return (Process(pid, 1), pid < 100) if pid else None

    def save(self, tally: Tally) -> None:
        if self.full:
            raise OSError("no space left")
        self.saved.append(tally.to_json())

    def step(self, seconds: float = 1.0, **used: dict[int, int | None]) -> None:
        for name, processes in used.items():
            self.gpus.used[name.replace("_", "-")] = processes
        self.sampler.step()
        self.now += seconds

    @property
    def tally(self) -> Tally:
        return self.sampler.tally


def test_samples_are_added_up_for_each_gpu() -> None:
    bench = Bench(("0", "1"))
    bench.step(GPU_0={1: 10, 2: 5, 200: 99}, GPU_1={1: 7, 0: 1000})
    bench.step(GPU_0={1: 12}, GPU_1={})
    assert {name: gpu.peak_bytes for name, gpu in bench.tally.gpus.items()} == {"0": 15, "1": 7}
    assert bench.tally.samples == 2
    assert [p.pid for p in bench.tally.gpus["0"].others] == [200]
    assert {p.pid: seen.account_start_us for p, seen in bench.tally.gpus["0"].own.items()} == {
        1: 1000,
        2: 2000,
    }


def test_it_saves_what_is_new_and_once_a_second_at_most() -> None:
    bench = Bench()
    for used in range(10, 50):
        bench.step(0.1, GPU_0={1: used})
    assert len(bench.saved) == 4
    bench.now += SAVE_INTERVAL_S
    bench.step(0.1)
    assert bench.saved[-1]["gpus"]["0"]["peak_bytes"] == 49  # type: ignore[index]
    saved = len(bench.saved)
    for _ in range(round(HEARTBEAT_S) + 1):  # nothing new but the number of samples
        bench.step(1.0)
    assert len(bench.saved) == saved + 1


def test_what_cannot_be_saved_is_saved_later() -> None:
    bench = Bench()
    bench.full = True
    bench.step(GPU_0={1: 10})
    bench.full = False
    bench.step()
    assert bench.saved[-1]["gpus"]["0"]["peak_bytes"] == 10  # type: ignore[index]
    assert bench.tally.problems == ["sampler: no space left"]


def test_a_lost_nvml_is_opened_again_after_a_while() -> None:
    bench = Bench()
    bench.step(GPU_0={1: 10})
    bench.gpus.problem = NvmlProblem("gpu_is_lost", "GPU is lost")
    for _ in range(int(REOPEN_S)):
        bench.step(1.0)
    assert bench.gpus.opened == 1
    bench.gpus.problem = None
    bench.step(1.0)
    bench.step(1.0, GPU_0={1: 20})
    assert bench.gpus.opened == 2
    assert bench.tally.gpus["0"].peak_bytes == 20
    assert bench.tally.problems == ["GPU 0: nvml: GPU is lost"]


def test_one_gpu_that_cannot_tell_does_not_silence_the_others() -> None:
    bench = Bench(("0", "1"))
    usages = bench.gpus.usages

    def partly(uuid: str) -> list[Usage]:
        if uuid == "GPU-0":
            raise NvmlProblem("not_supported", "Not Supported")
        return usages(uuid)

    bench.gpus.usages = partly  # type: ignore[method-assign]
    bench.step(GPU_1={1: 5})
    assert bench.tally.gpus["1"].peak_bytes == 5
    assert bench.tally.samples == 0
    assert bench.tally.problems == ["GPU 0: nvml: Not Supported"]


def test_mig_is_left_alone() -> None:
    bench = Bench()
    bench.gpus.mig = True
    bench.step(GPU_0={1: 5})
    assert bench.tally.gpus["0"].peak_bytes is None
    assert bench.tally.gpus["0"].gpu is not None


def test_it_runs_until_told_to_stop_and_flushes_now_and_then() -> None:
    bench = Bench()
    flushed: list[float] = []

    def wait(seconds: float) -> bool:
        bench.now += seconds
        return bench.now >= 300

    run(
        bench.sampler,
        1.0,
        wait=wait,
        wanted=lambda: True,
        flush=lambda: flushed.append(bench.now),
        clock=lambda: bench.now,
    )
    assert bench.tally.samples == 200
    assert flushed == [160.0, 220.0, 280.0]
    assert bench.saved[-1]["ended"] is True
    assert bench.saved[-1]["samples"] == 200


def test_it_ends_unheard_when_nobody_wants_it() -> None:
    bench = Bench()
    run(
        bench.sampler,
        1.0,
        wait=lambda _: False,
        wanted=lambda: bench.tally.samples < 3,
        flush=lambda: None,
        clock=lambda: bench.now,
    )
    assert bench.tally.samples == 3
    assert all(state["ended"] is False for state in bench.saved)
