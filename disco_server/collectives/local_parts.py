"""The data operations between threads whose parts differ, or whose root is any rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Family
from disco_server.collectives.local_moves import (
    LocalMoves,
    apart,
    copy_into,
    keep,
    reduce_into,
    same_place,
)

__all__ = ["LocalPartMoves"]


class LocalPartMoves(LocalMoves):
    """One thread's part in all operations of one side; see `sides.DataMoves`."""

    def allgather_parts(self, src: Array, dst: Array, counts: Sequence[int]) -> None:
        """See `DataMoves.allgather_parts`."""
        parts = _cut(dst, counts)
        sources = self._show(keep(src, dst, parts[self._rank]).reshape(-1))
        for part, source in zip(parts, sources, strict=True):
            copy_into(part, source)
        self._done()

    def reduce_scatter_parts(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        """See `DataMoves.reduce_scatter_parts`."""
        sources = self._show(self._lend_part(src, dst, counts).reshape(-1))
        reduce_into(sources, sum(counts[: self._rank]), dst.reshape(-1), op, family)
        self._done()

    def all_to_all_parts(self, src: Array, dst: Array, table: Sequence[Sequence[int]]) -> None:
        """See `DataMoves.all_to_all_parts`."""
        rank = self._rank
        source = src.copy() if np.may_share_memory(src, dst) else src
        sources = self._show(source.reshape(-1))
        parts = _cut(dst, [row[rank] for row in table])
        for part, row, each in zip(parts, table, sources, strict=True):
            start = sum(row[:rank])
            part[:] = each[start : start + part.size]
        self._done()

    def broadcast_from(self, src: Array, dst: Array, root: int) -> None:
        """See `DataMoves.broadcast_from`."""
        shown = self._show(apart(src, dst) if self._rank == root else None)
        copy_into(dst.reshape(-1), shown[root].reshape(-1))
        self._done()

    def scatter_parts(
        self, src: Array | None, dst: Array, counts: Sequence[int], root: int
    ) -> None:
        """See `DataMoves.scatter_parts`."""
        mine = None
        if src is not None and self._rank == root:
            mine = self._lend_part(src, dst, counts)
        shown = self._show(mine)
        copy_into(dst.reshape(-1), _cut(shown[root], counts)[self._rank])
        self._done()

    def gather_parts(self, src: Array, dst: Array | None, counts: Sequence[int], root: int) -> None:
        """See `DataMoves.gather_parts`."""
        if dst is None or self._rank != root:
            self._show(src.reshape(-1))
        else:
            parts = _cut(dst, counts)
            sources = self._show(keep(src, dst, parts[root]).reshape(-1))
            for part, source in zip(parts, sources, strict=True):
                copy_into(part, source)
        self._done()

    def _lend_part(self, whole: Array, part: Array, counts: Sequence[int]) -> Array:
        """An array of parts that others read while this rank writes to its own part."""
        mine = _cut(whole, counts)[self._rank]
        return whole if same_place(mine, part) else keep(whole, part, mine)


def _cut(whole: Array, counts: Sequence[int]) -> list[Array]:
    """The parts of an array, flat."""
    flat = whole.reshape(-1)
    stops = accumulate(counts)
    return [flat[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]
