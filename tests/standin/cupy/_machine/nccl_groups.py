"""Operations of a thread that go to their streams at once."""

from __future__ import annotations

import threading

from cupy._machine.nccl_carrier import Batch, Part
from cupy._machine.nccl_errors import INVALID_USAGE, nccl_error
from cupy._machine.queues import Queue

__all__ = ["end", "launch", "start"]

_group = threading.local()


def start() -> None:
    """Keeps this thread's operations back until the group ends."""
    _group.depth = getattr(_group, "depth", 0) + 1


def end() -> None:
    """Puts the operations of the group on their streams, all at once.

    Raises:
        NcclError: There is no group; the library lets that pass.
    """
    if getattr(_group, "depth", 0) == 0:
        raise nccl_error(INVALID_USAGE, "groupEnd without groupStart")
    _group.depth -= 1
    if _group.depth == 0:
        parts, _group.parts = getattr(_group, "parts", []), []
        _push(parts)


def launch(queue: Queue, part: Part) -> None:
    """Puts an operation on a stream, or into the group of this thread."""
    if getattr(_group, "depth", 0):
        _group.__dict__.setdefault("parts", []).append((queue, part))
    else:
        _push([(queue, part)])


def _push(parts: list[tuple[Queue, Part]]) -> None:
    batches: dict[Queue, list[Part]] = {}
    for queue, part in parts:
        batches.setdefault(queue, []).append(part)
    for queue, together in batches.items():
        position = queue.device.push(queue, Batch(together))
        for part in together:
            part.carrier.place(part, queue, position)
