"""JSON over HTTP to `gpumemd`, at `unix:PATH` or `http://HOST:PORT`: standard library only, quick to import.

Over the Unix socket the service knows its caller from the kernel; over TCP every request carries a MUNGE
credential.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

_MAX_ANSWER = 64 * 1024**2


class Unreachable(Exception):
    """The service gave no answer that can be understood; what was sent may or may not have arrived."""


class Refused(Exception):
    """The service answered, and said no; `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{reason} (HTTP {status})")
        self.status = status


def get(
    service: str,
    path: str,
    query: Mapping[str, str | int | None] | None = None,
    *,
    timeout_s: float,
    munge_socket: Path | None = None,
) -> Any:
    """The JSON at `path`; a query value of None is left out.

    Raises:
        Unreachable: nobody answers within `timeout_s`, all in all, or the answer is not JSON.
        Refused: the service refuses the request.
        ValueError: `service` is neither unix:PATH nor http://HOST:PORT.
    """
    given = {key: value for key, value in (query or {}).items() if value is not None}
    target = f"{path}?{urlencode(given)}" if given else path
    return _request(service, "GET", target, b"", timeout_s, munge_socket)


def post(
    service: str, path: str, document: Any, *, timeout_s: float, munge_socket: Path | None = None
) -> Any:
    """Sends `document` as JSON (bytes: JSON already) and returns the JSON answer; raises as `get`."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return _request(service, "POST", path, body, timeout_s, munge_socket)


def _request(
    service: str, method: str, target: str, body: bytes, timeout_s: float, munge_socket: Path | None
) -> Any:
    from http.client import HTTPConnection, HTTPException

    deadline = time.monotonic() + timeout_s
    is_unix, host, port = _parts(service)
    headers = {"Host": "localhost" if is_unix else f"{host}:{port}", "Connection": "close"}
    if body:
        headers["Content-Type"] = "application/json"
    if not is_unix:
        headers["Authorization"] = f"Munge {_credential(method, target, body, timeout_s, munge_socket)}"
    try:
        connection = HTTPConnection("localhost")
        connection.sock = _connect(is_unix, host, port, deadline)
        try:
            connection.request(method, target, body or None, headers)
            answer = connection.getresponse()
            text = answer.read(_MAX_ANSWER + 1)
            missing = answer.length
        finally:
            connection.close()
    except (OSError, HTTPException) as error:
        raise Unreachable(f"gpumemd does not answer at {service}: {_cause(error)}") from None
    if len(text) > _MAX_ANSWER:
        raise Unreachable(f"gpumemd at {service}: the answer is too long")
    if missing:
        raise Unreachable(f"gpumemd at {service}: the answer was cut off")
    if answer.status != 200:
        raise Refused(answer.status, _reason(text) or answer.reason)
    try:
        return json.loads(text)
    except ValueError:
        raise Unreachable(f"gpumemd at {service}: the answer is not JSON") from None


class _DeadlineSocket(socket.socket):
    """A stream whose reads all end at one deadline, so that a peer cannot stretch the wait byte by byte."""

    deadline = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*args, **kwargs)


def _connect(is_unix: bool, host: str, port: int, deadline: float) -> socket.socket:
    family, address = socket.AF_UNIX, cast(Any, host)
    if not is_unix:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    stream = _DeadlineSocket(family, socket.SOCK_STREAM)
    stream.deadline = deadline
    try:
        stream.settimeout(_left(deadline))
        stream.connect(address)
        stream.settimeout(_left(deadline))  # for all of the request
    except BaseException:
        stream.close()
        raise
    return stream


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _parts(service: str) -> tuple[bool, str, int]:
    """Whether it is a Unix socket, its path or host, and the port."""
    if service.startswith("unix:/"):
        return True, service.removeprefix("unix:"), 0
    parts = urlsplit(service)
    if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path not in ("", "/"):
        raise ValueError(f"{service!r} is neither unix:PATH nor http://HOST:PORT")
    return False, parts.hostname, parts.port


def _credential(method: str, target: str, body: bytes, timeout_s: float, munge_socket: Path | None) -> str:
    from history.auth import AuthError, make_credential, request_digest

    try:
        return make_credential(request_digest(method, target, body), munge_socket, timeout_s)
    except AuthError as error:
        raise Unreachable(f"no MUNGE credential: {error}") from None


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _reason(text: bytes) -> str | None:
    """The `detail` or `error` of an error answer, if it is a short text."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    detail = (document.get("detail") or document.get("error")) if isinstance(document, dict) else None
    return detail[:300] if isinstance(detail, str) else None
