"""`gpumem-hist` as a process: over a real socket, from the database, and when nothing is there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from history.models import Decision, Estimate
from history.since import parse_since
from history.store import Store
from history.table import print_table
from history.wire import JobRecord, Jobs, JobsQuery, Measurement
from tests.history.http_servers import serving

REPOSITORY = Path(__file__).parents[2]
UNPRIVILEGED = 65534  # nobody
GIB = 1024**3
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def hist(*args, user=None, env=None):
    command = [sys.executable, "-c", "from history.cli import main; main()", *args]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        user=user,
        env=os.environ | (env or {}),
        timeout=30,
    )


@pytest.fixture
def site(tmp_path):
    """A folder with `gpumem.toml`, and jobs of two users in `history.db`."""
    (tmp_path / "g.toml").write_text(
        f'[service]\nuser_socket = "{tmp_path}/s"\n[history]\nurl = "sqlite:///{tmp_path}/history.db"\n'
    )
    with Store(f"sqlite:///{tmp_path}/history.db") as store:
        store.migrate()
        detail = {
            "phase_of_peak": "step 2, backward", "outside_allocator_bytes": GIB // 2, "notes": ["a \x1b[31mnote"],
            "by_owner": {"gradients": GIB, "optimizer_state": 9 * GIB, "other": 0}, "inputs": [{"path": "/home/u/x"}],
        }  # fmt: skip
        estimate = Estimate(
            fingerprint="f", gpu="a100-80gb", status="exact", peak_bytes=11 * GIB, detail=detail
        )
        store.add_estimate(estimate)
        for n, (uid, name) in enumerate([(0, "root"), (UNPRIVILEGED, "nobody")]):
            job = Decision(
                user_id=uid, user_name=name, asked="gpu:1", got="shard:12", action="defer", state="applied",
                script_name="/home/u/train.sh", job_id=100 + n, estimate_id=estimate.id, held_s=3.4,
                created_at=NOW, reason="as we see fit",
            )  # fmt: skip
            store.add_decision(job)
        gpu = {"uuid": "GPU-1", "model": "A100", "peak_bytes": 10 * GIB, "source": "both"}
        done = Measurement(
            job_id=100, node="n1", gpus=[gpu], started_at=NOW, ended_at=NOW + timedelta(minutes=1)
        )
        store.add_measurements([done])
    return tmp_path


def answer_from(database, requests):
    """What the service does: admins see all, others only their own."""

    def answer(request):
        requests.append(request.target)
        query = JobsQuery.model_validate(dict(parse_qsl(urlsplit(request.target).query)))
        with Store(f"sqlite:///{database}") as store:
            only = None if request.uid == 0 else request.uid
            if job_id := urlsplit(request.target).path.removeprefix("/v1/jobs").strip("/"):
                found = store.job(int(job_id), only)
                return (200, found.model_dump(mode="json")) if found else (404, {"detail": "no such job"})
            jobs = store.jobs(only, query.user, query.since, query.script, query.limit)
        return 200, Jobs(jobs=jobs).model_dump(mode="json")

    return answer


def readable_by_others(*paths):
    """Whether an ordinary user can run this checkout."""
    test = ["sh", "-c", 'for p; do test -r "$p" || exit 1; done', "sh", *map(str, paths)]
    return os.geteuid() == 0 and subprocess.run(test, user=UNPRIVILEGED).returncode == 0


def test_list_over_the_socket(site):
    requests = []
    with serving(answer_from(site / "history.db", requests), site / "s"):
        done = hist("--config", str(site / "g.toml"), "--limit", "7", "--script", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert requests == ["/v1/jobs?script=train&limit=7"]
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "JOB USER SCRIPT ASKED GOT ESTIMATE MEASURED ERROR STATE HELD"
    assert "100 root train.sh gpu:1 shard:12 11.0 GiB 10.0 GiB +10.0% applied 3 s" in lines
    assert "\x1b" not in done.stdout, "no colours outside a terminal"


def test_ordinary_user_sees_own_jobs_only(site):
    if not readable_by_others(REPOSITORY / "history/cli.py", sys.executable):
        pytest.skip("needs root, and a checkout that others can read")
    for folder in [site, *site.parents[:2]]:
        folder.chmod(0o755)
    (site / "g.toml").chmod(0o644)
    with serving(answer_from(site / "history.db", []), site / "s"):
        jobs = json.loads(
            hist("--json", env={"GPUMEM_CONFIG": str(site / "g.toml")}, user=UNPRIVILEGED).stdout
        )
    assert [job["user_name"] for job in jobs] == ["nobody"]
    done = hist("--config", str(site / "g.toml"), user=UNPRIVILEGED)
    assert done.returncode == 1, "without the service, the database is not theirs to read"
    assert "Is gpumemd running" in done.stderr
    assert not done.stdout


def test_one_job_with_the_parts_of_its_estimate(site):
    with serving(answer_from(site / "history.db", []), site / "s"):
        done = hist("show", "100", "--config", str(site / "g.toml"))
        machine = hist("show", "100", "--json", "--config", str(site / "g.toml"))
        missing = hist("show", "7", "--config", str(site / "g.toml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [" ".join(line.split()) for line in done.stdout.splitlines()] == [
        "job 100, root, train.sh",
        "asked gpu:1",
        "got shard:12",
        "state applied, held 3 s",
        "why as we see fit",
        "estimate 11.00 GiB, exact, step 2, backward",
        "measured 10.00 GiB, both, n1, A100",
        "error +10.0%",
        "9.00 GiB optimizer state",
        "1.00 GiB gradients",
        "512 MiB outside of the allocator",
        "note a ?[31mnote",
    ]
    told = json.loads(machine.stdout)
    assert told["job"]["reason"] == "as we see fit"
    assert told["estimate"]["by_owner"]["gradients"] == GIB and "inputs" not in told["estimate"]
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == "gpumem-hist: no job 7 that you may see\n"


def test_one_job_from_the_database_without_the_service(site):
    done = hist("show", "101", "--config", str(site / "g.toml"))
    assert done.returncode == 0
    assert "read from the database instead" in done.stderr
    assert "nobody" in done.stdout and "measured" not in done.stdout


def test_reads_the_database_without_the_service(site):
    done = hist("--config", str(site / "g.toml"), "--user", "root", "--since", "2026-01-31", "--json")
    assert done.returncode == 0
    assert "read from the database instead" in done.stderr
    (job,) = json.loads(done.stdout)
    assert (job["job_id"], job["error"], job["submitted_at"]) == (
        100,
        pytest.approx(0.1),
        "2026-01-31T12:00:00Z",
    )


def test_no_jobs(site):
    done = hist("--config", str(site / "g.toml"), "--since", "1m")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no such jobs" in done.stderr


def test_nothing_there_is_an_error(site):
    (site / "history.db").unlink()
    done = hist("--config", str(site / "g.toml"))
    assert done.returncode == 1
    assert f"gpumemd does not answer at unix:{site}/s: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_refusal_and_nonsense_are_errors(site):
    with serving(lambda _: (503, {"detail": "starting"}), site / "s"):
        done = hist("--config", str(site / "g.toml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "gpumemd refuses: starting (HTTP 503)" in done.stderr
    (site / "s").unlink()
    with serving(lambda _: (200, {"jobs": [{"job_id": "x"}]}), site / "s"):
        done = hist("--config", str(site / "g.toml"))
    assert (done.returncode, "not an answer of gpumemd" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    "args", [["--since", "soon"], ["--limit", "0"], ["--user", ""], ["--nonsense"], ["extra"]]
)
def test_wrong_usage(site, args):
    done = hist("--config", str(site / "g.toml"), *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_missing_configuration(tmp_path):
    done = hist("--config", str(tmp_path / "absent.toml"))
    assert done.returncode == 1
    assert "absent.toml: no such file" in done.stderr


def test_help_imports_nothing_heavy():
    order = [sys.executable, "-X", "importtime", "-c", "from history.cli import main; main()", "--help"]
    done = subprocess.run(order, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert all(
        option in done.stdout for option in ("--user", "--since", "--script", "--limit", "--json", "--config")
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "history.cli" in imported
    assert not {"sqlalchemy", "alembic", "rich.console", "pydantic", "httpx"} & imported


def test_calibration_over_the_socket(site):
    group = {
        "gpu": "a100-80gb", "status": "exact", "kind": "work", "scores": 250, "score": 0.5, "judged": 150,
        "misses": 3, "promised": 200, "broken": 1,
    }  # fmt: skip
    few = group | {
        "kind": "new",
        "scores": 7,
        "score": None,
        "judged": 0,
        "misses": 0,
        "promised": 0,
        "broken": 0,
    }
    with serving(lambda _: (200, {"risk": 0.01, "groups": [group, few]}), site / "s"):
        done = hist("calibration", "--config", str(site / "g.toml"))
        machine = hist("calibration", "--json", "--config", str(site / "g.toml"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[1:] == [
        "GPU ESTIMATE KNOWN BY JOBS MARGIN RISK PROMISED MISSED",
        "a100-80gb exact work 250 128 MiB + 1.5% 2.00% 200 0.50%",
        "a100-80gb exact nothing 7 as set – 0 –",  # noqa: RUF001
    ]
    assert json.loads(machine.stdout)["groups"][0] == group
    (site / "s").unlink()
    with serving(lambda _: (403, {"detail": "only admins"}), site / "s"):
        refused = hist("calibration", "--config", str(site / "g.toml"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "only admins" in refused.stderr


def table(*jobs):
    out = io.StringIO()
    print_table(jobs, out)
    return out.getvalue().splitlines()


def test_table_fits_and_keeps_job_ids():
    wide = JobRecord(
        job_id=2**32 - 1, user_name="u" * 99, script="s" * 200, asked="gpu:nvidia_a100_80gb_pcie:1", got="shard:80",
        estimated_peak_bytes=79 * GIB, measured_peak_bytes=78 * GIB, error=-0.0127, state="rewritten", held_s=119.6,
    )  # fmt: skip
    lines = table(wide, JobRecord(job_id=5))
    assert all(len(line) <= 100 for line in lines), max(map(len, lines))
    assert lines[1].startswith(str(2**32 - 1))
    assert "79.0 GiB" in lines[1] and "-1.3%" in lines[1] and "rewritten" in lines[1] and "120 s" in lines[1]
    assert lines[2].split() == ["5"] + ["–"] * 9  # noqa: RUF001


def test_table_shows_no_control_characters_and_no_markup():
    (_, line) = table(JobRecord(job_id=1, script="a\x1b[31mb\nc[bold]d"))
    assert "a?[31mb?c[bold]d" in line


def test_user_without_name_is_shown_by_id():
    assert table(JobRecord(job_id=1, user_id=1234))[1].split()[1] == "1234"


def test_since():
    zone = timezone(timedelta(hours=2))
    now = datetime(2026, 2, 10, 9, 30, tzinfo=zone)
    assert parse_since("7d", now) == datetime(2026, 2, 3, 9, 30, tzinfo=zone)
    assert parse_since("12h", now) == datetime(2026, 2, 9, 21, 30, tzinfo=zone)
    assert parse_since("2026-01-31", now) == datetime(2026, 1, 31, tzinfo=zone)
    assert parse_since("2026-01-31T08:00Z", now) == datetime(2026, 1, 31, 8, tzinfo=UTC)
    for bad in ("", "7", "d", "-7d", "7 d", "2026-02-30", "999999999d", "\u0667d"):
        with pytest.raises(ValueError):
            parse_since(bad, now)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["--json", "--config", "/no/such.toml"], 1, "no such file"),
        (["calibration", "--json", "--config", "/no/such.toml"], 1, "no such file"),
        (["show", "3", "--json", "--config", "/no/such.toml"], 1, "no such file"),
        (["--json", "--since", "x"], 2, "neither a date"),
        (["--json", "--nope"], 2, "--nope"),
    ],
)
def test_with_json_a_failure_is_told_as_json_too(arguments: list[str], status: int, reason: str) -> None:
    command = [sys.executable, "-c", "from history.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert (done.returncode, told["status"]) == (status, "failed")
    assert reason in told["reason"] and reason in done.stderr
