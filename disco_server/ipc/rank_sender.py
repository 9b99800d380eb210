"""Sends frames to one rank, each after all before it, whichever threads send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from disco_client.descriptors import Descriptor
from disco_client.locks import make_lock
from disco_client.reentry import owned
from disco_server.ipc.framing import Unsent

__all__ = ["RankSender"]


_HELD_BYTES = 4 * 1024
"""How much may be held before it is sent after all."""


class RankSender:
    """The sending side of a rank's socket; any thread may use it, and none waits for the rank.

    Args:
        sock: The socket, which never blocks.
        order: A reentrant lock that is taken before the own one, where threads that send to
            several ranks have one.

    Attributes:
        arm: Called with whether to call :meth:`flush` when the socket takes more.
        entered: Says whether the calling thread is in the middle of sending.
        is_open: Whether frames are still taken.
    """

    def __init__(self, sock: socket.socket, order: threading.RLock | None = None) -> None:
        self.arm: Callable[[bool], None] = lambda _armed: None
        self.is_open = True
        self._unsent = Unsent(sock)
        self._held = 0
        self._armed = False
        self._order = make_lock("connection") if order is None else order
        self._lock = make_lock("stream")
        self.entered: Callable[[], bool] = owned(self._lock)

    def send(
        self,
        framed: bytes | memoryview,
        fd: Descriptor | None = None,
        without: Callable[[str], bytes] | None = None,
    ) -> None:
        """Sends a frame, after all before it; never blocks.

        What the socket does not take now is kept, and ``arm`` is called.

        Args:
            framed: The frame, its length included.
            fd: A descriptor to pass along; it is closed here.
            without: Makes the frame to send if that cannot be passed; see `Unsent`.
        """
        inside = self.entered()
        with self._order, self._lock:
            if self.is_open:
                self._unsent.add(framed, fd, without)
                self._send(inside)
            elif fd is not None:
                fd.close()

    def _send(self, inside: bool) -> None:
        """Sends what is kept; later, where this thread is in the middle of that."""
        if inside:
            self.arm(True)
        elif not self._armed:
            self._flush()

    def hold(self, framed: bytes) -> None:
        """Keeps a frame that is not urgent until another one is sent, or many are kept."""
        inside = self.entered()
        with self._order, self._lock:
            self._unsent.add(framed)
            self._held += len(framed)
            if self._held >= _HELD_BYTES:
                self._send(inside)

    def flush(self) -> None:
        """Sends what is kept, as far as the socket takes it, which it does again."""
        if self.entered():
            return  # who is in the middle of sending goes on
        with self._order, self._lock:
            self._flush(again=True)

    def _flush(self, *, again: bool = False) -> None:
        self._held = 0
        armed = not self._unsent.flush()
        if again or armed != self._armed:
            self.arm(armed)
            self._armed = armed

    def renew_lock(self) -> None:
        """Frees the locks in a forked child, whichever thread of the parent held them."""
        self._order = self._lock = make_lock("connection")
        self.entered = owned(self._lock)

    def close(self) -> None:
        """Takes no more frames, and drops those that were not sent; idempotent."""
        with self._order, self._lock:
            self.is_open = False
            self._unsent.drop()
