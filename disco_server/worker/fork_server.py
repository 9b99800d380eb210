"""The daemon's end of the process from which ranks are forked, and of sessions' keepers.

What they do is in `disco_server.rank.fork_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from disco_client.errors import describe_exit
from disco_client.output import logger_of
from disco_server.ipc.process import rank_ends
from disco_server.observe.printed_lines import LastLines, LineCutter
from disco_server.observe.processes import below, living_parents
from disco_server.rank.fork_server import receive_message, send_message
from disco_server.worker.environment import identity
from disco_server.worker.rank_handle import OutputPoller, RankHandle

if TYPE_CHECKING:
    from disco_server.config import Account

__all__ = ["NO_PROCESS", "CannotStart", "ForkServer", "Keeper"]

_logger = logger_of("disco.worker")
_START_S = 60.0
"""How long a server may take to load."""

_ANSWER_S = 15.0
"""How long it may take to fork a keeper, before it is replaced."""

_EXIT_S = 1.0

_ATTEMPTS = 3
_LAST_WORDS_S = 0.3
_END_S = 5.0
_KILLED_S = 2.0
_LOOKS, _LOOK_S = 40, 0.05
_LOST = "was ended because the process that keeps the ranks of its session ended"


class CannotStart(OSError):
    """There is no process to fork ranks from.

    Attributes:
        status: How the one that was tried ended: a code, or a negative signal number.
        output: The end of its output.
    """

    def __init__(self, why: str, status: int, output: Iterable[str] = ()) -> None:
        super().__init__(why)
        self.status = status
        self.output = list(output) or [why]


class _MessageLine(ABC):
    """One end of a socket for messages, read by the event loop.

    Args:
        sock: The socket; closed here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if self.gone.done():
            raise ConnectionError("the process that forks ranks has ended")
        send_message(self._sock, message, fds)

    def _readable(self) -> None:
        try:
            received = receive_message(self._sock)
        except BlockingIOError:
            return
        if received is None:
            self.close()
        else:
            self.on_message(received[0])

    @abstractmethod
    def on_message(self, message: dict[str, Any]) -> None:
        """Handles a message."""

    @abstractmethod
    def on_gone(self) -> None:
        """Handles that the other end is gone, or this one was closed."""

    def close(self) -> None:
        """Closes the socket; idempotent."""
        if not self.gone.done():
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self.gone.set_result(None)
            self.on_gone()


class Keeper(_MessageLine):
    """The process that keeps the ranks of one session.

    Attributes:
        pid: The process; 0 before it has reported it.
        gone: Done when the process has ended.
    """

    def __init__(self, sock: socket.socket, poller: OutputPoller) -> None:
        super().__init__(sock)
        self._poller = poller
        self.pid = 0
        self._ending = False
        self._said: deque[asyncio.Future[int]] = deque([self._loop.create_future()])
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._handles: list[RankHandle] = []

    async def greeting(self) -> None:
        """Waits until the process has started.

        Raises:
            OSError: It could not be started.
        """
        self.pid = await self._said[0]

    async def start_rank(self, *, fresh: bool) -> RankHandle:
        """Starts a rank.

        Args:
            fresh: In an interpreter of its own, which nothing was loaded into before.

        Raises:
            OSError: No process could be started.
        """
        said: asyncio.Future[int] = self._loop.create_future()
        with rank_ends() as (ours, theirs):
            self.send({"fresh": fresh}, theirs)
            self._said.append(said)
            pid = await said
        handle = RankHandle(pid, ours, self._statuses[pid], self._poller)
        self._handles.append(handle)
        return handle

    def on_message(self, message: dict[str, Any]) -> None:
        """The keeper has started, a rank was started or could not be, or one has ended."""
        if "exited" in message:
            self._statuses[message["exited"]].set_result(message["status"])
            return
        if "started" in message:
            self._statuses[message["started"]] = self._loop.create_future()
        said = self._said.popleft()
        if said.done():  # its caller has given up
            return
        if "error" in message:
            said.set_exception(OSError(message["error"], message["why"]))
        else:
            said.set_result(message.get("started") or message["pid"])

    def on_gone(self) -> None:
        """No exit of a rank is reported any more; the kernel kills the ranks with their keeper."""
        for said in self._said:
            if not said.done():
                said.set_exception(ConnectionError(_LOST))
                said.exception()  # its caller may have given up
        for handle in self._handles:
            if not handle.exited.done() and not self._ending:
                handle.end_because(_LOST)
        for status in self._statuses.values():
            if not status.done():
                status.set_result(-signal.SIGKILL)

    def kill(self) -> None:
        """Ends the process, and with it its ranks."""
        if not self.gone.done() and self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    async def end(self) -> bool:
        """Ends every process that descends from the session's ranks, and the keeper.

        Returns:
            Whether the keeper confirmed that none is left.
        """
        self._ending = True
        with contextlib.suppress(OSError):
            self.send({"end": True})
        done, _ = await asyncio.wait((self.gone,), timeout=_END_S)
        if not done:
            self.kill()
            await asyncio.wait((self.gone,), timeout=_KILLED_S)
        self.close()
        return bool(done)


class _ServerProcess(_MessageLine):
    """One process from which keepers are forked, from its start to its exit."""

    def __init__(
        self, process: asyncio.subprocess.Process, sock: socket.socket, output: int
    ) -> None:
        super().__init__(sock)
        self.pid = process.pid
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.last_lines = LastLines()
        self._cutter = LineCutter(self.last_lines)
        self._silent: asyncio.Future[None] = self._loop.create_future()
        self._output = output
        self._process = process
        self.exited: asyncio.Future[int] = asyncio.ensure_future(self._watch())

    def on_message(self, message: dict[str, Any]) -> None:  # noqa: ARG002  (it says no more)
        """The server is ready."""
        if not self.ready.done():
            self.ready.set_result(None)

    def on_gone(self) -> None:
        """Does nothing: its exit is handled instead."""

    def on_output(self, data: bytes) -> None:
        """Takes its output; nothing at the end."""
        self._cutter.feed(data)
        if not data and not self._silent.done():
            self._silent.set_result(None)

    async def _watch(self) -> int:
        status = await self._process.wait()
        await asyncio.wait((self._silent,), timeout=_LAST_WORDS_S)  # keepers hold it open
        self.close()
        return status

    async def end(self) -> None:
        """Kills it, and waits for its exit."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self.exited


class ForkServer:
    """Starts the processes of ranks; its owner closes it.

    A server that ends by itself, or does not answer, is replaced at once; sessions that need
    one meanwhile wait for the new one. Only one that never got ready is not tried again until
    a session needs it, which then fails with the reason.

    Args:
        environ: The environment of every rank process.
        account: The user that they run as, if not this process's user.
        alone: Whether all children of this process are started here, and it is a subreaper.
            Then processes that ranks left behind are ended also if the server and a keeper
            were killed from outside, which makes them children of this process.
    """

    def __init__(
        self, environ: Mapping[str, str], account: Account | None = None, *, alone: bool = False
    ) -> None:
        self._alone = alone
        self._keepers: set[Keeper] = set()
        self._tidying: asyncio.Task[None] | None = None
        self._environ = {**environ, "PYTHONUNBUFFERED": "1"}
        self._account = account
        self._poller: OutputPoller | None = None
        self._current: asyncio.Task[_ServerProcess] | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """The process that serves at this moment; 0 while there is none."""
        current = self._current
        if current is None or not current.done() or current.cancelled() or current.exception():
            return 0
        server = current.result()
        return 0 if server.exited.done() else server.pid

    async def start(self) -> None:
        """Waits until there is a server, or until one could not be started."""
        try:
            await self._get()
        except CannotStart as error:
            _log_failure(error)

    async def keeper(self, session: int) -> Keeper:
        """Starts a process that keeps the ranks of a session.

        Raises:
            CannotStart: There is no server to fork it from.
            OSError: The server could not fork it.
        """
        for _ in range(_ATTEMPTS):
            server = await self._get()
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await self._fork_keeper(server, session)
            except TimeoutError:  # it is stopped or hangs
                await server.end()
            except ConnectionError:  # it has ended, and there will be another one
                await asyncio.wait((server.exited,), timeout=_EXIT_S)
        raise CannotStart("the process that forks ranks ended again and again", NO_PROCESS)

    async def _fork_keeper(self, server: _ServerProcess, session: int) -> Keeper:
        assert self._poller is not None  # noqa: S101  (the server needed it)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(True)  # whatever socket.setdefaulttimeout says
        with theirs:
            keeper = Keeper(ours, self._poller)
            try:
                server.send({"session": session}, (theirs.fileno(),))
            except BaseException:
                keeper.close()
                raise
        try:
            await keeper.greeting()
        except BaseException:
            keeper.close()  # it leaves by itself
            raise
        self._keepers.add(keeper)
        keeper.gone.add_done_callback(lambda _: self._forget(server, keeper))
        return keeper

    async def _get(self) -> _ServerProcess:
        current = self._current
        if current is None or (current.done() and not self.pid):
            if self._closed:
                raise CannotStart("the daemon ends", NO_PROCESS)
            current = self._current = asyncio.ensure_future(self._launch())
        return await asyncio.shield(current)

    async def _launch(self) -> _ServerProcess:
        """Starts a server, and returns when it is ready."""
        server = await self._spawn()
        try:
            await asyncio.wait(
                (server.ready, server.exited),
                timeout=_START_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            if not server.ready.done():
                await server.end()
        if not server.ready.done():
            status = server.exited.result()
            how = describe_exit(status)
            why = f"the process that forks ranks {how} before it was ready"
            raise CannotStart(why, status, server.last_lines)
        server.exited.add_done_callback(lambda exited: self._replace(server, exited))
        return server

    async def _spawn(self) -> _ServerProcess:
        if self._poller is None:
            self._poller = OutputPoller()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(True)  # whatever socket.setdefaulttimeout says
        output, their_output = os.pipe()
        os.set_blocking(output, False)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # modules in its working folder are not for it to import
                "-m",
                "disco_server.rank.fork_server",
                str(theirs.fileno()).zfill(_ROOM),
                str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=their_output,
                stderr=their_output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=self._environ,
                cwd="/",
                **identity(self._account),
            )
        except BaseException as error:
            ours.close()
            os.close(output)
            if isinstance(error, OSError):
                why = f"no process could be started: {error}"
                raise CannotStart(why, NO_PROCESS, [why]) from error
            raise
        finally:
            theirs.close()
            os.close(their_output)
        server = _ServerProcess(process, ours, output)
        self._poller.add(output, server.on_output)
        return server

    def _replace(self, server: _ServerProcess, exited: asyncio.Future[int]) -> None:
        if not self._closed and not exited.cancelled():
            _logger.warning(
                "the process that forks ranks %s, and is started again: %s",
                describe_exit(exited.result()),
                " | ".join(server.last_lines) or "it said nothing",
            )
            self._current = asyncio.ensure_future(self._launch())
            self._current.add_done_callback(_log_outcome)
            self._tidy()

    # Processes inherited as a subreaper, not started here ----------------------------------

    def _forget(self, server: _ServerProcess, keeper: Keeper) -> None:
        self._keepers.discard(keeper)
        if server.exited.done() and not self._closed:
            self._tidy()

    def _tidy(self) -> None:
        if self._alone and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.ensure_future(self._end_strays())

    async def _end_strays(self) -> None:
        """Ends children that are not known here, with all that is below them."""
        me = os.getpid()
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_S)
            if self._current is not None and not self._current.done():
                await asyncio.wait((self._current,))  # its pid is not known before
            parents = living_parents()
            known = {self.pid, *(keeper.pid for keeper in self._keepers)}
            strays = [pid for pid, parent in parents.items() if parent == me and pid not in known]
            for pid in (*strays, *below(parents, strays)):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap(known)

    def _reap(self, known: set[int]) -> None:
        """Reaps the children that have ended, except those that are watched."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in known:
                    return
                os.waitpid(ended.si_pid, 0)

    async def close(self) -> None:
        """Ends the server; idempotent. Keepers have ended with their sessions."""
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        current, self._current = self._current, None
        if current is not None:
            current.cancel()
            with contextlib.suppress(asyncio.CancelledError, CannotStart):
                await (await current).end()
        if self._poller is not None:
            self._poller.close()


NO_PROCESS = 127
"""The exit status of what could not even be started, as shells have it."""

_ROOM = 12
"""The command line of the server has room for that of a rank."""


def _log_failure(error: BaseException) -> None:
    said = error.output if isinstance(error, CannotStart) else ()
    _logger.warning("%s: %s", error, " | ".join(said) or "it said nothing")


def _log_outcome(starting: asyncio.Task[_ServerProcess]) -> None:
    if not starting.cancelled() and (error := starting.exception()) is not None:
        _log_failure(error)
