"""What all daemons measure in the same way, in the form that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from disco_client.version import __version__

__all__ = ["SECONDS", "Buckets", "exposition"]

SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
"""Bounds for what takes from a tenth of a millisecond to half a minute."""


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


class _Daemon(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        yield InfoMetricFamily(
            "disco_build", "The release of this daemon.", value={"version": __version__}
        )
        yield from self._collect()


def exposition(collect: Callable[[], Iterable[Metric]]) -> Callable[[], bytes]:
    """Returns what writes metrics in Prometheus' text format.

    Those of the process itself, its memory, descriptors and processor time, are added.

    Args:
        collect: Returns the daemon's own; called each time.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(_Daemon(collect))
    return lambda: generate_latest(registry)
