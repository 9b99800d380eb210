"""Joins a session's log, its inbox and its transport."""

from __future__ import annotations

from collections.abc import Callable

from disco_client.command_log import CommandLog
from disco_client.errors import RemoteFailure, SessionClosed, SessionError
from disco_client.inspecting import diagnose
from disco_client.output import LogSink
from disco_client.replies import Inbox
from disco_client.telemetry.base import Span
from disco_client.transport.base import Events, Transport
from disco_client.waiting import LongWaits, read_hang_report

__all__ = ["close", "start"]

_CLOSE_TIMEOUT_S = 10.0


def start(
    transport: Transport,
    sink: LogSink,
    explain: Callable[[RemoteFailure], RemoteFailure],
    hang_report: float | None,
    span: Span,
) -> tuple[CommandLog, Inbox]:
    """Makes log and inbox of a session and starts its transport with them.

    Args:
        transport: Opened, and not yet started.
        sink: Gets what workers print.
        explain: Adds to a failure inside a program where the client captured it.
        hang_report: After how many seconds a wait says what it waits for; see
            :func:`~disco_client.waiting.read_hang_report`.
        span: Of the session's life; it fails when the session is lost.

    Raises:
        ConfigError: ``hang_report`` is no such number.
    """
    after = read_hang_report(hang_report)
    welcome = transport.welcome
    log = CommandLog(welcome.session, len(welcome.ranks), welcome.first_seq)
    inbox = Inbox(log.acknowledge, lambda: log.acked, log.site, explain, welcome.first_seq)
    log.on_expect = inbox.expect
    log.long_waits = inbox.long_waits = LongWaits(after, lambda: diagnose(transport, log))

    def lost(error: SessionError) -> None:
        if not isinstance(error, SessionClosed):
            span.fail(error)
        log.close(error, drop=True)
        inbox.lose(error)

    span.note(
        {
            "disco.session.id": f"{welcome.session:016x}",
            "disco.session.name": welcome.name,
            "disco.num_workers": len(welcome.ranks),
            "disco.nodes": sorted({rank.node for rank in welcome.ranks}),
        }
    )
    # A thread that waits may send and receive by itself.
    inbox.pump = transport.pump
    log.direct = inbox.pump is not None
    transport.start(
        Events(
            await_commands=log.await_commands,
            nudge=log.nudge,
            acked=lambda: log.acked,
            take_batch=log.take_batch,
            reply=inbox.receive,
            live=inbox.receive_live,
            acknowledge=log.acknowledge,
            log=sink,
            lost=lost,
            disown=log.disown,
            reopen=inbox.reopen,
            is_open=inbox.is_open,
            mark=log.mark,
        )
    )
    return log, inbox


def close(log: CommandLog, transport: Transport, name: str, span: Span) -> None:
    """Ends a session; also run when it is collected, and at interpreter exit."""
    log.close(SessionClosed(f"session {name!r} was shut down"), drop=False)
    try:
        transport.close(_CLOSE_TIMEOUT_S)
    finally:
        span.note({"disco.commands": log.last_seq})
        span.end()
