"""The child processes of one session: started, watched and ended by one thread.

The kernel ends a rank when the *thread* that started it ends, so the thread that
starts the ranks is the one that lives as long as the session: the keeper. It
forwards what they print, answers their MPI library, notices their end, and reads
their replies while no thread of the program waits for one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from disco_client.clock import monotonic
from disco_client.errors import SessionError, SessionLost
from disco_client.forks import leave_in_children
from disco_client.locks import make_lock
from disco_client.output import logger_of
from disco_client.reentry import Event
from disco_client.threads import ThreadRefused, start_thread
from disco_client.transport.shared_reader import READABLE
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory
from disco_server.core.node import Effect, NodeSession, NodeState, RankEnd, WrongEvent
from disco_server.embedded.child_frames import ChildFrames, FrameTaker
from disco_server.embedded.rank_child import RankChild
from disco_server.ipc.rank_driver import RankDriver, RankOwner
from disco_server.settings import INIT_TIMEOUT_S

__all__ = ["Children", "Watcher"]

_logger = logger_of("disco.embedded")


class Watcher(RankOwner, FrameTaker, Protocol):
    """Is notified of the children's events."""

    def output(self, worker: int, is_error: bool, lines: list[str]) -> None:
        """Handles what a rank has printed."""
        ...

    def ended(self, error: SessionError) -> None:
        """Handles the error that ended the session, once."""
        ...


class Children(RankDriver[RankChild]):
    """All ranks of a session.

    Args:
        count: How many.
        command: What Python is started with for a rank, given its number, but for descriptors.
        environ: Their environment.
        session: The session's id.
        name: The session's name, for messages.
        watcher: Is notified.
        assignment: Makes the first frame for a rank, given its number.

    Attributes:
        frames: Reads what the ranks send, and lets threads that wait do so.
        order: A lock that is taken before those of ranks. A thread that sends to one rank holds
            it too, so a signal handler in it does not wait for a thread that sends to all.
        followed: Whether a trace fetches what the flight recorders hold, and so wants the rest
            of it when the ranks have ended.
    """

    def __init__(
        self,
        count: int,
        *,
        command: Callable[[int], Sequence[str]],
        environ: Mapping[str, str],
        session: int,
        name: str,
        watcher: Watcher,
        assignment: Callable[[int], bytes],
    ) -> None:
        self._count = count
        node = NodeSession(
            range(count), [range(count)], kvsname(session), open_limit_s=INIT_TIMEOUT_S.value()
        )
        super().__init__(session, node, watcher, assignment, monotonic)
        self._command, self._environ = command, environ
        self._name, self._watcher = name, watcher
        self.order = make_lock("connection")
        self.followed = False
        self._started = Event()
        self._start_error: OSError | None = None
        self.frames = ChildFrames(watcher)
        self._actions: dict[int, Callable[[], None]] = {self.frames.reader.wake_fd: self._woken}
        self._leaving = self._failed = self._closed = False
        self._keeper = threading.Thread(target=self._keep, name=f"{name}-keeper", daemon=True)
        leave_in_children(self, Children._leave)

    # Starting -----------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the ranks; returns when all processes exist.

        Raises:
            OSError: One could not be started.
            ThreadRefused: The system starts no thread that could watch them.
        """
        try:
            start_thread(self._keeper, serves=True)
        except ThreadRefused:
            self._clean_up()
            raise
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error

    def _keep(self) -> None:
        """Runs the keeper's thread."""
        try:
            self.apply(self.node.start())
            self._started.set()
            while self.node.state is not NodeState.GONE:
                self._turn()
        except Exception as error:
            _logger.exception("the keeper of session %s failed", self._name)
            self._end_with(SessionLost(f"the keeper of session {self._name!r} failed: {error!r}"))
        finally:
            self._started.set()
            for child in self.ranks.values():
                if child.status is None:
                    child.reap()
            self._clean_up()

    def _start_rank(self, worker: int) -> Iterable[Effect]:
        try:
            child = RankChild(worker, self._command(worker), self._environ, self.order)
        except OSError as error:
            self._start_error = error
            return self.node.not_started(worker, RankEnd(0, cause=str(error)))
        child.local_workers = self._count
        self.ranks[worker] = child
        self.frames.add(child)
        self._watch(child.pidfd, partial(self._ended, child))
        for is_error in (False, True):
            self._watch(child.outputs[is_error], partial(self._printed, child, is_error))
        return self.node.started(worker, monotonic())

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._actions[fd] = action
        self.frames.reader.house.register(fd, READABLE)

    def _unwatch(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            self.frames.reader.house.unregister(fd)

    # The keeper's loop ----------------------------------------------------------------------

    def _turn(self) -> None:
        now = monotonic()
        if self.node.wake_at <= now:
            self.apply(self.node.time_passed(now))
        for fd in self.frames.reader.keep(self.node.wake_at - now):
            if fd in self._actions:
                self._actions[fd]()
        self.frames.handle_kept()

    def _woken(self) -> None:
        if self._failed or self._leaving:
            self.apply(self.node.end(monotonic(), grace=not self._failed))

    def _printed(self, child: RankChild, is_error: bool) -> None:
        self._say(child, is_error, *child.read_output(is_error))

    def _say(self, child: RankChild, is_error: bool, lines: list[str], more: bool) -> None:
        if not more:
            self._unwatch(child.outputs[is_error])
        if lines:
            self._watcher.output(child.worker, is_error, lines)

    # What the session's object decides -------------------------------------------------------

    def _serve_pmi(self, worker: int, rank: RankChild) -> None:
        self._watch(rank.pmi.fileno(), partial(self.pmi_readable, worker))

    def _close_pmi(self, rank: RankChild) -> None:
        self._unwatch(rank.pmi.fileno())
        rank.pmi.close()

    def says(self, worker: int, kind: int) -> None:
        """Handles what a rank says of itself, in the keeper."""
        try:
            super().says(worker, kind)
        except WrongEvent as error:
            self.ranks[worker].refuse(str(error))

    # Deaths -----------------------------------------------------------------------------------

    def _ended(self, child: RankChild) -> None:
        self._unwatch(child.pidfd)
        child.reap()
        for is_error in (False, True):
            if child.outputs[is_error] in self._actions:  # its own children may write for longer
                self._say(child, is_error, child.last_words(is_error), more=False)
        self.exited(child.worker)

    def fail(self, error: SessionError) -> None:
        """Ends the session with an error, and kills the ranks; only if it does not end yet."""
        if not (self._leaving or self._failed):
            self._end_with(error)
            self.frames.reader.wake()

    def _end_with(self, error: SessionError) -> None:
        self._failed = True
        self._watcher.ended(error)
        self.frames.reader.end()

    # The end ------------------------------------------------------------------------------------

    def end(self, timeout: float) -> None:
        """Lets the ranks leave, or kills them after a moment; returns when all have ended.

        Args:
            timeout: Seconds to wait at most.
        """
        self._leaving = True
        self.frames.reader.wake()
        if self._keeper.ident is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout)

    def _clean_up(self) -> None:
        self.frames.reader.close(self._close_children)
        sweep_shared_memory(kvsname(self._session))

    def _close_children(self) -> None:
        self._closed = True
        for child in list(self.ranks.values()):
            child.close()
            child.memory.close(keep=self._failed or self.followed)

    def _leave(self) -> None:
        """Lets go of the ranks in a forked child, where the keeper does not run."""
        if not self._closed:
            for child in self.ranks.values():
                child.sender.renew_lock()
            self._close_children()
