"""What moves the arrays of values that are too large for a command; no I/O here."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from disco_client.errors import EncodingError
from disco_client.wire.arrays import byte_view, in_pieces

__all__ = ["ArrayPorter"]


class ArrayPorter:
    """Moves arrays that are too large for a command; the base refuses them.

    It also knows arrays that are not numpy's, where there are such.
    """

    def knows(self, value: object) -> bool:  # noqa: ARG002  (nothing, here)
        """Whether a value is an array of another kind, that it can offer."""
        return False

    def content(self, array: Any) -> bytes:
        """The bytes of a small array in C order."""
        content: bytes = array.tobytes()
        return content

    def arrived(self, array: np.ndarray[Any, Any]) -> Any:
        """What becomes of an array that came inside a value."""
        return array

    def offer(self, array: Any) -> int:
        """Hands over an array and returns its ticket."""
        msg = f"an array of {array.nbytes} bytes cannot travel inside a value here"
        raise EncodingError(msg)

    def offer_pieces(self, nbytes: int, pieces: Iterable[memoryview]) -> int:
        """Hands over an array whose bytes come piece by piece, and returns its ticket."""
        whole = np.empty(nbytes, np.uint8)
        at = 0
        for piece in pieces:
            whole[at : at + len(piece)] = piece
            at += len(piece)
        return self.offer(whole)

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Returns the array that was offered under this ticket."""
        msg = f"no array can be collected here (ticket {ticket}, {dtype}, {tuple(shape)})"
        raise EncodingError(msg)

    def collect_into(self, ticket: int, out: np.ndarray[Any, Any]) -> None:
        """Fills an array with the one of its dtype and size under this ticket."""
        out[...] = self.collect(ticket, out.dtype, out.shape)

    def discard(self, ticket: int) -> None:
        """Lets go of the array under this ticket, now or when it comes."""

    @contextlib.contextmanager
    def lend(
        self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> Generator[np.ndarray[Any, Any]]:
        """Gives access to the array under this ticket, while a block runs."""
        yield self.collect(ticket, dtype, shape)

    def collect_pieces(
        self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> Generator[memoryview]:
        """Yields the bytes of the array under this ticket in order, piece by piece.

        Each piece has at most PIECE_BYTES, and is good until the next is asked for.
        """
        with self.lend(ticket, dtype, shape) as array:
            yield from in_pieces(byte_view(array))
