"""Tells of work on two streams that use the same memory without an order between them.

Asked for by `STANDIN_RACES`. Order comes from a stream itself, from events on which
another stream waits, and from the host when it has waited. Each stream counts what is put
on it, and knows how far it comes after each other stream; each block of memory knows who
wrote it last, and who has read it since.

A block is one allocation: streams that share an array but not its elements are told of too.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from cupy._machine.faults import StandinFault

__all__ = ["access", "follow", "host_waited", "now"]

_host: dict[Any, int] = {}
# All threads of a program are one host. Memory may be given back amid any line, so a thread
# may come here again.
_lock = threading.RLock()


def now(queue: Any) -> dict[Any, int]:
    """What comes before the next work of a stream, as the count of each stream."""
    with _lock:
        return {**queue.seen, queue: queue.ticks}


def _merge(into: dict[Any, int], clock: dict[Any, int]) -> None:
    for queue, ticks in clock.items():
        into[queue] = max(into.get(queue, 0), ticks)


def follow(queue: Any, clock: dict[Any, int]) -> None:
    """Notes that further work of a stream comes after some work of others."""
    with _lock:
        _merge(queue.seen, clock)


def host_waited(clock: dict[Any, int]) -> None:
    """Notes that what the host does from now on comes after some work."""
    with _lock:
        _merge(_host, clock)


def access(queue: Any, block: Any, what: str, *, writes: bool) -> None:
    """Notes that work being put on a stream reads or writes a block.

    Raises:
        StandinFault: There is no order to what was done with it before.
    """
    with _lock:
        _merge(queue.seen, _host)
        queue.ticks += 1
        entry = (queue, queue.ticks, what)
        before = [] if block.written is None else [block.written]
        if writes:
            before += block.reads.values()
        for other, ticks, did in before:
            if other is not queue and queue.seen.get(other, 0) < ticks and _wanted():
                raise StandinFault(
                    f"stand-in: race: {what} on stream {queue.handle:#x} of device"
                    f" {queue.device.index} does not wait for {did} on stream {other.handle:#x}"
                )
        if writes:
            block.written = entry
            block.reads = {}
        else:
            block.reads[queue] = entry


def _wanted() -> bool:
    return bool(os.environ.get("STANDIN_RACES"))
