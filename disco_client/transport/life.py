"""One set of workers of a session that may have several, one after another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from disco_client.errors import SessionError
from disco_client.transport.base import Events, OutgoingBatch, Transport
from disco_client.wire.codec import EncodedReply, EncodedValue

__all__ = ["TICKETS", "Failures", "Life", "Owner"]

TICKETS = 48
"""Bits of a worker's ticket; those above say of which life it is."""

_LOOK_S = 0.2


@dataclass(slots=True)
class Failures:
    """What failed, so that it is not told again when it fails again.

    Attributes:
        told: The commands that failed, each with the worker.
        deadly: The command without which nothing can be done again; 0 for none.
        why_dead: What it said.
    """

    told: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    deadly: int = 0
    why_dead: str = ""


class Owner(Protocol):
    """Who has lives."""

    def take(self, life: Life, kills: bool) -> OutgoingBatch | None:
        """Returns what a life should send next, from the program."""
        ...

    def lost(self, life: Life, error: SessionError) -> None:
        """Hears that the workers are gone."""
        ...


class Life:
    """What one set of workers has been sent, and how far it is.

    Args:
        owner: Who it belongs to.
        number: The how-manieth it is, from 0.
        transport: Leads to them.
        events: The session's own.
        failures: What failed so far, in all lives.
        changed: Its lock guards what is here; notified when workers are further.
    """

    def __init__(
        self,
        owner: Owner,
        number: int,
        transport: Transport,
        events: Events,
        failures: Failures,
        changed: threading.Condition,
    ) -> None:
        self.number = number
        self.transport = transport
        self.acks = [0] * len(transport.welcome.ranks)
        self.acked = 0
        self.target = 0
        self.queue: deque[OutgoingBatch] = deque()
        self.replaying = number > 0
        self.passed: set[int] = set()
        self.error: SessionError | None = None
        self._owner = owner
        self._events = events
        self._failures = failures
        self._changed = changed

    @property
    def complete(self) -> bool:
        """Whether the workers have done all that those before them had been sent."""
        return not self.replaying and self.acked >= self.target

    def has_done(self, seq: int, worker: int | None) -> bool:
        """Whether a worker, or all of them, have executed everything up to a command."""
        return (self.acked if worker is None else self.acks[worker]) >= seq

    def events(self) -> Events:
        """What its transport is started with."""
        own = self._events
        forward: Callable[..., Any] = self._if_current(own.log)
        return Events(
            await_commands=self._await_commands,
            nudge=self._nudge,
            acked=lambda: self.acked,
            take_batch=self._take,
            reply=self._reply,
            live=own.live,
            acknowledge=own.acknowledge,
            log=forward,
            lost=lambda error: self._owner.lost(self, error),
            disown=own.disown,
        )

    def _if_current(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any) -> None:
            if self.error is None:
                call(*args)

        return forward

    def _nudge(self) -> None:
        self._events.nudge()
        if self.replaying:
            with self._changed:
                self._changed.notify_all()

    # What leaves ----------------------------------------------------------------------

    def _await_commands(self) -> bool:
        if self.error is not None:
            return False  # nothing leaves any more but the farewell
        if self.replaying:
            with self._changed:
                if self.replaying and not self.queue:
                    self._changed.wait(_LOOK_S)
            return True
        return self._events.await_commands()

    def _take(self, kills: bool = True) -> OutgoingBatch | None:
        with self._changed:
            if self.error is not None:
                return None
            if self.queue:
                batch = self.queue.popleft()
                self._changed.notify_all()
                return batch
            if self.replaying:
                return None
            return self._owner.take(self, kills)

    # What comes -----------------------------------------------------------------------

    def _reply(self, worker: int, raw: bytes) -> None:
        reply = EncodedReply.FromString(raw)
        if self.number and reply.WhichOneof("outcome") == "value" and self._retag(reply.value):
            raw = reply.SerializeToString()
        if reply.ack > self.acks[worker]:
            self._note(worker, reply.ack)
        if reply.HasField("failure") and not self._is_news(worker, reply):
            self._events.acknowledge(worker, reply.ack)
            return
        self._events.reply(worker, raw)

    def _note(self, worker: int, ack: int) -> None:
        self.acks[worker] = ack
        self.acked = min(self.acks)
        if self.replaying:
            with self._changed:
                self._changed.notify_all()

    def _is_news(self, worker: int, reply: EncodedReply) -> bool:
        """Whether a failure is to be told; those that were told are not, unless asked for."""
        failures, key = self._failures, (reply.failure.seq, worker)
        if reply.failure.seq == failures.deadly:
            with self._changed:
                failures.why_dead = failures.why_dead or reply.failure.message
                self._changed.notify_all()
            return False
        told = key in failures.told
        failures.told.add(key)
        return not told or self._events.is_open(reply.seq)

    def _retag(self, value: EncodedValue) -> bool:
        """Says in the tickets of an answer which workers have the arrays."""
        kind = value.WhichOneof("kind")
        if kind == "array":
            if value.array.WhichOneof("data") != "ticket":
                return False
            value.array.ticket |= self.number << TICKETS
            return True
        items = {"list": value.list.items, "map": value.map.items.values()}.get(kind or "", ())
        tagged = [self._retag(item) for item in items]
        return any(tagged)
