"""Captured programs: recorded commands become one Python function.

A recorded command costs what its call costs: :func:`compile_program` writes one line
of Python for each step, in which registers are local variables, and lets Python
compile that. The text holds nothing from the wire but the decimal digits of integers;
everything else that a step needs stands in a table of constants. Where a value is
read for the last time, its variable is taken for another value or emptied, so a
program holds no more arrays at a time than it needs.

The first step that fails ends the run on its rank. Later steps would either read
what was not made, or enter collectives that the peers cannot count any more: a
rank that is done with a command is done with all collectives of that command,
whichever they are (see ``collectives.preflight``), and so every rank that waits in
one of them is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from disco_client.clock import monotonic, monotonic_ns
from disco_client.errors import EncodingError
from disco_client.text import many
from disco_client.wire.batch import PlainCall, parts_of, read_batch
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedCommand,
    EncodedProgram,
    EncodedValue,
    decode_value,
    inner_values,
    record_of,
    split_keywords,
)
from disco_client.wire.reports import ACTION_NAMES, what_is_done
from disco_client.wire.values import MAX_DEPTH, MAX_STEPS
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.signals import CALL_ENDS

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "UNWRITTEN",
    "CompiledProgram",
    "Flattener",
    "Linker",
    "Overwritten",
    "ProgramFlow",
    "ProgramStep",
    "StepFailed",
    "StepTimes",
    "compile_program",
]


# The recorded commands of a program, and of those that it calls, in one sequence.


Token: TypeAlias = str | int
"""A piece of a step's text, or the value whose variable belongs there."""

_ELSEWHERE = "left to other workers"


class ProgramStep(NamedTuple):
    """One line of a program: what it computes, and for which recorded command.

    Attributes:
        tokens: The text of what it computes, with values in it.
        result: The value that it makes.
        number: The recorded command.
        within: The text before it, of a block in which it runs; mostly empty.
        what: What it does, in words, where it calls nothing.
    """

    tokens: list[Token]
    result: int
    number: int
    within: str = ""
    what: str = ""


@dataclass(frozen=True)
class Linker:
    """What a program is bound to on its rank.

    Attributes:
        worker_id: The rank.
        read: Reads a register of the session.
        resolve: Finds a function by name.
        copy_into: Copies an encoded array into one that a register holds.
        only: Makes a block in which only these workers take part in collectives.
        place: Copies an array that was sent with the program to the rank's device.
        destination: Returns which argument of a call a function overwrites, by the session's
            register in which it is, or its name, the number of arguments, and the names of
            the last ones; -1 for none.
        finished: Returns what a call has returned, or where that has yet to be computed, what
            comes of it.
    """

    worker_id: int
    read: Callable[[int], Any]
    resolve: Callable[[str], Any]
    copy_into: Callable[[Any, EncodedValue], None]
    only: Callable[[Sequence[int]], AbstractContextManager[None]] = lambda _workers: nullcontext()
    place: Callable[[Any], Any] = lambda array: array
    destination: Callable[[int | str, int, Sequence[str]], int] = lambda _func, _count, _names: -1
    finished: Callable[[Any], Any] = lambda result: result


@dataclass
class Flattener:
    """Puts the steps of a program, and of those that it calls, into one sequence.

    A value is what one step makes, an input, or a captured register; it has a number.

    Attributes:
        linker: What the program is bound to.
        definition_of: Finds the program in a register of the session; None where
            there is none.
        steps: The sequence.
        entry: The session's registers that are read at the start, with their values.
        names: The values that are functions, by the names they were found under.
        written: The steps, by their index in the sequence, that overwrite a value as a whole,
            each with the value.
        constants: What the text refers to by a name.
    """

    linker: Linker
    definition_of: Callable[[int], EncodedProgram | None]
    steps: list[ProgramStep] = field(default_factory=list[ProgramStep])
    entry: dict[int, int] = field(default_factory=dict[int, int])
    names: dict[int, str] = field(default_factory=dict[int, str])
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    written: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
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
            steps = read_batch(number + 1, EncodedBatch.FromString(payload))
            for number, command in steps:
                if isinstance(command, tuple):
                    self._add_plain(command, bound, caller or number)
                else:
                    self._add_command(command, bound, caller or number)
        return [_value_of(register, bound) for register in definition.outputs]

    def _append(self, tokens: list[Token], number: int, within: str = "", what: str = "") -> int:
        if len(self.steps) >= MAX_STEPS:
            msg = f"expected a program of at most {MAX_STEPS} steps, this one has more"
            raise EncodingError(msg)
        value = self.new_value()
        self.steps.append(ProgramStep(tokens, value, number, within, what))
        return value

    def _add_plain(self, call: PlainCall, bound: dict[int, int], number: int) -> None:
        _, func, reg, args = parts_of(call)
        tokens: list[Token] = [_value_of(func, bound), "("]
        for arg in args:
            tokens += (_value_of(arg >> 1, bound) if arg & 1 else str(arg >> 1), ", ")
        tokens.append(")")
        self._note_written(func, [arg >> 1 if arg & 1 else 0 for arg in args], bound)
        bound[reg] = self._append(tokens, number)

    def _note_written(
        self, func: int, args: list[int], bound: dict[int, int], names: Sequence[str] = ()
    ) -> None:
        """Notes what the next step overwrites, beside making its result."""
        value = _value_of(func, bound)
        if value in self.names:
            place = self.linker.destination(self.names[value], len(args), names)
        else:
            outside = next((reg for reg, held in self.entry.items() if held == value), 0)
            place = self.linker.destination(outside, len(args), names) if outside else -1
        if 0 <= place < len(args) and args[place]:
            self.written.append((len(self.steps), _value_of(args[place], bound)))

    def _add_command(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        action = command.action
        if action == Action.CALL_PACKED:
            self._add_call(command, bound, number)
        elif action == Action.GET_GLOBAL_FUNC:
            name = str(decode_value(command.args[0]))
            find = self._constant(self.linker.resolve)
            text = f"{find}({self._constant(name)})"
            value = self._append([text], number, what=what_is_done(action, name))
            self.names[value] = name
            bound[command.reg] = value
        elif action == Action.COPY_TO_WORKER0:
            self._add_copy(command, bound, number)
        elif action == Action.RUN_PROGRAM:
            self._add_run(command, bound, number)
        else:
            msg = f"expected an action that a program may hold in step {number}, got {action}"
            raise EncodingError(msg)

    def _add_call(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        if not self._is_here(command):
            bound[command.reg] = self._append(["None"], number, what=_ELSEWHERE)
            return
        values = [self._expression(arg, bound) for arg in command.args]
        named = split_keywords(values, command.keywords)
        tokens: list[Token] = [_value_of(command.func, bound), "("]
        for value in values:
            tokens += (*value, ", ")
        if named:
            tokens.append("**{")
            for name, value in named.items():
                tokens += (f"{self._constant(name)}: ", *value, ", ")
            tokens.append("}")
        within = ""
        if command.workers:
            only, chosen = self._constant(self.linker.only), self._constant(list(command.workers))
            within = f"with {only}({chosen}): "
        registers = [arg.reg for arg in command.args]
        self._note_written(command.func, registers, bound, command.keywords)
        bound[command.reg] = self._append([*tokens, ")"], number, within)

    def _is_here(self, command: EncodedCommand) -> bool:
        """Whether this rank executes a command."""
        return not command.workers or self.linker.worker_id in command.workers

    def _add_copy(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        array, is_new = command.args[0], command.args[1].bool
        mine = self._is_here(command)
        if is_new:
            tokens: list[Token] = self._expression(array, bound) if mine else ["None"]
            what = ACTION_NAMES[Action.COPY_TO_WORKER0] if mine else _ELSEWHERE
            bound[command.reg] = self._append(tokens, number, what=what)
        elif mine:
            copy, source = self._constant(self.linker.copy_into), self._constant(array)
            held = _value_of(command.reg, bound)
            self.written.append((len(self.steps), held))
            what = ACTION_NAMES[Action.COPY_TO_WORKER0]
            self._append([f"{copy}(", held, f", {source})"], number, what=what)

    def _add_run(self, command: EncodedCommand, bound: dict[int, int], number: int) -> None:
        """Inlines the steps of a program that this one calls."""
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
        return self._append(self._expression(arg, bound), number, what="argument of a program")

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
        if kind not in {"list", "map", "record"}:
            return [self._constant(decode_value(value))]
        if depth >= MAX_DEPTH:
            msg = f"lists and maps may nest {MAX_DEPTH} deep, these go deeper"
            raise EncodingError(msg)
        tokens: list[Token] = []
        if kind == "map":
            for entry in value.map.items:
                inside = self._expression(entry.value, bound, depth + 1)
                tokens += (f"{self._constant(entry.key)}: ", *inside, ", ")
            return ["{", *tokens, "}"]
        for item in inner_values(value):
            tokens += (*self._expression(item, bound, depth + 1), ", ")
        if kind == "record":
            return [f"{self._constant(partial(record_of, value.record))}([", *tokens, "])"]
        return ["(", *tokens, ")"] if value.list.is_tuple else ["[", *tokens, "]"]

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name


def _value_of(register: int, bound: dict[int, int]) -> int:
    value = bound.get(register)
    if value is None:
        msg = f"a step reads register {register}, which no earlier one has written"
        raise EncodingError(msg)
    return value


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
        place: Its index in the sequence of all steps, from 0.
    """

    def __init__(
        self, error: BaseException, step: int, function: str, register: int, place: int = 0
    ) -> None:
        super().__init__(f"step {step}: {error!r}")
        self.place = place
        self.error = error
        self.step = step
        self.function = function
        self.register = register


@dataclass(frozen=True, slots=True)
class _Text:
    """The text of a program's function.

    Attributes:
        name: What stacks show as its file.
        lines: Of its body: the first takes the inputs, each of the others is a step.
        labels: What a report names for each step.
        constants: What the text refers to by a name.
    """

    name: str
    lines: list[str]
    labels: list[_Label]
    constants: dict[str, Any]

    def compile(self) -> Callable[[list[Any], list[Any]], None]:
        """The function, of inputs and results."""
        return self._made("def program(frame, results):", self.lines)

    def compile_timed(self) -> Callable[[list[Any], list[Any], Callable[[int], object]], None]:
        """The same, which also notes the time when it begins and after each step."""
        self.constants["now"] = monotonic_ns
        lines = [f"{line}; note(now())" for line in self.lines]
        return self._made("def program(frame, results, note):", lines)

    def _made(self, head: str, lines: Iterable[str]) -> Callable[..., None]:
        text = "".join((head, *(f"\n {line}" for line in lines), "\n"))
        # Stacks show its frames as this module's, and not as a function's of the session.
        self.constants["__name__"] = __name__
        # Generated text; see the module's docstring.
        exec(compile(text, self.name, "exec"), self.constants)  # noqa: S102
        function: Callable[..., None] = self.constants["program"]
        return function


class _Label(NamedTuple):
    """What a report names for a line: step, function, and the variable that held it."""

    step: int
    function: str
    register: int
    variable: str


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A value that a step of a program overwrites as a whole, from outside or an output.

    Attributes:
        step: The place of the last such step.
        first: Whether nothing reads the value before the first of them.
        register: The session's register that holds the value; 0 for none.
        input: The input that it is; -1 for none.
        outputs: The outputs that it is.
    """

    step: int
    first: bool
    register: int
    input: int
    outputs: tuple[int, ...]


class StepTimes:
    """How long the steps of a program took in the runs that were timed.

    Attributes:
        timed: How many runs were.
        total_ns: For each step how long it took in all of them.
        last_ns: The same in the last.
    """

    def __init__(self, steps: int) -> None:
        self.timed = 0
        self.total_ns: list[int] = [0] * steps
        self.last_ns: list[int] = [0] * steps

    def add(self, moments: list[int]) -> None:
        """Adds a run: when it began, and when each step ended."""
        self.timed += 1
        self.last_ns = [end - begin for begin, end in pairwise(moments)]
        both = zip(self.total_ns, self.last_ns, strict=True)
        self.total_ns = [total + last for total, last in both]


@dataclass(frozen=True, slots=True)
class ProgramFlow:
    """Where the values come from that a program's steps read; see :class:`Flattener`.

    Attributes:
        steps: The steps.
        written: Which of them overwrite a value that another one has made.
        inputs: The values that each run is given.
        outputs: The values that it returns.
    """

    steps: Sequence[ProgramStep]
    written: Sequence[tuple[int, int]]
    inputs: Sequence[int]
    outputs: Sequence[int]


class CompiledProgram:
    """A compiled program; stands in a register.

    Attributes:
        definition: What it was made of.
        defined: The number of the command that defined it.
        overwritten: What its collectives and copies overwrite.
        flow: Where what its steps read comes from.
        labels: What a report names for each step.
        runs: How many runs have begun.
        times: How long its steps took; None before somebody asked for that.
    """

    def __init__(
        self,
        definition: EncodedProgram,
        defined: int,
        entry: list[int],
        text: _Text,
        overwritten: tuple[Overwritten, ...],
        flow: ProgramFlow,
    ) -> None:
        self.overwritten = overwritten
        self.definition = definition
        self.defined = defined
        self.flow = flow
        self.labels = text.labels
        self.runs = 0
        self.times: StepTimes | None = None
        self._entry = entry
        self._text = text
        self._function = text.compile()
        self._timed_function: Callable[..., None] | None = None
        self._until = 0.0

    def time_steps(self, until: float) -> StepTimes:
        """Takes times of the steps of runs up to this moment of the monotonic clock."""
        if self.times is None:
            self.times = StepTimes(len(self.labels))
            self._timed_function = self._text.compile_timed()
        self._until = until
        return self.times

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
        self._check("input", len(definition.inputs), len(args))
        self._check("output", len(definition.outputs), len(results))
        # The function empties this list, so that an input lives no longer than needed.
        args += [read(register) for register in self._entry]
        self.runs += 1
        try:
            if self.times is None:
                self._function(args, results)
            else:
                self._run_timed(self.times, args, results)
        except CALL_ENDS:
            raise
        except BaseException as error:
            raise self._explain(error) from error

    def _run_timed(self, times: StepTimes, args: list[Any], results: list[Any]) -> None:
        """Runs every step, and takes their times if somebody has asked for them lately."""
        if self._timed_function is None or monotonic() > self._until:
            self._function(args, results)
            return
        moments: list[int] = []
        self._timed_function(args, results, moments.append)
        times.add(moments)

    def _check(self, what: str, wanted: int, given: int) -> None:
        if wanted != given:
            needed = many(wanted, what)
            msg = f"expected {needed} of program {self.definition.name!r}, got {given}"
            raise ArgumentRefused(msg)

    def _explain(self, error: BaseException) -> StepFailed:
        """Finds out by the line in the traceback which step failed."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is not self._text.constants:
            trace = trace.tb_next
        line = trace.tb_lineno - _FIRST_STEP_LINE if trace is not None else -1
        if trace is None or not 0 <= line < len(self.labels):
            return StepFailed(error, 0, "", 0)
        label = self.labels[line]
        failed = _refusal_of(trace, label) or error.with_traceback(trace)
        return StepFailed(failed, label.step, label.function, label.register, line)

    def __repr__(self) -> str:
        return f"<Program {self.definition.name!r}, {many(len(self.labels), 'step')}>"


def _refusal_of(trace: TracebackType, label: _Label) -> ArgumentRefused | None:
    """The refusal where the step's function was none, with the text of a single call."""
    if trace.tb_next is not None or not label.variable:
        return None
    function = trace.tb_frame.f_locals.get(label.variable)
    if callable(function):
        return None
    return ArgumentRefused(f"expected a function to call, got {function!r}")


def compile_program(definition: EncodedProgram, defined: int, linker: Linker) -> CompiledProgram:
    """Makes recorded commands a function.

    Args:
        definition: The commands.
        defined: The number of the command that sent them.
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
        return program.definition if isinstance(program, CompiledProgram) else None

    flat = Flattener(linker, definition_of)
    inputs = [flat.new_value() for _ in definition.inputs]
    bound = dict(zip(definition.inputs, inputs, strict=True))
    outputs = flat.add(definition, bound)
    entry = [*inputs, *flat.entry.values()]
    lines, labels = _Writer(flat, entry, outputs).write()
    steps = [label.step for label in labels]
    # Stacks show the line, which is the step where no step takes several lines.
    several = "" if steps == list(range(1, len(steps) + 1)) else ", with others inside"
    constants = {**flat.constants, "finished": linker.finished}
    text = _Text(f"<program {definition.name}{several}>", lines, labels, constants)
    overwritten = tuple(_find_overwritten(flat, inputs, outputs))
    flow = ProgramFlow(flat.steps, flat.written, inputs, outputs)
    return CompiledProgram(definition, defined, list(flat.entry), text, overwritten, flow)


def _find_overwritten(
    flat: Flattener, inputs: list[int], outputs: list[int]
) -> Iterator[Overwritten]:
    registers = {value: register for register, value in flat.entry.items()}
    last = {value: step for step, value in flat.written}
    first = {value: step for step, value in reversed(flat.written)}
    read: dict[int, list[int]] = {}
    for place, step in enumerate(flat.steps):
        for token in step.tokens:
            if isinstance(token, int):
                read.setdefault(token, []).append(place)
    for value, step in last.items():
        register = registers.get(value, 0)
        taken = inputs.index(value) if value in inputs else -1
        given = tuple(place for place, output in enumerate(outputs) if output == value)
        if register or taken >= 0 or given:  # others end with the run
            uses = read[value]
            anew = uses[0] == first[value] and uses.count(uses[0]) == 1
            yield Overwritten(step, anew, register, taken, given)


def _is_call(step: ProgramStep) -> bool:
    """Whether a step calls a function, which is the value that it begins with."""
    return isinstance(step.tokens[0], int) and len(step.tokens) > 1


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

    def write(self) -> tuple[list[str], list[_Label]]:
        """Returns the lines of the function's body, and for each step what a report names.

        The first line takes the inputs; each of the others is a step.
        """
        lines = [self._begin()]
        registers = {value: register for register, value in self._flat.entry.items()}
        labels: list[_Label] = []
        for index, step in enumerate(self._flat.steps):
            called = step.tokens[0]
            if isinstance(called, int) and _is_call(step):
                function = self._flat.names.get(called, "")
                held = self._names[called]
                labels.append(_Label(step.number, function, registers.get(called, 0), held))
            else:
                labels.append(_Label(step.number, "", 0, ""))
            lines.append(self._step(index, step))
        return lines, labels

    def _begin(self) -> str:
        names = [self._take(value) for value in self._entry]
        parts = [f"[{', '.join(names)}] = frame", "frame.clear()"]
        for value, name in zip(self._entry, names, strict=True):
            parts += [f"results[{index}] = {name}" for index in self._outputs.get(value, ())]
            if value not in self._last:
                parts.append(f"{name} = None")
        return "; ".join(parts)

    def _step(self, index: int, step: ProgramStep) -> str:
        names, last = self._names, self._last
        parts: list[str] = []
        over: list[str] = []
        for token in step.tokens:
            if isinstance(token, str):
                parts.append(token)
                continue
            name = names[token]
            parts.append(name)
            if last[token] == index and name not in over:
                over.append(name)
        text = "".join(parts)
        self._free += over
        targets = "".join(f"results[{place}] = " for place in self._outputs.get(step.result, ()))
        if step.result in last:
            targets += f"{self._take(step.result)} = "
        unused = [name for name in over if name in self._free]
        emptied = f"; {' = '.join(unused)} = None" if unused else ""
        # A call around each: to write out what it does would double the time of compilation.
        text = f"finished({text})" if _is_call(step) else text
        return f"{step.within}{targets}{text}{emptied}"

    def _take(self, value: int) -> str:
        if self._free:
            name = self._free.pop()
        else:
            self._variables += 1
            name = f"r{self._variables}"
        self._names[value] = name
        return name
