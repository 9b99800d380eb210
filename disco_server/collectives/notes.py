"""What the flight recorder learns of collectives."""

from __future__ import annotations

from disco_server.collectives import checks
from disco_server.collectives.checks import Offer
from disco_server.collectives.preflight import Lane
from disco_server.observe.flight import FlightRecorder

__all__ = ["Notes"]

_MOST_KNOWN = 1024


class Notes:
    """Writes down which collectives a rank enters; for its one thread.

    Attributes:
        flight: Where to, once there is something; until then nothing is written.
    """

    def __init__(self) -> None:
        self._flight: FlightRecorder | None = None
        self._labels: dict[tuple[int, int], tuple[int, int, int]] = {}

    @property
    def flight(self) -> FlightRecorder | None:
        """Where to."""
        return self._flight

    @flight.setter
    def flight(self, flight: FlightRecorder) -> None:
        self._flight = flight
        self._labels.clear()

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
        labels = self._labels.get((offer.op, offer.dtype)) or self._label(flight, offer)
        lane.entered += 1
        circle = lane.label or self._label_lane(flight, lane)
        array = dst if src is None else src
        shape = getattr(array, "shape", ()) if offer.dtype else ()
        # While a library starts no command has been named yet: -1.
        flight.enter(labels, circle, lane.entered, max(lane.seq, 0), lane.nth - 1, shape)

    def meet(self) -> None:
        """All have come, and begin."""
        if self._flight is not None:
            self._flight.meet()

    def leave(self) -> None:
        """The rank goes on."""
        if self._flight is not None:
            self._flight.leave()

    def _label(self, flight: FlightRecorder, offer: Offer) -> tuple[int, int, int]:
        name, itemsize = checks.dtype_of(offer)
        labels = flight.label(checks.op_name(offer.op)), flight.label(name), itemsize
        if len(self._labels) < _MOST_KNOWN:
            self._labels[offer.op, offer.dtype] = labels
        return labels

    def _label_lane(self, flight: FlightRecorder, lane: Lane) -> int:
        lane.label = flight.label(",".join(map(str, lane.members)))
        return lane.label
