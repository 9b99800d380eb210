"""The streams of clients: one for each session, and another one after a lost connection."""

from __future__ import annotations

import asyncio
import hmac

from disco_client.pb import controller_pb2, envelope_pb2
from disco_client.telemetry.spans import trace_headers
from disco_client.text import hidden_in, many
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope, mismatch
from disco_client.wire.limits import MAX_NAME, WINDOW_BYTES
from disco_client.wire.session_secrets import what_is_wrong_with
from disco_server.controller.auth import caller, peer_of
from disco_server.controller.edge import (
    end_stream,
    first_message,
    guarded,
    not_yours,
    refuse,
    refuse_call,
)
from disco_server.controller.hub import Hub, ended_message, signed
from disco_server.core.session_state import End, EndReason, Priority, SessionState, SessionTable
from disco_server.ipc.carriers import ServedCarrier
from disco_server.observe import logs

__all__ = ["ClientStreams"]


MAX_DETACHED_S = 7 * 86_400.0
"""The longest that a session waits for a client to attach."""

_PRIORITIES = ("", *(each.word for each in Priority))
_RELAYED = (EnvelopeKind.BATCH, EnvelopeKind.RESUME, EnvelopeKind.RECEIVED)


class ClientStreams:
    """The handler of the streams of clients.

    Args:
        hub: The hub.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @guarded
    async def open(self, carrier: ServedCarrier) -> None:
        """The life of one connection of a session, from CREATE or ATTACH on."""
        first = await first_message(carrier)
        if first is None:
            return
        received = envelope_pb2.Envelope.FromString(first)
        if received.kind == EnvelopeKind.ATTACH:
            session = await self._attach(received.payload, carrier)
        else:
            session = await self._create(received, carrier)
        if session is not None:
            await self._serve(session, carrier)

    async def _serve(self, session: SessionTable, carrier: ServedCarrier) -> None:
        hub = self._hub
        outbox = hub.outbox_of(session)
        former = hub.clients.get(session.session)
        hub.clients[session.session] = outbox
        if former is not None:
            former.close()
        session.carrier = carrier.carrier
        writing = asyncio.ensure_future(carrier.send_from(outbox))
        reading = asyncio.ensure_future(carrier.receive(lambda raw: self._receive(raw, session)))
        lease: float | None = None
        try:
            if session.state is SessionState.QUEUED:
                hub.apply(hub.cluster.requested(session))
            else:
                hub.tell_ready(session)
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                said = reading.result()  # what went wrong there is raised here
                if said is _CLOSE and session.alive:
                    _audit("session closed", session, carrier)
                    hub.apply(hub.cluster.end(session.session, End(EndReason.CLOSED, "closed")))
                elif said is not None:
                    _audit("session detached", session, carrier)
                    lease = said or session.lease
            if not session.alive:
                await writing
        finally:
            if hub.clients.get(session.session) is outbox:
                del hub.clients[session.session]
                hub.apply(hub.cluster.client_left(session.session, hub.clock(), lease))
            await end_stream(outbox, writing, reading)

    # Beginning ----------------------------------------------------------------------

    async def _create(
        self, received: envelope_pb2.Envelope, carrier: ServedCarrier
    ) -> SessionTable | None:
        create = controller_pb2.CreateSession.FromString(received.payload)
        if received.kind == EnvelopeKind.CREATE and not await _same_protocol(create, carrier):
            return None
        problem = _check_create(received.kind, create, self._hub.cluster.limits.workers)
        if problem is not None:
            await carrier.send(_refused_session(problem))
            return None
        self._hub.counters.created += 1
        session = self._hub.new_session(create, caller())
        session.passed_on.trace = trace_headers(carrier.invocation_metadata() or ())
        _audit("session created", session, carrier)
        return session

    async def _attach(self, payload: bytes, carrier: ServedCarrier) -> SessionTable | None:
        attach = controller_pb2.AttachSession.FromString(payload)
        if not await _same_protocol(attach, carrier):
            return None
        try:
            session = await self._find(attach)
        except LookupError as error:  # several ids begin so
            await carrier.send(_refused_session(str(error.args[0])))
            return None
        if session is not None and not attach.session and not caller().owns(session.principal):
            await refuse_call(carrier, "attach refused", session.name, not_yours(session.name))
        problem = _check_attach(attach, session)
        if session is None or problem is not None:
            await carrier.send(_refused_session(problem or "no such session"))
            return None
        if not caller().owns(session.principal):
            await refuse_call(carrier, "attach refused", session.name, not_yours(session.name))
        if session.end is not None:
            ended = ended_message(session.end).SerializeToString()
            await carrier.send(envelope(EnvelopeKind.ENDED, ended, session=session.session))
            return None
        if not attach.session:
            self._hub.window_of(session).forgive()
        owner = signed(attach.owner, caller()) if attach.owner else ""
        self._hub.cluster.client_back(session.session, owner)
        self._hub.counters.resumed += 1
        _audit("session attached", session, carrier)
        return session

    async def _find(self, attach: controller_pb2.AttachSession) -> SessionTable | None:
        """Finds a session; waits while nodes may still report it."""
        hub, cluster = self._hub, self._hub.cluster
        while True:
            if attach.session:
                found = cluster.sessions.get(attach.session) or cluster.over.get(attach.session)
            else:
                found = cluster.find(attach.name, caller())
            if found is not None and found.state is not SessionState.RETURNING:
                return found
            if hub.clock() >= hub.settled_at:
                return found
            await hub.change(hub.settled_at - hub.clock())

    # Messages -------------------------------------------------------------------------

    def _receive(self, raw: bytes, session: SessionTable) -> float | None:
        """Handles one message; where the client leaves, returns how it does.

        A broken stream looks as one that ended; only CLOSE means that the client is done.

        Returns:
            How long the client may be away, 0 for as long as usual, `_CLOSE`, or None.
        """
        hub, counters = self._hub, self._hub.counters
        received = envelope_pb2.Envelope.FromString(raw)
        kind = received.kind
        if kind in _RELAYED:
            if received.session != session.session:
                msg = "expected commands of this stream's session"
                raise ConnectionError(msg)
            session.activity.acted = True
            if kind == EnvelopeKind.BATCH and not self._keeps_to_window(session, received, raw):
                return None
            asked = received.worker_plus_one
            hub.relay(session, raw, asked - 1 if asked else None)
            if kind == EnvelopeKind.BATCH:
                counters.batches += 1
                counters.commands += received.last_seq - received.first_seq + 1
                counters.to_workers += len(raw)
        elif kind == EnvelopeKind.INTERRUPT:
            hub.interrupts.answered(session.session, received.payload)
        elif kind == EnvelopeKind.CLOSE:
            return _CLOSE
        elif kind == EnvelopeKind.DETACH:
            lease_s = controller_pb2.DetachSession.FromString(received.payload).lease_s
            return max(0.0, min(lease_s, MAX_DETACHED_S))
        return None

    def _keeps_to_window(
        self, session: SessionTable, batch: envelope_pb2.Envelope, raw: bytes
    ) -> bool:
        """Whether a client may have sent a batch; if not, its session ends."""
        hub = self._hub
        window = hub.window_of(session)
        if window.receive(batch.first_seq, batch.last_seq, len(raw)):
            return True
        why = (
            f"the client of session {session.name!r} has {window.commands:,} commands of"
            f" {window.nbytes >> 20} MiB under way that its workers have not executed, more than"
            f" one and a half times its window of {session.window:,} commands and"
            f" {WINDOW_BYTES >> 20} MiB; a client has to wait there: use one of the controller's"
            " release"
        )
        hub.apply(hub.cluster.end(session.session, End(EndReason.WINDOW, why)))
        return False


_CLOSE = -1.0
"""Returned instead of a time: the client is done with its session."""


def _audit(event: str, session: SessionTable, carrier: ServedCarrier) -> None:
    logs.record(
        event,
        who=str(caller()),
        peer=peer_of(carrier),
        session=session.name,
        owner=session.owner,
        workers=session.num_workers,
    )


async def _same_protocol(
    request: controller_pb2.CreateSession | controller_pb2.AttachSession, carrier: ServedCarrier
) -> bool:
    """Refuses a client of another protocol; returns whether the client's is this one."""
    theirs = f"client {request.version or 'of unknown version'}"
    problem = mismatch(f"controller {__version__}", PROTOCOL, theirs, request.protocol)
    if problem is not None:
        await refuse(carrier, problem)
    return problem is None


def _check_attach(attach: controller_pb2.AttachSession, session: SessionTable | None) -> str | None:
    """Says why a client may not attach."""
    what = attach.name[:MAX_NAME] or f"{attach.session:016x}"
    if (problem := hidden_in(attach.owner, "an owner's name")) is not None:
        return problem
    if session is None or (attach.session and not _knows_key(attach, session)):
        return f"no session {what!r} runs here, or its key is another one; see 'disco status'"
    if attach.session:
        return None
    if session.state is SessionState.RUNNING:
        return (
            f"session {what!r} is in use by {session.owner}; it can be attached to when that"
            " program has detached from it or is gone"
        )
    if session.alive and session.state is not SessionState.DETACHED:
        return f"session {what!r} is {session.state.value}; attach to it once it runs"
    return None


def _knows_key(attach: controller_pb2.AttachSession, session: SessionTable) -> bool:
    return hmac.compare_digest(attach.transfer_key, session.transfer_key)


def _check_create(kind: int, create: controller_pb2.CreateSession, most: int) -> str | None:
    """Says what is wrong with a request for a session."""
    if kind != EnvelopeKind.CREATE:
        return "expected a request to create a session first"
    if not 1 <= create.num_workers <= most:
        return (
            f"expected num_workers from 1 to {most}, got {create.num_workers}; the controller's"
            " --max-workers says how many a session may have"
        )
    if create.most_workers and not create.num_workers <= create.most_workers <= most:
        return (
            f"expected most_workers from {create.num_workers} to {most}, got {create.most_workers}"
        )
    if create.num_groups < 1 or create.num_workers % create.num_groups:
        return (
            f"expected num_groups to divide the {many(create.num_workers, 'worker')} evenly, "
            f"got {create.num_groups}"
        )
    if (problem := _check_words(create) or what_is_wrong_with(create.secrets)) is not None:
        return problem
    if not 0 < create.timeout_s < 1e6:  # noqa: PLR2004  (eleven days; not a limit to tune)
        return f"expected a timeout from 0 to 1000000 seconds, got {create.timeout_s}"
    return None


def _check_words(create: controller_pb2.CreateSession) -> str | None:
    """Says what is wrong with the names and words of a request."""
    if len(create.name) > MAX_NAME:
        return f"expected a session name of at most {MAX_NAME} characters, got {len(create.name)}"
    for text, what in (
        (create.name, "a session name"),
        (create.owner, "an owner's name"),
        (create.ccl, "the name of a collective library"),
    ):
        if (problem := hidden_in(text, what)) is not None:
            return problem
    if len(create.ccl) > MAX_NAME:
        return f"expected the name of a collective library, got {len(create.ccl)} characters"
    if create.priority not in _PRIORITIES:
        return f"expected a priority of low, normal or high, got {create.priority[:MAX_NAME]!r}"
    return None


def _refused_session(problem: str) -> bytes:
    ended = controller_pb2.SessionEnded(reason=controller_pb2.END_REASON_REFUSED, message=problem)
    return envelope(EnvelopeKind.ENDED, ended.SerializeToString())
