"""Memory that the ranks of one machine share for the headers of their channels.

The first rank of the machine makes it without a name in any file system and the
others find it by its descriptor in /proc, so nothing is left behind however the
ranks end. Where that is not possible, as between containers, there is none.
"""

from __future__ import annotations

import mmap
import os
from itertools import combinations
from typing import Any

from disco_server.collectives.shared_exchange import SharedMemoryExchange, channel_bytes
from disco_server.collectives.types import Tag, wide_channels
from disco_server.settings import keeps_order

__all__ = ["NodeMemory"]


# Among more ranks the copies that each makes of all ranks' data cost more than a
# collective of MPI does.
_MOST_RANKS = 8
# Up to here it beats MPI with 2, 4 and 8 ranks on 2 processors: an allreduce of 1 MiB
# takes 0.7 to 1.0 of its time, one of 256 KiB 0.3. A page is used when it first holds data.
_PAGE_BYTES = 1 << 20
# What two ranks send each other with a header. Each pair of ranks has such a channel.
_PAIR_BYTES = 16 << 10

_Key = tuple[Tag, tuple[int, ...]]


class NodeMemory:
    """The channels of one machine's ranks.

    Args:
        mpi: The module `mpi4py.MPI`.
        world: The communicator of all ranks; making this is collective over it.
        num_workers, num_groups: The session's.
    """

    def __init__(self, mpi: Any, world: Any, num_workers: int, num_groups: int) -> None:
        self._mpi = mpi
        self._me = int(world.Get_rank())
        node = world.Split_type(mpi.COMM_TYPE_SHARED)
        here: list[int] = sorted(node.allgather(self._me))
        self._here = set(here)
        pairs = [(Tag.PAIR, pair) for pair in combinations(here, 2)]
        self._places: dict[_Key, tuple[int, int]] = {}
        at = 0
        for tag, members in (*wide_channels(num_workers, num_groups), *pairs):
            if self._here.issuperset(members):
                room = _PAGE_BYTES if len(members) <= _MOST_RANKS else 0
                if tag == Tag.PAIR:
                    room = _PAIR_BYTES
                self._places[tag, members] = at, room
                at += channel_bytes(len(members), room)
        self._memory = _share(mpi, node, at) if at and len(here) > 1 else None
        node.Free()

    def make_exchange(self, tag: Tag, members: tuple[int, ...]) -> SharedMemoryExchange | None:
        """Makes this rank's end of a channel; None where its ranks share no memory."""
        place = self._places.get((tag, members))
        if place is None or self._memory is None:
            return None
        at, room = place
        size = channel_bytes(len(members), room)
        return SharedMemoryExchange(
            self._memory[at : at + size], members.index(self._me), len(members), room
        )

    def make_team_exchange(
        self, comm: Any, members: tuple[int, ...]
    ) -> SharedMemoryExchange | None:
        """Makes this rank's end of a channel that begins later, in memory of its own.

        Collective over the members; None on all of them where they share no memory.

        Args:
            comm: Theirs, in their order.
            members: Their ranks in the world.
        """
        if not self._here.issuperset(members):
            return None
        count = len(members)
        room = _PAGE_BYTES if count <= _MOST_RANKS else 0
        memory = _share(self._mpi, comm, channel_bytes(count, room))
        return (
            None if memory is None else SharedMemoryExchange(memory, comm.Get_rank(), count, room)
        )


def _share(mpi: Any, node: Any, nbytes: int) -> memoryview | None:
    """Makes memory on the first of these ranks of a machine; None if one cannot map it."""
    first = node.Get_rank() == 0
    fd, path = -1, ""
    if first and keeps_order():
        try:
            fd = os.memfd_create("disco-headers", os.MFD_CLOEXEC)
            os.ftruncate(fd, nbytes)
            path = f"/proc/{os.getpid()}/fd/{fd}"
        except (AttributeError, OSError):
            path = ""  # this system has no such memory, or no more of it
    path = node.bcast(path)
    mapped: mmap.mmap | None = None
    if path:
        try:
            mine = fd if first else os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(mine, nbytes)
            finally:
                if not first:
                    os.close(mine)
        except (OSError, ValueError):
            mapped = None  # another container, or another user
    all_have_it = node.allreduce(int(mapped is not None), mpi.MIN)
    if fd >= 0:
        os.close(fd)
    return memoryview(mapped) if mapped is not None and all_have_it else None
