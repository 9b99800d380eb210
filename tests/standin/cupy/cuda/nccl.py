"""Collectives among devices, under the names of the library's binding of NCCL."""

from __future__ import annotations

import operator
import os
import signal
import threading
import time
from typing import Any

from cupy._machine import faults, nccl_faults, nccl_groups, races, settings
from cupy._machine.devices import machine
from cupy._machine.memory_map import DEVICE, blocks
from cupy._machine.nccl_carrier import Call, Carrier, Part, Refused, chosen, running_version
from cupy._machine.nccl_errors import (
    INVALID_ARGUMENT,
    REMOTE_ERROR,
    SYSTEM_ERROR,
    NcclError,
    nccl_error,
)
from cupy._machine.nccl_math import DTYPES, OPERATORS
from cupy._machine.queues import Queue

NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_BFLOAT16 = 9

available = True

__all__ = [
    "NCCL_AVG",
    "NCCL_BFLOAT16",
    "NCCL_CHAR",
    "NCCL_DOUBLE",
    "NCCL_FLOAT",
    "NCCL_FLOAT16",
    "NCCL_FLOAT32",
    "NCCL_FLOAT64",
    "NCCL_HALF",
    "NCCL_INT",
    "NCCL_INT8",
    "NCCL_INT32",
    "NCCL_INT64",
    "NCCL_MAX",
    "NCCL_MIN",
    "NCCL_PROD",
    "NCCL_SUM",
    "NCCL_UINT8",
    "NCCL_UINT32",
    "NCCL_UINT64",
    "NcclCommunicator",
    "NcclConfig",
    "NcclError",
    "available",
    "get_build_version",
    "get_unique_id",
    "get_version",
    "groupEnd",
    "groupStart",
]


def get_version() -> int:
    """The version of NCCL that runs."""
    return running_version()


def get_build_version() -> int:
    """The version of NCCL for which the library is built."""
    return 22707


def get_unique_id() -> bytes:
    """What the ranks of a new communicator find each other by."""
    return chosen().new_unique_id()


def groupStart() -> None:
    """Keeps this thread's operations back until the group ends."""
    nccl_groups.start()


def groupEnd() -> None:
    """Puts the operations of the group on their streams, all at once."""
    nccl_groups.end()


class NcclConfig:
    """How a communicator shall be made; it makes no difference here."""

    def __init__(self, split_share: int = 0) -> None:
        self.split_share = split_share


class NcclCommunicator:
    """One rank of a communicator; the device that is current when it is made is its device.

    Args:
        ndev: How many ranks there are.
        commId: The unique id.
        rank: Which rank this is.
        config: How to make it.

    Raises:
        NcclError: The ranks do not fit together.
    """

    def __init__(
        self, ndev: int, commId: bytes, rank: int, config: NcclConfig | None = None
    ) -> None:
        self._link: Carrier | None = None
        carriers = chosen()
        if not isinstance(commId, bytes):
            kind = type(commId).__name__
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {kind})")
        if len(commId) != carriers.ID_BYTES:
            raise ValueError(f"commId length {len(commId)} != {carriers.ID_BYTES}.")
        if nccl_faults.planned(rank, ndev) == "absent":
            raise nccl_error(SYSTEM_ERROR, "asked for")
        device = machine.current
        device.check()
        gpu = f"{settings.host_name()} {device.gpu.bus_id}"
        try:
            self._begin(carriers.join(commId, rank, ndev, gpu))
        except Refused as refused:
            raise nccl_error(refused.status, str(refused)) from None

    def _begin(self, link: Carrier) -> None:
        self._device = machine.current
        self._operations = 0
        self._link = link

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is None:
            return
        if link.outstanding() and not (link.async_error or link.fault):
            faults.tell("a communicator was dropped with work on its streams")
        link.close(orderly=True)

    @staticmethod
    def initAll(devices: int | list[int]) -> list[NcclCommunicator]:
        """The communicators of several devices of this process."""
        numbers = list(range(devices)) if isinstance(devices, int) else devices
        unique_id = get_unique_id()
        made: dict[int, Any] = {}

        def make(rank: int, device: int) -> None:
            machine.use(device)
            try:
                made[rank] = NcclCommunicator(len(numbers), unique_id, rank)
            except Exception as error:  # noqa: BLE001 - raised below
                made[rank] = error

        threads = [threading.Thread(target=make, args=pair) for pair in enumerate(numbers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for outcome in made.values():
            if isinstance(outcome, Exception):
                raise outcome
        return [made[rank] for rank in range(len(numbers))]

    @property
    def comm(self) -> int:
        """The address of NCCL's own object, 0 when it is gone."""
        return id(self._link) if self._link else 0

    def _alive(self) -> Carrier:
        if self._link is None:
            raise nccl_error(INVALID_ARGUMENT, "the communicator was destroyed or aborted")
        return self._link

    def device_id(self) -> int:
        """The number of its device in this process."""
        self._alive()
        return self._device.index

    def rank_id(self) -> int:
        """Which rank it is."""
        return self._alive().rank

    def size(self) -> int:
        """How many ranks there are."""
        return self._alive().size

    def check_async_error(self) -> None:
        """Raises what came by itself, if anything did."""
        link = self._alive()
        if link.fault is not None:
            raise faults.again(link.fault)
        if link.async_error:
            raise NcclError(link.async_error)

    def abort(self) -> None:
        """Gives it up: its operations end without a result, the other ranks see an error."""
        link, self._link = self._link, None
        if link is not None:
            link.close(orderly=False)

    def destroy(self) -> None:
        """Ends it when its operations are done."""
        link, self._link = self._link, None
        if link is None:
            return
        if not link.async_error and not link.fault:
            for queue, position in link.outstanding():
                queue.run(position)
        link.close(orderly=True)

    def commSplit(
        self, color: int, key: int, config: NcclConfig | None = None
    ) -> NcclCommunicator | None:
        """Makes communicators of the ranks of each color, in the order of the keys."""
        link = self._ready()
        if link.outstanding():
            raise faults.StandinFault("stand-in: a split of a communicator with work under way")
        try:
            there = link.split(color, key)
        except Refused as refused:
            raise nccl_error(refused.status, str(refused)) from None
        if there is None:
            return None
        made = NcclCommunicator.__new__(NcclCommunicator)
        made._begin(there)
        return made

    def _ready(self) -> Carrier:
        link = self._alive()
        self.check_async_error()
        self._device.check()
        return link

    def _put(
        self,
        call: Call,
        stream: int,
        source: tuple[int, int] | None,
        target: tuple[int, int] | None,
    ) -> None:
        """Puts an operation on a stream; sizes are in elements."""
        link = self._ready()
        machine.reap()
        if call.dtype not in DTYPES:
            raise nccl_error(INVALID_ARGUMENT, f"there is no dtype {call.dtype}")
        if not -1 <= call.root < link.size:
            raise nccl_error(INVALID_ARGUMENT, f"there is no rank {call.root}")
        queue = self._queue(stream)
        self._device.order(queue)
        source = self._range(queue, source, call, "send buffer")
        target = self._range(queue, target, call, "receive buffer")
        self._operations += 1
        fate = nccl_faults.planned(link.rank, link.size, self._operations)
        if fate == "fade":
            link.close(orderly=False)
            time.sleep(1)  # the fault itself: the peers see the connection closed this long before
        if fate in ("kill", "fade"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "async":
            link.fail(REMOTE_ERROR)
        part = Part(link, link.name(call), call, source, target, dead=bool(fate))
        nccl_groups.launch(queue, part)

    def _queue(self, stream: int) -> Queue:
        if stream in (0, 1, 2):
            return self._device.null
        queue = machine.queue(stream)
        if queue.device is not self._device:
            raise nccl_error(INVALID_ARGUMENT, "the stream is of another device")
        return queue

    def _range(
        self, queue: Queue, place: tuple[int, int] | None, call: Call, what: str
    ) -> tuple[int, int] | None:
        if place is None:
            return None
        address, size = place[0], place[1] * DTYPES[call.dtype].itemsize
        block = blocks.find(address, size) if address >= DEVICE else None
        if size and (block is None or block.device != self._device.index):
            detail = f"the {what} of {call} is not memory of device {self._device.index}"
            raise nccl_error(INVALID_ARGUMENT, detail)
        if size:
            races.access(queue, block, str(call), writes=what == "receive buffer")
        return address, size

    def _apart(self, call: Call, sent: tuple[int, int], got: tuple[int, int], shift: int) -> None:
        """Looks that buffers overlap only as NCCL allows: the smaller one `shift` elements in."""
        unit = DTYPES[call.dtype].itemsize if call.dtype in DTYPES else 1
        begin, end = sent[0], sent[0] + sent[1] * unit
        if begin < got[0] + got[1] * unit and got[0] < end and got[0] != begin + shift * unit:
            raise nccl_error(INVALID_ARGUMENT, f"the buffers of {call} overlap, but not in place")

    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None:
        """Combines the ranks' elements, for all."""
        call = Call("allReduce", _count(count), datatype, _operator(op))
        self._apart(call, (sendbuf, count), (recvbuf, count), 0)
        self._put(call, stream, (sendbuf, count), (recvbuf, count))

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        """Combines the ranks' elements, for one."""
        call = Call("reduce", _count(count), datatype, _operator(op), root)
        target = None
        if self._alive().rank == root:
            target = (recvbuf, count)
            self._apart(call, (sendbuf, count), target, 0)
        self._put(call, stream, (sendbuf, count), target)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int
    ) -> None:
        """Copies one rank's elements to all."""
        call = Call("broadcast", _count(count), datatype, "", root)
        source = None
        if self._alive().rank == root:
            source = (sendbuff, count)
            self._apart(call, source, (recvbuff, count), 0)
        self._put(call, stream, source, (recvbuff, count))

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """Copies one rank's elements to all, in place."""
        self.broadcast(buff, buff, count, datatype, root, stream)

    def reduceScatter(
        self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int
    ) -> None:
        """Combines the ranks' elements, and gives each rank its part."""
        call = Call("reduceScatter", _count(recvcount), datatype, _operator(op))
        link = self._alive()
        source = (sendbuf, recvcount * link.size)
        self._apart(call, source, (recvbuf, recvcount), link.rank * recvcount)
        self._put(call, stream, source, (recvbuf, recvcount))

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        """Puts the ranks' elements side by side, for all."""
        call = Call("allGather", _count(count), datatype)
        link = self._alive()
        target = (recvbuf, count * link.size)
        self._apart(call, (sendbuf, count), target, -link.rank * count)
        self._put(call, stream, (sendbuf, count), target)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Sends elements to a rank that receives them."""
        self._put(Call("send", _count(count), datatype, "", peer), stream, (sendbuf, count), None)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Receives elements from a rank that sends them."""
        self._put(Call("recv", _count(count), datatype, "", peer), stream, None, (recvbuf, count))


def _count(value: int) -> int:
    value = operator.index(value)
    if value < 0:
        raise OverflowError("can't convert negative value to size_t")
    return value


def _operator(op: int) -> str:
    if not 0 <= op < len(OPERATORS):
        raise nccl_error(INVALID_ARGUMENT, f"there is no operator {op}")
    return OPERATORS[op]
