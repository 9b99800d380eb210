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
from disco_server.collectives.local import LocalGroups, LocalWorld
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


class GroupOnDevice:
    """A process group for host arrays, which lie on the GPU meanwhile."""

    def __init__(self, group: Any, arrays: GpuArrays) -> None:
        self._group, self._arrays = group, arrays

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        if not callable(found):
            return found
        return lambda *given, **options: self._carry(name, given, options)

    def _carry(self, name: str, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        bases: dict[int, tuple[np.ndarray, Any]] = {}
        there = [self._move(each, bases) for each in given]
        getattr(self._group, name)(*there, **options)
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


class OnDevice:
    """The process groups of a rank for host arrays."""

    def __init__(self, groups: Any, arrays: GpuArrays) -> None:
        self._groups, self._arrays = groups, arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._groups, name)

    @property
    def world(self) -> GroupOnDevice:
        return GroupOnDevice(self._groups.world, self._arrays)

    @property
    def group(self) -> GroupOnDevice:
        return GroupOnDevice(self._groups.group, self._arrays)

    @property
    def teams(self) -> TeamsOnDevice:
        return TeamsOnDevice(self._groups.teams, self._arrays)

    @property
    def position(self) -> int:
        return self._groups.position

    @position.setter
    def position(self, seq: int) -> None:
        self._groups.position = seq


class TeamsOnDevice:
    """The teams of a rank for host arrays."""

    def __init__(self, teams: Any, arrays: GpuArrays) -> None:
        self._teams, self._arrays = teams, arrays

    def __getattr__(self, name: str) -> Any:
        return getattr(self._teams, name)

    def make(self, lines: Any) -> Any:
        team = self._teams.make(lines)
        return None if team is None else GroupOnDevice(team, self._arrays)


class Rank:
    """One rank.

    Attributes:
        rank: Its number.
        arrays: Its GPU.
        flat: Its process groups in a session whose workers are not divided.
        grouped: Those where there are two groups, or the same again.
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
        """Starts the library for both."""
        hooks = NcclHooks(self.slow.append, limits or TimeLimits())
        for groups in dict.fromkeys((self.flat, self.grouped)):
            groups.loss = Loss(self.rank, self._lose)
            self.watches.append(start_nccl(groups, self.arrays, name, host, hooks))

    def _lose(self, text: str) -> None:
        self.failed.append(text)
        for watch in self.watches:
            watch.abort()

    def place(self) -> Place:
        """What scenarios take, with process groups for host arrays."""
        flat, grouped = (OnDevice(groups, self.arrays) for groups in (self.flat, self.grouped))
        return Place(self.rank, flat, grouped)  # type: ignore[arg-type]


class DeviceRanks:
    """Some ranks; rank N has GPU N unless told otherwise.

    Args:
        count: How many.
        groups: Of the second session.
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
        comms = [LocalGroups(rank, world) for world in self._worlds]
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
            for groups in (rank.flat, rank.grouped):
                groups.close(orderly=False)
        for world in self._worlds:
            world.close()
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
