"""Joins a session's log, its inbox and its transport."""

from __future__ import annotations

from collections.abc import Callable

from disco_client.command_log import CommandLog
from disco_client.errors import RemoteFailure, SessionError
from disco_client.output import LogSink
from disco_client.replies import Inbox
from disco_client.transport.base import Events, Transport

__all__ = ["start"]


def start(
    transport: Transport, sink: LogSink, explain: Callable[[RemoteFailure], RemoteFailure]
) -> tuple[CommandLog, Inbox]:
    """Makes log and inbox of a session and starts its transport with them.

    Args:
        transport: Opened, and not yet started.
        sink: Gets what workers print.
        explain: Adds to a failure inside a program where the client captured it.
    """
    welcome = transport.welcome
    log = CommandLog(welcome.session, len(welcome.ranks), welcome.first_seq)
    inbox = Inbox(log.acknowledge, lambda: log.acked, log.site, explain)
    log.on_expect = inbox.expect

    def lost(error: SessionError) -> None:
        log.close(error, drop=True)
        inbox.lose(error)

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
        )
    )
    return log, inbox
