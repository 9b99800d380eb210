"""A rank's side of one communicator, and its operations as work on streams."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import astuple
from typing import Any

import numpy as np

from cupy._machine import faults
from cupy._machine.memory_map import blocks
from cupy._machine.nccl_hub import REMOTE_ERROR, Call
from cupy._machine.nccl_wire import Line, socket_name
from cupy._machine.queues import Op, Queue, ending

__all__ = ["Batch", "Link", "Part", "Refused"]


_GOODBYE = 2.0
"""How many seconds to wait at most until the hub has told the others."""


class Refused(Exception):
    """The communicator cannot be made.

    Attributes:
        status: The library's number of the error.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Link:
    """The connection of a rank to the hub, for one communicator.

    Args:
        address: Where the hub listens.
        introduction: The key of the communicator, the rank, the size, the GPU, the version.

    Attributes:
        async_error: The number of an error that came by itself; 0 while there is none.
        fault: What the ranks did to each other that the library would not have told.
        aborted: Whether this end was given up.

    Raises:
        Refused: There is no hub, or the ranks do not fit together.
    """

    def __init__(self, address: str, introduction: tuple[Any, ...]) -> None:
        self.async_error = 0
        self.fault: faults.StandinFault | None = None
        self.aborted = False
        self._results: dict[Any, Any] = {}
        self._places: dict[Any, tuple[Queue, int]] = {}
        self._needed: set[Any] = set()
        self._verdict: tuple[Any, ...] = ()
        self._left = False  # a rank has ended it, so nothing more can come of it
        self._gone = False  # the hub is, or has seen this rank go
        self._changed = threading.Condition()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(socket_name(address))
        except OSError as error:
            connection.close()
            raise Refused(REMOTE_ERROR, f"no hub at {address}: {error}") from None
        self._line = Line(connection)
        threading.Thread(target=self._read, daemon=True, name="standin-nccl-link").start()
        self._line.send(*introduction)

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

    def place(self, key: Any, queue: Queue, position: int) -> None:
        """Notes where an operation is on a stream, for when other ranks need it."""
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


class Part:
    """What one rank does in one operation.

    Args:
        link: Its communicator.
        key: What names the operation among all ranks.
        part: What names its contribution.
        call: What it asks for.
        source: Where its contribution lies, with the bytes; nothing if it has none.
        target: Where the result goes, with the bytes; nothing if it gets none.
        dead: Whether it never contributes.
    """

    def __init__(
        self,
        link: Link,
        key: Any,
        part: Any,
        call: Call,
        source: tuple[int, int] | None,
        target: tuple[int, int] | None,
        dead: bool,
    ) -> None:
        self.link = link
        self.key = key
        self._part = part
        self._call = call
        self._source = source
        self._target = target
        self._started = dead
        self._finished = False

    def start(self) -> None:
        """Contributes."""
        if self._started:
            return
        self._started = True
        content = b""
        if self._source is not None and self._source[1]:
            what = f"the send buffer of {self._call}"
            content = blocks.device_bytes(*self._source, what).tobytes()
        self.link.post(self.key, self._part, astuple(self._call), content)

    def finish(self) -> None:
        """Waits for the others, and takes the result."""
        if self._finished:
            return
        content, there = self.link.result(self.key, self._part)
        self._finished = True
        if there and self._target is not None and self._target[1]:
            what = f"the receive buffer of {self._call}"
            blocks.device_bytes(*self._target, what)[:] = np.frombuffer(content, np.uint8)


class Batch(Op):
    """What a rank puts on a stream at once: one operation, or those of a group."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def start(self) -> None:
        """Contributes to all."""
        for part in self._parts:
            part.start()

    def run(self, queue: Queue) -> None:
        """Contributes to all, and waits for all."""
        self.start()
        for part in self._parts:
            part.finish()
