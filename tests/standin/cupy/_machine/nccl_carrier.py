"""What carries the operations of communicators among their ranks: one interface.

`STANDIN_NCCL_CARRIER` chooses who does it: `hub`, which is the stand-in's own and the one unless
told otherwise (`nccl_link`), or `oneccl`, which is Intel's library on CPUs (`nccl_oneccl`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from cupy._machine import faults
from cupy._machine.memory_map import blocks
from cupy._machine.nccl_math import DTYPES
from cupy._machine.queues import Op, Queue

__all__ = ["Batch", "Call", "Carrier", "Carriers", "Part", "Refused", "chosen", "running_version"]

_MODULES = {"hub": "nccl_link", "oneccl": "nccl_oneccl"}


class Refused(Exception):
    """The communicator cannot be made, or an operation on it failed.

    Attributes:
        status: The library's number of the error.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Call:
    """What a rank asked for.

    Attributes:
        kind: The operation.
        count: Of how many elements, as the rank said it.
        dtype: The library's number of the dtype.
        operator: The name of what combines, or nothing.
        root: The rank from which or to which it goes; -1 if there is none.
    """

    kind: str
    count: int
    dtype: int
    operator: str = ""
    root: int = -1

    def __str__(self) -> str:
        parts = [f"count={self.count}", str(DTYPES.get(self.dtype, self.dtype))]
        parts += [self.operator] if self.operator else []
        parts += [f"root={self.root}"] if self.root >= 0 else []
        return f"{self.kind}({', '.join(parts)})"

    def matches(self, other: Call) -> bool:
        """Whether two ranks mean the same."""
        if {self.kind, other.kind} == {"send", "recv"}:
            return (self.count, self.dtype) == (other.count, other.dtype)
        return self == other


@dataclass(frozen=True, eq=False)
class Part:
    """What one rank does in one operation.

    Attributes:
        carrier: The rank's end of the communicator.
        name: What names the operation and this part of it, where the carrier needs that.
        call: What it asks for.
        source: Where its contribution lies, with the bytes; nothing if it has none.
        target: Where the result goes, with the bytes; nothing if it gets none.
        dead: Whether it never contributes.
    """

    carrier: Carrier
    name: Any
    call: Call
    source: tuple[int, int] | None
    target: tuple[int, int] | None
    dead: bool

    def sent(self) -> np.ndarray | None:
        """The bytes that it contributes; none where there are none."""
        return self._bytes(self.source, "send")

    def got(self) -> np.ndarray | None:
        """Where the bytes of the result go; none where there are none."""
        return self._bytes(self.target, "receive")

    def _bytes(self, place: tuple[int, int] | None, which: str) -> np.ndarray | None:
        if place is None or not place[1]:
            return None
        return blocks.device_bytes(*place, f"the {which} buffer of {self.call}")


class Carrier(Protocol):
    """One rank's end of one communicator.

    Attributes:
        rank: Which rank it is.
        size: How many there are.
        async_error: The number of an error that came by itself; 0 while there is none.
        fault: What the ranks did to each other that the library would not have told.
    """

    rank: int
    size: int
    async_error: int
    fault: faults.StandinFault | None

    def name(self, call: Call) -> Any:
        """What names the next operation among all ranks, and this rank's part of it."""
        ...

    def place(self, part: Part, queue: Queue, position: int) -> None:
        """Notes where an operation is on a stream."""
        ...

    def outstanding(self) -> list[tuple[Queue, int]]:
        """Where the operations are that are not finished."""
        ...

    def begin(self, parts: Sequence[Part]) -> Any:
        """Contributes to operations that go together, and waits for nobody; what to finish."""
        ...

    def finish(self, begun: Any) -> None:
        """Waits for the others and takes the results; without any after an abort.

        Raises:
            Exception: They do not fit together.
        """
        ...

    def split(self, color: int, key: int) -> Carrier | None:
        """Makes communicators of the ranks of each color; none where that is negative.

        Raises:
            Refused: That failed.
        """
        ...

    def fail(self, status: int) -> None:
        """Lets it have an asynchronous error."""
        ...

    def close(self, *, orderly: bool) -> None:
        """Ends it; if not orderly, waits for it end without a result."""
        ...


class Carriers(Protocol):
    """Makes the ends of communicators.

    Attributes:
        ID_BYTES: How long a unique id is.
    """

    ID_BYTES: int

    def version(self) -> int:
        """The version of the library, as it counts."""
        ...

    def new_unique_id(self) -> bytes:
        """What the ranks of a new communicator find each other by."""
        ...

    def join(self, unique_id: bytes, rank: int, size: int, gpu: str) -> Carrier:
        """Waits for the other ranks.

        Raises:
            Refused: They do not fit together, or one is gone.
        """
        ...


def chosen() -> Carriers:
    """Who carries what is made from now on.

    Raises:
        ValueError: There is none of that name.
    """
    name = os.environ.get("STANDIN_NCCL_CARRIER") or "hub"
    if name not in _MODULES:
        known = " or ".join(_MODULES)
        raise ValueError(f"expected {known} as STANDIN_NCCL_CARRIER, got {name}")
    return cast("Carriers", import_module(f"cupy._machine.{_MODULES[name]}"))


def running_version() -> int:
    """The version of NCCL that runs, as it counts."""
    return int(os.environ.get("STANDIN_NCCL_VERSION") or chosen().version())


class Batch(Op):
    """What a rank puts on a stream at once: one operation, or those of a group."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts: dict[Carrier, list[Part]] = {}
        for part in parts:
            self._parts.setdefault(part.carrier, []).append(part)
        self._begun: list[tuple[Carrier, Any]] | None = None

    def start(self) -> None:
        """Contributes to all."""
        if self._begun is None:
            self._begun = [
                (carrier, carrier.begin(parts)) for carrier, parts in self._parts.items()
            ]

    def run(self, queue: Queue) -> None:
        """Contributes to all, and waits for all."""
        self.start()
        for carrier, begun in self._begun or ():
            carrier.finish(begun)
