"""How a rank agrees with its peers to begin something, as `preflight` describes.

Everything that is the same for all circles of one rank and for every library: the
meetings and what becomes of them, the words of the errors, and who is waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from disco_client.tracing import ring as layout
from disco_server.collectives import validation
from disco_server.collectives.header_exchange import NO_DATA, RowExchange
from disco_server.collectives.meeting_watch import MeetingWatch, Waiting
from disco_server.collectives.preflight import Lane, Preflight, VerdictKind
from disco_server.collectives.types import AbortedError, Array, MismatchError, name_workers
from disco_server.devices.base import on_device
from disco_server.settings import SLOW_S

if TYPE_CHECKING:
    from disco_server.collectives.header_exchange import RowExchange
    from disco_server.collectives.preflight import Lane
    from disco_server.collectives.validation import Offer
    from disco_server.observe.flight import FlightRecorder

__all__ = ["Agreement", "Notes", "unstage"]


# What the flight recorder learns of collectives.


def _nothing() -> None:
    """What is done where nobody writes anything down."""


class Notes:
    """Writes down which collectives a rank enters; for its one thread.

    It stands in the way of each small collective, whose ranks may share processors:
    everything here is done once for each of them.

    Attributes:
        meet: All have come to the collective that was entered last, and begin.
        leave: The rank goes on.
    """

    def __init__(self) -> None:
        self.meet: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing
        self._flight: FlightRecorder | None = None
        self._forms: dict[tuple[Lane, int, int, tuple[int, ...]], int] = {}

    def begin(self, flight: FlightRecorder) -> None:
        """Writes from now on; nothing is written before.

        Args:
            flight: Where to.
        """
        self._flight, self.meet, self.leave = flight, flight.meet, flight.leave
        self._forms.clear()

    def enter(self, lane: Lane, offer: Offer, src: object, dst: object) -> None:
        """The rank is about to wait for its peers in a lane.

        Args:
            lane: Where; the row for it has been made.
            offer: What it brings.
            src: Its source, or what was given as one.
            dst: Its destination, likewise.
        """
        flight = self._flight
        if flight is None:
            return
        dtype = offer.dtype
        shape = getattr(dst if src is None else src, "shape", ()) if dtype else ()
        form = self._forms.get((lane, offer.op, dtype, shape))
        if form is None:
            form = self._describe(flight, lane, offer, shape)
        lane.entered = number = lane.entered + 1
        # While a library starts no command has been named yet: -1.
        seq = lane.seq
        flight.enter(form, number, max(0, seq), lane.nth - 1)

    def _describe(
        self, flight: FlightRecorder, lane: Lane, offer: Offer, shape: tuple[int, ...]
    ) -> int:
        if len(self._forms) == layout.FORMS:
            self._forms.clear()  # the oldest is about to lose its place
        name, itemsize = validation.dtype_of(offer)
        form = flight.describe(validation.op_name(offer.op), name, itemsize, lane.members, shape)
        self._forms[lane, offer.op, offer.dtype, shape] = form
        return form


_Result = TypeVar("_Result")
_SPINS = 2000
_NAP_S = 50e-6
_NO_DEVICE = "no library for arrays on GPUs was started; session.init_ccl('nccl') does"


class Agreement:
    """One rank's part in all agreements with its peers; for its one thread.

    Args:
        worker_id: The rank.

    Attributes:
        preflight: Its rounds in all lanes.
        xp: The module of the arrays that may be on GPUs: numpy where none may.
        no_device: Why arrays of GPUs cannot take part; empty if they can.
        notes: What of all this is written down.
        with_shapes: Whether shapes must be equal too, and not only their elements' number.
    """

    def __init__(self, worker_id: int) -> None:
        self._me = worker_id
        self.preflight = Preflight(worker_id)
        self.xp: Any = np
        self.no_device = _NO_DEVICE
        self.notes = Notes()
        self.with_shapes = False
        self._exchanges: list[RowExchange] = []
        self._waiting: Waiting | None = None
        self._watch = MeetingWatch(worker_id, lambda: self._waiting, SLOW_S.value())

    def add_lane(self, members: Sequence[int], rows: RowExchange) -> Lane:
        """Begins a lane of these ranks, in the order of its rows."""
        self._exchanges.append(rows)
        return self.preflight.add_lane(members, rows)

    def admit(self, offer: Offer) -> Offer:
        """Refuses arrays of GPUs where nothing moves them."""
        if self.no_device and offer.on_device and not offer.problem:
            return offer._replace(problem=self.no_device)
        return offer

    def stage(self, offer: Offer, src: Array, dst: Array) -> tuple[Array, Array]:
        """Stands in contiguous arrays for those that are not.

        It may fail for want of memory, so it comes before the meeting, after which a
        rank must not fail any more.
        """
        if offer.problem or not offer.elements:
            return src, dst
        if src.flags.c_contiguous and dst.flags.c_contiguous:
            return src, dst
        xp = self.xp if on_device(src) else np
        source = xp.ascontiguousarray(src).reshape(src.shape)
        return source, (dst if dst.flags.c_contiguous else xp.empty(dst.shape, dst.dtype))

    def meet(
        self, lane: Lane | None, offer: Offer, src: object, dst: object, rider: bytes = NO_DATA
    ) -> None:
        """Meets the peers, if there are any; returns if the operation may begin.

        Raises:
            MismatchError: The ranks do not fit one another.
            AbortedError: A rank cannot come.
        """
        if lane is not None:
            self.enter(lane, offer, src, dst, rider)
        elif offer.problem:
            raise MismatchError((self._me,), self.tell(offer, src, dst))

    def enter(
        self, lane: Lane, offer: Offer, src: object, dst: object, rider: bytes = NO_DATA
    ) -> None:
        """Meets the peers; returns if all may begin, raises the same on all otherwise.

        Args:
            lane: Where.
            offer: What this rank brings.
            src: Its source, for the words of an error.
            dst: Its destination, likewise.
            rider: Stands behind the row with which data rides.

        Raises:
            MismatchError: The ranks do not fit one another.
            AbortedError: A rank cannot come.
        """
        self.agree(lane, offer, src, dst, rider, first=True)
        self.notes.meet()

    def agree(
        self, lane: Lane, offer: Offer, src: object, dst: object, rider: bytes, *, first: bool
    ) -> None:
        """Does the same for one of several rounds of a collective.

        Args:
            lane: Where.
            offer: What this rank brings.
            src: Its source, for the words of an error.
            dst: Its destination, likewise.
            rider: Stands behind the row with which data rides.
            first: Whether the collective begins with this round.
        """
        if self.with_shapes:
            offer = validation.add_shapes(offer, src, dst)
        preflight = self.preflight
        row = preflight.next_row(lane, offer)
        if first:
            self.notes.enter(lane, offer, src, dst)
        short = not (preflight.busy or lane.pending or offer.problem)
        exchange: Any = lane.exchange  # a RowExchange
        self._waiting = Waiting(offer.op, lane.seq, lane.members, exchange)
        try:
            if short and preflight.enter_now(lane, row, rider):
                return
            verdict = _drive(preflight.negotiate(lane, row + rider, posted=short))
        finally:
            self._waiting = None
        if verdict.kind is VerdictKind.RUN:
            return
        self.notes.leave()
        mine = self.tell(offer, src, dst, lane.nth - 1)
        if verdict.kind is VerdictKind.ABORTED:
            if offer.problem:
                raise MismatchError((self._me,), mine)
            raise AbortedError(verdict.workers, preflight.position, validation.op_name(offer.op))
        peers = [member for member in lane.members if member != self._me]
        brought: dict[str, list[int]] = {mine: [self._me]}
        for worker, text in zip(peers, exchange.tell(mine), strict=True):
            brought.setdefault(text, []).append(worker)
        raise MismatchError(verdict.workers, _compare(brought, verdict.workers))

    def tell(self, offer: Offer, src: object, dst: object, nth: int = 0) -> str:
        """Says what this rank brought, and what is wrong with it."""
        again = f", collective {nth + 1} of it" if nth else ""
        seq = self.preflight.position
        text = f"{validation.describe(offer, src, dst)} (command #{seq}{again})"
        return f"{text}: {offer.problem}" if offer.problem else text

    def close(self, *, orderly: bool) -> None:
        """Ends all lanes; with leave of the peers, which must take it too, if orderly."""
        self._watch.close()
        if orderly:
            _drive(self.preflight.leave())
            for exchange in self._exchanges:
                exchange.free()


def unstage(target: Array, dst: Array) -> None:
    """Brings what is in a stand-in to where it belongs."""
    if target is not dst:
        dst[...] = target


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
    spins = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast("_Result", stop.value)
        spins += 1
        if spins < _SPINS:
            os.sched_yield()
        else:
            time.sleep(_NAP_S)
