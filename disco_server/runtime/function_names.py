"""Which names the functions in a rank's registers have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from disco_client.wire.codec import Action
from disco_server.runtime.context import Worker
from disco_server.runtime.functions import NamedCall, registry, resolve
from disco_server.runtime.register_file import RegisterFile

__all__ = ["FunctionNames"]


class FunctionNames:
    """Finds functions by name, and remembers the names; for one rank's thread.

    Args:
        worker: The rank.
        registers: Its registers.
    """

    def __init__(self, worker: Worker, registers: RegisterFile) -> None:
        self._worker = worker
        self._registers = registers
        self._names: dict[int, tuple[object, str]] = {}
        allowed = {"patterns": worker.allow_modules, "functions": worker.allow_functions}
        self._resolve = partial(resolve, **allowed)

    def find(self, name: str) -> Callable[..., Any]:
        """Finds a function that was registered, or that an allowed module gives away.

        Raises:
            Exception: There is none, it is not allowed, or its module raised when imported.
        """
        func = self._resolve(name)
        if name not in registry():
            self._worker.audit("function imported", name, "")
        return func

    def put(self, register: int, func: object, name: str) -> None:
        """Writes a function into a register, under the name by which it was found."""
        self._registers.write(register, func)
        self._names[register] = func, name
        self.label(register, name)

    def label(self, register: int, name: str, action: int = Action.CALL_PACKED) -> None:
        """Tells the flight recorder what is called when this register's content is."""
        self._registers.labels[register] = self._worker.flight.label_of(action, name)

    def of(self, register: int) -> str:
        """The name of the function in a register, where it was found by name or has one."""
        slots = self._registers.slots
        held = slots[register] if register < len(slots) else None
        if isinstance(held, NamedCall):
            return held.name
        func, name = self._names.get(register, (None, ""))
        # The register may hold another function by now.
        return name if register and self._registers.holds(register, func) else ""
