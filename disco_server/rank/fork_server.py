"""The process from which the ranks of a worker daemon are forked, and their keepers.

A daemon has one such server, a Python that has loaded what every rank needs and nothing
else: one thread, no MPI, no GPU, no gRPC. For each session the server forks a keeper, and
the keeper forks the ranks, so that a rank is there in milliseconds and shares with the
others what none of them changes. A keeper is the parent of its session's ranks and, as
what Linux calls a child subreaper, becomes the parent of every process of theirs that
loses its own, however it was started. So it can report to the daemon how ranks end, and
it can end all that is left when the session is over or the daemon is gone.

Server and keepers run nothing that a client sends. They are not dumpable, so that ranks,
which are the same user's, cannot look into them or change them; they hold nothing that
ranks do not have too. Ranks are dumpable again.

The daemon's end of the sockets is in `disco_server.worker.fork_server`. Messages are JSON
objects, one a packet, sent with descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

# Loaded by numpy 2 only when it is used, and then by each rank.
from numpy import random as numpy_random

from disco_client.backoff import Backoff
from disco_client.clock import monotonic
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory
from disco_server.observe.lifetime import PARENT_VARIABLE
from disco_server.observe.processes import be_subreaper, below, living_parents, process_fields
from disco_server.observe.stacks import MEMORY_VARIABLE
from disco_server.rank import process

__all__ = ["DESCRIPTORS", "receive_message", "send_message"]

DESCRIPTORS = ("socket", "pmi", "memory", "stdout", "stderr")
"""The descriptors sent with the request for a rank, in this order."""

_MESSAGE_BYTES = 4096
_NOT_STARTED = 127
_PR_SET_DUMPABLE = 4
_SHORTEST_S, _LONGEST_S = 0.001, 0.05
"""How long to wait after killing processes before the next look for remaining ones."""

_SERVER_S, _KEEPER_S = 2.0, 60.0
"""How long each keeps killing: sessions wait for the server, but not for a keeper."""


# Messages.


def send_message(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Sends a message in one packet.

    Raises:
        OSError: The other end is gone, or does not read.
    """
    data = json.dumps(message).encode()
    passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([data], passed, socket.MSG_NOSIGNAL)


def receive_message(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receives a message and its descriptors; None where the other end is gone.

    Raises:
        BlockingIOError: There is none, and the socket does not block.
    """
    room = socket.CMSG_SPACE(len(DESCRIPTORS) * array("i").itemsize)
    try:
        data, passed, _, _ = sock.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    fds = array("i")
    for level, kind, content in passed:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return (json.loads(data), list(fds)) if data else None


# Ending what is below this process.


def _has_children() -> bool:
    """Whether anything is below this process, to which descendants come that lose their parent.

    To look at all processes of a machine takes longer than to fork a rank.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end_below(reap: Callable[[], None], limit_s: float, spared: Collection[int] = ()) -> None:
    """Kills the descendants of this process until none is left.

    Each look finds what those that were killed since the last one had started, because
    a process that loses its parent becomes this process's child.

    Args:
        reap: Handles the children that have ended.
        limit_s: How long to try: a process that is blocked in the kernel does not end at once.
        spared: Children that live on, with all that is below them.
    """
    me, backoff = os.getpid(), Backoff(_SHORTEST_S, _LONGEST_S)
    until = monotonic() + limit_s
    while monotonic() < until:
        reap()
        if not _has_children():
            return
        parents = living_parents()
        for pid in spared:
            parents.pop(pid, None)
        left = below(parents, [me])
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(backoff.pause())


# What server and keepers share: one thread that waits for messages and for children.


class _Role(ABC):
    """Waits for messages of the daemon, for the ends of children and of the daemon."""

    def __init__(self, sock: socket.socket, daemon: int) -> None:
        sock.setblocking(True)
        self.sock = sock
        self._daemon = daemon
        be_subreaper()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def wait(self) -> tuple[dict[str, Any], list[int]] | None:
        """Waits for a message; None where the daemon is gone."""
        poll = select.poll()
        for fd in (self.sock.fileno(), self._woken.fileno(), self._daemon):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            self.reap()
            self.clean_up()
            ready = {fd for fd, _ in poll.poll()}
            if self._woken.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(_MESSAGE_BYTES)
            if self.sock.fileno() in ready:
                return receive_message(self.sock)
            if self._daemon in ready:
                return None

    def reap(self) -> None:
        """Handles the children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.on_exit(*ended)

    @abstractmethod
    def on_exit(self, pid: int, status: int) -> None:
        """Handles the end of a child."""

    @abstractmethod
    def clean_up(self) -> None:
        """Does what the ends of children have made necessary."""

    def leave(self) -> None:
        """Releases what a forked child does not need."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.sock, self._woken, self._wake):
            end.close()

    def tell(self, **message: Any) -> None:
        """Sends a message to the daemon, which may be gone; the next wait shows that."""
        with contextlib.suppress(OSError):
            send_message(self.sock, message)


class _ServerRole(_Role):
    """Forks keepers, and ends what is left where one of them was killed."""

    def __init__(self, sock: socket.socket, daemon: int) -> None:
        super().__init__(sock, daemon)
        self._keepers: set[int] = set()
        self._killed = False

    def serve(self) -> _KeeperRole:
        """Serves until the daemon is gone; returns only in a keeper."""
        self.tell(ready=True)
        while True:
            wanted = self.wait()
            if wanted is None:
                os._exit(0)
            message, (fd,) = wanted
            theirs = socket.socket(fileno=fd)
            try:
                pid = os.fork()
            except OSError as error:
                send_message(theirs, {"error": error.errno, "why": str(error)})
                theirs.close()
                continue
            if pid:
                self._keepers.add(pid)
                theirs.close()
                continue
            self.leave()
            return _KeeperRole(theirs, self._daemon, message["session"])

    def on_exit(self, pid: int, status: int) -> None:
        if pid in self._keepers:
            self._keepers.remove(pid)
            self._killed = self._killed or status != 0

    def clean_up(self) -> None:
        if self._killed:  # what it kept are this process's children now
            self._killed = False
            _end_below(self.reap, _SERVER_S, self._keepers)


class _KeeperRole(_Role):
    """Forks the ranks of one session, reports their ends, and ends what they leave."""

    def __init__(self, sock: socket.socket, daemon: int, session: int) -> None:
        super().__init__(sock, daemon)
        self._session = session
        self._ranks: set[int] = set()

    def serve(self) -> list[int]:
        """Serves until the session is over; returns only in a rank, with its descriptors."""
        self.tell(pid=os.getpid())
        while True:
            wanted = self.wait()
            if wanted is None or "end" in wanted[0]:
                _end_below(self.reap, _KEEPER_S)
                if wanted is None:  # otherwise the daemon sweeps it
                    with contextlib.suppress(OSError):
                        sweep_shared_memory(kvsname(self._session))
                os._exit(0)
            message, fds = wanted
            try:
                pid = os.fork()
            except OSError as error:
                self.tell(error=error.errno, why=str(error))
                pid = 0
            else:
                if not pid:
                    return self._become_rank(fds, fresh=message["fresh"])
                self._ranks.add(pid)
                self.tell(started=pid)
            for fd in fds:
                os.close(fd)

    def on_exit(self, pid: int, status: int) -> None:
        if pid in self._ranks:
            self._ranks.remove(pid)
            self.tell(exited=pid, status=os.waitstatus_to_exitcode(status))

    def clean_up(self) -> None:
        pass  # what a rank leaves is ended with the session

    def _become_rank(self, fds: list[int], *, fresh: bool) -> list[int]:
        os.setsid()
        self.leave()
        *fds, stdout, stderr = fds
        for fd, number in ((stdout, 1), (stderr, 2)):
            os.dup2(fd, number)
            os.close(fd)
        if self._daemon >= 0:
            os.close(self._daemon)
        if fresh:
            _exec_rank(fds)
        return fds


def _be_dumpable(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(yes), 0, 0, 0)


# Becoming a rank.


def _variables(fds: list[int]) -> dict[str, str]:
    _, pmi, memory = fds
    return {
        "PMI_FD": str(pmi),
        MEMORY_VARIABLE: str(memory),
        PARENT_VARIABLE: str(os.getppid()),
    }


def _exec_rank(fds: list[int]) -> NoReturn:
    """Starts a fresh interpreter in this process, as ranks on GPUs need one."""
    for fd in fds:
        os.set_inheritable(fd, True)
    words = _words(str(fds[0]))
    try:
        os.execve(sys.executable, words, {**os.environ, **_variables(fds)})  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"disco: {sys.executable} could not be started: {error}\n")
    os._exit(_NOT_STARTED)


def _words(fd: str) -> list[str]:
    """The command line of a rank."""
    return [sys.executable, "-P", "-m", process.__name__, fd]


def _be_rank(fds: list[int], place: tuple[int, int]) -> None:
    """Puts this process in the state of an interpreter that was started as a rank."""
    _be_dumpable(True)
    os.environ.update(_variables(fds))
    # The module `random` reseeds itself; no other random state here was drawn at import.
    numpy_random.seed()  # noqa: NPY002  (the global state is what ranks must not share)
    words = _words(str(fds[0]))
    _show(words, place)
    sys.orig_argv[:] = words
    sys.argv[:] = [str(process.__file__), *words[4:]]


def _argument_place() -> tuple[int, int]:
    """Where the command line that other processes see lies in this process's memory."""
    fields = process_fields("self")
    return int(fields[45]), int(fields[46])


def _show(words: list[str], place: tuple[int, int]) -> None:
    """Replaces the visible command line of this process, in the memory of the original one."""
    begin, end = place
    room = end - begin - sum(len(os.fsencode(word)) + 1 for word in words) + len(words[4])
    if room < len(words[4]):
        return
    words = [*words[:4], words[4].zfill(room)]
    raw = b"".join(os.fsencode(word) + b"\0" for word in words)
    ctypes.memmove(begin, raw, len(raw))


def _await_ranks() -> list[int]:
    """Serves the daemon; returns only in ranks, with their descriptors."""
    fd, daemon = (int(argument) for argument in sys.argv[1:])
    _be_dumpable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        watched = os.pidfd_open(daemon)
    except OSError:  # a sandbox that does not permit it: only the socket shows it
        watched = -1
    if os.getppid() != daemon:
        os._exit(0)
    place = _argument_place()
    server = _ServerRole(socket.socket(fileno=fd), watched)
    gc.collect()
    gc.freeze()
    try:
        keeper = server.serve()
        fds = keeper.serve()
        _be_rank(fds, place)
    except BaseException:  # noqa: BLE001  (no role may continue as another one)
        traceback.print_exc()
        os._exit(1)
    return fds


if __name__ == "__main__":
    _await_ranks()
    process.main()
