"""Writes flight records in Chrome's trace format, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TextIO

from disco_client.call_sites import Site, locate
from disco_client.wire.codec import Action
from disco_client.wire.reports import what_is_done

if TYPE_CHECKING:
    from disco_client.tracing.rank_flights import RankFlight
    from disco_client.tracing.ring import CollectiveRecord, CommandRecord
    from disco_client.tracing.timeline import ClientFlight

__all__ = ["ChromeTrace", "arrivals", "identity_of"]


_US = 1e3
"""Nanoseconds in a microsecond, which is what traces count in."""

_CLIENT = 0
"""The number of the program's process; a rank's is its own plus one."""

_ISSUED = 0
_COMMANDS, _COLLECTIVES, _WAITS, _COPIES = range(4)
_ROWS = {
    _COMMANDS: "commands",
    _COLLECTIVES: "collectives",
    _WAITS: "waits for other ranks",
    _COPIES: "copies",
}
_DIRECTIONS = {
    Action.COPY_TO_WORKER0: "host to rank",
    Action.DEBUG_SET_REGISTER: "host to rank",
    Action.COPY_FROM_WORKER0: "rank to host",
    Action.DEBUG_GET_FROM_REMOTE: "rank to host",
}
_LINES = 5
"""How many lines of the program are named for commands that were sent together."""

_CHUNK = 4096
_Event = dict[str, Any]


class ChromeTrace:
    """One file.

    Args:
        session: The session's name.
        ranks: What they did.
        client: What the program did meanwhile, if that is known.
    """

    def __init__(
        self, session: str, ranks: Sequence[RankFlight], client: ClientFlight | None
    ) -> None:
        self._session = session
        self._ranks = ranks
        self._client = client
        times = [c.start_ns for rank in ranks for c in rank.commands]
        ends = [c.end_ns for rank in ranks for c in rank.commands]
        if client is not None:
            times += [*(each.began_ns for each in (*client.sent, *client.spans))]
            ends += [each.ended_ns for each in client.spans]
        self._first = min(times, default=0)
        self._last = max((*times, *ends), default=0)
        self._arrived = arrivals(ranks)

    def whole(self) -> dict[str, Any]:
        """All of it."""
        return {
            "traceEvents": list(self._events()),
            "displayTimeUnit": "ms",
            "otherData": self._metadata(),
        }

    def write(self, out: TextIO) -> None:
        """Writes all of it, a piece at a time.

        Raises:
            OSError: It cannot be written.
        """
        out.write('{"traceEvents": [\n')
        dumps, lines, between = json.JSONEncoder().encode, list[str](), ""
        for event in self._events():
            lines.append(dumps(event))
            if len(lines) == _CHUNK:
                out.write(between + ",\n".join(lines))
                between = ",\n"
                lines.clear()
        if lines:
            out.write(between + ",\n".join(lines))
        out.write(f'\n], "displayTimeUnit": "ms", "otherData": {dumps(self._metadata())}}}\n')

    def _metadata(self) -> dict[str, Any]:
        """The metadata of the file: the precision of its times, and what is missing."""
        client = self._client
        clocks: list[dict[str, Any]] = [
            {
                "rank": rank.worker,
                "node": rank.node,
                "offset_us": rank.clock_offset_ns / _US,
                "error_us": rank.clock_error_ns / _US,
            }
            for rank in self._ranks
        ]
        missing = [f"rank {rank.worker}: {text}" for rank in self._ranks for text in rank.missing]
        found: dict[str, Any] = {"session": self._session, "first_ns": self._first}
        if client is not None:
            offset, error = client.clock_offset_ns / _US, client.clock_error_ns / _US
            clocks.insert(0, {"client": client.pid, "offset_us": offset, "error_us": error})
            missing += client.missing
        return found | {"clocks": clocks, "missing": missing}

    def _events(self) -> Iterator[_Event]:
        client = self._client
        began: dict[tuple[int, int], CommandRecord] = {}
        if client is not None:
            wanted = {sent.first for sent in client.sent}
            wanted.update(span.seq for span in client.spans)
            for rank in self._ranks:
                for command in rank.commands:
                    if command.seq in wanted and not command.elsewhere:
                        began.setdefault((command.seq, rank.worker), command)
            yield from self._client_events(client, began)
        for rank in self._ranks:
            yield from self._rank_events(rank)
        if client is not None:
            yield from self._arrows(client, began)

    def _span(
        self, pid: int, tid: int, name: str, category: str, span: tuple[float, float], **args: Any
    ) -> _Event:
        start, end = span
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": round(start - self._first) / _US,
            "dur": max(round(end) - round(start), 0) / _US,
            "pid": pid,
            "tid": tid,
            "args": args,
        }

    # Ranks --------------------------------------------------------------------------------

    def _rank_events(self, rank: RankFlight) -> Iterator[_Event]:
        pid = rank.worker + 1
        yield _name("process_name", pid, 0, f"rank {rank.worker} on {rank.node}")
        yield _meta("process_labels", pid, 0, labels=f"pid {rank.pid}")
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
        seen = {_COMMANDS}
        events = chain(self._commands(rank, pid), self._collectives(rank, pid))
        for event in events:
            seen.add(event["tid"])
            yield event
        for tid in sorted(seen):
            yield _name("thread_name", pid, tid, _ROWS[tid])
            yield _meta("thread_sort_index", pid, tid, sort_index=tid)

    def _commands(self, rank: RankFlight, pid: int) -> Iterator[_Event]:
        place = 0
        previous = (-1, -1)
        for command in rank.commands:
            key = command.start_ns, command.group
            place = place + 1 if key == previous and command.group > 1 else 0
            previous = key
            start, end = command.start_ns, command.end_ns or self._last
            # What was timed together is shown one after the other, in equal parts.
            part = (end - start) / command.group
            span = start + place * part, start + (place + 1) * part
            args: dict[str, Any] = {"command": command.seq}
            if command.group > 1:
                args["timed_together"] = command.group
            marks = {
                "running": not command.end_ns,
                "failed": command.failed,
                "skipped": command.skipped,
                "for_another_worker": command.elsewhere,
            }
            args |= {name: True for name, holds in marks.items() if holds}
            what = what_is_done(command.action, command.name)
            yield self._span(pid, _COMMANDS, what, "command", span, **args)
            direction = _DIRECTIONS.get(command.action)  # type: ignore[call-overload]
            if direction is not None and not command.elsewhere:
                yield self._span(
                    pid, _COPIES, what, "copy", span, command=command.seq, direction=direction
                )

    def _collectives(self, rank: RankFlight, pid: int) -> Iterator[_Event]:
        ends = {command.seq: command.end_ns or self._last for command in rank.commands}
        for each in rank.collectives:
            if each.seq not in ends:
                continue  # its command is not there any more
            left = each.left_ns or ends[each.seq]
            args = {
                "command": each.seq,
                "number": each.number,
                "dtype": each.dtype,
                "shape": list(each.shape),
                "bytes": each.nbytes,
                "workers": list(each.members),
            }
            span = each.entered_ns, left
            yield self._span(pid, _COLLECTIVES, each.name, "collective", span, **args)
            met = each.met_ns or self._met_ns(each, left)
            if met > each.entered_ns:
                span = each.entered_ns, min(met, left)
                yield self._span(pid, _WAITS, f"wait in {each.name}", "wait", span, **args)

    def _met_ns(self, collective: CollectiveRecord, left: float) -> float:
        """When the last rank entered, for a rank that did not record it."""
        came, last = self._arrived[identity_of(collective)]
        return last if came == len(collective.members) else left

    # The program --------------------------------------------------------------------------

    def _client_events(
        self, client: ClientFlight, began: Mapping[tuple[int, int], CommandRecord]
    ) -> Iterator[_Event]:
        yield _name("process_name", _CLIENT, 0, "client")
        yield _meta("process_labels", _CLIENT, 0, labels=f"pid {client.pid}")
        yield _meta("process_sort_index", _CLIENT, 0, sort_index=0)
        yield _name("thread_name", _CLIENT, _ISSUED, "commands issued")
        for sent in client.sent:
            last = sent.first + len(sent.sites) - 1
            name = f"#{sent.first}" if last == sent.first else f"#{sent.first} to #{last}"
            args: dict[str, Any] = {
                "first": sent.first,
                "commands": len(sent.sites),
                "issued_at": _lines(sent.sites),
            }
            span = sent.began_ns, sent.ended_ns
            yield self._span(_CLIENT, _ISSUED, name, "issue", span, **args)
        names = {seq: command for (seq, _), command in began.items()}
        threads = dict.fromkeys(span.thread for span in client.spans)
        rows = {thread: row for row, thread in enumerate(threads, _ISSUED + 1)}
        for thread, row in rows.items():
            yield _name("thread_name", _CLIENT, row, f"thread {thread}")
        for span in client.spans:
            args = {}
            if span.nbytes:
                args = {"bytes": span.nbytes, "worker": span.worker}
            if span.seq:
                args["command"] = span.seq
            found = names.get(span.seq)
            name = f"wait for {what_is_done(found.action, found.name)}" if found else span.name
            times = span.began_ns, span.ended_ns
            yield self._span(_CLIENT, rows[span.thread], name, span.category, times, **args)

    def _arrows(
        self, client: ClientFlight, began: Mapping[tuple[int, int], CommandRecord]
    ) -> Iterator[_Event]:
        """Arrows from where commands were sent to where each rank begins the first of them."""
        workers = [rank.worker for rank in self._ranks]
        for sent in client.sent:
            for worker in workers:
                command = began.get((sent.first, worker))
                if command is None:
                    continue
                arrow = {"name": "command", "cat": "issue", "id": f"{sent.first}.{worker}"}
                left, begun = sent.ended_ns - self._first, command.start_ns - self._first
                yield arrow | {"ph": "s", "ts": left / _US, "pid": _CLIENT, "tid": _ISSUED}
                yield arrow | {
                    "ph": "f",
                    "bp": "e",
                    "ts": begun / _US,
                    "pid": worker + 1,
                    "tid": _COMMANDS,
                }


def identity_of(collective: CollectiveRecord) -> tuple[object, ...]:
    """The same on every rank that takes part."""
    return collective.members, collective.seq, collective.nth, collective.name


def arrivals(ranks: Iterable[RankFlight]) -> dict[tuple[object, ...], tuple[int, int]]:
    """How many ranks entered each collective, and when the last one did."""
    found: dict[tuple[object, ...], tuple[int, int]] = {}
    for rank in ranks:
        for each in rank.collectives:
            came, last = found.get(identity_of(each), (0, 0))
            found[identity_of(each)] = came + 1, max(last, each.entered_ns)
    return found


def _lines(sites: Iterable[Site]) -> dict[str, int]:
    """The lines that issued most commands, and how many each."""
    counted: Counter[str] = Counter()
    for site, count in Counter(sites).items():
        found = locate(site)
        counted[f"{found.filename}:{found.line}"] += count
    return dict(counted.most_common(_LINES))


def _name(what: str, pid: int, tid: int, name: str) -> _Event:
    return _meta(what, pid, tid, name=name)


def _meta(what: str, pid: int, tid: int, **args: object) -> _Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}
