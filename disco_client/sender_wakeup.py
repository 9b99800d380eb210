"""When the thread that sends a session's commands is woken.

A lone command wakes it at once; while it is busy with one batch, the next one grows. Over a
transport that lets the program's threads send (:class:`~disco_client.transport.base.Pump`), neither
a command that a caller waits for nor a lone one wakes another thread.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from queue import Empty, SimpleQueue

from disco_client.batches import Batches
from disco_client.clock import monotonic
from disco_client.registers import RegisterIds
from disco_client.scopes import Scope, current_owner
from disco_client.session_end import SessionEnd
from disco_client.transport.base import Pump

__all__ = ["SenderWakeup"]

_LOOK_S = 1.0
"""How often the thread looks by itself whether what is held back may leave."""

_LINGER_S = 0.001
"""After how long a sending thread looks for more commands, once, before it sleeps. Where
the program's threads can send, commands that are further apart leave one by one."""

_KILLS_S = 0.05
"""How long a freed register waits for a command that takes it along, where the program's
threads can send; waking the sending thread for each would take the workers' time."""


class SenderWakeup:
    """Wakes the thread that sends, or lets the thread that issues send in its place.

    Args:
        batches: What waits to be sent.
        registers: Those that were freed are sent, too.
        ending: Nothing is sent any more once commands are refused, and those before have left.

    Attributes:
        pump: Lets a thread of the program send by itself, if set.
        is_held: Says whether what is to be sent next waits until workers have executed more.
        on_wake: Called, if set, before the thread is woken.
        batching: The tasks and threads whose commands leave together at the end of a block.
        kills: Whether freed registers are reason enough to send, now that the thread is awake.
    """

    __slots__ = (
        "_awake",
        "_batches",
        "_dead",
        "_ending",
        "_kills_due",
        "_passed_on",
        "_queue",
        "batching",
        "is_held",
        "kills",
        "on_wake",
        "pump",
    )

    def __init__(self, batches: Batches, registers: RegisterIds, ending: SessionEnd) -> None:
        self._batches = batches
        self._dead = registers.dead
        self._ending = ending
        self._queue: SimpleQueue[bool] = SimpleQueue()
        self._awake = False
        self._kills_due = False
        self._passed_on = -math.inf
        self.batching: set[Scope] = set()
        self.kills: bool = True
        self.pump: Pump | None = None
        self.is_held: Callable[[], bool] = lambda: False
        self.on_wake: Callable[[], object] | None = None

    # In threads that issue commands ----------------------------------------------------------

    def pass_on(self, *, answered: bool = False) -> None:
        """Gets a command on its way: a lone one in this thread, several in the sender's.

        Args:
            answered: Whether a caller will wait for its answer.
        """
        if self._awake or (self.batching and not answered and current_owner() in self.batching):
            return
        pump = self.pump
        if pump is None or not pump.sends_lone:
            self.wake()
        elif (now := monotonic()) - self._passed_on > _LINGER_S and not pump.entered:
            self._passed_on = now
            pump.flush()
        else:
            self.wake()

    def wake(self, *, always: bool = False) -> None:
        """Wakes the thread, unless it is awake; ``always``: also where it may be."""
        if always or not self._awake:
            if self.on_wake is not None:
                self.on_wake()
            self._awake = True
            self._queue.put(True)

    def note_freed(self) -> None:
        """Notes that a register was freed; safe inside the garbage collector."""
        if self.pump is None:
            self.wake()
        elif not (self._awake or self._kills_due):
            self._kills_due = True
            self._queue.put(False)

    def nudge(self) -> None:
        """Wakes the thread, whether there are commands or not."""
        self._queue.put(True)

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Lets what this task or thread issues in a block leave together.

        It leaves when the block ends, or before with a command that is answered.
        """
        owner = current_owner()
        if owner in self.batching:  # a block within a block
            yield
            return
        self.batching.add(owner)
        try:
            yield
        finally:
            self.batching.discard(owner)
            if self._batches.some_to_send:
                self.pass_on()

    # In the thread that sends ----------------------------------------------------------------

    def wait(self) -> bool:
        """Waits until there may be commands to take; False once there never will be."""
        if self.is_held():
            self._awake = True  # by what was issued it is not to be woken
            # An exception may keep a thread from waking this one.
            with contextlib.suppress(Empty):
                self._queue.get(timeout=_LOOK_S)
            return True
        if self._ending.refused is not None:
            return self._batches.some_to_send
        self.kills = True
        if self.pump is not None and self._linger():
            return True
        self._sleep()
        self._awake = False
        return True

    def _linger(self) -> bool:
        """Looks for commands a while, so that issuing one need not wake this thread.

        A woken thread takes the interpreter from the one that issues and often soon
        waits for what it issued.
        """
        batches = self._batches
        newest = -1
        while batches.newest != newest:
            newest = batches.newest
            self._awake = True
            with contextlib.suppress(Empty):
                if self._queue.get(timeout=_LINGER_S):
                    self.kills = False  # the next command may be about to take them along
                    return True  # as something else than commands may have to leave
            if self._ending.refused is not None or batches.some_to_send:
                return True
        self._awake = False
        return batches.some_to_send

    def _sleep(self) -> None:
        """Waits until this thread is woken, or has to send freed registers on their own."""
        if self.pump is None:
            self._queue.get()
            return
        batches = self._batches
        while True:
            # Mostly the next command takes them along. While commands come, this thread looks
            # now and then by itself, and no freed register wakes it.
            self._kills_due, newest = True, batches.newest
            with contextlib.suppress(Empty):
                if self._queue.get(timeout=_KILLS_S):
                    return
            if self._dead:
                return
            if batches.newest == newest:
                self._kills_due = False  # before the look, as a register may be freed meanwhile
                if self._dead or self._queue.get():
                    return

    def disown(self) -> None:
        """Begins anew in a forked child, where the thread is missing."""
        self._queue = SimpleQueue()
        self.on_wake = None
