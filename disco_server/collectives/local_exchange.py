"""Carries the headers of a channel between threads of one process, which meet in rounds.

Where a reduction goes with the headers, the last thread makes it for all, between their
arrays and without a copy: it alone runs meanwhile, and nobody is woken before it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from disco_server.collectives.header_exchange import (
    HeaderExchange,
    Slot,
    cut_text,
    patient,
    read_text,
)
from disco_server.collectives.numeric import combine_all
from disco_server.collectives.preflight import HEADER_BYTES
from disco_server.collectives.thread_barrier import MOST_ALONE_BYTES, ThreadBarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from disco_server.collectives.types import Array, ReduceOp
    from disco_server.collectives.validation import Family

__all__ = ["LocalExchange"]


_PAYLOAD = b"+"


class _Reduction(NamedTuple):
    """What one rank brings to a reduction."""

    source: Array
    target: Array
    op: ReduceOp
    family: Family


_Load = np.ndarray[Any, Any] | _Reduction | None

_Posted = tuple[bytes, _Load]
"""What one rank posted in one round: its header, and what goes with it."""


def _end_round(posted: list[_Posted]) -> tuple[bytes, list[_Posted]]:
    """Ends a round: reduces, if all bring the same; returns all headers, and what was posted."""
    header, load = posted[0]
    headers = b"".join([each for each, _ in posted])
    if type(load) is _Reduction and headers == header * len(posted):
        combine_all([cast("_Reduction", each) for _, each in posted], load.op, load.family)
        return headers, []
    return headers, posted


class LocalExchange(HeaderExchange):
    """See `HeaderExchange`; made by the thread that uses it, or before that thread starts.

    Args:
        barrier: Shared with the other members.
        index: This rank's place among them.
    """

    reduces = True

    def __init__(self, barrier: ThreadBarrier, index: int) -> None:
        super().__init__()
        self.data_bytes = self.most_bytes = self.most_gathered = MOST_ALONE_BYTES // barrier.members
        self._barrier = barrier
        self._index = index
        self._load: _Load = None

    def start(self, header: bytes) -> None:
        """See `HeaderExchange.start`.

        Raises:
            UnavailableError: The session is over.
        """
        self._barrier.come(self._index, self._post(header), _end_round)

    def _post(self, header: bytes) -> _Posted:
        if len(header) == HEADER_BYTES:
            return header, None
        return header[:HEADER_BYTES], self._load

    def test(self) -> bool:
        """See `HeaderExchange.test`.

        Raises:
            UnavailableError: The session is over.
        """
        return self._barrier.is_over(self._index)

    def meet(self, header: bytes, gives_way: Callable[[], bool] = patient) -> bytes:
        """See `HeaderExchange.meet`.

        Raises:
            UnavailableError: The session is over.
        """
        barrier, index = self._barrier, self._index
        if barrier.come_and_wait(index, self._post(header), _end_round, gives_way):
            return barrier.result(index)[0]
        return b""

    def headers(self) -> bytes:
        """See `HeaderExchange.headers`."""
        return self._barrier.result(self._index)[0]

    def absent(self) -> list[int]:
        """See `HeaderExchange.absent`."""
        return self._barrier.absent(self._index)

    def _make_slot(self, dtype: np.dtype[Any], size: int) -> Slot:
        return Slot(dtype, size, _PAYLOAD)

    def put(self, slot: Slot, data: Array) -> None:
        """See `HeaderExchange.put`; what is put is a copy that is never changed."""
        self._load = data[: slot.size].copy()

    def parts(self, slot: Slot) -> list[Array]:
        """See `HeaderExchange.parts`."""
        posted: list[_Posted] = self._barrier.result(self._index)[1]
        return [cast("Array", data)[: slot.size] for _, data in posted]

    def part(self, slot: Slot, place: int) -> Array:
        """See `HeaderExchange.part`."""
        posted: list[_Posted] = self._barrier.result(self._index)[1]
        return cast("Array", posted[place][1])[: slot.size]

    def put_reduction(self, source: Array, target: Array, op: ReduceOp, family: Family) -> None:
        """See `HeaderExchange.put_reduction`."""
        self._load = _Reduction(source, target, op, family)

    def tell(self, text: str) -> list[str]:
        """See `HeaderExchange.tell`; a round whose headers are not read."""
        data = np.frombuffer(cut_text(text), np.uint8)
        mine = bytes(HEADER_BYTES), data
        posted: list[_Posted] = self._barrier.meet(self._index, mine, _end_round)[1]
        texts = [read_text(cast("Array", each).tobytes()) for _, each in posted]
        return texts[: self._index] + texts[self._index + 1 :]

    def free(self) -> None:
        """Drops its data."""
        self._load = None
