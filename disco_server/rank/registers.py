"""What a rank's registers hold; exactly one thread touches it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.wire.values import is_array
from disco_server.devices.base import on_device
from disco_server.devices.foreign import is_foreign
from disco_server.rank.errors import ArgumentRefused, ContentLost
from disco_server.settings import MAX_REGISTERS

if TYPE_CHECKING:
    from disco_client.errors import RemoteFailure
    from disco_client.wire.codec import FailureKind

__all__ = ["Poison", "Poisoned", "RegisterFile", "check_call", "check_fits", "is_any_array"]


_ALONE = 2
"""How often a register's array is referred to if nobody else has it: there, and to ask this."""

_LENT = ("UnownedMemory", "DLPackMemory")
"""cupy's classes of memory that is something else's."""


@dataclass(frozen=True, slots=True)
class Poison:
    """Stands in a register for a result that was never made, and holds the cause.

    Attributes:
        failure, kind: The first cause.
        array: What a failed collective or copy should have overwritten: the next one that
            overwrites all of it clears the poison.
        lost: Whether it stands for what workers before these held: a command that reads
            it is not left out for a failure that is known, but fails itself.
    """

    failure: RemoteFailure
    kind: FailureKind
    array: Any = field(default=None, compare=False)
    lost: bool = False

    @property
    def cause(self) -> Poison:
        """The same for another register."""
        return self if self.array is None else Poison(self.failure, self.kind)


class Poisoned(Exception):
    """A command reads a poisoned register."""

    def __init__(self, poison: Poison) -> None:
        super().__init__(poison.failure.message)
        self.poison = poison


def _why_unreadable(poison: Poison) -> Poisoned | ContentLost:
    """What a command raises that reads a poisoned register."""
    return ContentLost(poison.failure.message) if poison.lost else Poisoned(poison)


class RegisterFile:
    """Registers by number; it grows as far as the program's references do.

    Attributes:
        slots: The contents, for the one loop where a method call would matter.
        labels: What the flight recorder records for a call of each register's function;
            as many as slots, for the same loop.
        unnamed: What it records where the function's name is not known.
        poisoned: Those that may hold poison.
        suspect: Whether calls are checked before they begin: there was ever poison in one of
            them, or an interrupt.
    """

    __slots__ = ("_limit", "labels", "poisoned", "slots", "suspect", "unnamed")

    def __init__(self, unnamed: int = 0, limit: int = MAX_REGISTERS) -> None:
        self._limit = limit
        self.slots: list[Any] = [None] * 64
        self.unnamed = unnamed
        self.labels = [unnamed] * 64
        self.poisoned: set[int] = set()
        self.suspect = False

    def poison(self) -> Iterator[tuple[int, Poison]]:
        """The registers that hold poison, and that."""
        for register in [*self.poisoned]:
            held = self.peek(register)
            if type(held) is Poison:
                yield register, held
            else:
                self.poisoned.discard(register)

    def read(self, register: int) -> Any:
        """Returns the content; None where nothing was ever written.

        Raises:
            Poisoned: The register stands for a failed command.
            ContentLost: It stands for what workers before these held.
        """
        try:
            value = self.slots[register]
        except IndexError:
            return None
        if type(value) is Poison:
            raise _why_unreadable(value)
        return value

    def peek(self, register: int) -> Any:
        """Returns what is there, poison as such; None where nothing was ever written."""
        return self.slots[register] if register < len(self.slots) else None

    def holds(self, register: int, value: object) -> bool:
        """Whether this very object is in a register."""
        return register < len(self.slots) and self.slots[register] is value

    def reserve(self, register: int) -> None:
        """Makes sure that there is a register of this number.

        Raises:
            ArgumentRefused: The number is beyond what the node's settings allow.
        """
        missing = register + 1 - len(self.slots)
        if missing > 0:
            if register >= self._limit:
                msg = (
                    f"expected a session with less than {self._limit} references at a time, got "
                    f"register {register}; drop some, or start disco-worker with a larger "
                    "--max-registers"
                )
                raise ArgumentRefused(msg)
            self.slots.extend([None] * (missing + 63))
            self.labels.extend([self.unnamed] * (missing + 63))

    def write(self, register: int, value: Any) -> None:
        """Replaces the content.

        Raises:
            ArgumentRefused: The number is beyond what the node's settings allow.
        """
        self.reserve(register)
        self.slots[register] = value
        if type(value) is Poison:
            self.poisoned.add(register)
            self.suspect = True

    def spoil(self, register: int, cause: Poison) -> None:
        """Poisons what should have been written into; the array stays, to be overwritten.

        Where there is poison already, its cause came first.
        """
        held = self.peek(register)
        if type(held) is not Poison:
            array = held if is_any_array(held) else None
            self.write(register, Poison(cause.failure, cause.kind, array, cause.lost))

    def to_overwrite(self, register: int) -> Any:
        """Returns the content for a caller that overwrites all of it.

        Raises:
            Poisoned: The register stands for a failed command, and has no array.
        """
        held = self.peek(register)
        if type(held) is Poison and held.array is not None:
            return held.array
        return self.read(register)

    def sole_array(self, register: int, kind: type[Any]) -> Any:
        """The array of a register if nobody else has it or its memory, so it may be overwritten.

        Args:
            register: The number.
            kind: The class of this worker's arrays.

        Returns:
            None where another register, a view or a transfer under way may have it too.
        """
        slots = self.slots
        if register >= len(slots) or type(slots[register]) is not kind:
            return None
        if sys.getrefcount(slots[register]) != _ALONE:
            return None
        if slots[register].base is not None and sys.getrefcount(slots[register].base) != _ALONE:
            return None
        held = slots[register]
        writable = on_device(held) or held.flags.writeable
        return held if writable and held.flags.c_contiguous and _owns(held) else None

    def release(self, registers: Iterable[int]) -> None:
        """Empties registers whose references were deleted."""
        slots, labels = self.slots, self.labels
        size = len(slots)
        for register in registers:
            if register < size:
                slots[register] = None
                labels[register] = self.unnamed

    def clear(self) -> None:
        """Empties all registers."""
        self.slots[:] = [None] * len(self.slots)

    def statistics(self) -> tuple[int, int]:
        """Returns how many registers there are, and how many hold something."""
        return len(self.slots), sum(value is not None for value in self.slots)


def _owns(array: Any) -> bool:
    """Whether memory goes with an array, or with the one of which it is a view.

    Where it is another library's, or a buffer's, others may have it unseen.
    """
    base = array if array.base is None else array.base
    if on_device(base):
        return type(base.data.mem).__name__ not in _LENT
    return type(base) is np.ndarray and base.flags.owndata


def is_any_array(value: object) -> bool:
    """Whether this is an array, on the host or on a device, of whichever library."""
    return is_array(value) or on_device(value) or is_foreign(value)


def check_fits(held: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuses a copy between arrays of other sizes or dtypes; shapes may differ.

    Args:
        held: What the register holds, an array of another library as numpy's or cupy's.
        shape: Of the host array.
        dtype: Of the host array.

    Raises:
        ArgumentRefused: The register holds no array, or another size or dtype.
    """
    if not is_any_array(held):
        msg = f"expected an array in the register, got {type(held).__name__}"
        raise ArgumentRefused(msg)
    if held.size != math.prod(shape) or held.dtype != dtype:
        msg = (
            f"the host array is {dtype}{list(shape)}, the worker's is "
            f"{held.dtype}{list(held.shape)}; sizes and dtypes must be the same"
        )
        raise ArgumentRefused(msg)


def check_call(register: int, function: Any, args: Iterable[Any] = ()) -> None:
    """Makes sure that a call can be made.

    Args:
        register: Where the function is.
        function: What is there.
        args: What it is called with.

    Raises:
        Poisoned: It reads the result of a command that failed; the first of them.
        ContentLost: It reads what workers before these held.
        ArgumentRefused: That is no function.
    """
    for value in (function, *args):
        if isinstance(value, Poison):
            raise _why_unreadable(value)
    if not callable(function):
        msg = f"expected a function in register {register}, got {function!r}"
        raise ArgumentRefused(msg)
