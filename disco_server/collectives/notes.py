"""What the flight recorder learns of collectives."""

from __future__ import annotations

from collections.abc import Callable

from disco_client.wire import flight as layout
from disco_server.collectives import checks
from disco_server.collectives.checks import Offer
from disco_server.collectives.preflight import Lane
from disco_server.observe.flight import FlightRecorder

__all__ = ["Notes"]


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
        name, itemsize = checks.dtype_of(offer)
        form = flight.describe(checks.op_name(offer.op), name, itemsize, lane.members, shape)
        self._forms[lane, offer.op, offer.dtype, shape] = form
        return form
