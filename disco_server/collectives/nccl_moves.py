"""The data operations of one NCCL communicator, once its ranks agreed to begin.

Arrays here are cupy's, C-contiguous, of the right sizes and with at least one
element. Everything is enqueued on the rank's communication stream, which begins
when what was computed before is there; what is computed afterwards waits for it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Family
from disco_server.collectives.nccl_library import NcclLibrary
from disco_server.collectives.nccl_watch import NcclWatch
from disco_server.devices.base import address as _at
from disco_server.devices.base import overlap
from disco_server.devices.gpu import GpuArrays

__all__ = ["NcclMoves"]


class NcclMoves:
    """Moves and combines arrays on GPUs; see `DataMoves`.

    Args:
        comm: The `NcclCommunicator`, used for nothing else.
        rank: This rank in it.
        size: How many ranks it has.
        library: Where it comes from.
        arrays: This rank's device.
        watch: Is told what was enqueued.
    """

    def __init__(
        self,
        comm: Any,
        rank: int,
        size: int,
        *,
        library: NcclLibrary,
        arrays: GpuArrays,
        watch: NcclWatch,
    ) -> None:
        self._comm, self._rank, self._size = comm, rank, size
        self._library, self._arrays, self._watch = library, arrays, watch
        self._runtime = arrays.xp.cuda.runtime
        self._stream: int = arrays.comm.ptr

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines into every rank's destination, which may be the source."""
        kind, call = self._library.type_of(src.dtype), self._library.reduction(op, family)
        with self._enqueue(f"allreduce({op.name.lower()})", src, dst) as (source, stream):
            count = source.size * kind.each
            self._comm.allReduce(_at(source), _at(dst), count, kind.number, call, stream)

    def reduce_scatter(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines and leaves each rank its part."""
        kind, call = self._library.type_of(src.dtype), self._library.reduction(op, family)
        name, own = f"reduce_scatter({op.name.lower()})", -self._rank * dst.nbytes
        with self._enqueue(name, src, dst, own) as (source, stream):
            count = dst.size * kind.each
            self._comm.reduceScatter(_at(source), _at(dst), count, kind.number, call, stream)

    def allgather(self, src: Array, dst: Array) -> None:
        """Brings every source to every rank."""
        own = self._rank * src.nbytes
        with self._enqueue("allgather", src, dst, own) as (source, stream):
            self._comm.allGather(_at(source), _at(dst), source.nbytes, self._library.byte, stream)

    def broadcast(self, src: Array, dst: Array) -> None:
        """Copies rank 0's source to all."""
        with self._enqueue("broadcast", dst if self._rank else src, dst) as (source, stream):
            self._comm.broadcast(_at(source), _at(dst), dst.nbytes, self._library.byte, 0, stream)

    def scatter(self, src: Array | None, dst: Array) -> None:
        """Gives each rank its part of rank 0's source."""
        nbytes = dst.nbytes
        if src is None or self._rank:
            with self._enqueue("scatter", dst, dst) as (_, stream), self._together():
                self._comm.recv(_at(dst), nbytes, self._library.byte, 0, stream)
            return
        with self._enqueue("scatter", src, dst) as (source, stream):
            with self._together():
                for peer in range(1, self._size):
                    at = _at(source) + peer * nbytes
                    self._comm.send(at, nbytes, self._library.byte, peer, stream)
            self._copy(_at(dst), _at(source), nbytes)

    def gather(self, src: Array, dst: Array | None) -> None:
        """Collects every source at rank 0."""
        nbytes = src.nbytes
        if dst is None or self._rank:
            with self._enqueue("gather", src, src) as (_, stream), self._together():
                self._comm.send(_at(src), nbytes, self._library.byte, 0, stream)
            return
        with self._enqueue("gather", src, dst) as (source, stream):
            with self._together():
                for peer in range(1, self._size):
                    at = _at(dst) + peer * nbytes
                    self._comm.recv(at, nbytes, self._library.byte, peer, stream)
            self._copy(_at(dst), _at(source), nbytes)

    def all_to_all(self, src: Array, dst: Array) -> None:
        """Transposes the matrix of parts; source and destination may be one array."""
        nbytes = src.nbytes // self._size
        with self._enqueue("all_to_all", src, dst, None) as (source, stream):
            with self._together():
                for peer in range(self._size):
                    if peer != self._rank:
                        there, here = _at(source) + peer * nbytes, _at(dst) + peer * nbytes
                        self._comm.send(there, nbytes, self._library.byte, peer, stream)
                        self._comm.recv(here, nbytes, self._library.byte, peer, stream)
            at = self._rank * nbytes
            self._copy(_at(dst) + at, _at(source) + at, nbytes)

    def send(self, buf: Array, rank: int) -> None:
        """Sends to one rank."""
        with self._enqueue("send", buf, buf) as (_, stream):
            self._comm.send(_at(buf), buf.nbytes, self._library.byte, rank, stream)

    def recv(self, buf: Array, rank: int) -> None:
        """Receives from one rank."""
        with self._enqueue("recv", buf, buf) as (_, stream):
            self._comm.recv(_at(buf), buf.nbytes, self._library.byte, rank, stream)

    @contextmanager
    def _enqueue(
        self, name: str, src: Array, dst: Array, own: int | None = 0
    ) -> Generator[tuple[Array, int]]:
        """Around the calls of one operation: orders it among what is computed.

        Args:
            name: The operation.
            src: Its source.
            dst: Its destination.
            own: Where in the destination the source may begin, in bytes; None if
                they may not overlap at all.

        Yields:
            The source, or a copy of it, and the stream.
        """
        with self._watch.launching(name):
            if overlap(src, dst) and (own is None or _at(src) != _at(dst) + own):
                src = src.copy()
            self._arrays.enter_comm()
            yield src, self._stream
            self._arrays.leave_comm()

    @contextmanager
    def _together(self) -> Generator[None]:
        """Around sends and receives that must not wait for one another."""
        binding = self._library.binding
        binding.groupStart()
        try:
            yield
        finally:
            binding.groupEnd()

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        if to != source:
            kind = self._runtime.memcpyDeviceToDevice
            self._runtime.memcpyAsync(to, source, nbytes, kind, self._stream)
