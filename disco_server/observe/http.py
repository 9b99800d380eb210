"""A daemon's HTTP port: its metrics, its health, and other routes.

The routes of this module need no authentication: they serve counts, and no names of
sessions or people. Other routes authenticate the caller. All are served by the daemon's
own event loop, so an answer also shows that this loop turns. Whoever asks is a stranger until
such a route has called :func:`identified`: it has one answer on a connection, and ten seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.version import __version__
from disco_server.observe.acceptor import Acceptor, listening_sockets
from disco_server.settings import Address

if TYPE_CHECKING:
    import socket
    import ssl

    from aiohttp import web

__all__ = ["DEFAULT_HTTP", "SECONDS", "Buckets", "HttpListener", "exposition", "identified"]


DEFAULT_HTTP = "127.0.0.1:7601"

_logger = logger_of("disco.http")
_CLOSE_S = 1.0
"""How long to wait for answers that do not end by themselves."""

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpListener:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz``; belongs to the running event loop.

    ``/healthz`` answers 200 as long as the daemon's loop turns, and ``/readyz`` 200 while it
    does its work, else 503 with the reason in a line. ``/metrics`` has Prometheus' text format.

    Args:
        listen: The address; port 0 lets the system choose. None: port 7601 of the loopback
            address, or a free one where that is taken, as by another daemon.
        metrics: Returns what is measured.
        why_not_ready: Returns why the daemon is not ready now; empty if it is.
        routes: The handlers of other paths.
        actions: The handlers of paths to which something is posted.
        secrets: How connections are encrypted; None for not at all.
    """

    def __init__(
        self,
        listen: Address | None,
        metrics: Callable[[], bytes],
        why_not_ready: Callable[[], str] = str,
        *,
        routes: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] | None = None,
        actions: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] | None = None,
        secrets: ssl.SSLContext | None = None,
    ) -> None:
        self._routes = routes or {}
        self._actions = actions or {}
        self._secrets = secrets
        self._listen = listen
        self._metrics = metrics
        self._why_not_ready = why_not_ready
        self._runner: web.AppRunner | None = None
        self._acceptor: Acceptor[Any] | None = None

    async def open(self) -> str:
        """Begins to answer; returns its URL.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        from aiohttp import web  # takes a quarter of a second, which a daemon without it saves

        from disco_server.observe.http_connection import HttpConnection, close_after

        app = web.Application()
        app.router.add_get("/metrics", self._answer_metrics)
        app.router.add_get("/healthz", self._answer_health)
        app.router.add_get("/readyz", self._answer_ready)
        for path, answer in self._routes.items():
            app.router.add_get(path, answer)
        for path, answer in self._actions.items():
            app.router.add_post(path, answer)
        app.on_response_prepare.append(close_after)
        sockets, url = self._bind()
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        make = partial(HttpConnection, cast("web.Server", self._runner.server))
        self._acceptor = Acceptor(
            "http", sockets, make, lambda made: made.known.wait(), self._secrets
        )
        self._acceptor.open()
        page = f"the dashboard at {url}/, " if "/" in self._routes else ""
        _logger.info("%smetrics at %s/metrics", page, url)
        return url

    def _bind(self) -> tuple[list[socket.socket], str]:
        wanted = self._listen or Address.parse(DEFAULT_HTTP)
        try:
            sockets = listening_sockets(wanted)
        except OSError as error:
            if self._listen is not None:
                raise ConfigError(
                    f"cannot serve HTTP at {wanted}: {error.strerror}; choose another address"
                    " with --http (port 0 picks a free one), or --http off"
                ) from None
            sockets = listening_sockets(Address(wanted.host, 0))
        if wanted.path:
            return sockets, str(wanted)
        port = int(sockets[0].getsockname()[1])
        scheme = "http" if self._secrets is None else "https"
        return sockets, f"{scheme}://{Address(wanted.host, port)}"

    async def close(self) -> None:
        """Stops; idempotent."""
        runner, self._runner = self._runner, None
        if self._acceptor is not None:
            self._acceptor.close()
        if runner is not None:
            await runner.cleanup()

    async def _answer_metrics(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=self._metrics(), headers={"Content-Type": _METRICS_TYPE})

    async def _answer_health(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text="ok\n")

    async def _answer_ready(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        why = self._why_not_ready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ready'}\n")


def identified(request: web.Request) -> None:
    """Says that the caller of a request has said who it is, and is no stranger any more."""
    cast("Any", request.protocol).known.set()


# Metrics that all daemons measure in the same way, in Prometheus' format.


SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
"""Bounds for durations from a tenth of a millisecond to half a minute."""


class Buckets:
    """Counts of a histogram.

    Args:
        bounds: The upper bounds of its buckets, ascending; one above them follows by itself.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def add_to(self, family: HistogramMetricFamily, *labels: str) -> None:
        """Adds what was counted to a metric, with the values of its labels."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(labels, buckets, self._sum)


class _DaemonCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily(
            "disco_build", "The release of this daemon.", value={"version": __version__}
        )
        yield from self._collect()


def exposition(collect: Callable[[], Iterable[Metric]]) -> Callable[[], bytes]:
    """Returns a function that writes metrics in Prometheus' text format.

    Those of the process itself, its memory, descriptors and processor time, are added.

    Args:
        collect: Returns the daemon's own; called each time.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_DaemonCollector(collect))
    return lambda: generate_latest(registry)
