"""Who sends a request over TCP: a MUNGE credential over a digest of the request.

MUNGE itself refuses credentials that are forged, expired or used before (munge(7)).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_TIMEOUT_S = 3.0
_MAX_CREDENTIAL = 4096
_INSTALL_HINT = "install the package munge and start munged"


class AuthError(Exception):
    """A credential could not be made, or does not prove who sent the request."""


def request_digest(method: str, target: str, body: bytes) -> str:
    """SHA-256 (hex) of what a credential vouches for; `target` is the path with its query."""
    return hashlib.sha256(f"{method} {target}\n".encode() + body).hexdigest()


def make_credential(digest: str, munge_socket: Path | None = None, timeout_s: float = _TIMEOUT_S) -> str:
    """A credential of the calling user over `digest`.

    Raises:
        AuthError: MUNGE is missing, or its daemon does not answer.
    """
    return _run("munge", [], digest, munge_socket, timeout_s).strip()


def caller_of(credential: str, digest: str, munge_socket: Path | None = None) -> int:
    """The user id that made `credential` for exactly this `digest`.

    Raises:
        AuthError: the credential is malformed, forged, expired, used before, or made for another request.
    """
    if len(credential) > _MAX_CREDENTIAL or not credential.isascii() or not credential.startswith("MUNGE:"):
        raise AuthError("not a MUNGE credential")
    output = _run("unmunge", ["--keys=STATUS,UID"], credential, munge_socket, _TIMEOUT_S)
    metadata, _, payload = output.partition("\n\n")
    lines = [line.partition(":") for line in metadata.splitlines()]
    fields = {key: value.strip() for key, _, value in lines}
    uid = re.fullmatch(r".*\((\d+)\)", fields.get("UID", ""))  # such as "alice (1000)"
    if fields.get("STATUS") != "Success (0)" or not uid:
        raise AuthError(fields.get("STATUS") or "unmunge did not vouch for the credential")
    if payload != digest:
        raise AuthError("the credential was made for another request")
    return int(uid[1])


def _run(program: str, options: list[str], text: str, munge_socket: Path | None, timeout_s: float) -> str:
    import subprocess  # only requests over TCP pay for this import

    where = [f"--socket={munge_socket}"] if munge_socket else []
    try:
        done = subprocess.run(
            [program, *where, *options],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise AuthError(f"{program} is not installed: {_INSTALL_HINT}") from None
    except (OSError, ValueError) as error:
        raise AuthError(f"{program} failed: {error}") from None
    except subprocess.TimeoutExpired:
        raise AuthError(f"{program} did not answer in {timeout_s:g} s: is munged alive?") from None
    if done.returncode != 0:
        status = re.match(r"STATUS: +(.+)", done.stdout)
        reason = done.stderr.strip() or (status[1] if status else f"{program}: exit code {done.returncode}")
        raise AuthError(reason.splitlines()[0][:300])
    return done.stdout
