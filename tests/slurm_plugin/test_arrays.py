"""Measurements of an array's tasks find the decision about the array, by asking a real Slurm."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime

from history.models import Decision
from history.store import Store
from history.wire import GpuMeasurement, Measurement
from slurm_plugin.arrays import ArrayTasks
from slurm_plugin.slurm import ScontrolSlurm
from slurm_plugin.writer import Writer
from testbed.cluster import Cluster, make_folder
from testbed.users import User


def measured(job_id: int, peak: int) -> Measurement:
    gpu = GpuMeasurement(uuid="GPU-1", peak_bytes=peak)
    return Measurement(job_id=job_id, node="n", gpus=[gpu], exit_code=0, ended_at=datetime.now(UTC))


def test_tasks_are_matched_with_their_array(cluster: Cluster, alice: User) -> None:
    array = cluster.sbatch("true", user=alice, args=["--array=0-2", "--output=/dev/null"])

    def ended() -> list[int]:
        jobs = [job for job in cluster.jobs() if array in (int(job["JobId"]), int(job.get("ArrayJobId", 0)))]
        return [int(job["JobId"]) for job in jobs if job["JobState"] == "COMPLETED"]

    cluster.wait_for(lambda: len(ended()) == 3)
    folder = make_folder()
    told: list[int] = []
    with Store(f"sqlite:///{folder}/history.db") as store:
        store.migrate()
        writer = Writer(store)
        thread = ArrayTasks(store, writer, ScontrolSlurm(cluster.conf), lambda: told.append(1))
        writer.start()
        thread.start()
        store.add_decision(
            Decision(id="d1", user_id=alice.uid, action="rewrite", state="applied", job_id=array)
        )
        measurements = [*(measured(job_id, job_id) for job_id in ended()), measured(99_999, 1)]
        store.add_measurements(measurements)
        thread.look_at(measurements)
        end = time.monotonic() + 60
        while not told and time.monotonic() < end:
            time.sleep(0.05)
        jobs = {job.decision_id: (job.job_id, job.measured_peak_bytes) for job in store.jobs(None)}
        thread.stop()
        writer.stop(5)
    shutil.rmtree(folder)
    assert jobs == {"d1": (array, max(ended())), None: (99_999, 1)}
