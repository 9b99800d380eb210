"""What carries the rows of a lane, and small data with them; see `preflight`.

Data that is small enough rides along behind a row, which saves a collective its
own messages: its ranks have all the data as soon as they know that they agree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from disco_server.collectives.base import Array

__all__ = ["NO_DATA", "TEXT_BYTES", "Place", "RowExchange", "cut_text", "read_text"]

NO_DATA = b""
"""Stands behind a row with which no data rides."""

TEXT_BYTES = 400
"""How much of what a rank tells its peers about a call reaches them."""

_MOST_PLACES = 256


class Place:
    """Where data of one dtype and size rides.

    Attributes:
        dtype, size: Of one rank's data, flat.
        nbytes: Of one rank's data.
        rider: Stands behind the row with which it rides.
    """

    __slots__ = ("dtype", "nbytes", "rider", "size")

    def __init__(self, dtype: np.dtype[Any], size: int, rider: bytes) -> None:
        self.dtype = dtype
        self.size = size
        self.nbytes = dtype.itemsize * size
        self.rider = rider


class RowExchange(ABC):
    """One rank's end of a lane; satisfies `preflight.Exchange`.

    Attributes:
        data_bytes: How much of one rank's data may ride along with one row.
        most_bytes: How much of it is worth reducing in one round after the other.
        most_gathered: How much of it is worth gathering so.
    """

    data_bytes: int = 0
    most_bytes: int = 0
    most_gathered: int = 0

    def __init__(self) -> None:
        self._places: dict[tuple[np.dtype[Any], int], Any] = {}

    def find_place(self, dtype: np.dtype[Any], size: int) -> Any:
        """Finds where data rides along with rows, at most `data_bytes` of it.

        Args:
            dtype: Of the data.
            size: How many elements each rank has.

        Returns:
            A `Place` of this exchange.
        """
        place = self._places.get((dtype, size))
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            place = self._places[dtype, size] = self._make_place(dtype, size)
        return place

    @abstractmethod
    def _make_place(self, dtype: np.dtype[Any], size: int) -> Place: ...

    @abstractmethod
    def put(self, place: Any, data: Array) -> None:
        """Lays down this rank's data; the next row with the place's rider takes it along.

        A token that is posted meanwhile, or pending, is not disturbed: none rides
        along with it.
        """

    @abstractmethod
    def parts(self, place: Any) -> list[Array]:
        """After a round: the data of all members, flat, to be read before the next."""

    @abstractmethod
    def start(self, row: bytes) -> None:
        """Posts this rank's row, with the data that the bytes behind it stand for."""

    @abstractmethod
    def test(self) -> bool:
        """Whether the round is complete."""

    @abstractmethod
    def meet(self, row: bytes) -> bytes:
        """Posts a row, waits until the round is complete and returns its `rows`."""

    @abstractmethod
    def rows(self) -> bytes:
        """After a round: the rows of all members in their order."""

    @abstractmethod
    def absent(self) -> list[int]:
        """In a round that is not complete: the places of the members that have not posted.

        May be asked on any thread; what it says may be out of date at once.
        """

    @abstractmethod
    def tell(self, text: str) -> list[str]:
        """Exchanges short texts with the other members, in their order.

        All must call it after the same round. A long text is cut.
        """

    @abstractmethod
    def free(self) -> None:
        """Gives everything back; no round may be under way."""


def cut_text(text: str) -> bytes:
    """Encodes a text and fills or cuts it to `TEXT_BYTES`."""
    return text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")


def read_text(raw: bytes | bytearray) -> str:
    """What `cut_text` encoded."""
    return bytes(raw).rstrip(b"\0").decode(errors="ignore")
