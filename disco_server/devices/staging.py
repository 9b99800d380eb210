"""Copies between the host and a GPU through pinned memory, piece by piece.

A GPU copies to and from pages that cannot move; from others the driver copies
twice. Of two pinned buffers one is on its way while the other is read or filled,
so a large copy costs about as much as the slower of both steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from disco_client.wire.arrays import PIECE_BYTES, byte_view
from disco_server.devices.base import HostArray

__all__ = ["PIECE_BYTES", "Staging"]

_BUFFERS = 2


class Staging:
    """The pinned buffers of one rank.

    Args:
        cupy: The module.
        stream: The stream in whose order copies happen.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cuda = cupy.cuda
        self._runtime = cupy.cuda.runtime
        self._stream = stream
        self._buffers: list[HostArray] = []
        self._done: list[Any] = []

    def read(self, pointer: int, nbytes: int) -> Iterator[memoryview]:
        """Yields device memory piece by piece; each is good until the next is asked for."""
        starts = range(0, nbytes, PIECE_BYTES)
        for index, start in enumerate(starts):
            if index == 0:
                self._fetch(pointer, nbytes, 0, start)
            if start + PIECE_BYTES < nbytes:
                # The buffer it goes to was handed out last time, and is not read any more.
                self._fetch(pointer, nbytes, (index + 1) % _BUFFERS, start + PIECE_BYTES)
            buffer, done = self._buffer(index % _BUFFERS)
            done.synchronize()
            yield byte_view(buffer)[: min(PIECE_BYTES, nbytes - start)]

    def _fetch(self, pointer: int, nbytes: int, which: int, start: int) -> None:
        buffer, done = self._buffer(which)
        size = min(PIECE_BYTES, nbytes - start)
        self._copy(buffer.ctypes.data, pointer + start, size, self._runtime.memcpyDeviceToHost)
        done.record(self._stream)

    def write(self, pointer: int, pieces: Iterator[memoryview]) -> None:
        """Fills device memory; the pieces may be changed when it returns.

        Args:
            pointer: Where it begins.
            pieces: What to write, at most `PIECE_BYTES` each.
        """
        at = 0
        for index, piece in enumerate(pieces):
            buffer, done = self._buffer(index % _BUFFERS)
            done.synchronize()  # what was sent from it before has arrived
            buffer[: len(piece)] = piece
            to = self._runtime.memcpyHostToDevice
            self._copy(pointer + at, buffer.ctypes.data, len(piece), to)
            done.record(self._stream)
            at += len(piece)

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self._runtime.memcpyAsync(to, source, size, kind, self._stream.ptr)

    def _buffer(self, which: int) -> tuple[HostArray, Any]:
        while len(self._buffers) <= which:
            memory = self._cuda.alloc_pinned_memory(PIECE_BYTES)
            self._buffers.append(np.frombuffer(memory, np.uint8, PIECE_BYTES))
            self._done.append(self._cuda.Event(disable_timing=True))
        return self._buffers[which], self._done[which]
