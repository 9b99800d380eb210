"""Frames between a daemon and its ranks, over Unix sockets, and sometimes a descriptor.

A file descriptor travels with the first byte of its frame, so descriptors and the frames
that mention them arrive in the same order; the reader hands each to the frame that
asks for it. If the receiver had no free descriptor, it gets None in its place; if the
sender could not pass it, another frame comes instead.

Two frames are no envelopes, and are shorter than any: an empty one asks how far
the receiver is, and one of eight bytes answers that with a sequence number.
"""

from __future__ import annotations

import array
import errno
import mmap
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat, starmap
from operator import methodcaller
from typing import Any, Self, TypeAlias

from disco_client.arrays.shared_memory import allocate, map_shared
from disco_client.descriptors import WITH_DESCRIPTORS, Descriptor, owned_in
from disco_client.reentry import is_of_system
from disco_client.wire.framing import FrameCutter, frame
from disco_server.settings import keeps_order

__all__ = [
    "HOW_FAR",
    "PROGRESS_VARIABLE",
    "FrameReader",
    "ProgressPage",
    "Unsent",
    "frame_of_progress",
    "progress_in",
    "receive",
    "send_all",
    "send_with_fd",
]


_READ_BYTES = 256 * 1024
_CUT = int(socket.MSG_CTRUNC)
_FD_SPACE = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_SCARCE = (errno.ENOMEM, errno.ENOBUFS)
"""The kernel had no memory for a message, and may have some the next moment."""

_PAUSE_S = 0.001


HOW_FAR = frame(b"")
"""Asks how far the receiver is."""

_PROGRESS = struct.Struct("<Q")


def frame_of_progress(seq: int) -> bytes:
    """Says that everything up to this command is executed."""
    return frame(_PROGRESS.pack(seq))


def progress_in(raw: bytes) -> int | None:
    """The sequence number that a frame brings, or None for an envelope."""
    return _PROGRESS.unpack(raw)[0] if len(raw) == _PROGRESS.size else None


class FrameReader(FrameCutter):
    """Cuts what a socket brings into frames, and holds descriptors.

    An exception out of any bytecode of the thread that reads loses nothing: what has come is
    kept by one call of a function in C, and cut anew until all of it is noted at once.

    Attributes:
        fds: Descriptors that have come; None for each that was lost on its way.
        frames: Frames that have come.
        heard: How many frames have come that report no progress.
        came: What a read has returned, until it is cut.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fds: deque[Descriptor | None] = deque()
        self.frames: deque[bytes] = deque()
        self.heard = 0
        self.came: list[tuple[int, Any, int, Any]] = []
        self._came_along: list[Descriptor] = []
        self._taken: tuple[bytes, list[Descriptor | None]] | None = None
        # Read into again and again: fresh memory costs many times what reading does.
        self.scratch = memoryview(bytearray(_READ_BYTES))
        self._wanted = (((self.scratch,), _FD_SPACE, WITH_DESCRIPTORS),)

    def read(self, sock: socket.socket) -> bool:
        """Reads what there is, blocking or not as the socket is; False at the end.

        Raises:
            BlockingIOError: It does not block and there is nothing; or the kernel has no
                memory to deliver what there is.
        """
        if not self.came:
            try:
                self.came.extend(starmap(sock.recvmsg_into, self._wanted))
            except OSError as error:
                if error.errno == errno.ECONNRESET:
                    return False
                if error.errno in _SCARCE:
                    raise BlockingIOError(*error.args) from error
                raise
        count, ancillary, flags, _ = self.came[0]
        fds = self.fds
        # Most messages bring none, and as a member of an enum the flag costs more than the rest.
        if ancillary or flags & _CUT:
            if not self._came_along:
                self._came_along.extend(owned_in((ancillary,)))
            found: list[Descriptor | None] = [*self._came_along]
            if flags & _CUT and not found:
                found = [None]  # each message brings one
            fds = deque((*fds, *found))
        frames, rest = self.cut(self.scratch[:count])
        arrived = deque((*self.frames, *frames)) if self.frames else deque(frames)
        heard = self.heard + len(frames) - [*map(len, frames)].count(_PROGRESS.size)
        nothing: list[tuple[int, Any, int, Any]] = []
        none: list[Descriptor] = []
        # No call from here on, so that all of it has happened or nothing.
        self.rest = rest
        self.size = None
        self.frames = arrived
        self.heard = heard
        self.fds = fds
        self._came_along = none
        self.came = nothing
        return count > 0

    def descriptor_of(self, frame: bytes) -> Descriptor | None:
        """The descriptor that came with a frame; the same where the frame is handled again."""
        if self._taken is None or self._taken[0] is not frame:
            nothing: list[Descriptor | None] = []
            self._taken = frame, nothing
        taken = self._taken[1]
        if not taken:
            taken.extend(starmap(self.fds.popleft, repeat((), 1)))
        return taken[0]

    def close(self) -> None:
        """Closes descriptors that were not taken."""
        while self.fds:
            fd = self.fds.popleft()
            if fd is not None:
                fd.close()


def receive(sock: socket.socket, reader: FrameReader) -> deque[bytes] | None:
    """Reads what there is, blocking or not as the socket is; None at the end.

    Raises:
        BlockingIOError: It does not block and there is nothing; or the kernel has no
            memory to deliver what there is.
    """
    if not reader.read(sock):
        return None
    frames, reader.frames = reader.frames, deque()
    return frames


def send_all(sock: socket.socket, data: bytes | memoryview) -> None:
    """Sends all of a frame; for blocking sockets."""
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left) :]
        except OSError as error:
            if error.errno not in _SCARCE:
                raise
            time.sleep(_PAUSE_S)


def send_with_fd(
    sock: socket.socket, framed: bytes, fd: Descriptor, without: Callable[[str], bytes]
) -> None:
    """Sends one whole frame with a descriptor; for blocking sockets.

    Args:
        sock: The socket.
        framed: The frame.
        fd: The descriptor, which stays the caller's.
        without: Makes, from the reason, the frame that is sent instead if the descriptor
            cannot be passed.
    """
    try:
        sent = socket.send_fds(sock, [framed], [fd.fileno()])
    except ConnectionError:
        raise
    except OSError as error:  # too many are in flight, or there is no memory
        framed, sent = without(str(error)), 0
    send_all(sock, memoryview(framed)[sent:])


_Unsent: TypeAlias = "tuple[memoryview, list[Descriptor], Callable[[str], bytes] | None, list[int]]"
"""A frame, what goes along, what is sent instead, and how much the socket took each time."""


class Unsent:
    """Frames to be sent through a non-blocking socket, as far as it takes them.

    An exception out of any bytecode of the thread that sends loses and repeats nothing: how much
    the socket took is noted by the call in C that sends.

    Args:
        sock: The socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames: deque[_Unsent] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def add(
        self,
        framed: bytes | memoryview,
        fd: Descriptor | None = None,
        without: Callable[[str], bytes] | None = None,
    ) -> None:
        """Adds a frame behind the others.

        Args:
            framed: The frame, its length included.
            fd: A descriptor to pass along; it is closed here.
            without: Makes, from the reason, the frame that is sent instead if that cannot be
                passed.
        """
        self._frames.append((memoryview(framed), [] if fd is None else [fd], without, []))

    def flush(self) -> bool:
        """Sends what the socket takes; returns whether nothing is left."""
        frames = self._frames
        while frames:
            data, fds, without, taken = frames[0]
            at = sum(taken) if taken else 0
            if taken and at >= len(data):
                if fds:
                    _close(fds)
                frames.popleft()
                continue
            try:
                if taken or not fds:
                    taken.extend(map(self._sock.send, (data[at:] if at else data,)))
                else:
                    numbers = array.array("i", [each.fileno() for each in fds])
                    passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)
                    taken.extend(starmap(self._sock.sendmsg, (([data], [passed]),)))
            except BlockingIOError:
                return False
            except OSError as error:
                if not is_of_system(error):
                    raise
                if not fds and error.errno in _SCARCE:
                    return False
                if taken or not fds or without is None or isinstance(error, ConnectionError):
                    self.drop()  # the peer's exit will be reported, with its cause
                    return True
                instead: _Unsent = memoryview(without(str(error))), [], None, []
                frames[0] = instead
                _close(fds)
        return True

    def drop(self) -> None:
        """Drops what has not been sent."""
        while self._frames:
            _close(self._frames.popleft()[1])


_end: Callable[[Descriptor], None] = methodcaller("close")


def _close(fds: list[Descriptor]) -> None:
    """Closes descriptors, each once, also where this is repeated."""
    deque(map(_end, starmap(fds.pop, repeat((), len(fds)))), 0)


# How far a rank is, on a page of memory that its client polls while it waits.
#
# Asking a rank takes a question through its socket and an answer back. A client that
# polls for the answer sees it sooner on a page that both map: the rank writes there
# after each batch. The page has two counters: up to which command everything is
# executed, and how many frames the rank had sent before, because a client that has
# not read all of those may not know of a failure yet.
#
# What is written first must be seen first (:func:`~disco_server.settings.keeps_order`);
# on other processors the page is not used.


PROGRESS_VARIABLE = "DISCO_PROGRESS_FD"
"""Names, in a rank's environment, the descriptor of the page."""


class ProgressPage:
    """Two counters that one process writes and another reads.

    Args:
        fd: Shared memory of at least a page; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        self._memory = map_shared(fd, mmap.PAGESIZE)
        self._counters = memoryview(self._memory).cast("Q")

    @classmethod
    def make(cls) -> tuple[Self, Descriptor] | None:
        """Makes a page and the descriptor that the other process maps; None if that is impossible.

        The caller closes the descriptor.
        """
        if not keeps_order():
            return None
        try:
            fd = allocate(mmap.PAGESIZE)
        except OSError:
            return None
        try:
            return cls(fd.fileno()), fd
        except OSError:
            fd.close()
            return None

    def write(self, seq: int, frames: int) -> None:
        """Says that everything up to this command is executed.

        Args:
            seq: The command.
            frames: How many frames were sent before, without answers on how far it is.
        """
        counters = self._counters
        counters[1] = frames
        counters[0] = seq

    def shows(self, seq: int, frames: int) -> bool:
        """Whether everything up to this command is executed, and all that was sent is known.

        Args:
            seq: The command.
            frames: How many frames were received.
        """
        counters = self._counters
        return counters[0] >= seq and counters[1] == frames

    def close(self) -> None:
        """Unmaps the page."""
        self._counters.release()
        self._memory.close()
