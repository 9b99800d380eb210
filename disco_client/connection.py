"""How a program gets a session from a controller."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import getpass
import os
import socket
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, ParamSpec, Self, TypeAlias

from disco_client.arguments import (
    RECOVER_LIMIT_BYTES,
    check_name,
    check_recover,
    check_session,
    check_timeout,
    workers_asked,
)
from disco_client.clock import monotonic
from disco_client.descriptors import OF_A_CONNECTION, check_descriptors
from disco_client.errors import (
    ConfigError,
    ConnectionFailed,
    ControllerLost,
    NodeLost,
    NoSlots,
    SessionError,
    WorkerLost,
)
from disco_client.locks import make_lock
from disco_client.notebook import StatusLine
from disco_client.output import LogSink, logger_of, print_logs
from disco_client.outside_interrupts import OnInterrupt, check_on_interrupt
from disco_client.reentry import Event, import_uninterrupted
from disco_client.session import Session
from disco_client.telemetry import spans
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.text import many
from disco_client.threads import starting
from disco_client.transport.base import QueuePosition, Transport, Wish
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wire.limits import MOST_WORKERS
from disco_client.wire.session_secrets import read_secrets

if TYPE_CHECKING:
    import asyncio

    from disco_client.recovery.rebuild import Rebuild, Rebuilding
    from disco_client.transport.credentials import Credentials
    from disco_client.transport.grpc import GrpcTransport

__all__ = ["PendingSession", "aconnect", "attach", "connect", "opening", "owner"]


Priority: TypeAlias = Literal["low", "normal", "high"]
"""The classes of sessions in the queue for slots."""

_logger = logger_of(__name__)

_REACH_S = 30.0
"""How long to wait for a controller that does not answer; slots may take longer."""

_CONNECTION = "the connection of a session"

_PAUSE_S = 0.5
"""Seconds between attempts to open a session in place of one that was lost."""

_QUIET_S = 0.5
"""A wait for slots shorter than this is not worth a message."""


def connect(  # noqa: PLR0913  (each of them by name)
    address: str | None = None,
    *,
    num_workers: int | tuple[int, int],
    num_groups: int = 1,
    ccl: str | None = None,
    name: str | None = None,
    timeout: float = 90.0,
    priority: Priority | None = None,
    logs: bool = True,
    hang_report: float | None = AUTO,
    on_interrupt: OnInterrupt = "wait",
    recover: Literal["replay"] | Rebuild | None = None,
    recover_limit_bytes: int = RECOVER_LIMIT_BYTES,
    secrets: Mapping[str, str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> Session:
    """Opens a session on a cluster; waits until its workers are ready.

    Args:
        address: The controller, as ``HOST:PORT`` or ``unix:/path``. None takes
            the environment's ``DISCO_ADDRESS``, else what ``DISCO_CONTEXT`` or ``disco context
            use`` names, with the credentials that are kept there, else ``127.0.0.1:7600``.
        num_workers: How many workers the program runs on. A pair, as ``(2, 8)``, takes as many
            as are free when its turn comes, at least two and at most eight, and
            ``session.num_workers`` says how many; with a function as `recover`, workers that are
            lost are replaced by as many as there are then.
        num_groups: Into how many equal, consecutive groups they are divided.
        ccl: The collective library; None lets the first collective choose.
        name: What the cluster's lists call the session.
        timeout: Seconds to wait for slots, and before that, up to half a minute, for the
            controller. A program that was killed holds its slots for its session's
            lease, by default a minute.
        priority: The class in the queue for slots, if the cluster lets this program ask for it:
            a session of a higher class is served first, and none that runs is ended for it. None
            is ``"normal"``, or less where the program's quota says so.
        logs: Whether workers' output is written to this process's standard error.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once, and again if they do something else; 0 or None for
            never. The default is what ``DISCO_HANG_REPORT_S`` says, else 30.
        on_interrupt: What Ctrl-C in a call that waits ends: ``"wait"`` the wait, and the second
            time within a second also what the session executes; ``"session"`` both at once, as
            one wants of a notebook's cell. See :meth:`Session.interrupt`.
        recover: What happens when workers or nodes are lost, or the controller with all
            that it knew. None ends the session with an error. ``"replay"`` asks for
            other workers, waits for slots up to ``timeout``, and lets them execute
            everything that was issued since the start, or since the last
            :meth:`Session.checkpoint`; the program only sees a pause. What its functions
            do beside their results happens again, too. A function is called with the
            session when other workers are ready, to make its state on them anew, in a
            thread of its own while all other calls wait. Then what had been issued is
            gone: calls that waited raise :class:`~disco_client.WorkersReplaced`, and
            references of before are errors. Sessions of other kinds do not offer it.
        recover_limit_bytes: How much of the program's commands and arrays is kept for
            that, in the memory of this process.
        secrets: Credentials that the workers of this session have as variables of their
            environment, such as ``AWS_SECRET_ACCESS_KEY`` or ``HF_TOKEN``; they replace the
            daemon's own of the same store. They are sent over TLS or on this machine only, and
            no log, list or file has them. See ``docs/stores.md``.
        tls_ca: A PEM file with the authorities that may sign the controller's certificate. None
            takes the environment's ``DISCO_TLS_CA``; without both the connection is not encrypted.
        tls_cert: The program's own certificate, for a controller that asks for one; else
            ``DISCO_TLS_CERT``.
        tls_key: The key of that; else ``DISCO_TLS_KEY``. All three files are read again for
            each new connection.
        token: The program's token, for a controller that asks for one; else ``DISCO_TOKEN``.
            It is sent over TLS or on this machine only.
        token_file: A file that holds it instead; else ``DISCO_TOKEN_FILE``.

    Returns:
        The session; a context manager.

    Raises:
        AccessDenied: The controller's certificate was refused here, or the program's
            certificate or token there.
        ConfigError: An argument is wrong, or this process was forked from one that has used
            gRPC.
        ConnectionFailed: No controller answers there, or it speaks another protocol.
        NoSlots: The cluster had no room in time; the message names the owners of the slots.
        SessionError: The system has too few threads or file descriptors for this process.
        QuotaExceeded: The program's quota does not allow the session, at once or in time.
        WorkerLost: A worker process could not be started.

    Examples:
        >>> with disco_client.connect(num_workers=4) as cluster:
        ...     total = cluster.allreduce(cluster.broadcast(np.ones(2)))
        ...     print(total.numpy(), cluster.num_workers)
        [4. 4.] 4
    """
    least, most = workers_asked(num_workers)
    for each in (least, most):
        check_session(each, num_groups, ccl, timeout, MOST_WORKERS)
    check_name(name or "")
    check_recover(recover, recover_limit_bytes)
    brought = read_secrets(secrets)
    _check_priority(priority)
    check_descriptors(OF_A_CONNECTION, _CONNECTION)  # importing takes some, too
    # gRPC takes longer to import than all the rest of the client but numpy, and
    # sessions on threads and child processes do without it.
    import_uninterrupted("disco_client.transport.contexts")
    from disco_client.transport.contexts import find_controller

    import_uninterrupted("disco_client.transport.grpc")
    from disco_client.transport.grpc import GrpcTransport

    read_hang_report(hang_report)  # before anything is opened
    check_on_interrupt(on_interrupt)
    where, credentials = find_controller(
        address,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        token_file=token_file,
    )
    if brought:
        credentials.check_private(where, "secrets are")
    wish = Wish(
        *(least, num_groups, ccl or "", name or "", owner(), timeout, priority or "", most),
        secrets=brought,
    )
    known = {"disco.num_workers": least, "disco.session.name": name or ""}
    span = spans.begin("disco.session", known)
    with (
        opening(span, "disco.connect", where) as beginning,
        _Progress(least, beginning) as progress,
    ):
        transport: Transport = GrpcTransport.create(
            where,
            wish,
            connect_timeout=min(timeout, _REACH_S),
            on_queued=progress,
            credentials=credentials,
        )
    wish = replace(wish, name=transport.welcome.name)
    if not callable(recover):  # a log is executed again by as many workers as before
        count = len(transport.welcome.ranks)
        wish = replace(wish, num_workers=count, most_workers=count)
    again = _Reopening(where, wish, credentials, least)
    rebuilding: Rebuilding | None = None
    if callable(recover):
        transport = rebuilding = _rebuilding(transport, again, recover, span)
    elif recover is not None:
        transport = _replaying(transport, again, recover_limit_bytes, span)
    if (found := len(transport.welcome.ranks)) < most:
        name, has = transport.welcome.name, many(found, "worker")
        _logger.warning("session %s has %s, and asked for %d to %d", name, has, least, most)
    sink: LogSink | None = print_logs if logs else None
    session = Session(
        transport, log_sink=sink, hang_report=hang_report, on_interrupt=on_interrupt, span=span
    )
    if rebuilding is not None:
        rebuilding.serve(session)
    _switch_on(session)
    return session


def _check_priority(priority: object) -> None:
    if priority not in (None, "low", "normal", "high"):
        raise ConfigError(f"expected priority 'low', 'normal' or 'high', got {priority!r}")


def _rebuilding(first: Transport, again: _Reopening, recover: Rebuild, span: Span) -> Rebuilding:
    import_uninterrupted("disco_client.recovery.rebuild")
    from disco_client.recovery.rebuild import Rebuilding

    return Rebuilding(first, again, partial(_rebuild, recover), span)


def _replaying(first: Transport, again: _Reopening, limit_bytes: int, span: Span) -> Transport:
    import_uninterrupted("disco_client.recovery.replay")
    from disco_client.recovery.replay import Replaying

    return Replaying(first, again, limit_bytes, span)


def _switch_on(session: Session) -> None:
    """Makes new workers stricter where the environment asks for that."""
    if os.environ.get("DISCO_DEBUG") == "1":
        session.compare_shapes()


def _rebuild(rebuild: Rebuild, session: Session) -> None:
    _switch_on(session)
    rebuild(session)


def attach(  # noqa: PLR0913  (the same)
    name: str,
    *,
    address: str | None = None,
    timeout: float = 30.0,
    logs: bool = True,
    hang_report: float | None = AUTO,
    on_interrupt: OnInterrupt = "wait",
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> Session:
    """Attaches to a session that another program has detached from, or has left by exiting.

    The workers hold what was published there (:meth:`Session.published`); all else that
    the other program had references to is released.

    Args:
        name: The session's id or name, as ``Session.detach`` and ``disco status`` say.
        address: The controller; see :func:`connect`.
        timeout: Seconds to wait for the controller.
        logs: Whether workers' output is written to this process's standard error.
        hang_report: See :func:`connect`.
        on_interrupt: See :func:`connect`.
        tls_ca: See :func:`connect`.
        tls_cert: See :func:`connect`.
        tls_key: See :func:`connect`.
        token: See :func:`connect`.
        token_file: See :func:`connect`.

    Returns:
        The session; a context manager.

    Raises:
        AccessDenied: The session belongs to another owner, or as for :func:`connect`.
        ConfigError: There is no such session, or a program is connected to it, or as for
            :func:`connect`.
        ConnectionFailed: No controller answers there, or it speaks another protocol.
        SessionError: The system has too few threads or file descriptors for this process.
        SessionLost: It has ended, or cannot be continued.

    Examples:
        >>> before = disco_client.connect(num_workers=2)
        >>> before.publish("weights", before.broadcast(np.ones(2)))
        >>> with disco_client.attach(before.detach()) as after:
        ...     print(after.published("weights").numpy(worker_id=1))
        [1. 1.]
    """
    if not isinstance(name, str) or not name:
        msg = f"expected a session's name or id, got {name!r}"
        raise ConfigError(msg)
    check_timeout(timeout)
    check_descriptors(OF_A_CONNECTION, _CONNECTION)
    import_uninterrupted("disco_client.transport.contexts")
    from disco_client.transport.contexts import find_controller

    import_uninterrupted("disco_client.transport.grpc")
    from disco_client.transport.grpc import GrpcTransport

    read_hang_report(hang_report)
    check_on_interrupt(on_interrupt)
    where, credentials = find_controller(
        address,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        token_file=token_file,
    )
    span = spans.begin("disco.session")
    with opening(span, "disco.attach", where):
        transport = GrpcTransport.attach(
            where, name, owner(), connect_timeout=timeout, credentials=credentials
        )
    session = Session(
        transport,
        log_sink=print_logs if logs else None,
        hang_report=hang_report,
        on_interrupt=on_interrupt,
        span=span,
    )
    session.release_all()
    return session


_Options = ParamSpec("_Options")


class PendingSession:
    """A session that opens in another thread; made by :func:`aconnect`.

    Awaiting it returns the session, ``async with`` also ends it.

    Args:
        open_session: Opens it.
    """

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open_session = open_session
        self._lock = make_lock()
        self._abandoned = False
        self._session: Session | None = None

    def __await__(self) -> Generator[object, None, Session]:
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        return await self._open()

    async def __aexit__(self, kind: object, value: object, trace: object) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, value, trace)

    async def _open(self) -> Session:
        import asyncio

        # By this copy the task is found, which is told of errors; see scopes.py.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        try:
            with starting(_CONNECTION):
                opened = loop.run_in_executor(None, context.run, self._run)
        except SessionError:
            self._abandoned = True  # an older thread of the loop's may still come to open it
            raise
        try:
            session = await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_ignore)
            with self._lock:
                self._abandoned = True
                opened_already = self._session
            if opened_already is not None:
                await asyncio.to_thread(opened_already.shutdown)
            raise
        return await session.__aenter__()

    def _run(self) -> Session:
        session = self._open_session()
        with self._lock:
            self._session = session
            abandoned = self._abandoned
        if abandoned:
            session.shutdown()
        return session


def _ignore(opened: asyncio.Future[Session]) -> None:
    """Takes the error of a session for which no task waits any more."""
    if not opened.cancelled():
        opened.exception()


def _in_background(open_session: Callable[_Options, Session]) -> Callable[_Options, PendingSession]:
    @functools.wraps(open_session, assigned=("__module__", "__annotations__"), updated=())
    def aconnect(*args: _Options.args, **options: _Options.kwargs) -> PendingSession:
        """Opens a session on a cluster without stopping the event loop meanwhile.

        In such a session a call that would wait raises :class:`~disco_client.WouldBlock` in an
        event loop, and issues nothing. Where the await is cancelled, a session that opens
        nevertheless is ended.

        Args:
            *args: As for :func:`connect`.
            **options: As for :func:`connect`.

        Returns:
            What ``async with`` enters, or ``await`` makes a session of. Both raise what
            :func:`connect` raises.
        """
        return PendingSession(functools.partial(open_session, *args, **options))

    return aconnect


aconnect = _in_background(connect)
"""Opens a session as :func:`connect` does, with the same arguments, and stops no event loop.

``async with`` enters what it returns, and ``await`` makes a session of it. In such a session a
call that would wait in an event loop raises :class:`~disco_client.WouldBlock`, and issues nothing.

Examples:
    >>> import asyncio
    >>> async def main():
    ...     async with disco_client.aconnect(num_workers=2) as cluster:
    ...         return await cluster.allreduce(cluster.broadcast(np.ones(2)))
    >>> asyncio.run(main())
    array([2., 2.])
"""


@contextlib.contextmanager
def opening(session: Span, name: str, address: str) -> Generator[Span]:
    """Makes a span of a session's start; if that fails, the session's span ends as well.

    Args:
        session: That of its whole life.
        name: Of the span.
        address: The controller.
    """
    facts = {"server.address": address}
    try:
        with spans.begin(name, facts, parent=session, kind="client") as span:
            yield span
    except BaseException as error:
        session.fail(error)
        session.end()
        raise


class _Reopening:
    """Opens sessions like one that was lost; a ``Successor``.

    Args:
        address: The controller.
        wish: What to ask for.
        credentials: For the controller.
        enough: With how few workers the program said that it can do.
    """

    def __init__(self, address: str, wish: Wish, credentials: Credentials, enough: int) -> None:
        self._address = address
        self._enough = enough
        self._credentials = credentials
        self._wish = wish
        self._opening: GrpcTransport | None = None
        self._abandoned = Event()

    def open(self) -> Transport:
        """Asks for another session, and waits until its workers are ready.

        Waits for a controller that restarts, and for nodes that are lost just then, as
        long as for slots.
        """
        import_uninterrupted("disco_client.transport.grpc")
        from disco_client.transport.grpc import GrpcTransport

        deadline = monotonic() + self._wish.timeout
        with _Progress(self._wish.num_workers) as progress:
            while True:
                left = max(_PAUSE_S, deadline - monotonic())
                try:
                    return GrpcTransport.create(
                        self._address,
                        replace(self._wish, timeout=left),
                        connect_timeout=min(left, _REACH_S),
                        on_queued=progress,
                        on_made=self._note,
                        credentials=self._credentials,
                    )
                except (ConnectionFailed, WorkerLost, NodeLost, ControllerLost):
                    if monotonic() > deadline or self._abandoned.wait(_PAUSE_S):
                        raise
                except NoSlots as error:
                    if self._enough < self._wish.num_workers:
                        fewer = f"would go on with fewer workers, at least {self._enough}"
                        error.args = (f"{error}; with a function as recover= the session {fewer}",)
                    raise

    def _note(self, opening: GrpcTransport) -> None:
        self._opening = opening
        if self._abandoned.is_set():
            opening.abandon()

    def abandon(self) -> None:
        """Ends a wait in :meth:`open`, from another thread."""
        self._abandoned.set()
        if self._opening is not None:
            self._opening.abandon()


def owner() -> str:
    """The owner of sessions opened by this process: ``user@host:pid``.

    Raises:
        ConfigError: It has an invisible character.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = str(os.getuid())
    known = f"{user}@{socket.gethostname()}:{os.getpid()}"
    check_name(known, "the name of this user (LOGNAME) and host")
    return known


class _Progress:
    """Says what a session waits for, when that changes.

    Args:
        num_workers: How many workers it is to have.
        span: Notes what the session waited for.
    """

    def __init__(self, num_workers: int, span: Span = NO_SPAN) -> None:
        self._span = span
        self._num_workers = num_workers
        self._since = monotonic()
        self._said = ""
        self._line = StatusLine()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._line.close()

    def __call__(self, queued: QueuePosition) -> None:
        self._span.note({"disco.queue.ahead": queued.ahead, "disco.slots.free": queued.free_slots})
        text = (
            f"waiting for {many(self._num_workers, 'slot')}: {queued.free_slots} of "
            f"{queued.total_slots} are free"
        )
        if queued.reason:
            text += f", {queued.reason}"
        if text == self._said or monotonic() - self._since < _QUIET_S:
            return
        self._said = text
        self._line.say(text)
