"""A worker daemon's metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from disco_server.observe.processes import resident_bytes

if TYPE_CHECKING:
    from disco_server.worker.supervisor import Supervisor

__all__ = ["collect"]


def collect(supervisor: Supervisor) -> Iterator[Metric]:
    """A node's metrics for Prometheus; slots have numbers, sessions have no names here."""
    counters = supervisor.counters
    yield GaugeMetricFamily("disco_node_sessions", "Sessions here.", len(supervisor.sessions))
    memory = GaugeMetricFamily(
        "disco_rank_memory_bytes", "Resident memory of the rank in a slot.", labels=["slot"]
    )
    ranks = 0
    for session in supervisor.sessions.values():
        driver = session.driver
        for slot, rank in zip(driver.share.slots, driver.ranks.values(), strict=False):
            ranks += 1
            memory.add_metric([str(slot)], resident_bytes(rank.pid))
    yield GaugeMetricFamily("disco_ranks", "Rank processes of sessions.", ranks)
    yield memory
    yield CounterMetricFamily("disco_node_commands", "Commands that came.", counters.commands)
    yield CounterMetricFamily("disco_node_batches", "Batches they came in.", counters.batches)
    yield CounterMetricFamily(
        "disco_node_connections", "Registrations with a controller.", counters.connections
    )
    yield CounterMetricFamily(
        "disco_node_keys", "Keys that ranks wrote or read in the rendezvous.", counters.keys
    )
    exits = CounterMetricFamily(
        "disco_rank_exits", "Ranks that ended before their session.", labels=["cause"]
    )
    for cause in ("exit", "signal", "memory", "start"):
        exits.add_metric([cause], counters.exits[cause])
    yield exits
    yield from _collectives(supervisor)


def _collectives(supervisor: Supervisor) -> Iterator[Metric]:
    found = supervisor.counters.collectives
    found.look(supervisor.memories())
    labels = ["operation", "size"]
    seconds = HistogramMetricFamily(
        "disco_collective_seconds", "From coming to a collective to going on.", labels=labels
    )
    for key, buckets in sorted(found.seconds.items()):
        buckets.add_to(seconds, *key)
    yield seconds
    waits = HistogramMetricFamily(
        "disco_collective_wait_seconds", "Of that, until all had come.", labels=labels
    )
    for key, buckets in sorted(found.waits.items()):
        buckets.add_to(waits, *key)
    yield waits
    yield CounterMetricFamily(
        "disco_collectives_missed", "Collectives that were not timed.", found.missed
    )
