from __future__ import annotations

import json

import pytest

from prolog.jobdir import GpuBefore
from prolog.measure import Evidence, Use, use_of
from prolog.nvml import Account, Gpu
from prolog.processes import Process
from prolog.tally import GpuTally, Seen, Sighting, Tally

GPU = Gpu("GPU-1", "NVIDIA A100", 80, mig=False)
S = 1_000_000  # µs


def account(pid: int, peak: int | None, start: int = 10 * S, duration: int | None = 5 * S) -> Account:
    return Account(pid, peak, start, duration)


def tally(
    peak: int | None, *own: tuple[int, int | None], others: tuple[tuple[int, int | None], ...] = ()
) -> GpuTally:
    """Processes as (PID, start in the driver's records)."""
    return GpuTally(
        GPU,
        peak,
        {Process(pid, pid): Seen(peak, start) for pid, start in own},
        {Process(pid, pid): Seen(peak, start) for pid, start in others},
    )


def weigh(
    sampled: GpuTally | None,
    accounts: tuple[Account, ...] | None,
    *,
    shared: bool | None = False,
    before: GpuBefore | None = None,
    started_at: float | None = 5.0,
) -> Use:
    before = before or GpuBefore("0", GPU, accounting=True, accounts={})
    return use_of(Evidence(before, before.gpu, sampled, accounts, shared, started_at))


def numbers(use: Use) -> tuple[int | None, str | None, int | None, bool | None]:
    return use.peak_bytes, use.source, use.processes, use.shared


ONE = (4, 10 * S)


@pytest.mark.parametrize(
    ("sampled", "accounts", "expected"),
    [
        # one process: the greater of the two
        (tally(50, ONE), (account(4, 70),), (70, "accounting", 1, False)),
        (tally(70, ONE), (account(4, 70),), (70, "both", 1, False)),
        (tally(70, ONE), (account(4, None),), (70, "sampling", 1, False)),
        (tally(70, (4, None)), None, (70, "sampling", 1, False)),
        (tally(None, ONE), (account(4, None),), (None, None, 1, False)),
        (None, (account(4, 70),), (70, "accounting", 1, False)),
        # none: known to be none only if the driver watched
        (tally(None), (), (0, "accounting", 0, False)),
        (tally(None), None, (None, None, None, False)),
        (None, None, (None, None, None, False)),
        # several at once: what was seen at one moment, unless one alone had more
        (tally(90, ONE, (5, 11 * S)), (account(4, 70), account(5, 60, 11 * S)), (90, "sampling", 2, False)),
        (tally(65, ONE, (5, 11 * S)), (account(4, 70), account(5, 60, 11 * S)), (70, "accounting", 2, False)),
        # several, one after the other: the driver knows best
        (tally(60, ONE, (5, 20 * S)), (account(4, 70), account(5, 60, 20 * S)), (70, "accounting", 2, False)),
        (None, (account(4, 70), account(5, 60, 20 * S)), (70, "accounting", 2, False)),
        # several at once that nobody sampled: the joint peak is anything between the greatest and the sum
        (None, (account(4, 70), account(5, 60, 11 * S)), (None, None, 2, False)),
        (None, (account(4, 70, duration=None), account(5, 60, 20 * S)), (None, None, 2, False)),
    ],
)
def test_the_evidence_is_weighed(
    sampled: GpuTally | None, accounts: tuple[Account, ...] | None, expected: tuple[object, ...]
) -> None:
    assert numbers(weigh(sampled, accounts)) == expected


def test_processes_the_sampler_missed_count_where_the_job_was_alone() -> None:
    use = weigh(tally(50, ONE), (account(4, 50), account(5, 30, 11 * S)))
    assert numbers(use) == (50, "both", 2, False)
    assert "1 of 2 processes were too short" in use.problems[0]


def test_and_are_nobodys_on_a_shared_gpu() -> None:
    for shared, others in ((True, ()), (None, ()), (False, ((9, 10 * S),))):
        use = weigh(
            tally(50, ONE, others=others),
            (account(4, 60), account(5, 30), account(9, 99)) if others else (account(4, 60), account(5, 30)),
            shared=shared,
        )
        assert numbers(use) == (60, "accounting", None, True if others else shared)
        assert "may belong to another job" in use.problems[-1]


def test_records_of_other_jobs_do_not_count() -> None:
    use = weigh(tally(50, ONE, others=((9, 12 * S),)), (account(4, 50), account(9, 99, 12 * S)), shared=True)
    assert numbers(use) == (50, "both", 1, True)


def test_records_from_before_the_job_do_not_count() -> None:
    before = GpuBefore("0", GPU, accounting=True, accounts={4: 3 * S, 5: 3 * S})
    use = weigh(None, (account(4, 99, 3 * S), account(5, 40, 10 * S)), before=before)
    assert numbers(use) == (40, "accounting", 1, False)  # PID 5 was used again
    unknown = GpuBefore("0", GPU)
    use = weigh(None, (account(4, 99, 3 * S), account(5, 40, 10 * S)), before=unknown)
    assert numbers(use) == (40, "accounting", 1, False)  # by the clock, where the prolog could not look
    assert weigh(None, (account(4, 99),), before=unknown, started_at=None).peak_bytes is None


def test_a_pid_used_by_two_jobs_is_told_apart_by_its_start() -> None:
    # PID 4 was the job's, ended, and is now another job's: the driver keeps the later record only
    mixed = GpuTally(GPU, 50, {Process(4, 1): Seen(50, 10 * S)}, {Process(4, 2): Seen(99, 20 * S)})
    assert numbers(weigh(mixed, (account(4, 99, 20 * S),), shared=True)) == (50, "sampling", 1, True)
    # nobody could read the start: then the record is nobody's
    vague = GpuTally(GPU, 50, {Process(4, 1): Seen(50, None)}, {Process(4, 2): Seen(99, None)})
    assert weigh(vague, (account(4, 99, 20 * S),), shared=True).peak_bytes == 50


def test_mig_is_not_measured() -> None:
    before = GpuBefore("0", Gpu("MIG-1", None, None, mig=True))
    use = weigh(tally(50, ONE), (account(4, 70),), before=before)
    assert numbers(use) == (None, None, None, False)
    assert "MIG" in use.problems[0]


def sighting(pid: int, used: int | None, *, own: bool = True, start: int = 1) -> Sighting:
    return Sighting(Process(pid, start), used, own, None)


def test_the_peak_is_the_greatest_sum_of_one_moment() -> None:
    gpu = GpuTally()
    for sample in ([(1, 50), (2, 10)], [(1, 10), (2, 45)], [(2, 70)]):
        gpu.add(sighting(pid, used) for pid, used in sample)
    assert gpu.peak_bytes == 70
    gpu.add([sighting(1, 60), sighting(2, 11), sighting(3, 500, own=False)])
    assert gpu.peak_bytes == 71
    assert {p.pid: seen.peak_bytes for p, seen in gpu.own.items()} == {1: 60, 2: 70}
    assert [p.pid for p in gpu.others] == [3]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    gpu = GpuTally()
    gpu.add([sighting(1, 60), sighting(2, None)])
    assert gpu.peak_bytes is None
    assert len(gpu.own) == 2


def test_a_process_may_turn_out_to_be_the_jobs() -> None:
    gpu = GpuTally()
    gpu.add([sighting(1, 60, own=False)])
    assert gpu.add([sighting(1, 60)])
    assert not gpu.others
    assert not gpu.add([sighting(1, 60)])  # nothing new


def test_one_pid_twice_is_two_processes() -> None:
    gpu = GpuTally()
    gpu.add([sighting(1, 60, start=1)])
    gpu.add([sighting(1, 50, start=2)])
    assert len(gpu.own) == 2
    assert gpu.peak_bytes == 60


def test_a_tally_survives_its_json() -> None:
    written = Tally({"0": tally(50, ONE, (5, None), others=((9, 1),)), "1": GpuTally()}, 3, ["x"], True)
    assert Tally.from_json(json.loads(json.dumps(written.to_json()))) == written
