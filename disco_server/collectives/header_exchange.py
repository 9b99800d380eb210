"""What carries the headers of a channel, and small data with them; see `preflight`.

Data that is small enough travels behind a header, which saves a collective its own
messages: its ranks have all the data as soon as they know that they agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from disco_server.collectives.types import Array, ReduceOp
    from disco_server.collectives.validation import Family

__all__ = [
    "ASK_EVERY",
    "NO_DATA",
    "SPINS",
    "TEXT_BYTES",
    "HeaderExchange",
    "Slot",
    "cut_text",
    "fit_text",
    "naps",
    "patient",
    "read_text",
]


NO_DATA = b""
"""The bytes behind a header that carries no data."""

TEXT_BYTES = 600
"""How many bytes of a rank's description of a call reach its peers."""

MOST_SLOTS = 256
# How often a rank looks for its peers, yielding to other processes in between, before it sleeps.
# About 10 ms: longer than ranks differ in most programs, and too short to be noticed.
SPINS = 20_000

_SHORTEST_NAP_S, _LONGEST_NAP_S = 50e-6, 10e-3

ASK_EVERY = 16
"""After how many such looks it asks whether to wait at all: where ranks share a processor, each may
take as long as a peer's time slice."""

_NAP_GROWTH = 1.005


def naps() -> Iterator[float]:
    """How long to sleep between two looks for a peer, look after look, in seconds.

    A sleep is longer than the first one by at most a two-hundredth of those before it, which
    is all that a rank may be late by; after a second of waiting the looks cost it nothing
    to speak of.
    """
    seconds = _SHORTEST_NAP_S
    while True:
        yield seconds
        seconds = min(seconds * _NAP_GROWTH, _LONGEST_NAP_S)


def patient() -> bool:
    """False: the wait has no other end than the round's."""
    return False


class Slot:
    """Where data of one dtype and size is exchanged.

    Attributes:
        dtype, size: Of one rank's data, flat.
        nbytes: Of one rank's data.
        payload: The bytes behind a header that carries it.
    """

    __slots__ = ("dtype", "nbytes", "payload", "size")

    def __init__(self, dtype: np.dtype[Any], size: int, payload: bytes) -> None:
        self.dtype = dtype
        self.size = size
        self.nbytes = dtype.itemsize * size
        self.payload = payload


class HeaderExchange(ABC):
    """One rank's end of a channel; satisfies `preflight.Exchange`.

    Attributes:
        data_bytes: How much of one rank's data one header may carry.
        most_bytes: How much of it is worth reducing in one round after the other.
        most_gathered: How much of it is worth gathering so.
        reduces: Whether a round reduces what was put by `put_reduction`.
    """

    data_bytes: int = 0
    most_bytes: int = 0
    most_gathered: int = 0
    reduces: bool = False

    def __init__(self) -> None:
        self._slots: dict[tuple[np.dtype[Any], int], Any] = {}

    def find_slot(self, dtype: np.dtype[Any], size: int) -> Any:
        """Finds the slot for data that headers carry, at most `data_bytes` of it.

        Args:
            dtype: Of the data.
            size: How many elements each rank has.

        Returns:
            A `Slot` of this exchange.
        """
        slot = self._slots.get((dtype, size))
        if slot is None:
            if len(self._slots) >= MOST_SLOTS:
                self._slots.clear()
            slot = self._slots[dtype, size] = self._make_slot(dtype, size)
        return slot

    def find_slot_of(self, array: Array) -> Any:
        """Finds the slot for all of an array; None if a header cannot carry that much."""
        if array.nbytes > self.data_bytes:
            return None
        return self.find_slot(array.dtype, array.size)

    @abstractmethod
    def _make_slot(self, dtype: np.dtype[Any], size: int) -> Slot: ...

    @abstractmethod
    def put(self, slot: Any, data: Array) -> None:
        """Puts this rank's data, flat; the next header with the slot's payload carries it.

        A token that is posted meanwhile, or pending, is not affected: it carries no data.
        """

    def put_reduction(self, source: Array, target: Array, op: ReduceOp, family: Family) -> None:
        """Puts what the next header with a slot's payload is to reduce, where a round `reduces`.

        Args:
            source: Flat, of the slot's size; is read only in the round.
            target: As long; has the result after a round to which all members came with equal
                headers. May be the source.
            op: The operation.
            family: How elements of this dtype are combined.
        """
        raise NotImplementedError  # of the others nobody asks for it: see `reduces`

    @abstractmethod
    def parts(self, slot: Any) -> list[Array]:
        """After a round: the data of all members, flat, to be read before the next."""

    def part(self, slot: Any, place: int) -> Array:
        """After a round in which perhaps that member alone put data: what it put, as `parts`."""
        return self.parts(slot)[place]

    @abstractmethod
    def start(self, header: bytes) -> None:
        """Posts this rank's header, with the data that the payload behind it stands for."""

    @abstractmethod
    def test(self) -> bool:
        """Whether the round is complete."""

    @abstractmethod
    def meet(self, header: bytes, gives_way: Callable[[], bool] = patient) -> bytes:
        """Posts a header, waits until the round is complete and returns its `headers`.

        Args:
            header: As of `start`.
            gives_way: Asked now and then whether to wait no longer; then nothing is returned, and
                `test` says later whether the round is complete.
        """

    @abstractmethod
    def headers(self) -> bytes:
        """After a round: the headers of all members in their order."""

    @abstractmethod
    def absent(self) -> list[int]:
        """In a round that is not complete: the places of the members that have not posted.

        May be called on any thread; the result may be out of date at once.
        """

    @abstractmethod
    def tell(self, text: str) -> list[str]:
        """Exchanges short texts with the other members, in their order.

        All must call it after the same round. A long text is cut.
        """

    @abstractmethod
    def free(self) -> None:
        """Releases everything; no round may be under way."""


def fit_text(text: str, end: str) -> str:
    """Cuts a text so that it can be told with an end that is told whole.

    Returns:
        Both, as all ranks get it; what UTF-8 cannot encode is escaped.
    """
    last = end.encode("utf-8", "backslashreplace")[:TEXT_BYTES]
    first = text.encode("utf-8", "backslashreplace")[: TEXT_BYTES - len(last)]
    return read_text(first) + read_text(last)


def cut_text(text: str) -> bytes:
    """Encodes a text and fills or cuts it to `TEXT_BYTES`."""
    return text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")


def read_text(raw: bytes | bytearray) -> str:
    """What `cut_text` encoded."""
    return bytes(raw).rstrip(b"\0").decode(errors="ignore")
