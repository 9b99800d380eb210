"""A controller's metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from disco_server.core.fair_queue import WaitReason
from disco_server.core.session_state import EndReason, Priority, SessionState

if TYPE_CHECKING:
    from disco_server.controller.hub import Hub

__all__ = ["collect"]


def collect(hub: Hub) -> Iterator[Metric]:
    """A controller's metrics for Prometheus; they contain no names of sessions or nodes."""
    yield from _cluster(hub)
    yield from _relayed(hub)


def _cluster(hub: Hub) -> Iterator[Metric]:
    cluster = hub.cluster
    states = Counter(session.state for session in cluster.sessions.values())
    sessions = GaugeMetricFamily("disco_sessions", "Sessions by state.", labels=["state"])
    for state in SessionState:
        if state is not SessionState.GONE:
            sessions.add_metric([state.value], states[state])
    yield sessions
    members = cluster.members
    yield GaugeMetricFamily("disco_nodes", "Worker daemons connected.", len(hub.links))
    yield GaugeMetricFamily(
        "disco_nodes_in_use",
        "Worker daemons with workers of sessions, without those that take no new ones.",
        sum(bool(node.taken) and not node.draining for node in members.nodes.values()),
    )
    slots = GaugeMetricFamily("disco_slots", "Slots of all nodes by state.", labels=["state"])
    slots.add_metric(["free"], members.free_slots)
    slots.add_metric(["taken"], sum(len(node.taken) for node in members.nodes.values()))
    yield slots
    yield from _queue(hub)
    waiting = GaugeMetricFamily(
        "disco_outbox_bytes", "Bytes that wait to be written to peers.", labels=["peer"]
    )
    waiting.add_metric(["clients"], sum(outbox.nbytes for outbox in hub.clients.values()))
    waiting.add_metric(["nodes"], sum(link.outbox.nbytes for link in hub.links.values()))
    yield waiting
    yield _streams(hub)


def _queue(hub: Hub) -> Iterator[Metric]:
    """How many sessions wait and why, and how many workers more slots would give them."""
    cluster = hub.cluster
    places = cluster.queue.places()
    counts = Counter((s.priority, places[s.session].why) for s in cluster.queue)
    queued = GaugeMetricFamily(
        "disco_queued_sessions",
        "Sessions that wait for slots, by their class and why.",
        labels=["priority", "why"],
    )
    for priority in Priority:
        for why in WaitReason:
            queued.add_metric([priority.word, why.name.lower()], counts[priority, why])
    yield queued
    helped = (s for s in cluster.queue if places[s.session].why is not WaitReason.OWNER_SLOTS)
    yield GaugeMetricFamily(
        "disco_queued_workers",
        "Workers that waiting sessions ask for, but for those that a quota holds back.",
        sum(session.num_workers for session in helped),
    )


def _streams(hub: Hub) -> Metric:
    """How many streams there are, by whose they are and what carries them."""
    sessions, nodes = hub.cluster.sessions, hub.cluster.members.nodes
    carried = {
        "sessions": Counter(sessions[key].carrier for key in hub.clients if key in sessions),
        "nodes": Counter(nodes[name].carrier for name in hub.links if name in nodes),
    }
    streams = GaugeMetricFamily(
        "disco_streams", "Streams by what carries them.", labels=["peer", "carrier"]
    )
    for peer, counts in carried.items():
        for carrier in ("frames", "grpc"):
            streams.add_metric([peer, carrier], counts[carrier])
    return streams


def _relayed(hub: Hub) -> Iterator[Metric]:
    counters = hub.counters
    yield CounterMetricFamily("disco_commands", "Commands relayed to workers.", counters.commands)
    yield CounterMetricFamily("disco_batches", "Batches they came in.", counters.batches)
    relayed = CounterMetricFamily(
        "disco_relayed_bytes", "Bytes of batches and replies relayed.", labels=["direction"]
    )
    relayed.add_metric(["to_workers"], counters.to_workers)
    relayed.add_metric(["to_clients"], counters.to_clients)
    yield relayed
    yield CounterMetricFamily("disco_sessions_created", "Sessions asked for.", counters.created)
    ended = CounterMetricFamily(
        "disco_sessions_ended", "Sessions that are over, by the reason.", labels=["reason"]
    )
    for reason in EndReason:
        ended.add_metric([reason.name.lower()], counters.ended[reason])
    yield ended
    yield CounterMetricFamily(
        "disco_client_reconnects", "Connections that went on with a session.", counters.resumed
    )
    yield CounterMetricFamily("disco_node_registrations", "Times that nodes came.", counters.joined)
    trip = HistogramMetricFamily(
        "disco_node_round_trip_seconds", "From a heartbeat to the node's answer."
    )
    counters.node_round_trip.add_to(trip)
    yield trip
