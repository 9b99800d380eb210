"""One rank process as its starter sees it: its sockets, its output, its exit.

There is no event loop here. The starter waits for the rank's descriptors in its own way, and
calls :class:`RankProcess`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from disco_client.errors import describe_exit
from disco_client.wire.framing import FrameTooLong
from disco_server.collectives.loss import may_follow_another
from disco_server.collectives.mpich_memory import shortage
from disco_server.core.node import RankEnd
from disco_server.core.pmi import MAX_LINE
from disco_server.ipc.framing import FrameReader
from disco_server.ipc.rank_sender import RankSender
from disco_server.observe.memory_limit import MemoryWatch
from disco_server.observe.printed_lines import LastLines, LineCutter
from disco_server.observe.rank_memory import RankMemory, read_record
from disco_server.settings import HASH_SEED

__all__ = ["RankEnds", "RankProcess", "fix_hashes", "limit_threads", "rank_ends"]


_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def limit_threads(environ: Mapping[str, str], threads: int) -> dict[str, str]:
    """An environment in which numerical libraries start so many threads in a rank.

    Each would start one for every core, which beside other ranks is far too many. What the
    environment says already is kept.
    """
    return {**dict.fromkeys(_THREAD_VARIABLES, str(threads)), **environ}


def fix_hashes(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every rank hashes texts alike, so that their sets have one order.

    By default each interpreter draws a seed of its own when it starts, and the ranks of a session
    would go through a set of names in different orders. The seed is a constant, because a rank
    that was forked has its parent's, which is older than the session, on each node another process.
    """
    return {**environ, HASH_SEED: "0"}


class RankEnds(NamedTuple):
    """The ends of a rank's sockets and pipes that its starter keeps; none of them blocks.

    Attributes:
        sock: The socket for frames.
        pmi: The socket for MPI's requests.
        memory: The memory into which the rank records what it does.
        outputs: The pipes of standard output and standard error.
    """

    sock: socket.socket
    pmi: socket.socket
    memory: RankMemory
    outputs: tuple[int, int]


@contextlib.contextmanager
def rank_ends() -> Generator[tuple[RankEnds, tuple[int, int, int, int, int]]]:
    """Makes what a rank process inherits, for as long as it takes to start that.

    Yields:
        The starter's ends, which are closed if no process can be started; and the rank's
        descriptors, which are closed afterwards in any case: the socket for frames, the one
        for MPI, the memory, standard output and standard error.

    Raises:
        OSError: The system has no descriptors left.
    """
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
        memory = RankMemory()
        undo.callback(memory.close)
        (sock, their_sock), (pmi, their_pmi) = (_pair(undo, theirs) for _ in range(2))
        # With pipes of its own, whose end is not awaited at its exit: processes that the
        # rank started may keep them open long after it.
        (output, their_output), (error, their_error) = (_pipe(undo, theirs) for _ in range(2))
        yield (
            RankEnds(sock, pmi, memory, (output, error)),
            (their_sock.fileno(), their_pmi.fileno(), memory.fd, their_output, their_error),
        )
        undo.pop_all()


class RankProcess:
    """One rank process, from its start to its exit.

    Args:
        pid: The process, which leads a process group of its own.
        ends: What connects it to this process; the reader of the pipes closes them.
        order: A reentrant lock that is taken before that of this rank, where threads that send
            to several ranks have one.

    Attributes:
        pid: The process.
        status: Its exit status, once that is known: a code, or a negative signal number.
        sock: The socket to the rank.
        pmi: The socket for MPI's requests.
        outputs: The pipes of standard output and standard error.
        sender: Sends frames to it, for any thread.
        reader: Cuts what the socket brings into frames, and holds descriptors.
        cutters: Cut what each of the pipes brings into lines.
        last_lines: The end of its output.
        memory: The memory into which it records what it does; closed by its last user.
        local_workers: How many ranks of its session run on this machine, itself included.
    """

    def __init__(self, pid: int, ends: RankEnds, order: threading.RLock | None = None) -> None:
        self.pid = pid
        self.status: int | None = None
        self.sock, self.pmi, self.memory, self.outputs = ends
        self.sender = RankSender(self.sock, order)
        self.reader = FrameReader()
        self.last_lines = LastLines()
        self.cutters = LineCutter(self.last_lines), LineCutter(self.last_lines)
        self.local_workers = 1
        self._cause = ""
        self._limits = MemoryWatch(pid)

    # The socket -------------------------------------------------------------------------

    def take_in(self) -> bool:
        """Reads into ``reader.frames`` what is there; False at the end of the stream."""
        try:
            return self.reader.read(self.sock)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno is None:  # of a signal handler
                raise
            return False
        except FrameTooLong as error:
            self.refuse(str(error))
            return False

    def receive(self) -> list[bytes] | None:
        """Reads the frames that are there; None at the end of the stream."""
        goes_on, reader = self.take_in(), self.reader
        frames, reader.frames = list(reader.frames), deque()
        return frames if goes_on or frames else None

    def refuse(self, why: str) -> None:
        """Kills the process because it violates the protocol: user code may write to the socket."""
        self.end_because(f"was ended because it sent what is no message ({why})")

    # PMI --------------------------------------------------------------------------------

    def read_pmi(self) -> bytes | None:
        """What the rank's MPI library has said; empty where it left, None where nothing came."""
        try:
            return self.pmi.recv(MAX_LINE)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def send_pmi(self, data: bytes) -> None:
        """Answers the rank's MPI library."""
        # It waits for each reply, so there is always room for the next one.
        with contextlib.suppress(OSError):
            self.pmi.send(data)

    # The exit ---------------------------------------------------------------------------

    def current_seq(self) -> int | None:
        """The command that it executes, or was in when it ended."""
        current = read_record(*self.memory.read()).current
        return current.seq if current is not None else None

    @property
    def is_stopped(self) -> bool:
        """Whether the process does not run at all: a signal or a debugger has stopped it."""
        try:
            after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2]
        except OSError:
            return False
        return after_name.split()[0] in ("T", "t")

    def interrupt(self, until: int, ends: int) -> None:
        """Lets the process leave commands out, and end the one that runs; see `RankMemory`."""
        if self.status is None:
            with contextlib.suppress(OSError):
                self.memory.interrupt(self.pid, until, ends)

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Lets the process end commands, or leave them out; see `RankMemory`."""
        if self.status is None:
            with contextlib.suppress(OSError):
                self.memory.cancel(self.pid, commands)

    def end_interrupted(self) -> None:
        """Kills the process, because the command that it executes has not ended."""
        self.end_because("was ended because it did not react to an interrupt (force=True)")

    def kill(self) -> None:
        """Ends the process and every process it started that stayed in its group."""
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                if self.status is None:  # it has not made its group yet
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pid, signal.SIGKILL)

    def end_because(self, why: str) -> None:
        """Kills the process, and records why for the report of its end."""
        self._cause = why
        self.kill()

    def how_ended(self) -> RankEnd:
        """Returns how it has ended; called once."""
        status = self.status or 0
        return RankEnd(
            status,
            tuple(self.last_lines),
            self._why_ended(),
            follows=may_follow_another(status, self.memory),
            lost_at=self.memory.lost_at(),
        )

    def _why_ended(self) -> str:
        if not self._cause and self.status == -signal.SIGKILL:
            self._cause = self._limits.explain()
        return self._cause or self.memory.read_cause() or self._lacked_shared_memory()

    def _lacked_shared_memory(self) -> str:
        """Says how it ended, if that was for want of shared memory; otherwise empty."""
        collective = read_record(*self.memory.read()).collective
        starts_mpi = collective is not None and collective.name.startswith("start of mpi")
        if self.status is None or not (self.status == -signal.SIGBUS or starts_mpi):
            return ""
        lack = shortage(self.local_workers)
        return f"{describe_exit(self.status)}: {lack}" if lack else ""

    def close(self) -> None:
        """Closes the sockets; idempotent."""
        self.sender.close()
        self.reader.close()
        self.sock.close()
        self.pmi.close()


def _pair(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """Two ends of a socket, each closed with one of the stacks; only ours does not block."""
    pair = socket.socketpair()
    for stack, end in zip((ours, theirs), pair, strict=True):
        stack.callback(end.close)
        end.setblocking(stack is theirs)  # whatever socket.setdefaulttimeout says
    return pair


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """The ends of a pipe, each closed with one of the stacks."""
    pair = os.pipe()
    for stack, end in zip((ours, theirs), pair, strict=True):
        stack.callback(os.close, end)
    os.set_blocking(pair[0], False)
    return pair
