"""The daemon's end of one rank process: its sockets, its output, its exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence

from disco_client.wire.codec import EncodedEnvelope
from disco_server.ipc.framing import FrameReader, Unsent, frame, receive
from disco_server.observe.processes import (
    LastLines,
    LineCutter,
    MemoryWatch,
    RankMemory,
    report_memory,
)

__all__ = ["Launch", "OutputPoller", "RankHandle"]


# Reads what the ranks of a node print, in a bounded share of the event loop's time.
#
# A rank that prints without end always has more to read. So all pipes are read from one
# place, which takes a little of each of those that have something, in turn, and pauses
# before it looks again: the other sessions of the node have the rest of the time. A pipe
# is always emptied soon, so no rank waits for long in a call of print.


_PIPE_BYTES = 64 * 1024
"""As much as a pipe holds."""

_TURN_S = 0.001
_PAUSE_S = 0.009
"""How long pipes are read at a time, and how long they are left alone then."""

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
            take: Gets what it brings; nothing at its end.
        """
        self._takers[fd] = take
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Reads a pipe no more, and closes it; idempotent."""
        if self._takers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            os.close(fd)

    def _turn(self) -> None:
        """Reads each pipe once, as far as time permits; the kernel names them in turn."""
        self._loop.remove_reader(self._epoll)
        self._pausing = self._loop.call_later(_PAUSE_S, self._look_again)
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

    def _look_again(self) -> None:
        self._pausing = None
        self._loop.add_reader(self._epoll, self._turn)

    def close(self) -> None:
        """Reads nothing any more; idempotent."""
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

Launch = Callable[[Sequence[int]], Awaitable[tuple[int, asyncio.Future[int]]]]
"""Makes the process of a rank; see :meth:`RankHandle.start`."""


class RankHandle:
    """One rank process, from its start to its exit.

    Attributes:
        pid: The process, which leads a process group of its own.
        pmi: The daemon's end of the socket on which MPI meets.
        memory: Where it writes down what it does.
        exited: Done with the exit status: a code, or a negative signal number.
        on_envelope: Gets each envelope of the rank: its bytes, what they say, and
            the reader that holds the descriptors.
        on_output: Gets lines: whether from standard error, and the lines in one piece,
            without the end of the last one.
    """

    def __init__(
        self,
        pid: int,
        status: asyncio.Future[int],
        sock: socket.socket,
        pmi: socket.socket,
        output: Sequence[int],
        poller: OutputPoller,
        memory: RankMemory,
    ) -> None:
        self._status = status
        self._sock = sock
        self._reader = FrameReader()
        self._unsent = Unsent(sock)
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._reading = True
        self._ended = False
        self.pid = pid
        self.pmi = pmi
        self.memory = memory
        self.last_lines = LastLines()
        self._cause = ""
        self._limits = MemoryWatch(pid)
        self.on_envelope: Callable[[bytes, EncodedEnvelope, FrameReader], None] | None = None
        self.on_output: Callable[[bool, bytes], None] | None = None
        self._poller = poller
        self._pipes = tuple(output)
        self._output_ends = [self._loop.create_future() for _ in output]
        for fd, is_error in zip(output, (False, True), strict=True):
            self._read_output(fd, is_error=is_error)
        self.exited: asyncio.Future[int] = asyncio.ensure_future(self._watch())
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def start(cls, launch: Launch, poller: OutputPoller) -> RankHandle:
        """Starts an interpreter that will be a rank once it is told which.

        Args:
            launch: Makes the process. It gets the process's ends: the socket to the daemon,
                the one for MPI, the memory, standard output and standard error, all of
                which stay the caller's; it returns the pid, and a future of the exit status.
            poller: Reads what it prints.

        Raises:
            OSError: No process could be started.
        """
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            memory = RankMemory()
            undo.callback(memory.close)
            sock, their_sock = _pair(undo, theirs)
            pmi, their_pmi = _pair(undo, theirs)
            # With pipes of its own, which are not waited for at its exit: what the rank
            # started may keep them open long after its death.
            (output, their_output), (error, their_error) = (_pipe(undo, theirs) for _ in range(2))
            pid, status = await launch(
                (their_sock.fileno(), their_pmi.fileno(), memory.fd, their_output, their_error)
            )
            undo.pop_all()
        for end in (sock, pmi):
            end.setblocking(False)
        for end in (output, error):
            os.set_blocking(end, False)
        return cls(pid, status, sock, pmi, (output, error), poller, memory)

    # Envelopes --------------------------------------------------------------------

    def send(
        self,
        framed: bytes,
        fd: int | None = None,
        without: Callable[[str], bytes] | None = None,
    ) -> None:
        """Sends one frame; what the socket does not take now follows by itself.

        Args:
            framed: The frame, its length included.
            fd: A descriptor to pass along; it is closed here.
            without: Makes the frame to send where that cannot be passed; see `Unsent`.
        """
        if not self._open:
            if fd is not None:
                os.close(fd)
            return
        self._unsent.add(framed, fd, without)
        if len(self._unsent) == 1 and not self._unsent.flush():
            self._loop.add_writer(self._sock, self._writable)

    def _writable(self) -> None:
        if self._unsent.flush():
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            frames = receive(self._sock, self._reader)
        except BlockingIOError:
            return
        except ValueError as error:
            frames = None  # not our protocol: user code wrote into the socket
            self.end_because(f"was ended because it sent what is no message ({error})")
        if frames is None:
            self._loop.remove_reader(self._sock)
            self._ended = True
            return
        for raw in frames:
            self._deliver(raw)

    def stop_reading(self) -> None:
        """Leaves what the rank sends where it is, so that the rank waits at last."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def go_on_reading(self) -> None:
        """Reads what the rank sends again."""
        if not self._reading and self._open and not self._ended:
            self._reading = True
            self._loop.add_reader(self._sock, self._readable)

    def _deliver(self, raw: bytes) -> None:
        if self.on_envelope is None or self._cause:
            return
        try:
            self.on_envelope(raw, EncodedEnvelope.FromString(raw), self._reader)
        except Exception as error:  # noqa: BLE001  (whatever its bytes made of this)
            # Nobody else shall notice: not the daemon, not the sessions beside it.
            self.end_because(f"was ended because it sent what is no message ({error!r:.200})")

    # Output and exit ------------------------------------------------------------------

    def _read_output(self, fd: int, *, is_error: bool) -> None:
        cutter, end = LineCutter(), self._output_ends[is_error]

        def take(data: bytes) -> None:
            block = cutter.feed(data)
            if block is not None:
                self.last_lines.feed(block)
                if self.on_output is not None:
                    self.on_output(is_error, block)
            if not data and not end.done():
                end.set_result(None)

        self._poller.add(fd, take)

    async def _watch(self) -> int:
        status = await self._status
        # Its children may hold the pipes open, so the last words are not waited for long.
        await asyncio.wait(self._output_ends, timeout=_LAST_WORDS_S)
        return status

    def current_seq(self) -> int | None:
        """The command that it executes, or was in when it ended."""
        found = report_memory(0, "", self.pid, *self.memory.read(), flights=False)
        return found.current.seq if found.current is not None else None

    def kill(self) -> None:
        """Ends the process and every process it started that stayed in its group."""
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                if not self._status.done():  # it has not come to make its group
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)

    def why_ended(self) -> str:
        """Says why it ended, where more than its status is known; asked once, after its end."""
        killed = self._status.done() and self._status.result() == -signal.SIGKILL
        if not self._cause and killed:
            self._cause = self._limits.explain()
        return self._cause or self.memory.read_cause()

    def end_because(self, why: str) -> None:
        """Kills the process, and says so where its end is reported."""
        self._cause = why
        self.kill()

    async def end(self, envelope_: bytes, grace: float) -> int:
        """Asks the rank to leave, kills it after a grace, and returns its exit status.

        Its ``memory`` is left to the caller.
        """
        if grace > 0 and not self.exited.done():
            self.send(frame(envelope_))
            await asyncio.wait((self.exited,), timeout=grace)
        self.kill()  # also for what it left behind in its group
        status = await self.exited
        self.close(keep_memory=True)
        return status

    def close(self, *, keep_memory: bool = False) -> None:
        """Lets go of sockets and pipes; the process has exited.

        Args:
            keep_memory: Leave what it has written down to whoever closes ``memory``.
        """
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        for fd in self._pipes:
            self._poller.remove(fd)
        self._unsent.drop()
        self._reader.close()
        self._sock.close()
        self.pmi.close()
        if not keep_memory:
            self.memory.close()


def _pair(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """Two ends of a socket, each closed with one of the stacks."""
    pair = socket.socketpair()
    for stack, end in zip((ours, theirs), pair, strict=True):
        stack.callback(end.close)
    return pair


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """The ends of a pipe, each closed with one of the stacks."""
    pair = os.pipe()
    for stack, end in zip((ours, theirs), pair, strict=True):
        stack.callback(os.close, end)
    return pair
