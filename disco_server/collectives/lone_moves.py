"""The data operations of a rank that is alone: each of them is one copy.

They serve arrays of either kind, so a team of one worker holds nothing of any library.
"""

from __future__ import annotations

from typing import Any

from disco_server.collectives.base import Array
from disco_server.devices.base import on_device, overlap

__all__ = ["LoneMoves"]


class LoneMoves:
    """See `DataMoves`; roots, counts and reductions make no difference here."""

    def copy(self, src: Array | None, dst: Array | None, *rest: Any, **more: Any) -> None:
        """Copies the source to the destination, which may be the source."""
        del rest, more
        if src is None or dst is None or src is dst:
            return
        # numpy sees by itself that arrays overlap, the libraries of GPUs do not.
        if on_device(src) and overlap(src, dst):
            src = src.copy()
        dst.reshape(-1)[...] = src.reshape(-1)

    allreduce = reduce_scatter = allgather = broadcast = scatter = gather = all_to_all = copy
    allgather_parts = reduce_scatter_parts = all_to_all_parts = copy
    broadcast_from = scatter_parts = gather_parts = copy

    def send(self, buf: Array, rank: int) -> None:
        """Never called, but a part of `DataMoves`: who is alone has nobody to send to."""
        del buf
        msg = f"a worker that is alone cannot send to or receive from rank {rank}"
        raise RuntimeError(msg)

    recv = send
