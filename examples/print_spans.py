"""Runs a command and shows its OpenTelemetry spans as a tree, without any other collector.

Needs the extra ``otel``. For example::

    python examples/print_spans.py disco local --nodes 2 -- python examples/embed.py --workers 4
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

_ERROR = 2
"""The code of the status of a span that failed."""

SHOWN = ("disco.node", "disco.nodes", "disco.rank", "disco.bytes", "disco.path", "disco.end.reason")


class Span(NamedTuple):
    """A span, and what is shown of it."""

    service: str
    id: bytes
    parent: bytes
    began_ns: int
    text: str


class Receiver(ThreadingHTTPServer):
    """Takes spans by OTLP over HTTP, on a free port of this machine, and keeps them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Span] = []


class Handler(BaseHTTPRequestHandler):
    """Answers one exporter."""

    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        """Takes some spans."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.spans += read(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the library's name)
        """Says nothing of each request."""


def read(body: bytes) -> Iterator[Span]:
    """Reads what an exporter sends."""
    request: Any = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
    for sender in request.resource_spans:
        service = facts(sender.resource.attributes)["service.name"]
        for span in (span for scope in sender.scope_spans for span in scope.spans):
            began = span.start_time_unix_nano
            known = facts(span.attributes)
            words = [
                f"{name.removeprefix('disco.')}={known[name]}" for name in SHOWN if name in known
            ]
            words += [f"ERROR: {span.status.message}"] if span.status.code == _ERROR else []
            took = f"{(span.end_time_unix_nano - began) / 1e6:.1f} ms"
            text = "  ".join([span.name, took, *words])
            yield Span(service, span.span_id, span.parent_span_id, began, text)


def facts(attributes: Any) -> dict[str, Any]:
    """What attributes say, lists as text."""
    found: dict[str, Any] = {}
    for each in attributes:
        value = each.value
        kind = value.WhichOneof("value")
        if kind == "array_value":
            items = [getattr(item, item.WhichOneof("value")) for item in value.array_value.values]
            found[each.key] = ",".join(map(str, items))
        else:
            found[each.key] = getattr(value, kind)
    return found


def tree(spans: Sequence[Span]) -> Iterator[str]:
    """Draws spans below each other, in the order in which they began."""
    in_order = sorted(spans, key=lambda span: span.began_ns)
    known = {span.id for span in in_order}

    def draw(found: Sequence[Span], depth: int) -> Iterator[str]:
        for span in found:
            yield f"{span.service:<17}{'  ' * depth}{span.text}"
            yield from draw([each for each in in_order if each.parent == span.id], depth + 1)

    yield from draw([span for span in in_order if span.parent not in known], 0)


def main(command: Sequence[str]) -> int:
    """Runs a command; returns its exit code."""
    if not command:
        print(__doc__)
        return 2
    with Receiver() as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{receiver.server_port}"
        done = subprocess.run(
            command, env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, check=False
        )
        receiver.shutdown()
        print("\n".join(tree(receiver.spans)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
