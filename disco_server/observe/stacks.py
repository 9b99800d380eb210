"""The stack of a rank's main thread, which executes the commands; written on a signal.

The rank writes it whatever the thread does, and its starter reads it.

The starter sends a signal, whose handler in Python writes the stack as soon as the thread
is between two instructions of Python. A thread inside a library does not get there; it
gets another signal, which ``faulthandler`` answers inside the signal handler, in C, without
the interpreter's lock. Other threads must not get that one: a thread whose frames change
while they are read can crash (once in 6,000 reads of the thread's own stack, once in 400
of another thread's), and inside a library no frame changes. The stack goes to the end of
the memory that both share, which has room for 64 KiB of it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice
from types import FrameType

from disco_client.tracing.ring import RING_BYTES
from disco_server.observe.flight import STACK_BYTES, FlightRecorder

__all__ = [
    "ASKED",
    "FORCED_STACK_SIGNAL",
    "MEMORY_VARIABLE",
    "STACK_SIGNAL",
    "format_stack",
    "open_flight",
]


STACK_SIGNAL = signal.SIGURG

FORCED_STACK_SIGNAL = signal.SIGWINCH
"""Ignored by processes without a handler, so a signal that comes too early does no harm."""

ASKED = b"?"
"""The content of the stack's place from the request until a stack is written."""

_MOST_FRAMES = 100  # as faulthandler


MEMORY_VARIABLE = "DISCO_FLIGHT_FD"
"""Names, in a rank's environment, the descriptor of the memory."""


def open_flight(environ: MutableMapping[str, str]) -> FlightRecorder:
    """Opens the flight recorder of this process, a rank.

    It writes its stack into the same memory whenever a signal requests it. Without memory in
    the environment no other process reads the records. Only the main thread may call this.

    Args:
        environ: Names the memory; the variable is removed, because children must not use it.
    """
    text = environ.pop(MEMORY_VARIABLE, "")
    if not text.isdigit():
        return FlightRecorder()
    fd = int(text)
    os.set_inheritable(fd, False)
    signal.signal(STACK_SIGNAL, lambda _, frame: _write_stack(fd, frame))
    signal.siginterrupt(STACK_SIGNAL, False)
    faulthandler.register(FORCED_STACK_SIGNAL, file=fd, all_threads=False)
    return FlightRecorder(fd)


def _write_stack(fd: int, frame: FrameType | None) -> None:
    """Answers a request for the stack; the request may have timed out by then."""
    if os.pread(fd, 1, RING_BYTES) == ASKED:
        raw = f"{format_stack(_outward(frame))}\n".encode("utf-8", "replace")
        os.pwrite(fd, raw[: STACK_BYTES - 1], RING_BYTES)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def format_stack(frames: Iterable[FrameType]) -> str:
    """Writes a stack as ``faulthandler`` does: innermost first, each frame a line, at most 100."""
    lines = [
        f'  File "{each.f_code.co_filename}", line {each.f_lineno} in {each.f_code.co_name}\n'
        for each in islice(frames, _MOST_FRAMES + 1)
    ]
    more = len(lines) > _MOST_FRAMES
    return "".join(lines[:_MOST_FRAMES]) + "  ...\n" * more
