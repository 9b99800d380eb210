"""What the ranks of the tests of tags do; see `scenarios.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scenarios import Place

from disco_server.collectives.group import ProcessGroup
from disco_server.collectives.mpi_exchange import MpiExchange
from disco_server.collectives.types import MismatchError, ReduceOp

SMALL, IN_ROUNDS, LARGE = 4, 1 << 19, 5 << 18
"""Elements of float32: beside a header, in several rounds, and by a library's own call."""


def group_of(place: Place, way: str) -> ProcessGroup:
    """The ranks that meet in a way of their own."""
    if way == "world":
        return place.flat.world
    if way == "group":
        return place.grouped.group
    if way == "team":
        place.step()
        made = place.flat.teams.make([[3, 1], [0, 2]])
        assert made is not None
        return made
    comm: Any = place.flat
    mpi, members = comm._mpi, range(4)
    exchange = MpiExchange(mpi, mpi.COMM_WORLD.Dup(), place.rank, members, 5, with_data=True)
    channel = comm._agreement.add_channel(members, exchange)
    return ProcessGroup(members, place.rank, comm._agreement, comm.world.backend, channel, exchange)


def operations(group: ProcessGroup) -> dict[str, Callable[[Any], None]]:
    """Every collective of a group, given its tag; in all sizes where these go another way."""
    n, reduce = group.size, ReduceOp.SUM

    def ones(size: int) -> Any:
        return np.ones(size, np.float32)

    part, whole = ones(SMALL), ones(SMALL * n)
    counts = [SMALL] * n
    sizes = (SMALL, IN_ROUNDS, LARGE)
    return {
        **{
            f"allreduce {size}": lambda tag, size=size: group.allreduce(
                ones(size), ones(size), reduce, tag=tag
            )
            for size in sizes
        },
        **{
            f"allgather {size}": lambda tag, size=size: group.allgather(
                ones(size), ones(size * n), tag=tag
            )
            for size in sizes
        },
        "allgather parts": lambda tag: group.allgather(part, whole, counts, tag=tag),
        "broadcast": lambda tag: group.broadcast(part, part, tag=tag),
        "broadcast root": lambda tag: group.broadcast(part, part, 1, tag=tag),
        "scatter": lambda tag: group.scatter(whole, part, tag=tag),
        "gather": lambda tag: group.gather(part, whole, tag=tag),
        "gather parts": lambda tag: group.gather(part, whole, counts, tag=tag),
        "reduce_scatter": lambda tag: group.reduce_scatter(whole, part, reduce, tag=tag),
        "all_to_all": lambda tag: group.all_to_all(whole, whole, tag=tag),
        "barrier": lambda tag: group.barrier(tag=tag),
    }


def tagged(place: Place, way: str, tags: list[Any]) -> dict[str, Any]:
    """Does every collective with a tag of the place in the group: who was odd, and the words."""
    group = group_of(place, way)
    said: dict[str, Any] = {}
    for name, act in operations(group).items():
        place.step()
        try:
            act(tags[group.rank])
            said[name] = "ran"
        except MismatchError as error:
            said[name] = [[group.members.index(rank) for rank in error.ranks], str(error)]
    place.step()
    place.flat.world.barrier()
    return said


def tagged_transfers(place: Place) -> list[Any]:
    """Sends with the tag that the receiver has, with another one, and with none."""
    world, said = place.flat.world, []
    for sent in ("weights", "biases", None):
        place.step()
        buffer = np.full(3, float(place.rank))
        try:
            if place.rank == 0:
                world.send(buffer, 1, tag=sent)
            elif place.rank == 1:
                world.recv(buffer, 0, tag="weights")
            said.append(buffer.tolist())
        except MismatchError as error:
            said.append(str(error))
    place.step()
    world.barrier()
    return said


def root(place: Place, array: Any) -> None:
    """Enters a broadcast from a line of its own."""
    place.flat.world.broadcast(array, array)


def peer(place: Place, array: Any) -> None:
    """Enters the same from another line."""
    place.flat.world.broadcast(None, array)


def lines(place: Place, wrong: bool) -> Any:
    """The root's call and those of its peers stand in different functions."""
    place.step()
    array = np.full(3 + (wrong and place.rank == 2), float(place.rank))
    try:
        (peer if place.rank else root)(place, array)
    except MismatchError as error:
        return str(error)
    return array.tolist()
