"""How a rank agrees with its peers to begin something, as `preflight` describes.

Everything that is the same for all groups of one rank and for every library: the
agreement rounds and their outcomes, the texts of the errors, and which ranks are waited for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import numpy as np

from disco_client.text import name_workers
from disco_client.tracing import ring as layout
from disco_server.collectives import validation
from disco_server.collectives.collective_watch import CollectiveWatch
from disco_server.collectives.header_exchange import NO_DATA, HeaderExchange, fit_text, naps
from disco_server.collectives.preflight import Channel, Outcome, Preflight
from disco_server.collectives.types import AbortedError, Array, LeftOutError, MismatchError
from disco_server.devices.base import on_device
from disco_server.settings import SLOW_S

if TYPE_CHECKING:
    from disco_server.collectives.preflight import Decision
    from disco_server.collectives.validation import CollectiveSignature
    from disco_server.observe.flight import FlightRecorder

__all__ = ["Agreement", "Notes", "unstage"]


# What the flight recorder records of collectives.


def _nothing() -> None:
    """The hook where no flight recorder is attached."""


class Notes:
    """Records which collectives a rank enters; for its one thread.

    It is on the critical path of each small collective, whose ranks may share processors:
    everything here is done once for each of them.

    Attributes:
        meet: All ranks have entered the collective that was entered last, and begin.
        leave: The rank continues after it.
        flight: The recorder, where one is attached.
        forms: What it has been told of the collectives, by channel, collective, dtype and shape.
    """

    def __init__(self) -> None:
        self.meet: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing
        self.flight: FlightRecorder | None = None
        self.forms: dict[tuple[Channel, int, int, tuple[int, ...]], int] = {}

    def begin(self, flight: FlightRecorder) -> None:
        """Records from now on; nothing is recorded before.

        Args:
            flight: The recorder.
        """
        self.flight, self.meet, self.leave = flight, flight.meet, flight.leave
        self.forms.clear()

    def describe(
        self,
        flight: FlightRecorder,
        channel: Channel,
        signature: CollectiveSignature,
        shape: tuple[int, ...],
    ) -> int:
        """Tells the recorder of a collective that is not among `forms` yet."""
        if len(self.forms) == layout.FORMS:
            self.forms.clear()  # the oldest is about to be overwritten
        name, itemsize = validation.dtype_of(signature)
        form = flight.describe(
            validation.op_name(signature.op), name, itemsize, channel.members, shape
        )
        self.forms[channel, signature.op, signature.dtype, shape] = form
        return form


_Result = TypeVar("_Result")
_SPINS = 2000
_NO_DEVICE = "no library for arrays on GPUs was started; session.init_ccl('nccl') does"


class Agreement:
    """One rank's part in all agreements with its peers; for its one thread.

    Args:
        worker_id: The rank.

    Attributes:
        preflight: Its rounds in all channels.
        xp: The module of the arrays that may be on GPUs: numpy where none may.
        no_device: Why arrays of GPUs cannot take part; empty if they can.
        notes: Records the collectives that are entered.
        with_shapes: Whether shapes must be equal too, and not only their elements' number.
        guard: Entered for as long as this rank is in a collective.
    """

    def __init__(self, worker_id: int) -> None:
        self._me = worker_id
        self.preflight = Preflight(worker_id)
        self.xp: Any = np
        self.no_device = _NO_DEVICE
        self.notes = Notes()
        self.with_shapes = False
        self.guard: AbstractContextManager[None] = nullcontext()
        self._exchanges: list[HeaderExchange] = []
        self._waiting: tuple[int, int, tuple[int, ...], HeaderExchange] | None = None
        self._watch = CollectiveWatch(worker_id, lambda: self._waiting, SLOW_S.value())

    def add_channel(self, members: Sequence[int], exchange: HeaderExchange) -> Channel:
        """Begins a channel of these ranks, in the order of its headers."""
        self._exchanges.append(exchange)
        return self.preflight.add_channel(members, exchange)

    def admit(self, signature: CollectiveSignature, tag: object = None) -> CollectiveSignature:
        """Adds the caller's tag, if any, and refuses arrays of GPUs where nothing moves them."""
        if tag is not None:
            signature = validation.add_tag(signature, tag)
        if self.no_device and signature.on_device and not signature.problem:
            return signature._replace(problem=self.no_device)
        return signature

    def stage(self, signature: CollectiveSignature, src: Array, dst: Array) -> tuple[Array, Array]:
        """Replaces arrays that are not contiguous by contiguous ones.

        It may fail for want of memory, so it comes before the agreement round, after which a
        rank must not fail any more.
        """
        if signature.problem or not signature.elements:
            return src, dst
        if src.flags.c_contiguous and dst.flags.c_contiguous:
            return src, dst
        xp = self.xp if on_device(src) else np
        source = xp.ascontiguousarray(src).reshape(src.shape)
        return source, (dst if dst.flags.c_contiguous else xp.empty(dst.shape, dst.dtype))

    def meet(
        self,
        channel: Channel | None,
        signature: CollectiveSignature,
        src: object,
        dst: object,
        payload: bytes = NO_DATA,
    ) -> None:
        """Agrees with the peers, if there are any; returns if the operation may begin.

        Raises:
            MismatchError: The ranks do not fit one another.
            AbortedError: A rank cannot come.
        """
        if channel is not None:
            self.enter(channel, signature, src, dst, payload)
        elif signature.problem:
            raise MismatchError((self._me,), self.tell(signature, src, dst))

    def enter(
        self,
        channel: Channel,
        signature: CollectiveSignature,
        src: object,
        dst: object,
        payload: bytes = NO_DATA,
    ) -> None:
        """Agrees with the peers; returns if all may begin, raises the same on all otherwise.

        Args:
            channel: The channel.
            signature: What this rank brings.
            src: Its source, for the text of an error.
            dst: Its destination, likewise.
            payload: The bytes behind the header, which stand for the data that it carries.

        Raises:
            MismatchError: The ranks do not fit one another.
            AbortedError: A rank cannot come.
        """
        self.agree(channel, signature, src, dst, payload, first=True)
        self.notes.meet()

    def agree(
        self,
        channel: Channel,
        signature: CollectiveSignature,
        src: object,
        dst: object,
        payload: bytes,
        *,
        first: bool,
    ) -> None:
        """Does the same as `enter` for one of several rounds of a collective.

        Args:
            channel: The channel.
            signature: What this rank brings.
            src: Its source, for the text of an error.
            dst: Its destination, likewise.
            payload: The bytes behind the header, which stand for the data that it carries.
            first: Whether the collective begins with this round.
        """
        # After much arithmetic the interpreter finds the caches of its processor cold, and each
        # call of a function costs three times as much: what could be functions here is not.
        if self.with_shapes:
            signature = validation.add_shapes(signature, src, dst)
        preflight, notes = self.preflight, self.notes
        header = preflight.next_header(channel, signature)
        op, dtype, problem = signature[0], signature[1], signature[3]
        seq, flight = channel.seq, notes.flight
        if first and flight is not None:
            shape = getattr(dst if src is None else src, "shape", ()) if dtype else ()
            form = notes.forms.get((channel, op, dtype, shape))
            if form is None:
                form = notes.describe(flight, channel, signature, shape)
            channel.entered = number = channel.entered + 1
            # While a library starts no command has been named yet: -1.
            flight.enter(form, number, max(seq, 0), channel.nth - 1)
        short = not (
            preflight.busy
            or channel.pending
            or problem
            or 0 <= seq <= preflight.failed  # cannot_come
            or preflight.participants
        )
        exchange: Any = channel.exchange  # a HeaderExchange
        # A `WaitingRank`, which would take longer to make.
        self._waiting = op, seq, channel.members, exchange
        try:
            if short and preflight.enter_now(channel, header, payload):
                return
            decision = _drive(preflight.negotiate(channel, header + payload, posted=short))
        finally:
            self._waiting = None
        if decision.kind is not Outcome.RUN:
            self._refuse(channel, signature, src, dst, decision)

    def _refuse(
        self,
        channel: Channel,
        signature: CollectiveSignature,
        src: object,
        dst: object,
        decision: Decision,
    ) -> NoReturn:
        """Raises what all members raise who do not begin."""
        preflight = self.preflight
        exchange: Any = channel.exchange
        self.notes.leave()
        if decision.tagged and signature.tag == validation.NO_TAG:
            signature = signature._replace(tag_note=signature.tag_note or ", no tag")
        mine = self.tell(signature, src, dst, channel.nth - 1)
        if decision.kind is not Outcome.MISMATCH:
            if signature.problem:
                raise MismatchError((self._me,), mine)
            kind = LeftOutError if decision.kind is Outcome.LEFT_OUT else AbortedError
            raise kind(decision.workers, preflight.position, validation.op_name(signature.op))
        peers = [member for member in channel.members if member != self._me]
        brought: dict[str, list[int]] = {mine: [self._me]}
        for worker, text in zip(peers, exchange.tell(mine), strict=True):
            brought.setdefault(text, []).append(worker)
        raise MismatchError(decision.workers, _compare(brought, decision.workers))

    def tell(self, signature: CollectiveSignature, src: object, dst: object, nth: int = 0) -> str:
        """Says what this rank brought, what is wrong with it, and from which line it came.

        At most `TEXT_BYTES` of it, of which the line is the last.
        """
        again = f", collective {nth + 1} of it" if nth else ""
        seq, problem, at = self.preflight.position, signature.problem, _calling_line()
        text = f"{validation.describe(signature, src, dst)} (command #{seq}{again})"
        if problem:
            text, at = f"{text}: {problem}", at and f",{at}"
        return fit_text(text, at)

    def close(self, *, orderly: bool) -> None:
        """Ends all channels; after `Preflight.leave`, which the peers must call too, if orderly."""
        self._watch.close()
        if orderly:
            _drive(self.preflight.leave())
            for exchange in self._exchanges:
                exchange.free()


def unstage(target: Array, dst: Array) -> None:
    """Copies the content of a contiguous stand-in to the actual destination."""
    if target is not dst:
        dst[...] = target


_OWN_MODULES = ("disco_server.", "disco_client.")
_EXECUTOR = "disco_server.rank.executor"
"""Below the frames of this module a stack has none that a session's function made."""


def _calling_line() -> str:
    """Where the calling thread's function called the collective: " at train.py:12 in step".

    Empty where no function did: the session itself called the collective. It is looked for only
    when a collective is refused.
    """
    frame = sys._getframe(1)  # noqa: SLF001  (public, in spite of its name)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == _EXECUTOR:
            break
        if not module.startswith(_OWN_MODULES):
            code = frame.f_code
            return f" at {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""


def _compare(brought: dict[str, list[int]], odd: Sequence[int]) -> str:
    """Lists what the ranks brought, the odd ones first; the same text on every rank."""
    parties = sorted(
        ((sorted(workers), text) for text, workers in brought.items()),
        key=lambda party: (party[0][0] not in odd, party[0]),
    )
    lines = [f"{name_workers(workers)} brought {text}" for workers, text in parties]
    return "the ranks do not fit one another, so none began: " + "; ".join(lines)


def _drive(steps: Generator[None, None, _Result]) -> _Result:
    """Runs a negotiation to its end, letting other processes run while it waits."""
    spins, pauses = 0, naps()
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast("_Result", stop.value)
        spins += 1
        if spins < _SPINS:
            os.sched_yield()
        else:
            time.sleep(next(pauses))
