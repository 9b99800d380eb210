"""A collector for tests: it takes spans over gRPC and over HTTP, and keeps them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

__all__ = ["Collector", "Seen"]

_WAIT_S = 30.0


@dataclass(frozen=True)
class Seen:
    """A span that came.

    Attributes:
        error: The words of its status, if that is an error.
        parent: The id of its parent; empty for none.
        links: The ids of the spans that it is linked to.
    """

    service: str
    name: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    error: str | None
    links: tuple[str, ...]
    facts: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """Listens on two free ports while it is open; a context manager.

    Attributes:
        grpc: The endpoint for OTEL_EXPORTER_OTLP_PROTOCOL=grpc.
        http: The one for http/protobuf.
    """

    def __init__(self) -> None:
        self._came = threading.Condition()
        self._spans: list[Seen] = []
        collector = self

        class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
            def Export(self, request, context):  # noqa: N802  (its name in the protocol)
                collector.take(request)
                return trace_service_pb2.ExportTraceServiceResponse()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Servicer(), self._grpc)
        self.grpc = f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._grpc.start()
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._grpc.stop(None).wait()
        self._http.shutdown()
        self._http.server_close()

    def take(self, request: Any) -> None:
        """Keeps what a process sent."""
        with self._came:
            for whole in request.resource_spans:
                resource = _facts(whole.resource.attributes)
                self._spans += [
                    _seen(span, resource) for scope in whole.scope_spans for span in scope.spans
                ]
            self._came.notify_all()

    def spans(self, trace: str | None = None) -> list[Seen]:
        """What has come, of one trace or of all, in the order of its beginning."""
        with self._came:
            found = [span for span in self._spans if trace in (None, span.trace)]
        return sorted(found, key=lambda span: span.began_ns)

    def wait_for(self, wanted: Callable[[Seen], bool], count: int = 1) -> list[Seen]:
        """Waits until so many spans of a kind have come.

        Raises:
            AssertionError: They do not come.
        """
        deadline = time.monotonic() + _WAIT_S
        with self._came:
            while True:
                found = [span for span in self._spans if wanted(span)]
                if len(found) >= count:
                    return found
                left = deadline - time.monotonic()
                assert left > 0, f"{len(found)} of {count} came, among {self._spans}"
                self._came.wait(left)

    def named(self, name: str, session: str, count: int = 1) -> list[Seen]:
        """Waits for spans by their name, and the name of their session."""
        return self.wait_for(
            lambda s: s.name == name and s.facts.get("disco.session.name") == session, count
        )


def tree(spans: list[Seen]) -> list[str]:
    """Draws spans of a trace as text, indented under their parents."""
    known = {span.id for span in spans}
    lines: list[str] = []

    def draw(parent: str | None, depth: int) -> None:
        for span in spans:
            if span.parent == parent or (parent is None and span.parent not in known):
                error = f"  ERROR {span.error}" if span.error is not None else ""
                took = (span.ended_ns - span.began_ns) / 1e6
                lines.append(f"{'  ' * depth}{span.service} {span.name} {took:.1f} ms{error}")
                draw(span.id, depth + 1)

    draw(None, 0)
    return lines


def _seen(span: Any, resource: dict[str, Any]) -> Seen:
    return Seen(
        resource["service.name"],
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message if span.status.code == 2 else None,  # STATUS_CODE_ERROR
        tuple(link.span_id.hex() for link in span.links),
        _facts(span.attributes),
        resource,
    )


def _facts(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
