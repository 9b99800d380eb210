"""Ranks that are threads with a GPU of the stand-in each, and what they do.

The scenarios of `scenarios.py` make host arrays. Here a communicator takes them to the
rank's GPU and brings back what became of them, with all views and overlaps as they
were. Copies there and back are ordered among the rank's work and wait for nothing, so
a collective that does not wait for what is computed before it finds junk.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scenarios import Place, known

from disco_client.wire.values import Device
from disco_server.collectives.local import LocalCommunicator, LocalWorld
from disco_server.collectives.loss import Loss
from disco_server.collectives.nccl import NcclHooks, start_nccl
from disco_server.collectives.nccl_watch import NcclWatch, TimeLimits
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import _REFUSED_ON_DEVICE
from disco_server.devices.gpu import GpuArrays

__all__ = ["DeviceRanks", "OnDevice", "Rank", "known_on_device"]


def known_on_device(dtype: np.dtype, op: ReduceOp) -> bool:
    """Whether a GPU knows a reduction."""
    return known(dtype, op) and op not in _REFUSED_ON_DEVICE.get(dtype.name, ())


class _Carrier:
    """Works with host arrays, which lie on the GPU meanwhile."""

    def __init__(self, comm: Any, arrays: GpuArrays) -> None:
        self._comm, self._arrays = comm, arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def _carry(self, name: str, hosts: tuple[Any, ...], *rest: Any, **options: Any) -> None:
        bases: dict[int, tuple[np.ndarray, Any]] = {}
        there = [self._move(host, bases) for host in hosts]
        getattr(self._comm, name)(*there, *rest, **options)
        for base, copy in bases.values():
            base[...] = self._arrays.to_host(copy).view(base.dtype).reshape(base.shape)

    def _move(self, host: Any, bases: dict[int, tuple[np.ndarray, Any]]) -> Any:
        if not isinstance(host, np.ndarray):
            return host
        base = host
        while isinstance(base.base, np.ndarray):
            base = base.base
        if id(base) not in bases:
            bases[id(base)] = base, self._arrays.from_host(base.reshape(-1).view(np.uint8))
        memory = bases[id(base)][1].data + (host.ctypes.data - base.ctypes.data)
        return self._arrays.xp.ndarray(host.shape, host.dtype, memory, host.strides)


class TeamOnDevice(_Carrier):
    """A team for host arrays."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if not callable(found):
            return found
        return lambda *given: self._carry(name, given)


class OnDevice(_Carrier):
    """A communicator for host arrays."""

    def make_teams(self, lines: Any) -> Any:
        team = self._comm.make_teams(lines)
        return None if team is None else TeamOnDevice(team, self._arrays)

    @property
    def position(self) -> int:
        return self._comm.position

    @position.setter
    def position(self, seq: int) -> None:
        self._comm.position = seq

    def allreduce(self, src: Any, dst: Any, op: ReduceOp, **options: Any) -> None:
        self._carry("allreduce", (src, dst), op, **options)

    def reduce_scatter(self, src: Any, dst: Any, op: ReduceOp, **options: Any) -> None:
        self._carry("reduce_scatter", (src, dst), op, **options)

    def allgather(self, src: Any, dst: Any, **options: Any) -> None:
        self._carry("allgather", (src, dst), **options)

    def broadcast(self, src: Any, dst: Any, **options: Any) -> None:
        self._carry("broadcast", (src, dst), **options)

    def scatter(self, src: Any, dst: Any, **options: Any) -> None:
        self._carry("scatter", (src, dst), **options)

    def gather(self, src: Any, dst: Any, **options: Any) -> None:
        self._carry("gather", (src, dst), **options)

    def all_to_all(self, src: Any, dst: Any, **options: Any) -> None:
        self._carry("all_to_all", (src, dst), **options)

    def send(self, buf: Any, worker: int) -> None:
        self._carry("send", (buf,), worker)

    def recv(self, buf: Any, worker: int) -> None:
        self._carry("recv", (buf,), worker)


class Rank:
    """One rank.

    Attributes:
        rank: Its number.
        arrays: Its GPU.
        flat: Its communicator with one group.
        grouped: The one with two, or the same again.
        watches: What watches over both, once started.
        failed: What they said has failed.
        slow: What they said takes long.
    """

    def __init__(self, rank: int, arrays: Any, flat: Any, grouped: Any) -> None:
        self.rank, self.arrays, self.flat, self.grouped = rank, arrays, flat, grouped
        self.watches: list[NcclWatch] = []
        self.failed: list[str] = []
        self.slow: list[str] = []

    def start(
        self, limits: TimeLimits | None = None, name: str = "nccl", host: str = "here"
    ) -> None:
        """Starts the library for both communicators."""
        hooks = NcclHooks(self.slow.append, limits or TimeLimits())
        for comm in dict.fromkeys((self.flat, self.grouped)):
            comm.loss = Loss(self.rank, self._lose)
            self.watches.append(start_nccl(comm, self.arrays, name, host, hooks))

    def _lose(self, text: str) -> None:
        self.failed.append(text)
        for watch in self.watches:
            watch.abort()

    def place(self) -> Place:
        """What scenarios take, with communicators for host arrays."""
        flat, grouped = (OnDevice(comm, self.arrays) for comm in (self.flat, self.grouped))
        return Place(self.rank, flat, grouped)  # type: ignore[arg-type]


class DeviceRanks:
    """Some ranks; rank N has GPU N unless told otherwise.

    Args:
        count: How many.
        groups: Of the second communicator.
        devices: The number of each rank's GPU.
    """

    def __init__(self, count: int, groups: int = 2, devices: list[int] | None = None) -> None:
        self._worlds = [LocalWorld(count)]
        if groups > 1:
            self._worlds.append(LocalWorld(count, groups))
        self._threads = [ThreadPoolExecutor(1, f"rank-{rank}") for rank in range(count)]
        self._numbers = devices or list(range(count))
        self._places: dict[int, Place] = {}
        self.ranks = [thread.submit(self._make, n).result() for n, thread in self._numbered()]

    def _numbered(self) -> list[tuple[int, ThreadPoolExecutor]]:
        return list(enumerate(self._threads))

    def _make(self, rank: int) -> Rank:
        arrays = GpuArrays(Device("cuda", self._numbers[rank]))
        arrays.attach()
        comms = [LocalCommunicator(rank, world) for world in self._worlds]
        return Rank(rank, arrays, comms[0], comms[-1])

    def each(self, act: Callable[[Rank], Any], timeout: float = 30.0) -> list[Any]:
        """Runs a function on all ranks at once; what each returned, or the error it raised."""

        def safely(rank: Rank) -> Any:
            try:
                return act(rank)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                return error

        pairs = zip(self._threads, self.ranks, strict=True)
        running = [thread.submit(safely, rank) for thread, rank in pairs]
        return [each.result(timeout) for each in running]

    def start(self, **options: Any) -> None:
        """Starts the library on all ranks."""
        assert self.each(lambda rank: rank.start(**options)) == [None] * len(self.ranks)

    def run(self, scenario: str, **arguments: Any) -> list[Any]:
        """Runs a scenario of `scenarios.py` on all ranks, on their GPUs."""
        import scenarios
        import scenarios_teams

        home = scenarios if hasattr(scenarios, scenario) else scenarios_teams
        errors: list[Exception] = []

        def act(rank: Rank) -> Any:
            place = self._places.setdefault(rank.rank, rank.place())
            try:
                return getattr(home, scenario)(place, **arguments)
            except Exception as error:
                errors.append(error)
                for world in self._worlds:
                    world.close()  # the others would wait for this one
                raise

        answers = self.each(act)
        if errors:
            raise errors[0]
        return answers

    def close(self) -> None:
        """Ends whatever still waits; the threads must not outlive the stand-in."""
        for rank in self.ranks:
            for watch in rank.watches:
                watch.close()
                watch.abort()
            for comm in (rank.flat, rank.grouped):
                comm.close(orderly=False)
        for world in self._worlds:
            world.close()
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
