"""Captured programs: recorded commands become one Python function.

A recorded command costs what its call costs: :func:`compile_program` writes one line
of Python for each step, in which registers are local variables, and lets Python
compile that. The text holds nothing from the wire but the decimal digits of integers;
everything else that a step needs stands in a table of constants. Where a value is
read for the last time, its variable is taken for another value or emptied, so a
program holds no more arrays at a time than it needs.

The first step that fails ends the run on its rank. Later steps would either read
what did not come to be, or enter collectives that the peers cannot count any more: a
rank that is done with a command is done with all collectives of that command,
whichever they are (see ``collectives.preflight``), and so every rank that waits in
one of them is released.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from disco_client.errors import EncodingError
from disco_client.wire.codec import EncodedProgram
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.steps import Flattener, Linker, Step

__all__ = ["UNWRITTEN", "Program", "StepFailed", "compile_program"]

UNWRITTEN: Any = object()
"""Stands for an output that no step has made."""

_FIRST_STEP_LINE = 3


class StepFailed(Exception):
    """A step of a program raised.

    Attributes:
        error: What it raised.
        step: Its number in the program, from 1.
        function: The name of the function that it called, if the program looked it up.
        register: The session's register from which the program took that function, or 0.
    """

    def __init__(self, error: Exception, step: int, function: str, register: int) -> None:
        super().__init__(f"step {step}: {error!r}")
        self.error = error
        self.step = step
        self.function = function
        self.register = register


class _Label(NamedTuple):
    """What a report says of a line: step, function, and the variable that held it."""

    step: int
    function: str
    register: int
    variable: str


class Program:
    """A compiled program; stands in a register.

    Attributes:
        definition: What it was made of.
        defined: The number of the command that defined it.
    """

    def __init__(
        self,
        definition: EncodedProgram,
        defined: int,
        entry: list[int],
        function: Callable[[list[Any], list[Any]], None],
        labels: list[_Label],
    ) -> None:
        self.definition = definition
        self.defined = defined
        self._entry = entry
        self._function = function
        self._labels = labels

    def run(self, args: list[Any], results: list[Any], read: Callable[[int], Any]) -> None:
        """Runs every step.

        Args:
            args: The inputs, in order; is emptied.
            results: Takes the outputs, in order, each as soon as it is there.
            read: Reads a register of the session.

        Raises:
            ArgumentRefused: There are not as many arguments or results as it has.
            Poisoned: Something that it captured is poisoned; no step has run.
            StepFailed: A step raised; the later ones have not run.
        """
        definition = self.definition
        self._check("inputs", len(definition.inputs), len(args))
        self._check("outputs", len(definition.outputs), len(results))
        # The function empties this list, so that an input lives no longer than needed.
        args += [read(register) for register in self._entry]
        try:
            self._function(args, results)
        except Exception as error:
            raise self._explain(error) from error

    def _check(self, what: str, wanted: int, given: int) -> None:
        if wanted != given:
            msg = f"expected {wanted} {what} of program {self.definition.name!r}, got {given}"
            raise ArgumentRefused(msg)

    def _explain(self, error: Exception) -> StepFailed:
        """Finds out by the line in the traceback which step failed."""
        trace = error.__traceback__
        trace = trace.tb_next if trace is not None else None
        line = trace.tb_lineno - _FIRST_STEP_LINE if trace is not None else -1
        if trace is None or not 0 <= line < len(self._labels):
            return StepFailed(error, 0, "", 0)
        label = self._labels[line]
        failed = _refusal_of(trace, label) or error.with_traceback(trace)
        return StepFailed(failed, label.step, label.function, label.register)

    def __repr__(self) -> str:
        return f"<Program {self.definition.name!r}, {len(self._labels)} steps>"


def _refusal_of(trace: TracebackType, label: _Label) -> ArgumentRefused | None:
    """What to say where the step's function was none, in the words of a single call."""
    if trace.tb_next is not None or not label.variable:
        return None
    function = trace.tb_frame.f_locals.get(label.variable)
    if callable(function):
        return None
    return ArgumentRefused(f"expected a function to call, got {function!r}")


def compile_program(definition: EncodedProgram, defined: int, linker: Linker) -> Program:
    """Makes recorded commands a function.

    Args:
        definition: The commands.
        defined: The number of the command that brought them.
        linker: What they are bound to.

    Raises:
        EncodingError: This is no program that a client writes.
        Poisoned: It calls a program that could not be defined.
    """
    if len(definition.captured) != len(definition.registers):
        msg = "expected as many captured registers as registers of the session"
        raise EncodingError(msg)

    def definition_of(register: int) -> EncodedProgram | None:
        program = linker.read(register)
        return program.definition if isinstance(program, Program) else None

    flat = Flattener(linker, definition_of)
    inputs = [flat.new_value() for _ in definition.inputs]
    bound = dict(zip(definition.inputs, inputs, strict=True))
    outputs = flat.add(definition, bound)
    entry = [*inputs, *flat.entry.values()]
    text, labels = _Writer(flat, entry, outputs).write()
    steps = [label.step for label in labels]
    # Stacks show the line, which is the step where no step takes several lines.
    several = "" if steps == list(range(1, len(steps) + 1)) else ", with others inside"
    code = compile(text, f"<program {definition.name}{several}>", "exec")
    exec(code, flat.constants)  # noqa: S102  (our own text; see the module's docstring)
    return Program(definition, defined, list(flat.entry), flat.constants["program"], labels)


class _Writer:
    """Writes the function: gives each value a variable from its first to its last use."""

    def __init__(self, flat: Flattener, entry: list[int], outputs: list[int]) -> None:
        self._flat = flat
        self._entry = entry
        self._outputs: dict[int, list[int]] = {}
        for index, value in enumerate(outputs):
            self._outputs.setdefault(value, []).append(index)
        self._last: dict[int, int] = {}
        for index, step in enumerate(flat.steps):
            for token in step.tokens:
                if isinstance(token, int):
                    self._last[token] = index
        self._names: dict[int, str] = {}
        self._free: list[str] = []
        self._variables = 0

    def write(self) -> tuple[str, list[_Label]]:
        """Returns the text, and for each of its steps what a report says of it."""
        lines = ["def program(frame, results):", f" {self._begin()}"]
        registers = {value: register for register, value in self._flat.entry.items()}
        labels: list[_Label] = []
        for index, step in enumerate(self._flat.steps):
            called = step.tokens[0]
            if isinstance(called, int) and len(step.tokens) > 1:
                function = self._flat.names.get(called, "")
                held = self._names[called]
                labels.append(_Label(step.number, function, registers.get(called, 0), held))
            else:
                labels.append(_Label(step.number, "", 0, ""))
            lines.append(f" {self._step(index, step)}")
        return "\n".join(lines) + "\n", labels

    def _begin(self) -> str:
        names = [self._take(value) for value in self._entry]
        parts = [f"[{', '.join(names)}] = frame", "frame.clear()"]
        for value, name in zip(self._entry, names, strict=True):
            parts += [f"results[{index}] = {name}" for index in self._outputs.get(value, ())]
            if value not in self._last:
                parts.append(f"{name} = None")
        return "; ".join(parts)

    def _step(self, index: int, step: Step) -> str:
        names, last = self._names, self._last
        text = "".join(names[token] if isinstance(token, int) else token for token in step.tokens)
        over = [
            names[value]
            for value in dict.fromkeys(t for t in step.tokens if isinstance(t, int))
            if last[value] == index
        ]
        self._free += over
        targets = [f"results[{place}] = " for place in self._outputs.get(step.result, ())]
        if step.result in last:
            targets.append(f"{self._take(step.result)} = ")
        unused = [name for name in over if name in self._free]
        emptied = f"; {' = '.join(unused)} = None" if unused else ""
        return f"{''.join(targets)}{text}{emptied}"

    def _take(self, value: int) -> str:
        if self._free:
            name = self._free.pop()
        else:
            self._variables += 1
            name = f"r{self._variables}"
        self._names[value] = name
        return name
