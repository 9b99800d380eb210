"""Reads the frames of a session's child processes, in a thread that waits or else in the keeper."""

from __future__ import annotations

import contextlib
import select
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from google.protobuf.message import DecodeError

from disco_client.descriptors import Descriptor
from disco_client.transport.shared_reader import READABLE, SharedReader
from disco_server.embedded.rank_child import RankChild

__all__ = ["ChildFrames", "Descriptors", "FrameTaker"]

Descriptors: TypeAlias = tuple[Descriptor, ...]

_LOOKS = 50
"""How often a thread polls for replies before it sleeps: about 0.2 ms. A wake-up takes
several times as long as a rank that is ready to answer."""


class FrameTaker(Protocol):
    """Gets the frames."""

    def take(self, child: RankChild, raw: bytes) -> Descriptors | None:
        """Handles a frame of a rank's socket, perhaps again.

        Returns:
            None; or, where that must not be repeated, the descriptors that came with it, one
            at most, for :meth:`take_once`.
        """
        ...

    def take_once(self, child: RankChild, raw: bytes, fds: Descriptors) -> None:
        """Handles such a frame, in the keeper."""
        ...


class ChildFrames:
    """The sockets of a session's children.

    Args:
        taker: Gets the frames.

    Attributes:
        reader: Lets threads that wait read them.
    """

    def __init__(self, taker: FrameTaker) -> None:
        self._taker = taker
        self.reader = SharedReader(self._handle, looks=_LOOKS)
        self._by_socket: dict[int, RankChild] = {}
        # With frames that have not been handled, and those of which only the keeper may be.
        self._unhandled: dict[int, RankChild] = {}
        self._kept: deque[tuple[RankChild, bytes, Descriptors]] = deque()
        self._last_kept = b""
        self._full: set[int] = set()
        self.reader.unattended = lambda: bool(self._full)

    def add(self, child: RankChild) -> None:
        """Reads the socket of a child from now on, and sends what it did not take at once."""
        fd = child.sock.fileno()
        self._by_socket[fd] = child
        self.reader.replies.register(fd, READABLE)
        child.sender.arm = lambda armed: self._arm(fd, armed)

    def _arm(self, fd: int, armed: bool) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self.reader.replies.modify(fd, READABLE | (select.EPOLLOUT if armed else 0))
        if not armed:
            self._full.discard(fd)
            return
        self._full.add(fd)
        self.reader.attend()  # where a thread leads, it hands back when it stops

    def attend_to(self, unattended: Callable[[], bool]) -> None:
        """Lets the keeper read while something is awaited that no thread waits for."""
        self.reader.unattended = lambda: bool(self._full) or unattended()

    def _handle(self, events: list[tuple[int, int]]) -> None:
        if self._unhandled:
            for child in list(self._unhandled.values()):
                self._take(child)
        for fd, mask in events:
            child = self._by_socket.get(fd)
            if child is None:
                continue
            if mask & select.EPOLLOUT:
                child.sender.flush()
            if mask & ~select.EPOLLOUT:
                self._unhandled[fd] = child
                if not child.take_in():
                    with contextlib.suppress(OSError):
                        self.reader.replies.unregister(fd)
                    child.kill()  # where it has not ended yet, it has closed its socket
                self._take(child)

    def _take(self, child: RankChild) -> None:
        """Handles the frames of a rank; where that is interrupted, the first one again."""
        reader = child.reader
        while reader.frames:
            raw = reader.frames[0]
            try:
                fds = self._taker.take(child, raw)
                if fds is not None:
                    self._kept.append((child, raw, fds))
                    self.reader.wake()
            except (DecodeError, IndexError) as error:
                child.refuse(str(error))
                reader.frames.clear()
                break
            reader.frames.popleft()
        self._unhandled.pop(child.sock.fileno(), None)

    def handle_kept(self) -> None:
        """Handles the frames that only this thread may handle."""
        while self._kept:
            child, raw, fds = self._kept.popleft()
            if raw is not self._last_kept:  # else a thread was interrupted when it left it
                self._last_kept = raw
                self._taker.take_once(child, raw, fds)
                self.reader.notify_reader()
