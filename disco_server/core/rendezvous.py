"""The key-value exchange of one session's ranks, used before they can reach one another.

It holds the session's keys and its fences and has no clock and no waiting: each
call returns the waiters it satisfied, and its owner wakes them. A waiter is any
hashable thing the owner chose. Whoever does not know whether it was heard asks again
as the same waiter, which changes nothing.

A key is written once and never changes, so a rank that reads early and one that
reads late read the same. A fence is a barrier that carries items: every participant
adds some, all get the union, and the union's keys are written as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["Rendezvous", "RendezvousError", "StoreLimits", "Wake"]


class RendezvousError(Exception):
    """A rank asked for something that cannot be; what was stored stays as it was."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How much one session may store.

    Attributes:
        key_bytes: Of one key or fence name, in UTF-8.
        value_bytes: Of one value.
        entries: Keys of the session.
        waiting: Waiters at one time.
    """

    key_bytes: int = 256
    value_bytes: int = 64 * 1024
    entries: int = 65_536
    waiting: int = 65_536


@dataclass(frozen=True, slots=True)
class Wake:
    """A waiter whose wait is over; exactly one of value, items and error is set.

    Attributes:
        waiter: As given by the owner.
        value: What a `get` waited for.
        items: The union of a `fence`.
        error: Why neither will come.
    """

    waiter: Hashable
    value: bytes | None = None
    items: Mapping[str, bytes] | None = None
    error: str = ""


@dataclass(slots=True)
class _Fence:
    participants: int
    waiters: dict[int, Hashable] = field(default_factory=dict[int, Hashable])
    items: dict[str, bytes] = field(default_factory=dict[str, bytes])
    done: bool = False
    keys: tuple[str, ...] = ()


class Rendezvous:
    """The key-value exchange of one session.

    Args:
        limits: How much it may store.
    """

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = limits or StoreLimits()
        self._store: dict[str, bytes] = {}
        self._getters: dict[str, dict[Hashable, None]] = {}
        self._fences: dict[str, _Fence] = {}
        self._waiting = 0
        self._failed = ""

    @property
    def failed(self) -> str:
        """Why it ended; empty while it has not."""
        return self._failed

    def put(self, key: str, value: bytes) -> list[Wake]:
        """Writes a key.

        Returns:
            The getters it satisfies.

        Raises:
            RendezvousError: The key has another value already, something is too
                large, or the rendezvous failed.
        """
        self._check_alive()
        self._check_item(key, value)
        self._check_entries({key: value})
        return self._write({key: value})

    def get(self, key: str, waiter: Hashable) -> list[Wake]:
        """Reads a key, once it is there.

        Returns:
            The waiter with the value if the key is written; nothing if it waits.

        Raises:
            RendezvousError: The key is too large, too many wait, or the
                rendezvous failed.
        """
        self._check_alive()
        self._check_key(key)
        value = self._store.get(key)
        if value is not None:
            return [Wake(waiter, value=value)]
        waiters = self._getters.get(key, {})
        if waiter not in waiters:
            self._count_waiter()
            waiters[waiter] = None
            self._getters[key] = waiters
        return []

    def fence(
        self,
        name: str,
        participant: int,
        participants: int,
        items: Mapping[str, bytes],
        waiter: Hashable,
    ) -> list[Wake]:
        """Arrives at a fence with some items.

        Args:
            name: Which fence; a name serves once.
            participant: The number of the participant that arrives, from 0.
            participants: How many there are; all of them must say the same.
            items: The participant's items; written as keys when all have arrived.
            waiter: The waiter to wake.

        Returns:
            All waiters of the fence with all items if this was the last one, and
            the getters of the new keys; nothing if others are missing. A waiter that
            has come before leaves with all items again, once the others have come.

        Raises:
            RendezvousError: The participant came twice, as two waiters, or is out of range, the
                participants disagree on their number, an item contradicts another
                one, something is too large, or the rendezvous failed.
        """
        self._check_alive()
        self._check_key(name)
        for key, value in items.items():
            self._check_item(key, value)
        fence = self._fences.get(name) or _Fence(participants)
        if fence.waiters.get(participant) == waiter:
            return self._repeat_answer(fence, waiter)
        self._check_arrival(name, fence, participant, participants)
        self._check_same(items, fence.items)
        self._check_entries(items, len(fence.items))
        self._count_waiter()
        self._fences[name] = fence
        fence.waiters[participant] = waiter
        fence.items.update(items)
        if len(fence.waiters) < fence.participants:
            return []
        return self._complete(fence)

    def withdraw(self, key: str, waiter: Hashable) -> None:
        """Forgets that a getter waits for a key; a fence keeps its participant."""
        waiters = self._getters.get(key, {})
        if waiter in waiters:
            self._waiting -= 1
            del waiters[waiter]
        if not waiters:
            self._getters.pop(key, None)

    def fail(self, reason: str) -> list[Wake]:
        """Ends the exchange: all waits end, and every later call is refused.

        Args:
            reason: The error for all waiters.

        Returns:
            All waiters.
        """
        if self._failed:
            return []
        self._failed = reason or "the rendezvous was closed"
        waiters = [each for getters in self._getters.values() for each in getters]
        for fence in self._fences.values():
            if not fence.done:
                waiters.extend(fence.waiters.values())
        self._getters.clear()
        self._fences.clear()
        self._store.clear()
        self._waiting = 0
        return [Wake(waiter, error=self._failed) for waiter in waiters]

    def _complete(self, fence: _Fence) -> list[Wake]:
        fence.done = True
        self._waiting -= len(fence.waiters)
        items = MappingProxyType(dict(fence.items))
        wakes = [Wake(waiter, items=items) for waiter in fence.waiters.values()]
        wakes += self._write(fence.items)
        # The name stays, so that a straggler gets an error instead of waiting alone.
        fence.keys, fence.items = tuple(fence.items), {}
        return wakes

    def _repeat_answer(self, fence: _Fence, waiter: Hashable) -> list[Wake]:
        """Answers a waiter that has come to a fence before."""
        if not fence.done:
            return []
        return [Wake(waiter, items={key: self._store[key] for key in fence.keys})]

    def _write(self, items: Mapping[str, bytes]) -> list[Wake]:
        wakes: list[Wake] = []
        for key, value in items.items():
            self._store[key] = value
            getters = self._getters.pop(key, {})
            self._waiting -= len(getters)
            wakes += [Wake(waiter, value=value) for waiter in getters]
        return wakes

    def _count_waiter(self) -> None:
        if self._waiting >= self._limits.waiting:
            raise RendezvousError(f"more than {self._limits.waiting} are waiting already")
        self._waiting += 1

    def _check_alive(self) -> None:
        if self._failed:
            raise RendezvousError(self._failed)

    def _check_key(self, key: str) -> None:
        size = len(key.encode())
        if not 0 < size <= self._limits.key_bytes:
            raise RendezvousError(
                f"the name {key[:40]!r} has {size} bytes; 1 to {self._limits.key_bytes} are allowed"
            )

    def _check_item(self, key: str, value: bytes) -> None:
        self._check_key(key)
        if len(value) > self._limits.value_bytes:
            raise RendezvousError(
                f"the value of {key!r} has {len(value)} bytes; up to"
                f" {self._limits.value_bytes} are allowed"
            )

    def _check_same(self, items: Mapping[str, bytes], known: Mapping[str, bytes]) -> None:
        for key, value in items.items():
            if known.get(key, value) != value:
                raise RendezvousError(f"{key!r} was written before with another value")

    def _check_entries(self, items: Mapping[str, bytes], others: int = 0) -> None:
        """Checks what would be stored, beside how many others that wait for that."""
        self._check_same(items, self._store)
        new: Sequence[str] = [key for key in items if key not in self._store]
        if len(self._store) + others + len(new) > self._limits.entries:
            raise RendezvousError(f"the session would store more than {self._limits.entries} keys")

    def _check_arrival(self, name: str, fence: _Fence, participant: int, participants: int) -> None:
        if participants != fence.participants:
            raise RendezvousError(
                f"fence {name!r} is for {fence.participants} participants, but participant"
                f" {participant} says {participants}"
            )
        if not 0 <= participant < participants:
            raise RendezvousError(
                f"participant {participant} is not one of {participants} of fence {name!r}"
            )
        if participant in fence.waiters:
            raise RendezvousError(f"participant {participant} came twice to fence {name!r}")
