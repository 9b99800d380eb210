"""The recorded commands of a program, and of those that it calls, in one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from disco_client.errors import EncodingError
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedCommand,
    EncodedProgram,
    EncodedValue,
    decode_value,
)
from disco_client.wire.values import MAX_DEPTH, MAX_STEPS

__all__ = ["Flattener", "Linker", "Step"]

Token: TypeAlias = str | int
"""A piece of a step's text, or the value whose variable belongs there."""

_PlainCall: TypeAlias = tuple[int, int, list[int]]
"""Function, result and arguments, as in the column of a batch."""


class Step(NamedTuple):
    """One line of a program: what it computes, and for which recorded command."""

    tokens: list[Token]
    result: int
    number: int


@dataclass(frozen=True)
class Linker:
    """What a program is bound to on its rank.

    Attributes:
        worker_id: The rank.
        read: Reads a register of the session.
        resolve: Finds a function by name.
        copy_into: Copies an encoded array into one that a register holds.
        place: Brings an array that came with the program to the rank's device.
    """

    worker_id: int
    read: Callable[[int], Any]
    resolve: Callable[[str], Any]
    copy_into: Callable[[Any, EncodedValue], None]
    place: Callable[[Any], Any] = lambda array: array


@dataclass
class Flattener:
    """Puts the steps of a program, and of those that it calls, into one row.

    A value is what one step makes, an input, or a captured register; it has a number.

    Attributes:
        linker: What the program is bound to.
        definition_of: Finds the program in a register of the session; None where
            there is none.
        steps: The row.
        entry: The session's registers that are read at the start, with their values.
        names: The values that are functions, by the names they were found under.
        constants: What the text refers to by a name.
    """

    linker: Linker
    definition_of: Callable[[int], EncodedProgram | None]
    steps: list[Step] = field(default_factory=list[Step])
    entry: dict[int, int] = field(default_factory=dict[int, int])
    names: dict[int, str] = field(default_factory=dict[int, str])
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    _values: int = 0

    def new_value(self) -> int:
        """Numbers one more value."""
        self._values += 1
        return self._values

    def add(self, definition: EncodedProgram, bound: dict[int, int], caller: int = 0) -> list[int]:
        """Appends the steps of a program.

        Args:
            definition: The program.
            bound: Its registers that have a value already, with that; grows.
            caller: The step that calls it, or 0.

        Returns:
            The values of its outputs.
        """
        for register, outside in zip(definition.captured, definition.registers, strict=True):
            if outside not in self.entry:
                self.entry[outside] = self.new_value()
            bound[register] = self.entry[outside]
        number = 0
        for payload in definition.batches:
            for command in _commands(EncodedBatch.FromString(payload)):
                number += 1
                if isinstance(command, tuple):
                    self._add_plain(command, bound, caller or number)
                else:
                    self._add_command(command, bound, caller or number)
        return [_value_of(register, bound) for register in definition.outputs]

    def _append(self, tokens: list[Token], number: int) -> int:
        if len(self.steps) >= MAX_STEPS:
            msg = f"expected a program of at most {MAX_STEPS} steps, this one has more"
            raise EncodingError(msg)
        value = self.new_value()
        self.steps.append(Step(tokens, value, number))
        return value

    def _add_plain(self, call: _PlainCall, bound: dict[int, int], number: int) -> None:
        func, reg, args = call
        tokens: list[Token] = [_value_of(func, bound), "("]
        for arg in args:
            tokens += (_value_of(arg >> 1, bound) if arg & 1 else str(arg >> 1), ", ")
        tokens.append(")")
        bound[reg] = self._append(tokens, number)

    def _add_command(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        action = command.action
        if action == Action.CALL_PACKED:
            tokens: list[Token] = [_value_of(command.func, bound), "("]
            for arg in command.args:
                tokens += (*self._expression(arg, bound), ", ")
            bound[command.reg] = self._append([*tokens, ")"], number)
        elif action == Action.GET_GLOBAL_FUNC:
            name = str(decode_value(command.args[0]))
            find = self._constant(self.linker.resolve)
            value = self._append([f"{find}({self._constant(name)})"], number)
            self.names[value] = name
            bound[command.reg] = value
        elif action == Action.COPY_TO_WORKER0:
            self._add_copy(command, bound, number)
        elif action == Action.RUN_PROGRAM:
            self._add_run(command, bound, number)
        else:
            msg = f"expected an action that a program may hold in step {number}, got {action}"
            raise EncodingError(msg)

    def _add_copy(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        array, is_new = command.args[0], command.args[1].bool
        mine = command.worker_plus_one in (0, self.linker.worker_id + 1)
        if is_new:
            tokens: list[Token] = self._expression(array, bound) if mine else ["None"]
            bound[command.reg] = self._append(tokens, number)
        elif mine:
            copy, source = self._constant(self.linker.copy_into), self._constant(array)
            self._append([f"{copy}(", _value_of(command.reg, bound), f", {source})"], number)

    def _add_run(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        """Puts the steps of a program here that this one calls."""
        value = _value_of(command.func, bound)
        outside = next((reg for reg, held in self.entry.items() if held == value), 0)
        definition = self.definition_of(outside)
        if definition is None:
            msg = f"expected a program in the register that step {number} runs"
            raise EncodingError(msg)
        inner = {
            register: self._value_for(arg, bound, number)
            for register, arg in zip(definition.inputs, command.args, strict=True)
        }
        outputs = self.add(definition, inner, number)
        bound.update(zip(command.results, outputs, strict=True))

    def _value_for(self, arg: EncodedValue, bound: dict[int, int], number: int) -> int:
        """The value of an argument; one that is no register becomes a step of its own."""
        if arg.WhichOneof("kind") == "reg":
            return _value_of(arg.reg, bound)
        return self._append(self._expression(arg, bound), number)

    def _expression(
        self, value: EncodedValue, bound: dict[int, int], depth: int = 0
    ) -> list[Token]:
        """The text of an argument; what can be changed is made anew in each run."""
        kind = value.WhichOneof("kind")
        if kind == "reg":
            return [_value_of(value.reg, bound)]
        if kind == "int":
            return [str(value.int)]
        if kind == "array":
            return [f"{self._constant(self.linker.place(decode_value(value)))}.copy()"]
        if kind not in {"list", "map"}:
            return [self._constant(decode_value(value))]
        if depth >= MAX_DEPTH:
            msg = f"lists and maps may nest {MAX_DEPTH} deep, these go deeper"
            raise EncodingError(msg)
        tokens: list[Token] = []
        if kind == "list":
            for item in value.list.items:
                tokens += (*self._expression(item, bound, depth + 1), ", ")
            return ["[", *tokens, "]"]
        for key, item in value.map.items.items():
            inside = self._expression(item, bound, depth + 1)
            tokens += (f"{self._constant(key)}: ", *inside, ", ")
        return ["{", *tokens, "}"]

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def _commands(batch: EncodedBatch) -> Iterator[_PlainCall | EncodedCommand]:
    """The commands of a batch in order; see commands.proto for its column."""
    if not batch.calls:
        yield from batch.commands
        return
    calls, others, at = list(batch.calls), iter(batch.commands), 0
    while at < len(calls):
        if calls[at] < 0:
            command = next(others, None)
            if command is None:
                break
            yield command
            at += 1
            continue
        head = at + 1 + calls[at]
        if head + 3 > len(calls) or not 0 <= calls[head + 2] <= len(calls) - head - 3:
            break
        func, reg, count = calls[head : head + 3]
        at = head + 3 + count
        yield func, reg, calls[head + 3 : at]
    if at != len(calls):
        msg = f"cannot read the recorded commands: their column breaks off at {at}"
        raise EncodingError(msg)


def _value_of(register: int, bound: dict[int, int]) -> int:
    value = bound.get(register)
    if value is None:
        msg = f"a step reads register {register}, which no earlier one has written"
        raise EncodingError(msg)
    return value
