"""The stand-in's own carrier: each rank has a connection to a hub for each communicator."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from cupy._machine import faults, nccl_faults
from cupy._machine.nccl_carrier import Call, Part, Refused, running_version
from cupy._machine.nccl_errors import INVALID_ARGUMENT, REMOTE_ERROR, SYSTEM_ERROR
from cupy._machine.nccl_hub import hub_address, new_unique_id
from cupy._machine.nccl_wire import ID_BYTES, Line, decode_id, socket_name
from cupy._machine.queues import Queue, ending

__all__ = ["ID_BYTES", "Link", "join", "new_unique_id", "version"]


_GOODBYE = 2.0
"""How many seconds to wait at most until the hub has told the others."""


def version() -> int:
    """The version of NCCL that it pretends to be."""
    return 23203


def join(unique_id: bytes, rank: int, size: int, gpu: str) -> Link:
    """Waits for the other ranks; see `Carriers`."""
    try:
        address, key = decode_id(unique_id)
    except ValueError as error:
        raise Refused(INVALID_ARGUMENT, str(error)) from None
    return _join(address, key, rank, size, gpu)


def _join(address: str, key: str, rank: int, size: int, gpu: str) -> Link:
    fails = nccl_faults.planned(rank, size) == "init"
    link = Link(address, key, rank, size, gpu, fails=fails)
    if fails:
        link.close(orderly=False)
        raise Refused(SYSTEM_ERROR, "asked for")
    link.await_ready()
    return link


class Link:
    """The connection of a rank to the hub, for one communicator; see `Carrier`.

    Args:
        address: Where the hub listens.
        key: The name of the communicator.
        rank: Which rank this is.
        size: How many there are.
        gpu: Its GPU.
        fails: Whether it tells the others that its construction failed.

    Attributes:
        aborted: Whether this end was given up.

    Raises:
        Refused: There is no hub, or the ranks do not fit together.
    """

    def __init__(
        self, address: str, key: str, rank: int, size: int, gpu: str, *, fails: bool = False
    ) -> None:
        self.rank, self.size = rank, size
        self.async_error = 0
        self.fault: faults.StandinFault | None = None
        self.aborted = False
        self._gpu = gpu
        self._sequence = 0
        self._pairs: dict[tuple[int, int, str], int] = {}
        self._results: dict[Any, Any] = {}
        self._places: dict[Any, tuple[Queue, int]] = {}
        self._needed: set[Any] = set()
        self._verdict: tuple[Any, ...] = ()
        self._left = False  # a rank has ended it, so nothing more can come of it
        self._gone = False  # the hub is, or has seen this rank go
        self._changed = threading.Condition()
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(True)  # whatever socket.setdefaulttimeout says
        try:
            connection.connect(socket_name(address))
        except OSError as error:
            connection.close()
            raise Refused(REMOTE_ERROR, f"no hub at {address}: {error}") from None
        self._line = Line(connection)
        threading.Thread(target=self._read, daemon=True, name="standin-nccl-link").start()
        shown = "" if fails else gpu
        self._line.send(key, rank, size, shown, running_version(), os.getpid())

    def await_ready(self) -> None:
        """Waits until all ranks have come.

        Raises:
            Refused: They do not fit together, or one is gone.
        """
        with self._changed:
            while not self._verdict and not self._gone:
                self._changed.wait()
        if not self._verdict:
            raise Refused(REMOTE_ERROR, "the hub is gone")
        if self._verdict[0] == "refused":
            self.close(orderly=False)
            raise Refused(*self._verdict[1:])

    def _read(self) -> None:
        while (message := self._line.receive()) is not None:
            with self._changed:
                self._take(*message)
                self._changed.notify_all()
        with self._changed:
            self._gone = True
            if not self._left:
                self.async_error = self.async_error or REMOTE_ERROR
            self._changed.notify_all()

    def _take(self, what: str, *details: Any) -> None:
        if what in ("ready", "refused"):
            self._verdict = (what, *details)
        elif what == "done":
            key, part, content = details
            self._results[key, part] = content
        elif what == "need":
            (key,) = details
            self._needed.add(key)
            self._help(key)
        elif what == "lost":
            self.async_error = REMOTE_ERROR
        elif what in ("left", "bye"):
            self._left = True
            self._gone = what == "bye"
        else:
            self.fault = faults.StandinFault(f"stand-in: {details[0]}")
            faults.tell(details[0])

    def name(self, call: Call) -> Any:
        """What names the next operation, and this rank's part of it; see `Carrier`."""
        if call.kind not in ("send", "recv"):
            return ("all", self._next()), self.rank
        pair = (self.rank, call.root) if call.kind == "send" else (call.root, self.rank)
        at = (*pair, call.kind)
        self._pairs[at] = self._pairs.get(at, 0) + 1
        return ("p2p", *pair, self._pairs[at]), call.kind

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def place(self, part: Part, queue: Queue, position: int) -> None:
        """Notes where an operation is on a stream, for when other ranks need it."""
        key, _ = part.name
        with self._changed:
            self._places[key] = queue, position
            if key in self._needed:
                self._help(key)

    def _help(self, key: Any) -> None:
        """Contributes to an operation for which another rank waits, but shows no result."""
        if key in self._places:
            queue, position = self._places[key]
            self._needed.discard(key)
            threading.Thread(target=queue.start, args=(position,), daemon=True).start()

    def outstanding(self) -> list[tuple[Queue, int]]:
        """Where the operations are that are not finished."""
        with self._changed:
            return list(self._places.values())

    def begin(self, parts: Sequence[Part]) -> list[Part]:
        """Contributes to operations; see `Carrier`."""
        for part in parts:
            if not part.dead:
                content = part.sent()
                raw = b"" if content is None else content.tobytes()
                self.post(*part.name, astuple(part.call), raw)
        return list(parts)

    def finish(self, begun: list[Part]) -> None:
        """Waits for the others, and takes the results; see `Carrier`."""
        while begun:
            content, there = self.result(*begun[0].name)
            target = begun.pop(0).got()
            if there and target is not None:
                target[:] = np.frombuffer(content, np.uint8)

    def split(self, color: int, key: int) -> Link | None:
        """Makes communicators of the ranks of each color; see `Carrier`."""
        name = ("all", self._next())
        self.post(name, self.rank, (color, key, hub_address() if color >= 0 else ""), b"")
        group, there = self.result(name, self.rank, patient=False)
        if not there:
            raise Refused(REMOTE_ERROR, "a rank was lost during a split")
        return None if group is None else _join(*group, self._gpu)

    def post(self, key: Any, part: Any, asked: tuple[Any, ...], content: bytes) -> None:
        """Contributes to an operation; messages have nothing but what Python has itself."""
        self._line.send("post", key, part, asked, content)

    def result(self, key: Any, part: Any, *, patient: bool = True) -> tuple[Any, bool]:
        """Waits for what is due of an operation; forever, unless aborted or faulty.

        Args:
            key: What names the operation.
            part: What names the contribution.
            patient: Whether to go on waiting after an asynchronous error, as work on a
                stream does.

        Returns:
            The result, and whether there is one: there is none after an abort.

        Raises:
            StandinFault: The ranks do not fit together.
        """
        with self._changed:
            while (key, part) not in self._results:
                if self.fault is not None:
                    raise faults.again(self.fault)
                if self.aborted or (self.async_error and not patient):
                    return None, False
                self._changed.wait()
            self._places.pop(key, None)
            self._needed.discard(key)
            return self._results.pop((key, part)), True

    def fail(self, status: int) -> None:
        """Lets it have an asynchronous error."""
        with self._changed:
            self.async_error = status
            self._changed.notify_all()

    def close(self, *, orderly: bool) -> None:
        """Ends it; if not orderly, the other ranks see that something is wrong."""
        with self._changed:
            self.aborted = True
            self._changed.notify_all()
        if orderly and self._line.send("bye"):
            with self._changed:
                self._changed.wait_for(lambda: self._gone, 0 if ending.is_set() else _GOODBYE)
        with contextlib.suppress(OSError):
            self._line.close()
