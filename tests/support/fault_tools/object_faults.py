"""A server of objects as it is on a bad day: an HTTP proxy that answers some requests itself."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Self

__all__ = ["Fault", "FaultyServer"]

_OF_CONNECTION = ("connection", "transfer-encoding", "content-length")


@dataclass
class Fault:
    """What happens to requests.

    Attributes:
        method: The method of those that it concerns.
        holds: A text that is in their targets.
        times: How many of them.
        status: The status that is answered instead; 0 for that of the server.
        body: The body with it.
        lost: The server does the request, and its answer does not come.
        cut: After so many bytes of the body, sent or answered, the connection is reset; -1 for not.
        held: After so many bytes of the body that is answered, the rest comes when `FaultyServer`
            is released, or ends; -1 for not.
        pause_s: Seconds between two bytes of that body.
        before: What is done before the server has the request; it may send others.
        met: How many requests it concerned.
    """

    method: str
    holds: str = ""
    times: int = 1
    status: int = 0
    body: bytes = b""
    lost: bool = False
    cut: int = -1
    held: int = -1
    pause_s: float = 0.0
    before: Callable[[], object] | None = None
    met: int = 0


_NO_FAULT = Fault("")


class FaultyServer:
    """A proxy in threads; a context manager.

    Args:
        address: Of the server, ``HOST:PORT``.

    Attributes:
        leads_to: That address.
        address: Where the proxy listens.
        faults: What happens to requests that come; the first that concerns one.
        seen: Method and target of each request.
        released: Set to let answers go on that are held.
    """

    def __init__(self, address: str) -> None:
        self.leads_to = address
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str]] = []
        self.released = threading.Event()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"faulty": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="faulty server")

    def take(self, method: str, target: str) -> Fault:
        """Notes a request; returns what happens to it."""
        with self._lock:
            self.seen.append((method, target))
            for fault in self.faults:
                if fault.method == method and fault.holds in target and fault.met < fault.times:
                    fault.met += 1
                    return fault
        return Fault(method)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Passes the requests of one connection on."""

    protocol_version = "HTTP/1.1"
    faulty: ClassVar[FaultyServer]

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _take(self) -> None:
        fault = self.faulty.take(self.command, self.path)
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._pass_on(fault)

    def _pass_on(self, fault: Fault) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if fault.cut >= 0 and length:
            self.rfile.read(min(length, fault.cut))
            self._reset()
            return
        body = self.rfile.read(length)
        if fault.before is not None:
            fault.before()
        if fault.status:
            self._answer(fault.status, [("Content-Type", "application/xml")], fault.body)
            return
        server = http.client.HTTPConnection(self.faulty.leads_to, timeout=30)
        server.request(self.command, self.path, body, dict(self.headers))
        reply = server.getresponse()
        content = reply.read()
        server.close()
        if fault.lost:
            self._reset()
        else:
            self._answer(reply.status, reply.getheaders(), content, fault)

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, fault: Fault = _NO_FAULT
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        only_head = self.command == "HEAD"
        size = dict(headers).get("Content-Length", "0") if only_head else str(len(body))
        self.send_header("Content-Length", size)
        self.end_headers()
        if only_head:
            return
        if fault.cut >= 0:
            self.wfile.write(body[: fault.cut])
            self._reset()
        elif fault.held >= 0:
            self.wfile.write(body[: fault.held])
            self.faulty.released.wait()
            self.wfile.write(body[fault.held :])
        else:
            self._write_slowly(body, fault.pause_s)

    def _write_slowly(self, body: bytes, pause_s: float) -> None:
        step = 1 if pause_s else max(len(body), 1)
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            if pause_s:
                self.faulty.released.wait(pause_s)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        os.close(self.connection.detach())


for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._take)
