"""Makes spans with OpenTelemetry's own library, and sends them to a collector.

The library is imported when the first of these is made, so that this module can be read
without it. A program that has a tracer provider of its own keeps it, and these spans go
where its own go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

from disco_client.clock import monotonic
from disco_client.output import logger_of
from disco_client.telemetry.base import NO_SPAN, Attributes, Span
from disco_client.threads import start_thread, starting
from disco_client.version import __version__

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

__all__ = ["Tracing"]

_FLUSH_S = 1.5
"""How long the end of a process waits for spans that have not been sent."""

_BREAK_OFF_S = 0.3
"""How much longer it waits for an aborted export to end."""

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MAX_WORDS = 1000

_UNHARMED = contextlib.suppress(Exception)
"""Around calls of a provider of the program's, which may raise: what it looks at goes on."""

_logger = logger_of(__name__)


class Tracing:
    """Begins the spans of this process.

    Args:
        service: Its ``service.name``, unless the environment has another.
        resource: What else is the same for all its spans.
        endpoint: Where the collector is, for messages; the library reads that itself.

    Raises:
        ImportError: The library is not installed.
        ValueError: A setting is none.
    """

    def __init__(self, service: str, resource: Attributes, endpoint: str) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._library = trace
        self._propagator = TraceContextTextMapPropagator()
        self._own: trace.Tracer | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._make_own(service, resource, endpoint)

    def _make_own(self, service: str, resource: Attributes, endpoint: str) -> None:
        """Makes a provider, which is not made the program's: that may still choose its own."""
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        ours = {
            "service.name": service,
            "service.version": __version__,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
            **resource,
        }
        said = OTELResourceDetector().detect().attributes
        exporter = _Reporting(_make_exporter(), endpoint)
        with starting("the spans of OpenTelemetry"):
            processor = BatchSpanProcessor(cast("SpanExporter", exporter))
        provider = TracerProvider(
            resource=Resource.create({**ours, **said}), shutdown_on_exit=False
        )
        provider.add_span_processor(processor)
        self._own = provider.get_tracer("disco", __version__)
        # Sessions that the exit of the program ends were made later, so they end before.
        self._finalizer = weakref.finalize(self, _Ending(provider.shutdown, exporter.shutdown))

    def _tracer(self) -> trace.Tracer:
        provider = self._library.get_tracer_provider()
        if self._own is not None and isinstance(provider, self._library.ProxyTracerProvider):
            return self._own
        return provider.get_tracer("disco", __version__)

    def begin(
        self,
        name: str,
        attributes: Attributes | None,
        parent: Mapping[str, str] | Span | None,
        began_s: float | None,
        kind: str,
    ) -> Span:
        """Begins a span; see :func:`disco_client.telemetry.spans.begin`."""
        if isinstance(parent, LiveSpan):
            context = parent.context
        elif parent is None or isinstance(parent, Span):
            context = None
        else:
            context = self._propagator.extract(parent, context=_nothing())
        return self._start(name, attributes, context, (), began_s, kind)

    def within(self, whole: LiveSpan, name: str, attributes: Attributes | None) -> Span:
        """Begins a part of a span, see :meth:`Span.within`."""
        active = self._library.get_current_span().get_span_context()
        if not active.is_valid:
            return self._start(name, attributes, whole.context)
        apart = active.trace_id != whole.place.trace_id
        return self._start(name, attributes, None, (whole.place,) if apart else ())

    def _start(
        self,
        name: str,
        attributes: Attributes | None,
        context: Context | None,
        linked: Sequence[trace.SpanContext] = (),
        began_s: float | None = None,
        kind: str = "internal",
    ) -> Span:
        library = self._library
        ago_s = 0.0 if began_s is None else monotonic() - began_s
        with _UNHARMED:
            made = self._tracer().start_span(
                name,
                context,
                kind=library.SpanKind[kind.upper()],
                attributes=attributes,
                links=[library.Link(place) for place in linked],
                start_time=time.time_ns() - int(ago_s * 1e9),
            )
            return LiveSpan(self, made)
        return NO_SPAN

    def context_of(self, span: trace.Span) -> Context:
        """The context in which a span is the active one."""
        return self._library.set_span_in_context(span, _nothing())

    def headers(self, context: Context | None) -> Mapping[str, str]:
        """The headers that stand for the active span of a context."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, context=context)
        return headers

    def active_headers(self) -> Mapping[str, str]:
        """The headers that stand for the active span."""
        return self.headers(None)

    def active_ids(self) -> Mapping[str, str]:
        """The fields for log lines about the active span."""
        return _ids(self._library.get_current_span().get_span_context())

    def failed(self, words: str) -> trace.Status:
        """The status of a span that has failed."""
        return self._library.Status(self._library.StatusCode.ERROR, words)

    @contextlib.contextmanager
    def use(self, span: trace.Span) -> Generator[None]:
        """Makes a span the active one."""
        with self._library.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    def close(self) -> None:
        """Sends what has ended, as long as that does not take long; idempotent."""
        if self._finalizer is not None:
            self._finalizer()


def _nothing() -> Context:
    from opentelemetry.context import Context

    return Context()


def _ids(place: trace.SpanContext) -> Mapping[str, str]:
    if not place.is_valid:
        return {}
    return {"trace_id": f"{place.trace_id:032x}", "span_id": f"{place.span_id:016x}"}


class LiveSpan(Span):
    """A span that is sent.

    Args:
        tracing: Has made it.
        span: The library's.
    """

    def __init__(self, tracing: Tracing, span: trace.Span) -> None:
        self._tracing = tracing
        self._span = span
        self._failed = False
        self._ended = False
        self._active = contextlib.ExitStack()

    @property
    def context(self) -> Context:
        """The context in which it is the active one."""
        return self._tracing.context_of(self._span)

    @property
    def place(self) -> trace.SpanContext:
        """Its identity."""
        return self._span.get_span_context()

    @property
    def headers(self) -> Mapping[str, str]:
        """See :class:`Span`."""
        return self._tracing.headers(self.context)

    @property
    def ids(self) -> Mapping[str, str]:
        """See :class:`Span`."""
        return _ids(self.place)

    def note(self, attributes: Attributes) -> None:
        """See :class:`Span`."""
        if not self._ended:
            with _UNHARMED:
                self._span.set_attributes(attributes)

    def fail(self, why: BaseException | str) -> None:
        """See :class:`Span`."""
        if self._ended or self._failed:
            return
        self._failed = True
        words = (str(why) or type(why).__name__).partition("\n")[0]
        with _UNHARMED:
            self._span.set_status(self._tracing.failed(words[:_MAX_WORDS]))
            if isinstance(why, BaseException):
                self._span.record_exception(why)

    def end(self) -> None:
        """See :class:`Span`."""
        if not self._ended:
            self._ended = True
            with _UNHARMED:
                self._span.end()

    def within(self, name: str, attributes: Attributes | None = None) -> Span:
        """See :class:`Span`."""
        return self._tracing.within(self, name, attributes)

    def active(self) -> contextlib.AbstractContextManager[object]:
        """See :class:`Span`."""
        return self._tracing.use(self._span)

    def __enter__(self) -> Self:
        self._active.enter_context(self.active())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._active.close()
        if error is not None:
            self.fail(error)
        self.end()


# How they are sent ------------------------------------------------------------------------


def _make_exporter() -> SpanExporter:
    """The exporter that the variables ask for; all else it reads from them itself."""
    asked = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "")
    if asked in ("", "http/protobuf"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    if asked == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter

        return trace_exporter.OTLPSpanExporter()
    msg = f"OTEL_EXPORTER_OTLP_PROTOCOL: expected http/protobuf or grpc, got {asked!r}"
    raise ValueError(msg)


class _Reporting:
    """An exporter that logs one line when exports fail, until one succeeds again.

    The library's own would log each attempt.

    Args:
        exporter: What sends.
        endpoint: Where to, for people.
    """

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._endpoint = endpoint
        self._exporter = exporter
        self._sending = threading.local()
        self._reason = ""
        self._said = False
        for kind in type(exporter).__mro__:
            if kind.__module__.startswith("opentelemetry.exporter."):
                logging.getLogger(kind.__module__).addFilter(self._hear)

    def _hear(self, record: logging.LogRecord) -> bool:
        """Keeps the library's messages while it sends our spans; returns whether to show one."""
        if not getattr(self._sending, "now", False):
            return True
        self._reason = self._reason or record.getMessage()  # later ones are about its attempts
        return False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends spans; for the thread of the processor."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        result, self._reason = SpanExportResult.FAILURE, ""
        self._sending.now = True
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001  (reported below, once)
            self._reason = repr(error)
        finally:
            self._sending.now = False
        if result is SpanExportResult.SUCCESS:
            self._said = False
        elif not self._said:
            self._said = True
            why = self._reason[:_MAX_WORDS]
            _logger.warning("spans do not reach the collector at %s: %s", self._endpoint, why)
        return result

    def shutdown(self) -> None:
        """Aborts the current export; idempotent."""
        self._sending.now = True
        try:
            self._exporter.shutdown()
        finally:
            self._sending.now = False

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Does nothing: the processor has what waits."""
        del timeout_millis
        return True


class _Ending:
    """Sends the last spans in a thread that exists already, and waits a little.

    At the end of an interpreter no thread can be started any more, and the library's own
    shutdown may take half a minute if the collector does not answer.

    Args:
        shutdown: Sends them, and ends.
        break_off: Aborts that.
    """

    def __init__(self, shutdown: Any, break_off: Any) -> None:
        self._break_off = break_off
        self._shutdown = shutdown
        self._asked, self._done = threading.Event(), threading.Event()
        self._pid = os.getpid()
        start_thread(threading.Thread(target=self._run, name="disco-telemetry", daemon=True))

    def _run(self) -> None:
        self._asked.wait()
        self._shutdown()
        self._done.set()

    def __call__(self) -> None:
        if os.getpid() != self._pid:  # a child has the spans of its parent, and not this thread
            return
        self._asked.set()
        if not self._done.wait(_FLUSH_S):
            self._break_off()
            self._done.wait(_BREAK_OFF_S)
