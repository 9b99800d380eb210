"""Spans of what takes time and can fail: where they are begun.

They are made where ``OTEL_EXPORTER_OTLP_ENDPOINT`` names a collector, and need the extra
``otel``. Nothing of OpenTelemetry is imported before that variable was seen; without it
every new span is one that does nothing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from disco_client.forks import ForkLock
from disco_client.output import logger_of
from disco_client.telemetry.base import NO_SPAN, Attributes, Span

if TYPE_CHECKING:
    from disco_client.telemetry.otlp import Tracing

__all__ = ["active_headers", "active_ids", "begin", "close", "setup", "spanned", "trace_headers"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_HEADERS = ("traceparent", "tracestate")
_MAX_HEADER = 512
"""How long such a header may be: the length that the standard requires to be passed on."""

_Method = TypeVar("_Method", bound=Callable[..., Any])

_logger = logger_of(__name__)
_lock = ForkLock()


@dataclass
class _State:
    """What this process has found out about whether it makes spans."""

    tracing: Tracing | None = None
    tried: bool = False
    service: str = "disco-client"
    resource: Attributes = field(default_factory=dict[str, str])


_state = _State()


def setup(service: str, resource: Attributes | None = None) -> None:
    """Sets the labels of the spans of this process; a daemon calls it at its start.

    Args:
        service: Its ``service.name``, unless the environment has another.
        resource: What else is the same for all its spans.
    """
    _state.service, _state.resource = service, resource or {}
    _find()


def _endpoint_variable() -> str | None:
    """Which variable asks for spans."""
    environ = os.environ
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    return next((name for name in _ENDPOINTS if environ.get(name)), None)


def _find() -> Tracing | None:
    """What makes spans; None if they are not requested or not available."""
    if _state.tried or (variable := _endpoint_variable()) is None:
        return _state.tracing
    with _lock.held():
        if not _state.tried:
            _state.tracing = _try(variable)
            _state.tried = True
    return _state.tracing


def _try(variable: str) -> Tracing | None:
    from disco_client.telemetry.otlp import Tracing

    try:
        return Tracing(_state.service, _state.resource, os.environ[variable])
    except ImportError as error:
        _logger.warning(
            "%s is set, and there is no module %r: no spans are sent; pip install"
            " 'disco-runtime[otel]', or unset the variable",
            variable,
            error.name,
        )
    except Exception as error:  # noqa: BLE001  (whatever the library says of a setting)
        _logger.warning("%s is set, and no spans are sent: %s", variable, error)
    return None


def begin(
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: Mapping[str, str] | Span | None = None,
    began_s: float | None = None,
    kind: str = "internal",
) -> Span:
    """Begins a span.

    Args:
        name: What takes time.
        attributes: What is known of it.
        parent: A span of this process, or the headers of one elsewhere, which are empty where
            there is none; None for the active one.
        began_s: When it began, by ``time.monotonic``; None for now.
        kind: ``client`` of what asks another process, ``server`` of its answer.

    Returns:
        The span, which does nothing where there is no collector.
    """
    tracing = _find()
    if tracing is None:
        return NO_SPAN
    return tracing.begin(name, attributes, parent, began_s, kind)


def trace_headers(headers: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Picks the trace context out of headers, whether this process makes spans or not."""
    return {
        name: value
        for name, value in headers
        if name in _HEADERS and isinstance(value, str) and len(value) <= _MAX_HEADER
    }


def active_headers() -> Mapping[str, str]:
    """What a process that is called now needs to continue the active span."""
    return _state.tracing.active_headers() if _state.tracing is not None else {}


def active_ids() -> Mapping[str, str]:
    """``trace_id`` and ``span_id`` of the active span, if there is one."""
    return _state.tracing.active_ids() if _state.tracing is not None else {}


def spanned(name: str) -> Callable[[_Method], _Method]:
    """Makes a span of each call of a function of a session's core and a path."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(core: Any, path: Any, *args: Any, **options: Any) -> Any:
            with core.span.within(name, {"disco.path": str(path)}):
                return method(core, path, *args, **options)

        return cast("_Method", call)

    return wrap


def close() -> None:
    """Sends what has ended, for a second or two at most; later spans are lost. Idempotent."""
    if _state.tracing is not None:
        _state.tracing.close()
