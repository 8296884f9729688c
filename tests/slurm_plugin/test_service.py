"""gpumemd's HTTP side: a real process, real sockets and, over TCP, real MUNGE credentials; no Slurm needed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from history import client
from testbed.cluster import Cluster, free_ports, make_folder
from testbed.users import User
from tests.slurm_plugin.running import PACKAGES, Gpumemd

MEASUREMENT = {
    "id": "00000000-0000-4000-8000-000000000001",
    "job_id": 77,
    "node": "n1",
    "gpus": [{"uuid": "GPU-1", "peak_bytes": 5}],
    "ended_at": "2026-01-31T10:00:00Z",
}
SUBMISSION = {
    "v": 1,
    "uid": 1000,
    "partition": "elsewhere",
    "tres_per_node": "gres:gpu:1",
    "script": "#!/bin/sh\npython train.py\n",
    "work_dir": "/",
}


@pytest.fixture(scope="module")
def service(cluster: Cluster) -> Iterator[Gpumemd]:
    import shutil

    folder = make_folder()
    running = Gpumemd(folder, cluster.conf, cluster.munge_socket)
    running.start(listen=f"127.0.0.1:{free_ports(1)[0]}")
    yield running
    running.kill(signal.SIGTERM)
    shutil.rmtree(folder)


def request(path: Path, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    connection.request(method, target, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text.startswith(b"{") else text


def post(service: Gpumemd, target: str, document: object) -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return request(service.submit_socket, "POST", target, body)


def test_sockets_are_open_to_whom_they_are_for(service: Gpumemd) -> None:
    assert stat.S_IMODE(service.submit_socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.user_socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(service.database.stat().st_mode) == 0o600


def test_a_submission_is_answered_and_recorded(service: Gpumemd) -> None:
    status, reply = post(service, "/v1/submissions", SUBMISSION)
    assert (status, reply["action"], reply["set"]) == (200, "pass", {})
    rows = service.wait(
        lambda: [
            row for row in service.get("/v1/jobs")["jobs"] if row.get("decision_id") == reply["decision_id"]
        ],
        "the decision",
    )
    assert rows[0]["reason"] == "partition elsewhere is not switched on"
    assert rows[0]["asked"] == "gpu:1"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 422, "not a submission"),
        (b"{", 422, "not a submission"),
        (b"[" * 50_000, 422, "nested too deeply"),
        (b'{"v": 1}', 422, "uid: Field required"),
        (b'{"v": 1, "uid": "x"}', 422, "uid: "),
        (b" " * (1024**2 + 1), 413, "longer than 1048576"),
    ],
)
def test_malformed_submissions_are_refused_with_a_reason(
    service: Gpumemd, body: bytes, status: int, text: str
) -> None:
    got, answer = post(service, "/v1/submissions", body)
    assert got == status
    assert text in answer["detail"]


@pytest.mark.parametrize("body", [b"{}", b"[{}]", b'[{"id": "x"}]', b"[" * 50_000, b"\xff\xfe"])
def test_malformed_measurements_are_refused_with_a_reason(service: Gpumemd, body: bytes) -> None:
    status, answer = post(service, "/v1/measurements", body)
    assert status == 422
    assert answer["detail"].startswith("not a list of measurements: ")


def test_submissions_only_come_from_slurmctld(service: Gpumemd, alice: User) -> None:
    body = json.dumps(SUBMISSION).encode()
    status, answer = request(service.user_socket, "POST", "/v1/submissions", body)
    assert (status, answer["detail"]) == (403, "only slurmctld may send submissions")
    service.submit_socket.chmod(0o666)  # even then
    try:
        assert refused_to(alice, service.submit_socket, "/v1/submissions", SUBMISSION) == 403
    finally:
        service.submit_socket.chmod(0o600)


def test_slurmctld_waits_for_no_job_that_nothing_is_to_be_found_out_about(
    service: Gpumemd, alice: User
) -> None:
    assert request(service.user_socket, "GET", "/v1/ended?job_id=7") == (200, {"examined": True})
    assert request(service.user_socket, "GET", "/v1/ended?job_id=x")[0] == 422
    assert status_for(alice, service.user_socket, "GET", "/v1/ended?job_id=7") == 403


def test_measurements_only_come_from_root_and_count_once(service: Gpumemd, alice: User) -> None:
    assert refused_to(alice, service.user_socket, "/v1/measurements", [MEASUREMENT]) == 403
    for _ in range(2):
        status, answer = request(
            service.user_socket, "POST", "/v1/measurements", json.dumps([MEASUREMENT]).encode()
        )
        assert (status, answer) == (200, {"accepted": [MEASUREMENT["id"]]})
    rows = [row for row in service.get("/v1/jobs")["jobs"] if row.get("job_id") == 77]
    assert [row["measured_peak_bytes"] for row in rows] == [5]


def test_a_job_is_shown_to_its_user_and_to_admins(service: Gpumemd, alice: User, bob: User) -> None:
    measured = {**MEASUREMENT, "id": MEASUREMENT["id"].replace("1", "2"), "job_id": 78, "user_id": alice.uid}
    request(service.user_socket, "POST", "/v1/measurements", json.dumps([measured]).encode())
    assert service.get("/v1/jobs/78")["job"]["measured_peak_bytes"] == 5
    assert [status_for(user, service.user_socket, "GET", "/v1/jobs/78") for user in (alice, bob)] == [
        200,
        404,
    ]


def refused_to(user: User, path: Path, target: str, document: object) -> int:
    """The status that an ordinary user's POST gets."""
    return status_for(user, path, "POST", target, json.dumps(document))


def status_for(user: User, path: Path, method: str, target: str, body: str = "") -> int:
    """The status that an ordinary user's request gets; a program of its own, as they may not read ours."""
    program = (
        "import http.client, socket, sys\n"
        "connection = http.client.HTTPConnection('localhost')\n"
        "connection.sock = socket.socket(socket.AF_UNIX)\nconnection.sock.connect(sys.argv[1])\n"
        "connection.request(sys.argv[2], sys.argv[3], sys.stdin.read())\n"
        "print(connection.getresponse().status)\n"
    )
    command = ["/usr/bin/python3", "-I", "-c", program, str(path), method, target]
    done = user.run(command, text=body)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_over_tcp_munge_says_who_it_is(service: Gpumemd, cluster: Cluster, alice: User) -> None:
    address = next(line for line in service.config.read_text().splitlines() if line.startswith("listen"))
    url = "http://" + address.split('"')[1]
    for _ in range(2):
        answer = client.post(
            url, "/v1/measurements", [MEASUREMENT], timeout_s=5, munge_socket=cluster.munge_socket
        )
        assert answer == {"accepted": [MEASUREMENT["id"]]}
    jobs = client.get(url, "/v1/jobs", {"limit": 3}, timeout_s=5, munge_socket=cluster.munge_socket)
    assert isinstance(jobs["jobs"], list)
    host, port = url.removeprefix("http://").split(":")
    for headers in ({}, {"Authorization": "Munge MUNGE:forged:"}, {"X-Forwarded-For": "127.0.0.1"}):
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        connection.request("POST", "/v1/measurements", json.dumps([MEASUREMENT]), headers)
        assert connection.getresponse().status == 401
        connection.close()
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("POST", "/v1/submissions", json.dumps(SUBMISSION))
    assert connection.getresponse().status == 403
    connection.close()


def test_a_user_cannot_use_up_the_connections(service: Gpumemd, alice: User) -> None:
    program = (
        "import socket, time\nkept = []\nclosed = 0\n"
        f"for _ in range(200):\n    s = socket.socket(socket.AF_UNIX); s.connect({str(service.user_socket)!r})\n"
        "    kept.append(s)\ntime.sleep(0.5)\n"
        "for s in kept:\n    s.setblocking(False)\n"
        "    try: closed += s.recv(1) == b''\n    except BlockingIOError: pass\n"
        "print(closed)"
    )
    done = alice.run(["/usr/bin/python3", "-I", "-c", program])
    assert int(done.stdout) == 200 - 64
    assert service.healthy()


def test_a_second_service_does_not_take_the_sockets_away(service: Gpumemd) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurm_plugin.daemon", "--config", str(service.config)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "another gpumemd listens there already" in done.stderr
    assert service.healthy()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[service]\nnonsense = 1\n", "service.nonsense: unknown key"),
        ("[history]\nurl = 'sqlite:////nowhere/at/all.db'\n", "/nowhere/at/all.db"),
        ("[service]\nlisten = 'x'\n", "HOST:PORT expected"),
        ("[partitions.p]\ngpu = 'abacus'\nshards_per_gpu = 4\n", "abacus: unknown GPU; known: "),
    ],
)
def test_what_is_wrong_with_the_settings_is_said(tmp_path: Path, text: str, error: str) -> None:
    config = tmp_path / "gpumem.toml"
    sockets = f"submit_socket = '{tmp_path}/s'\nuser_socket = '{tmp_path}/u'\nstate_dir = '{tmp_path}/st'\n"
    text = text.replace("[service]\n", f"[service]\n{sockets}")
    if "[service]" not in text:
        text = f"[service]\n{sockets}{text}"
    if "[history]" not in text:
        text += f"[history]\nurl = 'sqlite:///{tmp_path}/h.db'\n"
    config.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "slurm_plugin.daemon", "--config", str(config)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_help_comes_at_once() -> None:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "slurm_plugin.daemon", "--help"], cwd=PACKAGES, capture_output=True, check=True
    )
    assert b"--config" in done.stdout
    after = os.times()  # the processor's seconds: the machine may be busy
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


def test_submissions_are_answered_in_a_few_milliseconds(service: Gpumemd) -> None:
    body = json.dumps({**SUBMISSION, "script": "#!/bin/sh\n" + "x" * 20_000}).encode()

    def one(_: int) -> float:
        began = time.monotonic()
        assert request(service.submit_socket, "POST", "/v1/submissions", body)[0] == 200
        return time.monotonic() - began

    one(0)
    with ThreadPoolExecutor(2) as pool:
        times = sorted(pool.map(one, range(200)))
    assert statistics.median(times) < 0.02  # a machine under test load; bench/submission.py measures properly
