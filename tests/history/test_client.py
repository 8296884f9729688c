"""The HTTP client of prolog and `gpumem-hist`, against real servers that behave and that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from history.auth import AuthError, caller_of, request_digest
from history.client import Refused, Unreachable, get, post
from tests.history.http_servers import serving, talking


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


def echo(request):
    return 200, {
        "method": request.method,
        "target": request.target,
        "body": request.body.decode(),
        "uid": request.uid,
    }


def test_get_over_the_unix_socket(path):
    with serving(echo, path) as service:
        answer = get(service, "/v1/jobs", {"user": "a b&c", "limit": 5, "since": None}, timeout_s=5)
    assert answer == {
        "method": "GET",
        "target": "/v1/jobs?user=a+b%26c&limit=5",
        "body": "",
        "uid": os.getuid(),
    }


def test_post_of_a_document_and_of_bytes(path):
    with serving(echo, path) as service:
        assert json.loads(post(service, "/v1/measurements", [{"ü": 1}], timeout_s=5)["body"]) == [{"ü": 1}]
        assert post(service, "/v1/measurements", b"[2]", timeout_s=5)["body"] == "[2]"


def test_post_over_tcp_carries_a_credential_for_this_request(munge_socket):
    callers = []

    def check(request):
        scheme, _, credential = request.authorization.partition(" ")
        digest = request_digest(request.method, request.target, request.body)
        try:
            callers.append((scheme, caller_of(credential, digest, munge_socket)))
        except AuthError as error:
            return 403, {"detail": str(error)}
        return 200, {"accepted": []}

    with serving(check) as service:
        assert post(service, "/v1/measurements", [1], timeout_s=5, munge_socket=munge_socket) == {
            "accepted": []
        }
        get(f"{service}/", "/v1/jobs", {"limit": 1}, timeout_s=5, munge_socket=munge_socket)
    assert callers == [("Munge", os.getuid())] * 2


def test_no_munge_is_unreachable(tmp_path):
    with serving(echo) as service, pytest.raises(Unreachable, match="no MUNGE credential"):
        get(service, "/v1/jobs", timeout_s=2, munge_socket=tmp_path / "none")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"detail": "not root"}, r"not root \(HTTP 403\)"),
        ({"error": "no"}, r"no \(HTTP 403\)"),
        ({"detail": [1]}, r"Forbidden \(HTTP 403\)"),
        (b"<html>", r"Forbidden \(HTTP 403\)"),
    ],
)
def test_refusal_says_why(path, document, reason):
    with serving(lambda _: (403, document), path) as service, pytest.raises(Refused, match=reason) as caught:
        get(service, "/v1/jobs", timeout_s=5)
    assert caught.value.status == 403


def test_nobody_there(path):
    with pytest.raises(Unreachable, match="does not answer at unix:/.*: No such file"):
        get(f"unix:{path}", "/v1/jobs", timeout_s=1)
    with serving(echo) as service:
        pass
    with pytest.raises(Unreachable, match="refused|munge"):
        get(service, "/v1/jobs", timeout_s=5)


def hang(connection):
    connection.recv(10**5)
    connection.recv(1)


def trickle(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def trickle_body(connection):
    connection.recv(10**5)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


@pytest.mark.parametrize("speak", [hang, trickle, trickle_body])
def test_deadline_is_for_everything(path, speak):
    with talking(speak, path) as service:
        start = time.monotonic()
        with pytest.raises(Unreachable, match="timed out"):
            get(service, "/v1/jobs", timeout_s=0.3)
        assert 0.25 < time.monotonic() - start < 5


def test_peer_that_never_reads_is_left(path):
    with talking(lambda connection: time.sleep(30), path) as service:
        start = time.monotonic()
        with pytest.raises(Unreachable):
            post(service, "/v1/measurements", b"x" * 10_000_000, timeout_s=0.3)
        assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nnot json",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    ],
)
def test_garbage_is_unreachable(path, said):
    def speak(connection):
        connection.recv(10**5)
        connection.sendall(said)

    with talking(speak, path) as service, pytest.raises(Unreachable):
        get(service, "/v1/jobs", timeout_s=2)


@pytest.mark.parametrize(
    "service",
    ["", "unix:", "unix:relative", "https://h:1", "http://h", "http://h:1/x", "http://h:99999", "/run/s"],
)
def test_bad_address(service):
    with pytest.raises(ValueError):
        get(service, "/v1/jobs", timeout_s=1)


def test_import_is_light():
    code = "import sys; import history.client; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pydantic", "sqlalchemy", "typer", "rich", "subprocess", "asyncio"} & set(loaded)
