"""The real commands on a pretend node: what is measured there, and what faults do to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from history.wire import Measurement
from prolog.processes import start_ticks
from prolog.sampler import flush_apart
from tests.prolog.pretend_node import (
    GPUS,
    MIB,
    MODEL,
    TOTAL,
    PretendNode,
    Ran,
    Service,
    hanging_nvml,
    wait_until,
)


def check(ran: Ran) -> None:
    """What slurmd needs of every prolog and epilog."""
    assert ran.status == 0
    assert ran.output == b""
    assert ran.cpu_s < 1.0  # the promise: a second of our time
    assert ran.wall_s < 2.0  # and what a busy machine adds


def in_time(node: PretendNode, job_id: int) -> None:
    """A prolog that is done before its job begins, so that accounting counts, however busy the machine is."""
    patient = "from prolog import prolog; prolog.DEADLINE_S = 60; prolog.main()"
    subprocess.run([sys.executable, "-c", patient], env=node.environment(job_id), check=True)


def measured_job(node: PretendNode, job_id: int, used: int = 700 * MIB) -> None:
    """A whole job: prolog, a process that holds `used` bytes, epilog."""
    works = "GPUMEM_FAKE_NVML_FAULT" not in node.extra and bool(node.library_path)
    if works:
        in_time(node, job_id)
    else:
        check(node.prolog(job_id))
    process = node.gpu_user(job_id)
    process.hold(used)
    if works:
        node.await_peak(job_id, used)
    process.end()
    check(node.epilog(job_id))


# ---- what is measured


@pytest.mark.usefixtures("nvml")
def test_a_job_is_measured_and_counted_once(node: PretendNode, service: Service) -> None:
    service.start()
    in_time(node, 41)
    process = node.gpu_user(41)
    process.hold(900 * MIB)
    process.hold(300 * MIB)  # too short-lived a peak for the sampler, but not for accounting
    wait_until(lambda: (tally := node.tally(41)) and tally.gpus["0"].own, "the process to be seen")
    process.end()
    check(node.epilog(41, status=256))
    wait_until(lambda: service.peaks() == {41: 900 * MIB}, "the measurement to arrive")
    wait_until(lambda: not node.waiting(), "the spool to be empty")
    assert node.flush().status == 0
    assert service.jobs() == [41]
    assert not list(node.run_dir.iterdir())


@pytest.mark.usefixtures("nvml")
def test_the_measurement_says_where_it_comes_from(node: PretendNode) -> None:
    measured_job(node, 42)
    measurement = node.measurement()
    assert (measurement.job_id, measurement.node, measurement.cluster) == (42, "n1", "testbed")
    assert measurement.user_id == 0
    assert measurement.exit_code == 0
    assert measurement.started_at is not None and measurement.started_at < measurement.ended_at
    assert measurement.samples is not None and measurement.samples > 0
    assert measurement.problems == []
    [gpu] = measurement.gpus
    assert (gpu.uuid, gpu.model, gpu.memory_bytes) == (GPUS[0], MODEL, TOTAL)
    assert (gpu.peak_bytes, gpu.source, gpu.processes, gpu.shared) == (700 * MIB, "both", 1, False)


@pytest.mark.usefixtures("nvml")
def test_two_jobs_on_one_gpu_each_get_their_own_peak(node: PretendNode) -> None:
    check(node.prolog(1))
    check(node.prolog(2))
    first, second, stranger = node.gpu_user(1), node.gpu_user(2), node.gpu_user(None)
    first.hold(100 * MIB)
    second.hold(200 * MIB)
    stranger.hold(400 * MIB)
    node.await_peak(1, 100 * MIB)
    node.await_peak(2, 200 * MIB)
    first.end()
    check(node.epilog(1))
    second.hold(300 * MIB)
    node.await_peak(2, 300 * MIB)
    second.end()
    check(node.epilog(2))
    wait_until(lambda: len(node.waiting()) == 2, "both measurements")
    gpus = {m.job_id: m.gpus[0] for m in node.waiting()}
    assert {job: gpu.peak_bytes for job, gpu in gpus.items()} == {1: 100 * MIB, 2: 300 * MIB}
    assert all(gpu.shared and gpu.processes == 1 for gpu in gpus.values())


@pytest.mark.usefixtures("nvml")
def test_processes_add_up_however_they_were_started(node: PretendNode) -> None:
    check(node.prolog(3))
    process = node.gpu_user(3)
    process.hold(100 * MIB)
    process.fork(20 * MIB)
    process.fork(3 * MIB, how="orphan")
    node.await_peak(3, 123 * MIB)
    process.end()
    check(node.epilog(3))
    [gpu] = node.measurement().gpus
    assert (gpu.peak_bytes, gpu.source, gpu.processes) == (123 * MIB, "sampling", 3)


@pytest.mark.usefixtures("nvml")
def test_every_gpu_of_the_job_has_its_own_peak(node: PretendNode) -> None:
    check(node.prolog(4, "0,1"))
    process = node.gpu_user(4)
    process.hold(100 * MIB, GPUS[0])
    process.hold(50 * MIB, GPUS[1])
    node.await_peak(4, 50 * MIB, "1")
    process.end()
    check(node.epilog(4, "0,1"))
    peaks = {gpu.uuid: gpu.peak_bytes for gpu in node.measurement().gpus}
    assert peaks == {GPUS[0]: 100 * MIB, GPUS[1]: 50 * MIB}


@pytest.mark.usefixtures("nvml")
def test_a_job_too_short_for_the_sampler_is_known_from_accounting(node: PretendNode) -> None:
    node.configure(sample_interval_s=30)
    in_time(node, 5)
    wait_until(lambda: node.tally(5) is not None, "the first sample")
    process = node.gpu_user(5)
    process.hold(64 * MIB)
    process.end()
    check(node.epilog(5))
    [gpu] = node.measurement().gpus
    assert (gpu.peak_bytes, gpu.source, gpu.processes, gpu.shared) == (64 * MIB, "accounting", 1, False)


@pytest.mark.usefixtures("nvml")
def test_on_a_shared_gpu_an_unseen_process_makes_the_peak_unknown(node: PretendNode) -> None:
    node.configure(sample_interval_s=30)
    in_time(node, 6)
    in_time(node, 7)
    wait_until(lambda: node.tally(6) and node.tally(7), "the first samples")
    process = node.gpu_user(7)
    process.hold(64 * MIB)
    process.end()
    check(node.epilog(6))
    measurement = node.measurement()
    [gpu] = measurement.gpus
    assert (gpu.peak_bytes, gpu.source, gpu.processes, gpu.shared) == (None, None, None, True)
    assert any("may belong to another job" in problem for problem in measurement.problems)


@pytest.mark.usefixtures("nvml")
def test_a_job_that_leaves_the_gpu_alone_has_used_nothing(node: PretendNode) -> None:
    earlier = node.gpu_user(None)
    check(node.prolog(7))
    earlier.end()
    in_time(node, 8)
    check(node.epilog(8))
    [gpu] = node.measurement().gpus
    assert (gpu.peak_bytes, gpu.source, gpu.processes) == (0, "accounting", 0)


@pytest.mark.usefixtures("nvml")
def test_a_requeued_job_is_measured_anew(node: PretendNode) -> None:
    check(node.prolog(9))
    first = node.sampler(9)
    process = node.gpu_user(9)
    process.hold(500 * MIB)
    node.await_peak(9, 500 * MIB)
    process.end()
    check(node.prolog(9))
    wait_until(lambda: start_ticks(first) is None, "the first sampler to end")
    process = node.gpu_user(9)
    process.hold(100 * MIB)
    node.await_peak(9, 100 * MIB)
    process.end()
    check(node.epilog(9))
    measurement = node.measurement()
    assert measurement.gpus[0].peak_bytes == 100 * MIB


# ---- the promises to slurmd


def test_without_a_gpu_nothing_happens_quickly(node: PretendNode) -> None:
    environment = node.environment(10)
    del environment["SLURM_JOB_GPUS"]
    for program in ("prolog", "epilog"):
        ran = node.run(program, environment)
        check(ran)
        assert ran.cpu_s < 0.1
    assert not node.run_dir.exists()


@pytest.mark.usefixtures("nvml")
def test_the_sampler_holds_nothing_of_slurmd(node: PretendNode) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    command = [sys.executable, "-m", "prolog.prolog"]
    subprocess.run(command, env=node.environment(11), pass_fds=(writing,), check=True)
    os.close(writing)
    pid = node.sampler(11)
    assert os.read(reading, 1) == b""  # end of file: nobody else has it
    wait_until(lambda: b"prolog.sampler" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the sampler")
    targets = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if int(path.name) < 3}
    assert targets == {"/dev/null"}
    assert str(Path(f"/proc/{pid}/cwd").readlink()) == "/"
    assert os.getsid(pid) != os.getsid(0)
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] != str(os.getpid())


@pytest.mark.usefixtures("nvml")
def test_what_starts_late_is_done_all_the_same(node: PretendNode) -> None:
    for program in ("prolog", "epilog"):  # older than slurmd is to wait before their first line runs
        late = ["sh", "-c", 'sleep 1; exec "$@"', "sh", sys.executable, "-m", f"prolog.{program}"]
        subprocess.run(late, env=node.environment(14), check=True)
        if program == "prolog":
            wait_until(lambda: node.tally(14) is not None, "the first sample")
    assert node.measurement().started_at is not None


@pytest.mark.usefixtures("nvml")
def test_a_prolog_that_is_later_than_the_epilog_leaves_no_sampler(node: PretendNode) -> None:
    settings = node.folder / "late.toml"
    os.mkfifo(settings)  # holds the prolog up until it is written to
    node.extra["GPUMEM_CONFIG"] = str(settings)
    check(node.prolog(15))
    node.extra.clear()
    check(node.epilog(15))
    assert "the prolog left no record of this job" in node.measurement().problems
    settings.write_text(node.config.read_text())
    wait_until(lambda: not processes_with(f"GPUMEM_CONFIG={settings}"), "the prolog to give up", 20)
    assert not (node.run_dir / "15").exists()
    measured_job(node, 15)  # another run of that job
    wait_until(lambda: len(node.waiting()) == 2, "its measurement")
    assert {m.gpus[0].peak_bytes for m in node.waiting()} == {None, 700 * MIB}


def processes_with(variable: str) -> list[str]:
    """The processes that have this in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_measuring_can_be_switched_off(node: PretendNode) -> None:
    node.configure(enabled=False)
    check(node.prolog(12))
    check(node.epilog(12))
    assert not node.run_dir.exists()
    assert not node.waiting()


@pytest.mark.parametrize(
    "change", [{"SLURM_JOB_ID": "../../etc"}, {"SLURM_JOB_GPUS": "x,;", "SLURM_JOB_UID": "-"}]
)
def test_an_odd_environment_is_no_failure(node: PretendNode, change: dict[str, str]) -> None:
    environment = {**node.environment(13), **change, "CUDA_VISIBLE_DEVICES": ""}
    check(node.run("prolog", environment))
    check(node.run("epilog", environment))


def test_the_commands_explain_themselves(node: PretendNode) -> None:
    for program in ("prolog", "epilog"):
        ran = node.run(program, node.environment(None), "--help")
        assert ran.status == 0
        assert f"usage: gpumem-{program}".encode() in ran.output
        assert ran.cpu_s < 0.3
    assert node.run("epilog", node.environment(None), "--fluhs").status == 2


# ---- faults


def test_without_nvml_the_peak_is_unknown(node: PretendNode) -> None:
    node.library_path = ""
    measured_job(node, 20)
    measurement = node.measurement()
    [gpu] = measurement.gpus
    assert (gpu.peak_bytes, gpu.source, gpu.processes) == (None, None, None)
    assert gpu.uuid == "index:0"
    assert any("Library Not Found" in problem for problem in measurement.problems)


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(("fault", "word"), [("gpu_lost", "GPU is lost"), ("uninitialized", "Uninitialized")])
def test_a_failing_nvml_is_noted(node: PretendNode, fault: str, word: str) -> None:
    node.extra["GPUMEM_FAKE_NVML_FAULT"] = fault
    measured_job(node, 21)
    measurement = node.measurement()
    assert measurement.gpus[0].peak_bytes is None
    assert any(word in problem for problem in measurement.problems)


@pytest.mark.usefixtures("nvml")
def test_a_gpu_lost_during_the_job_leaves_what_was_sampled(node: PretendNode) -> None:
    check(node.prolog(22))
    process = node.gpu_user(22)
    process.hold(80 * MIB)
    node.await_peak(22, 80 * MIB)
    process.end()
    node.extra["GPUMEM_FAKE_NVML_FAULT"] = "gpu_lost"
    check(node.epilog(22))
    measurement = node.measurement()
    [gpu] = measurement.gpus
    assert (gpu.uuid, gpu.peak_bytes, gpu.source) == (GPUS[0], 80 * MIB, "sampling")
    assert any("lost" in problem.lower() for problem in measurement.problems)


def test_a_hanging_nvml_holds_up_neither_prolog_nor_epilog(node: PretendNode) -> None:
    node.library_path = str(hanging_nvml(node.folder / "hanging"))
    check(node.prolog(23))
    hanging = node.sampler(23)
    assert start_ticks(hanging) is not None
    check(node.epilog(23))
    measurement = node.measurement()
    assert measurement.gpus[0].peak_bytes is None
    assert measurement.started_at is not None
    assert any("no answer" in problem for problem in measurement.problems)
    assert start_ticks(hanging) is None


@pytest.mark.usefixtures("nvml")
def test_a_dead_sampler_leaves_what_it_knew(node: PretendNode) -> None:
    check(node.prolog(24))
    process = node.gpu_user(24)
    process.hold(90 * MIB)
    process.fork(9 * MIB)
    node.await_peak(24, 99 * MIB)
    os.kill(node.sampler(24), signal.SIGKILL)
    process.end()
    check(node.epilog(24))
    measurement = node.measurement()
    assert measurement.gpus[0].peak_bytes == 99 * MIB
    assert any("sampler ended early" in problem for problem in measurement.problems)


@pytest.mark.usefixtures("nvml")
def test_without_a_sampler_accounting_remains(node: PretendNode) -> None:
    in_time(node, 25)
    sampler = node.sampler(25)
    os.kill(sampler, signal.SIGKILL)
    wait_until(lambda: start_ticks(sampler) is None, "the sampler to end")
    (node.run_dir / "25" / "state.json").unlink(missing_ok=True)
    process = node.gpu_user(25)
    process.hold(90 * MIB)
    process.end()
    check(node.epilog(25))
    measurement = node.measurement()
    assert (measurement.gpus[0].peak_bytes, measurement.gpus[0].source) == (90 * MIB, "accounting")
    assert any("sampler" in problem for problem in measurement.problems)


@pytest.mark.usefixtures("nvml")
def test_an_epilog_without_a_prolog_says_so(node: PretendNode) -> None:
    check(node.epilog(26))
    measurement = node.measurement()
    assert measurement.started_at is None
    assert measurement.gpus[0].peak_bytes is None
    assert "the prolog left no record of this job" in measurement.problems


@pytest.mark.usefixtures("nvml")
def test_with_broken_settings_the_defaults_are_used(node: PretendNode) -> None:
    node.config.write_text("[measurement]\nspool = 3\n")
    # in a mount namespace of its own, where the default folders are nobody else's
    script = """
        mount -t tmpfs none /run; mount -t tmpfs none /var/spool
        "$0" -m prolog.prolog && "$0" -m prolog.epilog
        until cat /var/spool/gpumem/*.json 2> /dev/null; do sleep 0.1; done
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable],
        env=node.environment(27),
        capture_output=True,
        text=True,
    )
    measurement = Measurement.model_validate_json(done.stdout)
    assert measurement.gpus[0].uuid == GPUS[0]
    assert any("unknown key" in problem for problem in measurement.problems)


# ---- the way to the service


@pytest.mark.usefixtures("nvml")
def test_what_the_service_misses_it_gets_later_and_once(node: PretendNode, service: Service) -> None:
    measured_job(node, 30)
    measured_job(node, 31)
    wait_until(lambda: sorted(m.job_id for m in node.waiting()) == [30, 31], "both measurements")
    ran = node.flush()
    assert ran.status == 1
    assert b"2 measurements wait in" in ran.output
    service.start()
    assert node.flush().status == 0
    assert service.jobs() == [30, 31]
    assert not node.waiting()
    service.stop()
    measured_job(node, 32)
    node.measurement()
    service.start()
    measured_job(node, 33)  # its epilog takes the old one along
    wait_until(lambda: service.jobs() == [30, 31, 32, 33], "all measurements")
    wait_until(lambda: not node.waiting(), "the spool to be empty")


@pytest.mark.usefixtures("nvml")
def test_a_hanging_service_holds_up_nobody(node: PretendNode, service: Service) -> None:
    service.delay_s = 3
    service.start()
    measured_job(node, 34)
    service.delay_s = 0
    wait_until(lambda: node.flush().status == 0 and service.jobs() == [34], "the measurement")


@pytest.fixture
def tiny(node: PretendNode) -> Iterator[Path]:
    """A file system of its own, 256 KiB, for the spool."""
    folder = node.folder / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leaves no room in a small file system."""
    path = folder / "full"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
    return path


@pytest.mark.usefixtures("nvml")
def test_a_full_spool_is_no_loss(node: PretendNode, service: Service, tiny: Path) -> None:
    node.spool = tiny / "spool"
    node.configure()
    fill(tiny)
    measured_job(node, 35)
    node.measurement()
    node.measurement()
    assert len(list(node.fallback.glob("*.json"))) == 1
    service.start()
    assert node.flush().status == 0
    assert service.peaks() == {35: 700 * MIB}


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize("then", ["room again", "service again"])
def test_with_no_folder_at_all_the_measurement_waits_in_memory(
    node: PretendNode, service: Service, tiny: Path, then: str
) -> None:
    node.spool, node.fallback = tiny / "spool", tiny / "fallback"
    node.configure()
    filler = fill(tiny)
    measured_job(node, 36)
    time.sleep(0.3)
    assert not node.waiting()
    if then == "room again":
        filler.unlink()
        wait_until(lambda: len(node.waiting()) == 1, "the measurement to be spooled")
        service.start()
        node.flush()
    else:
        service.start()
    wait_until(lambda: service.peaks() == {36: 700 * MIB}, "the measurement to arrive")
    assert service.jobs() == [36]


@pytest.mark.usefixtures("nvml")
def test_a_read_only_spool_is_no_loss(node: PretendNode, service: Service, tiny: Path) -> None:
    node.spool = tiny / "spool"
    node.configure()
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    measured_job(node, 37)
    node.measurement()
    assert len(list(node.fallback.glob("*.json"))) == 1
    service.start()
    assert node.flush().status == 0
    assert service.peaks() == {37: 700 * MIB}


@pytest.mark.usefixtures("nvml")
def test_an_unwritable_run_dir_costs_the_measurement_not_the_job(node: PretendNode, tiny: Path) -> None:
    node.run_dir = tiny / "run" / "jobs"
    node.configure()
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    check(node.prolog(38))
    check(node.epilog(38))
    measurement = node.measurement()
    assert measurement.gpus[0].peak_bytes is None


@pytest.fixture
def frozen(node: PretendNode) -> Iterator[Path]:
    """A file system that hangs, as NFS does when its server is away, until the test calls `thaw`."""
    if not all(map(shutil.which, ("mkfs.ext4", "fsfreeze"))) or not Path("/dev/loop-control").exists():
        pytest.skip("needs loop devices, mkfs.ext4 and fsfreeze")
    image, folder = node.folder / "image", node.folder / "frozen"
    image.write_bytes(b"\0" * 4 * MIB)
    folder.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    subprocess.run(["fsfreeze", "-f", str(folder)], check=True)
    yield folder
    thaw(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def thaw(folder: Path) -> None:
    subprocess.run(["fsfreeze", "-u", str(folder)], check=False, stderr=subprocess.DEVNULL)


@pytest.mark.usefixtures("nvml")
def test_a_hanging_file_system_holds_up_nobody(node: PretendNode, service: Service, frozen: Path) -> None:
    node.spool = frozen / "spool"
    node.configure()
    measured_job(node, 39)
    assert not node.waiting()
    thaw(frozen)
    node.measurement()
    service.start()
    node.flush()
    assert service.peaks() == {39: 700 * MIB}


@pytest.mark.usefixtures("nvml")
def test_the_sampler_sends_what_waits(
    node: PretendNode, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_job(node, 40)
    node.measurement()
    service.start()
    for name, value in node.environment(None).items():
        monkeypatch.setenv(name, value)
    assert flush_apart([node.fallback]) is None
    pid = flush_apart([node.fallback, node.spool])
    assert pid is not None
    wait_until(lambda: service.peaks() == {40: 700 * MIB}, "the measurement to arrive")
    assert os.waitpid(pid, 0)[1] == 0
