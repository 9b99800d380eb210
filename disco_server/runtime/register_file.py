"""What a rank's registers hold; exactly one thread touches it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from disco_client.errors import RemoteFailure
from disco_client.wire.codec import FailureKind
from disco_server.limits import MAX_REGISTERS
from disco_server.runtime.errors import ArgumentRefused

__all__ = ["Poison", "Poisoned", "RegisterFile"]


@dataclass(frozen=True, slots=True)
class Poison:
    """Stands in a register for a result that never came to be, and says why."""

    failure: RemoteFailure
    kind: FailureKind


class Poisoned(Exception):
    """A command reads a poisoned register."""

    def __init__(self, poison: Poison) -> None:
        super().__init__(poison.failure.message)
        self.poison = poison


class RegisterFile:
    """Registers by number; it grows as far as the program's references do.

    Attributes:
        slots: The contents, for the one loop where a method call would matter.
        labels: What the flight recorder writes of a call of each register's function;
            as many as slots, for the same loop.
        unnamed: What it writes where the function's name is not known.
        poisoned: Whether there was ever poison in one of them.
    """

    __slots__ = ("_limit", "labels", "poisoned", "slots", "unnamed")

    def __init__(self, unnamed: int = 0, limit: int = MAX_REGISTERS) -> None:
        self._limit = limit
        self.slots: list[Any] = [None] * 64
        self.unnamed = unnamed
        self.labels = [unnamed] * 64
        self.poisoned = False

    def read(self, register: int) -> Any:
        """Returns the content; None where nothing was ever written.

        Raises:
            Poisoned: The register stands for a failed command.
        """
        try:
            value = self.slots[register]
        except IndexError:
            return None
        if type(value) is Poison:
            raise Poisoned(value)
        return value

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
            self.poisoned = True

    def release(self, registers: Iterable[int]) -> None:
        """Empties registers whose references died."""
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
