"""A node's spans of the ranks of a session: starting, opening the communicator, running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from disco_client.pb import node_pb2
from disco_client.telemetry import spans
from disco_client.wire.codec import EnvelopeKind

if TYPE_CHECKING:
    from disco_client.telemetry.base import Span
    from disco_server.core.nodes import NodeShare

__all__ = ["RankSpans"]


class RankSpans:
    """The spans of one session's ranks on one node.

    Args:
        session: The session's id.
        start: The controller's request to start it.
        share: The ranks.
    """

    def __init__(self, session: int, start: node_pb2.StartRanks, share: NodeShare) -> None:
        self._trace: Mapping[str, str] = spans.trace_headers(start.trace.items())
        self._facts = {
            "disco.session.id": f"{session:016x}",
            "disco.session.name": start.session_name,
            "disco.node": share.node,
        }
        self._devices = dict(zip(share.workers, share.devices, strict=False))
        self._starting = {
            worker: self._begin("disco.rank.start", worker) for worker in share.workers
        }
        self._running: dict[int, Span] = {}
        self._opening: dict[int, Span] = {}

    def _begin(self, name: str, worker: int, **facts: int) -> Span:
        device = self._devices.get(worker, "")
        known = {**self._facts, "disco.rank": worker, "disco.device": device, **facts}
        return spans.begin(name, known, parent=self._trace)

    @property
    def ids(self) -> Mapping[str, str]:
        """The trace fields of log lines about the session: the parent of its ranks' spans."""
        if not any(span.ids for span in self._starting.values()):
            return {}  # no spans are made here
        parts = self._trace.get("traceparent", "").split("-")
        return dict(zip(("trace_id", "span_id"), parts[1:3], strict=False))

    def ids_of(self, worker: int) -> Mapping[str, str]:
        """The trace fields of log lines about a rank."""
        span = self._running.get(worker) or self._starting.get(worker)
        return span.ids if span is not None else {}

    def got_process(self, worker: int, pid: int) -> None:
        """A rank has a process."""
        self._starting[worker].note({"process.pid": pid})

    def says(self, worker: int, kind: int, pid: int) -> None:
        """A rank has said of itself that it is ready, or how far its communicator is."""
        if kind == EnvelopeKind.ASSIGNED:
            self._starting[worker].end()
            self._running[worker] = self._begin("disco.rank", worker, **{"process.pid": pid})
        elif kind == EnvelopeKind.OPEN_CCL and worker not in self._opening:
            self._opening[worker] = self._begin("disco.ccl.open", worker)
        elif kind == EnvelopeKind.CCL_OPENED and (span := self._opening.pop(worker, None)):
            span.end()

    def died(self, worker: int, how: str, seq: int | None, output: Iterable[str]) -> None:
        """A rank has ended by itself, in the midst of a command perhaps."""
        facts: dict[str, int | list[str]] = {"disco.output": list(output)}
        if seq is not None:
            facts["disco.seq"] = seq
        for begun in (self._opening, self._running, self._starting):
            if (span := begun.get(worker)) is not None:
                span.note(facts)
                span.fail(f"worker {worker} {how}")
                span.end()

    def end(self) -> None:
        """The session is over, and its ranks with it."""
        for begun in (self._opening, self._running, self._starting):
            for span in begun.values():
                span.end()
