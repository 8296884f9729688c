"""Small real HTTP servers for tests of clients."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path


@dataclass
class Request:
    """What a server received; `uid` is who the kernel says asked (-1 over TCP)."""

    method: str
    target: str
    body: bytes
    authorization: str | None
    uid: int


Answer = tuple[int, object]


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class _TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@contextmanager
def serving(answer: Callable[[Request], Answer], unix: Path | None = None) -> Iterator[str]:
    """Serves JSON (or the bytes given) on a Unix socket or a free TCP port; gives the service's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            uid = -1
            if unix:
                peer = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                uid = struct.unpack("3i", peer)[1]
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, body, self.headers.get("Authorization"), uid)
            status, document = answer(request)
            content = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def address_string(self) -> str:
            return "test"

        def log_message(self, *_: object) -> None:
            pass

    server = _UnixServer(str(unix), Handler) if unix else _TcpServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        if unix:
            unix.chmod(0o666)
        yield f"unix:{unix}" if unix else f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def talking(speak: Callable[[socket.socket], None], path: Path) -> Iterator[str]:
    """A server at a Unix socket that does with each connection what `speak` does; gives its address."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                speak(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"unix:{path}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
