"""Copies between the host and a GPU through pinned memory, piece by piece.

A GPU copies to and from pages that cannot move; from others the driver copies
twice. On the way to the host one of two pinned buffers is read while the other
fills, so a large copy costs about as much as the slower of both steps. On the way to
the GPU a buffer is free again when the GPU has got to the copy, behind all that was
asked of it before; so that nobody waits for that, there are more of them, made as
they are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from disco_client.wire.arrays import PIECE_BYTES, byte_view
from disco_server.devices.base import HostArray

__all__ = ["PIECE_BYTES", "Staging"]

_READ = 2
_WRITE = 16
"""At most so many buffers: what a rank may be ahead of its GPU with what it brings there."""


class _Buffer(NamedTuple):
    """Pinned memory, and the event behind the last copy from or to it."""

    memory: HostArray
    done: Any


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
        self._reading: list[_Buffer] = []
        self._writing: deque[_Buffer] = deque()

    def read(self, pointer: int, nbytes: int) -> Iterator[memoryview]:
        """Yields device memory piece by piece; each is good until the next is asked for."""
        starts = range(0, nbytes, PIECE_BYTES)
        for index, start in enumerate(starts):
            if index == 0:
                self._fetch(pointer, nbytes, 0, start)
            if start + PIECE_BYTES < nbytes:
                # The buffer it goes to was handed out last time, and is not read any more.
                self._fetch(pointer, nbytes, (index + 1) % _READ, start + PIECE_BYTES)
            buffer = self._reading[index % _READ]
            buffer.done.synchronize()
            yield byte_view(buffer.memory)[: min(PIECE_BYTES, nbytes - start)]

    def _fetch(self, pointer: int, nbytes: int, which: int, start: int) -> None:
        while len(self._reading) <= which:
            self._reading.append(self._new_buffer())
        buffer = self._reading[which]
        size = min(PIECE_BYTES, nbytes - start)
        to_host = self._runtime.memcpyDeviceToHost
        self._copy(buffer.memory.ctypes.data, pointer + start, size, to_host)
        buffer.done.record(self._stream)

    def write(self, pointer: int, pieces: Iterator[memoryview]) -> None:
        """Fills device memory; the pieces may be changed when it returns.

        Args:
            pointer: Where it begins.
            pieces: What to write, at most `PIECE_BYTES` each.
        """
        at = 0
        for piece in pieces:
            buffer = self._take()
            buffer.memory[: len(piece)] = piece
            to_device = self._runtime.memcpyHostToDevice
            self._copy(pointer + at, buffer.memory.ctypes.data, len(piece), to_device)
            buffer.done.record(self._stream)
            self._writing.append(buffer)
            at += len(piece)

    def _take(self) -> _Buffer:
        """A buffer whose content has arrived: the oldest, or a new one if there may be more."""
        if self._writing and self._writing[0].done.done:
            return self._writing.popleft()
        if len(self._writing) < _WRITE:
            return self._new_buffer()
        self._writing[0].done.synchronize()
        return self._writing.popleft()

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self._runtime.memcpyAsync(to, source, size, kind, self._stream.ptr)

    def _new_buffer(self) -> _Buffer:
        memory = self._cuda.alloc_pinned_memory(PIECE_BYTES)
        whole = np.frombuffer(memory, np.uint8, PIECE_BYTES)
        return _Buffer(whole, self._cuda.Event(disable_timing=True))
