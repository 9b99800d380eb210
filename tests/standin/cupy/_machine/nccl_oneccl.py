"""A carrier that somebody else wrote: oneCCL does what NCCL would, on the host's memory.

A process has one rank at most, and its calls wait until they are done. So each communicator has
two threads: one does what is put on streams, in their order, as a device would; the other one is in
the library, where it stays for good if a peer is gone. What oneCCL lacks is done here:

- *abort*: those who wait for a call go on, and the call is left behind;
- *destroy*: that of oneCCL ends the process by SIGABRT if the one that made the id has ended
  before, so its communicators last as long as the process;
- *counts and ranks*: `onecclCommCount` and `onecclCommUserRank` leave no numbers after a split, so
  the ranks exchange their colors and keys, by oneCCL, and count themselves;
- *keys of a split*: it orders by the old ranks whatever the keys are; where they change the order,
  the first rank of each color makes a unique id, which the old communicator passes on;
- *averages*: those are sums, divided afterwards;
- *asynchronous errors*: it has none; `async` of `nccl_faults` makes one on the rank itself;
- *hearing that a construction failed elsewhere*: the others wait for good, as with `absent`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from cupy._machine import faults, nccl_faults, oneccl_library
from cupy._machine.nccl_carrier import Call, Part, Refused
from cupy._machine.nccl_errors import INVALID_ARGUMENT, REMOTE_ERROR, SYSTEM_ERROR
from cupy._machine.nccl_math import DTYPES, OPERATORS, divided
from cupy._machine.oneccl_library import ID_BYTES, UniqueId
from cupy._machine.queues import Queue

__all__ = ["ID_BYTES", "OnecclLink", "join", "new_unique_id", "version"]

_INT8 = 0


def version() -> int:
    """Its version, as it counts."""
    number = ctypes.c_int()
    oneccl_library.call("GetVersion", ctypes.byref(number))
    return number.value


def new_unique_id() -> bytes:
    """A unique id, which says where this process listens."""
    made = UniqueId()
    oneccl_library.call("GetUniqueId", ctypes.byref(made))
    return bytes(made)


def join(unique_id: bytes, rank: int, size: int, gpu: str) -> OnecclLink:
    """Waits for the other ranks; see `Carriers`."""
    del gpu
    if nccl_faults.planned(rank, size) == "init":
        raise Refused(SYSTEM_ERROR, "asked for")
    if not 0 <= rank < size:
        raise Refused(INVALID_ARGUMENT, f"there cannot be a rank {rank} of {size}")
    handle = ctypes.c_void_p()
    unique = UniqueId.from_buffer_copy(unique_id)
    oneccl_library.call("CommInitRank", ctypes.byref(handle), size, unique, rank)
    return OnecclLink(handle, rank, size)


@dataclass(eq=False)
class _Job:
    """Something to be done in the library.

    Attributes:
        act: Does it; none where it is never done.
        done: Whether it is.
        error: What it raised.
    """

    act: Callable[[], None] | None
    done: bool = False
    error: Exception | None = None


class OnecclLink:
    """One rank of a communicator of oneCCL; see `Carrier`."""

    def __init__(self, handle: ctypes.c_void_p, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.async_error = 0
        self.fault: faults.StandinFault | None = None
        self._handle = handle
        self._aborted = False
        self._changed = threading.Condition()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._placed: SimpleQueue[tuple[Queue, int] | None] = SimpleQueue()
        self._places: dict[Queue, int] = {}
        for work in (self._call, self._go_on):
            threading.Thread(target=work, daemon=True, name=f"standin-oneccl-{rank}").start()

    # What happens on threads of its own -----------------------------------------------

    def _call(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                assert job.act is not None
                job.act()
            except Exception as error:  # noqa: BLE001 - raised by whoever waits for it
                job.error = error
            with self._changed:
                job.done = True
                self._changed.notify_all()

    def _go_on(self) -> None:
        while (place := self._placed.get()) is not None:
            queue, position = place
            queue.run(position)

    # What a carrier does -----------------------------------------------------------------

    def name(self, call: Call) -> None:
        """Nothing: operations are known by their order; see `Carrier`."""

    def place(self, part: Part, queue: Queue, position: int) -> None:
        """Lets the stream do it now: no peer could say that it waits; see `Carrier`."""
        if self._places.get(queue) != position:
            self._places[queue] = position
            self._placed.put((queue, position))

    def outstanding(self) -> list[tuple[Queue, int]]:
        """Where operations are that are not finished; see `Carrier`."""
        return [place for place in self._places.items() if place[0].completed < place[1]]

    def begin(self, parts: Sequence[Part]) -> _Job:
        """Hands operations to the library; see `Carrier`."""
        if any(part.dead for part in parts):
            return _Job(None)
        return self._enter(lambda: self._operate(parts))

    def finish(self, begun: _Job) -> None:
        """Waits until they are done; see `Carrier`."""
        with self._changed:
            self._changed.wait_for(lambda: begun.done or self._aborted)
        if begun.error is not None:
            raise begun.error

    def split(self, color: int, key: int) -> OnecclLink | None:
        """Makes communicators of the ranks of each color; see `Carrier`."""
        made: list[OnecclLink | None] = []
        job = self._enter(lambda: made.append(self._split(color, key)))
        self.finish(job)
        if not made:
            raise Refused(REMOTE_ERROR, "aborted during a split")
        return made[0]

    def fail(self, status: int) -> None:
        """Lets it have an asynchronous error; see `Carrier`."""
        self.async_error = status

    def close(self, *, orderly: bool) -> None:
        """Ends this side of it alone; see `Carrier`."""
        del orderly
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        self._jobs.put(None)
        self._placed.put(None)

    def _enter(self, act: Callable[[], None]) -> _Job:
        job = _Job(act)
        self._jobs.put(job)
        return job

    # What is done in the library -----------------------------------------------------------

    def _split(self, color: int, key: int) -> OnecclLink | None:
        asked = [tuple(each) for each in self._gather(np.array((color, key), np.int64)).tolist()]
        ranks = [rank for rank, (of, _) in enumerate(asked) if of == color]
        members = sorted(ranks, key=lambda rank: (asked[rank][1], rank))
        place, handle = members.index(self.rank), ctypes.c_void_p()
        if _in_order(asked):
            oneccl_library.call("CommSplit", self._handle, color, 0, ctypes.byref(handle), None)
        else:
            own = new_unique_id() if place == 0 and color >= 0 else bytes(ID_BYTES)
            ids = self._gather(np.frombuffer(own, np.uint8))
            if color >= 0:
                return join(ids[members[0]].tobytes(), place, len(members), "")
        return None if color < 0 else OnecclLink(handle, place, len(members))

    def _gather(self, mine: np.ndarray) -> np.ndarray:
        """What each rank brings, one row each."""
        every = np.empty((self.size, mine.nbytes), np.uint8)
        where = mine.ctypes.data, every.ctypes.data
        oneccl_library.call("AllGather", *where, mine.nbytes, _INT8, self._handle, None)
        return every.view(mine.dtype)

    def _operate(self, parts: Sequence[Part]) -> None:
        if len(parts) == 1:
            self._launch(parts[0])
        else:
            oneccl_library.call("GroupStart")
            try:
                for part in parts:
                    self._launch(part)
            finally:
                oneccl_library.call("GroupEnd")
        for part in parts:
            self._divide(part)

    def _launch(self, part: Part) -> None:
        call, sent, got = part.call, _address(part.sent()), _address(part.got())
        tail = self._handle, None
        operator = (OPERATORS.index(_summed(call.operator)),) if call.operator else ()
        root = (call.root,) if call.root >= 0 else ()
        function = call.kind[0].upper() + call.kind[1:]
        # What is no root's source is not read, but has to be somewhere.
        buffers = {"send": (sent,), "recv": (got,), "broadcast": (sent or got, got)}
        where = buffers.get(call.kind, (sent, got))
        oneccl_library.call(function, *where, call.count, call.dtype, *operator, *root, *tail)

    def _divide(self, part: Part) -> None:
        got = part.got()
        if part.call.operator == "avg" and got is not None:
            dtype = DTYPES[part.call.dtype]
            got.view(dtype)[:] = divided(got.view(dtype), self.size)


def _in_order(asked: Sequence[tuple[int, int]]) -> bool:
    """Whether the keys of each color leave its ranks in their order."""
    colors = {color for color, _ in asked if color >= 0}
    keys = ([key for of, key in asked if of == color] for color in colors)
    return all(each == sorted(each) for each in keys)


def _summed(operator: str) -> str:
    return "sum" if operator == "avg" else operator


def _address(memory: np.ndarray | None) -> int | None:
    return None if memory is None else memory.ctypes.data
