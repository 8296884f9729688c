"""Who sends a request: over a Unix socket the kernel says (SO_PEERCRED), over TCP a MUNGE credential does."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from history import auth

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_UNIX = "unix-peer"
_FIRST_REQUEST_S = 10.0
_MOST_CONNECTIONS_PER_USER = 64


class UnknownCaller(Exception):
    """The request does not prove who sent it; the text says what is missing."""


class PeerProtocol(HttpToolsProtocol):
    """Puts the peer's user id into `scope["client"]`, as `("unix-peer", uid)`.

    A connection that sends no request for ten seconds is closed, and a user other than root has at most
    64 of them, so that nobody can use up the service's file descriptors.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX:
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, uid, _ = _CREDENTIALS.unpack(raw)
            self.client = (_UNIX, uid)
            mine = sum(getattr(other, "client", None) == self.client for other in self.connections)
            if uid != 0 and mine > _MOST_CONNECTIONS_PER_USER:
                transport.close()
                return
        asyncio.get_running_loop().call_later(_FIRST_REQUEST_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


def peer_uid(scope: Any) -> int | None:
    """The user id at the other end of a Unix socket; None over TCP."""
    kind, uid = scope.get("client") or ("", 0)
    return uid if kind == _UNIX else None


async def caller_uid(request: Request, body: bytes, munge_socket: Path | None) -> int:
    """The user id of whoever sent this request.

    Raises:
        UnknownCaller: it came over TCP without a credential that holds.
    """
    uid = peer_uid(request.scope)
    if uid is not None:
        return uid
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "munge" or not credential:
        raise UnknownCaller("over TCP a request needs a MUNGE credential (Authorization: Munge ...)")
    path, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
    target = f"{path}?{query}" if query else path
    digest = auth.request_digest(request.method, target, body)
    try:
        return await asyncio.to_thread(auth.caller_of, credential.strip(), digest, munge_socket)
    except auth.AuthError as error:
        raise UnknownCaller(str(error)) from None
