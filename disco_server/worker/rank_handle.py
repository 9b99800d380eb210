"""The daemon's end of one rank process: its sockets, its output, its exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco_client.wire.codec import EncodedEnvelope
from disco_server.channels.frames import FrameReader, frame, receive
from disco_server.limits import Account
from disco_server.observe.inspect import report_memory
from disco_server.observe.last_lines import LastLines
from disco_server.observe.memory_limit import MemoryWatch
from disco_server.observe.stacks import MEMORY_VARIABLE, RankMemory

__all__ = ["RankHandle", "identity"]

_LAST_WORDS_S = 0.3
_MAX_LINE = 16 * 1024

_Pipe = tuple[asyncio.StreamReader, asyncio.ReadTransport]


class RankHandle:
    """One rank process, from the spare interpreter it begins as to its exit.

    Attributes:
        pid: The process, which leads a process group of its own.
        pmi: The daemon's end of the socket on which MPI meets.
        memory: Where it writes down what it does.
        exited: Done with the exit status: a code, or a negative signal number.
        on_envelope: Gets each envelope of the rank: its bytes, what they say, and
            the reader that holds the descriptors.
        on_output: Gets lines: whether from standard error, and the lines.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        sock: socket.socket,
        pmi: socket.socket,
        output: Sequence[_Pipe],
        memory: RankMemory,
    ) -> None:
        self._process = process
        self._sock = sock
        self._reader = FrameReader()
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._reading = True
        self._ended = False
        self.pid = process.pid
        self.pmi = pmi
        self.memory = memory
        self.last_lines = LastLines()
        self._cause = ""
        self._limits = MemoryWatch(process.pid)
        self.on_envelope: Callable[[bytes, EncodedEnvelope, FrameReader], None] | None = None
        self.on_output: Callable[[bool, list[str]], None] | None = None
        self._pipes = [transport for _, transport in output]
        self._output = [
            asyncio.ensure_future(self._read_output(stream, is_error))
            for (stream, _), is_error in zip(output, (False, True), strict=True)
        ]
        self.exited: asyncio.Future[int] = asyncio.ensure_future(self._watch())
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def spawn(cls, environ: Mapping[str, str], account: Account | None = None) -> RankHandle:
        """Starts an interpreter that will be a rank once it is told which.

        Args:
            environ: Its environment.
            account: As whom it runs, if not as this process's user.
        """
        memory = RankMemory()
        ours, theirs = socket.socketpair()
        pmi_ours, pmi_theirs = socket.socketpair()
        output: list[_Pipe] = []
        # With pipes of its own, asyncio tells of an exit only when they are closed,
        # and what the rank started may keep them open long after its death.
        ends: list[int] = []
        try:
            for _ in range(2):
                end, their_end = os.pipe()
                ends.append(their_end)
                output.append(await _open_pipe(end))
            env = {
                **environ,
                "PMI_FD": str(pmi_theirs.fileno()),
                "PYTHONUNBUFFERED": "1",
                MEMORY_VARIABLE: str(memory.fd),
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # whatever lies where it works is not for it to import
                "-m",
                "disco_server.worker.rank_process",
                str(theirs.fileno()),
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=ends[0],
                stderr=ends[1],
                pass_fds=(theirs.fileno(), pmi_theirs.fileno(), memory.fd),
                start_new_session=True,
                env=env,
                cwd="/",
                **identity(account),
            )
        except BaseException:
            # A process that was started already finds its socket closed, and leaves.
            ours.close()
            pmi_ours.close()
            memory.close()
            for _, pipe in output:
                pipe.close()
            raise
        finally:
            theirs.close()
            pmi_theirs.close()
            for end in ends:
                os.close(end)
        ours.setblocking(False)
        pmi_ours.setblocking(False)
        return cls(process, ours, pmi_ours, output, memory)

    # Envelopes --------------------------------------------------------------------

    def send(self, framed: bytes, fd: int | None = None) -> None:
        """Sends one frame; what the socket does not take now follows by itself.

        Args:
            framed: The frame, its length included.
            fd: A descriptor to pass along; it is closed here.
        """
        if not self._open:
            if fd is not None:
                os.close(fd)
            return
        self._unsent.append((memoryview(framed), fd))
        if len(self._unsent) == 1 and not self._flush():
            self._loop.add_writer(self._sock, self._writable)

    def _flush(self) -> bool:
        """Sends what the socket takes; whether nothing is left."""
        unsent = self._unsent
        try:
            while unsent:
                data, fd = unsent[0]
                if fd is None:
                    sent = self._sock.send(data)
                else:
                    sent = socket.send_fds(self._sock, [data], [fd])
                    os.close(fd)
                if sent < len(data):
                    unsent[0] = (data[sent:], None)
                    return False
                unsent.popleft()
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._drop_unsent()  # its exit is on the way, and says more
        return True

    def _writable(self) -> None:
        if self._flush():
            self._loop.remove_writer(self._sock)

    def _drop_unsent(self) -> None:
        for _, fd in self._unsent:
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._unsent.clear()

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

    async def _read_output(self, stream: asyncio.StreamReader, is_error: bool) -> None:
        rest = b""
        while data := await stream.read(64 * 1024):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MAX_LINE:
                lines, rest = [*lines, rest], b""
            self._emit(is_error, lines)
        if rest:
            self._emit(is_error, [rest])

    def _emit(self, is_error: bool, lines: list[bytes]) -> None:
        text = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
        if not text:
            return
        self.last_lines.extend(text)
        if self.on_output is not None:
            self.on_output(is_error, text)

    async def _watch(self) -> int:
        status = await self._process.wait()
        # Its children may hold the pipes open, so the last words are not waited for long.
        await asyncio.wait(self._output, timeout=_LAST_WORDS_S)
        return status

    def current_seq(self) -> int | None:
        """The command that it executes, or was in when it ended."""
        found = report_memory(0, "", self.pid, *self.memory.read(), flights=False)
        return found.current.seq if found.current is not None else None

    def kill(self) -> None:
        """Ends the process and every process it started that stayed in its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def why_ended(self) -> str:
        """Says why it ended, where more than its status is known; asked once, after its end."""
        if not self._cause and self._process.returncode == -signal.SIGKILL:
            self._cause = self._limits.explain()
        return self._cause

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
        for task in self._output:
            task.cancel()
        for pipe in self._pipes:
            pipe.close()
        self._drop_unsent()
        self._reader.close()
        self._sock.close()
        self.pmi.close()
        if not keep_memory:
            self.memory.close()


def identity(account: Account | None) -> dict[str, Any]:
    """What makes a process another user's before its program begins."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": account.groups}


async def _open_pipe(fd: int) -> _Pipe:
    """Makes a pipe readable in this loop; its transport owns the descriptor."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(fd, "rb", 0)
    )
    return stream, transport
