"""Interrupts that somebody asks the controller for: the program of the session does them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, NamedTuple

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.core.session_state import EndReason, SessionState
from disco_server.observe import logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from disco_server.controller.client_outbox import ClientOutbox
    from disco_server.core.access import Identity
    from disco_server.core.session_state import SessionTable

__all__ = ["GRACE_S", "MAX_GRACE_S", "AskedInterrupts", "CannotInterrupt"]

GRACE_S = 5.0
"""How long workers have to react, where nobody says otherwise."""

MAX_GRACE_S = 60.0
"""For how long a program may be asked to wait for its workers."""

_REACT_S = 5.0
"""How long the program may take beside that."""

_LOOK_S = 0.2


class CannotInterrupt(Exception):
    """The program of a session does not interrupt it; the text says why."""


class _AskedOf(NamedTuple):
    session: int
    late: asyncio.Future[tuple[int, ...]]


class AskedInterrupts:
    """Those under way; used from the event loop only.

    Args:
        clients: What is sent to the programs of sessions, by session.
    """

    def __init__(self, clients: Mapping[int, ClientOutbox]) -> None:
        self._clients = clients
        self._numbers = itertools.count(1)
        self._asked: dict[int, _AskedOf] = {}

    async def ask(
        self,
        session: SessionTable,
        who: Identity,
        peer: str,
        *,
        grace: float,
        force: bool = False,
        what: str = "",
    ) -> tuple[int, ...]:
        """Asks the program of a session to interrupt it, and waits until it has.

        Args:
            session: The session.
            who: Who wants it.
            peer: Their address.
            grace: How many seconds the workers have to react; at most `MAX_GRACE_S`.
            force: Whether the processes of those that do not are ended then.
            what: What they asked by, where that is not the gRPC port.

        Returns:
            The workers that have not reacted.

        Raises:
            CannotInterrupt: Its program is not there, or does not react.
        """
        outbox, number = self._clients.get(session.session), next(self._numbers)
        if session.state is not SessionState.RUNNING or outbox is None:
            msg = f"session {session.name!r} has no program connected, which alone can interrupt it"
            raise CannotInterrupt(f"{msg}; `disco stop` ends it")
        logs.record(
            "session interrupted",
            who=str(who),
            peer=peer,
            session=session.name,
            owner=session.owner,
            what=what,
        )
        asked = controller_pb2.InterruptAsked(
            question=number, who=str(who) if who.name else "", grace_s=grace, force=force
        )
        loop = asyncio.get_running_loop()
        late, until = loop.create_future(), loop.time() + grace + _REACT_S
        self._asked[number] = _AskedOf(session.session, late)
        try:
            raw = asked.SerializeToString()
            outbox.post(envelope(EnvelopeKind.INTERRUPT, raw, session=session.session))
            while not late.done() and session.alive and loop.time() < until:
                await asyncio.wait((late,), timeout=_LOOK_S)
        finally:
            del self._asked[number]
        if late.done():
            return late.result()
        if session.end is not None and session.end.reason is EndReason.CLOSED:
            return ()  # its program was interrupted, and ended before it could answer
        if session.end is not None:
            raise CannotInterrupt(f"session {session.name!r} has ended: {session.end.message}")
        msg = (
            f"the program of session {session.name!r} has not interrupted it within"
            f" {grace + _REACT_S:g} s: it stands still, is busy in C code, or is too old"
        )
        raise CannotInterrupt(f"{msg}; `disco stop` ends the session")

    def answered(self, session: int, payload: bytes) -> None:
        """Takes the answer of a session's program."""
        done = controller_pb2.InterruptDone.FromString(payload)
        asked = self._asked.get(done.question)
        if asked is not None and asked.session == session and not asked.late.done():
            asked.late.set_result(tuple(done.late))
