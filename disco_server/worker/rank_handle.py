"""Reads the envelopes and the output of ranks in the daemon's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable

from disco_client.wire.codec import EncodedEnvelope
from disco_server.ipc.framing import FrameReader
from disco_server.ipc.process import RankEnds, RankProcess

__all__ = ["OutputPoller", "RankHandle"]


# Reads what the ranks of a node print, in a bounded share of the event loop's time.
#
# A rank that prints without end always has more to read. So all pipes are read by one
# poller, which takes a little of each of those that have something, in turn, and pauses
# before it looks again: the other sessions of the node have the rest of the time. A pipe
# is always emptied soon, so no rank blocks for long in a call of print.


_PIPE_BYTES = 64 * 1024
"""As much as a pipe holds."""

_TURN_S = 0.001
_PAUSE_S = 0.009
"""How long pipes are read at a time, and how long the pause after that is."""

_Taker = Callable[[bytes], None]


class OutputPoller:
    """Used from one event loop, in which it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._takers: dict[int, _Taker] = {}
        self._pausing: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._epoll, self._turn)

    def add(self, fd: int, take: _Taker) -> None:
        """Reads a pipe from now on.

        Args:
            fd: The pipe, which never blocks and is closed here at its end.
            take: Called with what was read; with nothing at its end.
        """
        self._takers[fd] = take
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Stops reading a pipe, and closes it; idempotent."""
        if self._takers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            os.close(fd)

    def _turn(self) -> None:
        """Reads each ready pipe once, as far as time permits; the kernel lists them in turn."""
        self._loop.remove_reader(self._epoll)
        self._pausing = self._loop.call_later(_PAUSE_S, self._recheck)
        until = self._loop.time() + _TURN_S
        read: set[int] = set()
        while ready := self._epoll.poll(0, 1):
            fd = ready[0][0]
            if fd in read:
                return
            read.add(fd)
            self._read(fd)
            if self._loop.time() > until:
                return

    def _read(self, fd: int) -> None:
        take = self._takers[fd]
        try:
            data = os.read(fd, _PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.remove(fd)
        take(data)

    def _recheck(self) -> None:
        self._pausing = None
        self._loop.add_reader(self._epoll, self._turn)

    def close(self) -> None:
        """Stops reading all pipes; idempotent."""
        if self._epoll.closed:
            return
        for fd in tuple(self._takers):
            self.remove(fd)
        if self._pausing is not None:
            self._pausing.cancel()
        else:
            self._loop.remove_reader(self._epoll)
        with contextlib.suppress(OSError):
            self._epoll.close()


_LAST_WORDS_S = 0.3


class RankHandle(RankProcess):
    """A rank process that an event loop reads and waits for.

    Args:
        pid: The process.
        ends: What connects it to this process.
        exit_status: Done with its exit status.
        poller: Reads what it prints.

    Attributes:
        exited: Done with the exit status, when the last output has been read.
        on_envelope: Called with each envelope of the rank: its bytes, the decoded
            envelope, and the reader that holds the descriptors.
        on_output: Called with lines: whether from standard error, and the lines in one
            piece, without the end of the last one.
    """

    def __init__(
        self, pid: int, ends: RankEnds, exit_status: asyncio.Future[int], poller: OutputPoller
    ) -> None:
        super().__init__(pid, ends)
        self.on_envelope: Callable[[bytes, EncodedEnvelope, FrameReader], None] | None = None
        self.on_output: Callable[[bool, bytes], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reading = self._more = True
        self._poller = poller
        self._output_ends = [self._loop.create_future() for _ in self.outputs]
        for fd, is_error in zip(self.outputs, (False, True), strict=True):
            poller.add(fd, lambda data, is_error=is_error: self._printed(is_error, data))
        self.exited: asyncio.Future[int] = asyncio.ensure_future(self._watch(exit_status))
        self.sender.arm = self._call_when_writable
        self._loop.add_reader(self.sock, self._readable)

    # Envelopes --------------------------------------------------------------------

    def _call_when_writable(self, armed: bool) -> None:
        if armed:
            self._loop.add_writer(self.sock, self.sender.flush)
        else:
            self._loop.remove_writer(self.sock)

    def _readable(self) -> None:
        frames = self.receive()
        if frames is None:
            self.stop_reading()
            self._more = False
            return
        for raw in frames:
            self._deliver(raw)

    def stop_reading(self) -> None:
        """Stops reading from the socket, so that the rank blocks once it is full."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self.sock)

    def go_on_reading(self) -> None:
        """Reads what the rank sends again."""
        if self._more and not self._reading:
            self._reading = True
            self._loop.add_reader(self.sock, self._readable)

    def _deliver(self, raw: bytes) -> None:
        if self.on_envelope is None or self._cause:
            return
        try:
            self.on_envelope(raw, EncodedEnvelope.FromString(raw), self.reader)
        except Exception as error:  # noqa: BLE001  (its bytes may cause any error)
            # Neither the daemon nor its other sessions may be affected.
            self.refuse(f"{error!r:.200}")

    # PMI ----------------------------------------------------------------------------

    def serve_pmi(self, readable: Callable[[], None]) -> None:
        """Calls a function when the rank's MPI library has said something, from now on."""
        self._loop.add_reader(self.pmi, readable)

    def close_pmi(self) -> None:
        """Closes the connection to the rank's MPI library; idempotent."""
        if self.pmi.fileno() >= 0:
            self._loop.remove_reader(self.pmi)
            self.pmi.close()

    # Output and exit ------------------------------------------------------------------

    def _printed(self, is_error: bool, data: bytes) -> None:
        block = self.cutters[is_error].feed(data)
        if block is not None and self.on_output is not None:
            self.on_output(is_error, block)
        if not data:
            self._output_ends[is_error].set_result(None)

    async def _watch(self, exit_status: asyncio.Future[int]) -> int:
        self.status = await exit_status
        # Its children may hold the pipes open, so the wait for the last output is short.
        await asyncio.wait(self._output_ends, timeout=_LAST_WORDS_S)
        return self.status

    def close(self) -> None:
        """Closes sockets and pipes; the process has exited. Idempotent."""
        if not self.sender.is_open:
            return
        self._more = False
        self.stop_reading()
        self._loop.remove_writer(self.sock)
        self.close_pmi()
        for fd, end in zip(self.outputs, self._output_ends, strict=True):
            if not end.done():  # else it is closed, and the number may be another pipe's
                self._poller.remove(fd)
        super().close()
