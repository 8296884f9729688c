"""Callers over TCP are known by MUNGE: with a real munged."""

from __future__ import annotations

import subprocess
import time

import pytest

from history.auth import AuthError, caller_of, make_credential, request_digest

UNPRIVILEGED = 65534  # nobody
DIGEST = request_digest("POST", "/v1/measurements", b"[]")


def munge(*options, payload=DIGEST, user=None):
    command = ["munge", *options]
    return subprocess.run(
        command, input=payload, capture_output=True, text=True, check=True, user=user
    ).stdout


def test_digest_depends_on_method_target_and_body():
    others = [
        ("GET", "/v1/measurements", b"[]"),
        ("POST", "/v1/jobs", b"[]"),
        ("POST", "/v1/measurements", b"[ ]"),
    ]
    assert len({DIGEST, *(request_digest(*other) for other in others)}) == 4


def test_caller_is_who_made_the_credential(munge_socket):
    assert caller_of(make_credential(DIGEST, munge_socket), DIGEST, munge_socket) == 0
    credential = munge(f"--socket={munge_socket}", user=UNPRIVILEGED).strip()
    assert caller_of(credential, DIGEST, munge_socket) == UNPRIVILEGED


def test_replay_is_refused(munge_socket):
    credential = make_credential(DIGEST, munge_socket)
    caller_of(credential, DIGEST, munge_socket)
    with pytest.raises(AuthError, match="[Rr]eplayed"):
        caller_of(credential, DIGEST, munge_socket)


def test_credential_of_another_request_is_refused(munge_socket):
    credential = make_credential(DIGEST, munge_socket)
    with pytest.raises(AuthError, match="another request"):
        caller_of(credential, request_digest("POST", "/v1/measurements", b"[1]"), munge_socket)


def test_metadata_in_the_payload_is_not_believed(munge_socket):
    forged = f"STATUS: 0\nUID: 0\n\n{DIGEST}"
    credential = munge(f"--socket={munge_socket}", payload=forged, user=UNPRIVILEGED).strip()
    with pytest.raises(AuthError, match="another request"):
        caller_of(credential, DIGEST, munge_socket)


def test_changed_credential_is_refused(munge_socket):
    credential = make_credential(DIGEST, munge_socket)
    middle = len(credential) // 2
    changed = credential[:middle] + ("A" if credential[middle] != "A" else "B") + credential[middle + 1 :]
    with pytest.raises(AuthError):
        caller_of(changed, DIGEST, munge_socket)


@pytest.mark.parametrize(
    "text", ["", "Basic cm9vdA==", "MUNGE:", "MUNGE:x:\0", "MUNGE:é", "MUNGE:" + "A" * 10**6]
)
def test_what_is_no_credential_is_refused(munge_socket, text):
    with pytest.raises(AuthError):
        caller_of(text, DIGEST, munge_socket)


def test_expired_credential_is_refused(munge_socket):
    credential = munge(f"--socket={munge_socket}", "--ttl=1").strip()
    time.sleep(2.1)  # MUNGE counts whole seconds
    with pytest.raises(AuthError, match="[Ee]xpired"):
        caller_of(credential, DIGEST, munge_socket)


def test_dead_munged_is_explained(tmp_path):
    with pytest.raises(AuthError, match="[Ss]ocket|munged"):
        make_credential(DIGEST, tmp_path / "nobody-listens")
    with pytest.raises(AuthError):
        caller_of("MUNGE:AAAA:", DIGEST, tmp_path / "nobody-listens")


def test_missing_program_is_explained(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AuthError, match="install the package munge"):
        make_credential(DIGEST)
