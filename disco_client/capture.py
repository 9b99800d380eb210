"""Captured programs: commands that are recorded once and run often, as one command each time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from disco_client.errors import CaptureError, IssuedAt, RemoteFailure
from disco_client.handles import Distributed, DRef
from disco_client.wire.codec import Action, EncodedCommand, encode_value

if TYPE_CHECKING:
    from disco_client.recorder import Recorder
    from disco_client.session import Session

__all__ = ["Capturing", "Definition", "Program", "StepLines"]

_REMEMBERED_STEPS = 1 << 17

_Whole = TypeVar("_Whole", bound=Distributed)


class Definition(DRef):
    """The register of a program.

    Attributes:
        kept: The references that it took from outside; they live as long as it.
        num_steps: How many steps it has, those of programs inside it included.
    """

    __slots__ = ("kept", "num_steps")

    def __init__(self, reg_id: int, session: Session, kept: Sequence[DRef], num_steps: int) -> None:
        super().__init__(reg_id, session)
        self.kept = kept
        self.num_steps = num_steps


class Program:
    """Commands that were captured; calling it runs them on every worker as one command.

    Made by :meth:`Session.capture <disco_client.Session.capture>`. It may be called any
    number of times, from any thread, and inside another capture, of which it then
    becomes a part. What it took from outside stays alive as long as it does.

    Attributes:
        name: Its name, for people.
        inputs: The names of its inputs, in order.
        num_steps: How many commands it has.
        num_outputs: How many references a run returns.
    """

    def __init__(self, name: str, recorder: Recorder) -> None:
        """Made by a session, never by a program."""
        self.name = name
        self.inputs: tuple[str, ...] = ()
        self.num_steps = 0
        self.num_outputs = 0
        self._recorder: Recorder | None = recorder
        self._output_names: tuple[str, ...] = ()
        self._like: dict[str, Distributed] = {}
        self._outputs: list[Distributed | None] = []
        self._ref: Definition | None = None
        self._state = "being captured"

    # Inside the capture --------------------------------------------------------

    @overload
    def input(self, name: str) -> DRef: ...

    @overload
    def input(self, name: str, like: _Whole) -> _Whole: ...

    def input(self, name: str, like: Distributed | None = None) -> DRef | Distributed:
        """Names something that each run is given.

        Args:
            name: The keyword under which a call passes it.
            like: A distributed tensor; each run is given one of the same shape, dtype,
                mesh and placement.

        Returns:
            A reference for use inside the capture, or a distributed tensor.

        Raises:
            CaptureError: The capture has ended, or runs in another thread.
            ValueError: There is an input of that name already.
            TypeError: The name is no text.
        """
        recorder = self._recording("input")
        if not isinstance(name, str) or not name:
            msg = f"expected the name of an input, such as 'x', got {name!r}"
            raise TypeError(msg)
        if name in self.inputs:
            msg = f"program {self.name!r} has an input {name!r} already"
            raise ValueError(msg)
        reference = recorder.add_input()
        self.inputs += (name,)
        if like is None:
            return reference
        self._like[name] = like
        return like.held_by(reference)

    def output(self, *references: DRef | Distributed, **named: DRef | Distributed) -> None:
        """Says what a run returns; may be called several times.

        A run returns None without outputs, the reference itself where there is one
        positional output, a tuple where there are several, and a dict of references
        where the outputs have names. For a distributed tensor it returns one.

        Args:
            *references: References for use inside the capture, or outside of it, or
                distributed tensors.
            **named: The same with names; all outputs have names, or none.

        Raises:
            CaptureError: The capture has ended, or runs in another thread.
            TypeError: Something is no reference, or some have names and some have not.
            ValueError: There is an output of that name already.
        """
        recorder = self._recording("output")
        names = (*self._output_names, *named)
        count = self.num_outputs + len(references) + len(named)
        if names and len(names) != count:
            msg = "expected either a name for each output or for none"
            raise TypeError(msg)
        if len(set(names)) != len(names):
            again = next(name for name in named if name in self._output_names)
            msg = f"program {self.name!r} has an output {again!r} already"
            raise ValueError(msg)
        given = [*references, *named.values()]
        recorder.add_outputs([x.ref if isinstance(x, Distributed) else x for x in given])
        self._outputs += [x if isinstance(x, Distributed) else None for x in given]
        self.num_outputs, self._output_names = count, names

    def _recording(self, verb: str) -> Recorder:
        if self._recorder is None:
            msg = f"{verb}() belongs inside the capture, and program {self.name!r} is {self._state}"
            raise CaptureError(msg)
        self._recorder.check_here()
        return self._recorder

    # Outside of it ---------------------------------------------------------------

    def __call__(self, /, *args: object, **inputs: object) -> Any:
        """Runs the program on every worker; returns at once.

        Args:
            *args: Inputs in their order, by position.
            **inputs: Inputs by name. Each is anything that a call may be given: a
                reference, a scalar, an array; see
                :meth:`Session.call_packed <disco_client.Session.call_packed>`. An
                input that is changed in place is changed for the caller, too.

        Returns:
            None, a new reference, a tuple or a dict of them, as :meth:`output` says.

        Raises:
            TypeError: An input is missing, surplus, or given twice, or is no
                distributed tensor where it must be one.
            ConfigError: A distributed tensor lies otherwise than the program expects.
            CaptureError: The program is closed, or not yet there.
            EncodingError: An input is of a kind that cannot travel.
            SessionError: The session is closed or lost.
        """
        ref = self._ref
        if ref is None:
            msg = f"program {self.name!r} cannot run: it is {self._state}"
            raise CaptureError(msg)
        values = self._bind(args, inputs)
        here = ref.session._here()
        return self._name_outputs(_run(here, ref, values, self.num_outputs))

    def _bind(self, args: tuple[object, ...], inputs: dict[str, object]) -> list[object]:
        """Puts inputs into their order."""
        names = self.inputs
        takes = f"program {self.name!r} takes {', '.join(names) or 'no inputs'}"
        if len(args) > len(names):
            msg = f"{takes}; expected at most {len(names)} positional inputs, got {len(args)}"
            raise TypeError(msg)
        bound = dict(zip(names, args, strict=False))
        surplus = [name for name in inputs if name not in names]
        twice = [name for name in inputs if name in bound]
        missing = [name for name in names if name not in bound and name not in inputs]
        for what, found in (("surplus", surplus), ("given twice", twice), ("missing", missing)):
            if found:
                msg = f"{takes}; {what}: {', '.join(found)}"
                raise TypeError(msg)
        bound.update(inputs)
        for name, like in self._like.items():
            like.refuse_unlike(bound[name], f"input {name!r} of program {self.name!r}")
        return [bound[name] for name in names]

    def _name_outputs(self, references: list[DRef]) -> Any:
        results = [
            ref if like is None else like.held_by(ref)
            for ref, like in zip(references, self._outputs, strict=True)
        ]
        if self._output_names:
            return dict(zip(self._output_names, results, strict=True))
        if len(results) == 1:
            return results[0]
        return tuple(results) or None

    def close(self) -> None:
        """Forgets the program here and on the workers; idempotent.

        Runs that were issued before still happen. A program that nobody refers to any
        more is closed by itself.
        """
        if self._recorder is None and self._ref is not None:
            self._state = "closed"
            self._ref = None

    def _end_capture(self, num_steps: int, ref: Definition | None) -> None:
        """Makes it ready to run, or discards it where there is no definition."""
        self.num_steps, self._recorder, self._ref = num_steps, None, ref
        self._state = "ready" if ref else "discarded, because its capture did not end well"

    def __repr__(self) -> str:
        steps = self.num_steps if self._recorder is None else self._recorder.num_steps
        names = ", ".join(self._output_names) or self.num_outputs or "none"
        return (
            f"<Program {self.name!r}: steps: {steps}, inputs: {', '.join(self.inputs) or 'none'}, "
            f"outputs: {names}, {self._state.partition(',')[0]}>"
        )


def _run(here: Session, program: DRef, values: list[object], num_outputs: int) -> list[DRef]:
    """Issues one run, or records it where a capture is under way."""
    log = here._log
    function = here._check_ref(program)
    references = [DRef(register, here) for register in log.allocate(num_outputs)]
    uploads = here._uploads()

    def fill(command: EncodedCommand) -> int:
        for value in values:
            encode_value(command.args.add(), value, uploads, here._register_of)
        command.results.extend(reference.reg_id for reference in references)
        return command.ByteSize()

    with uploads:
        log.issue(Action.RUN_PROGRAM, fill, func=function, reg=0)
        uploads.send()
    return references


Locate: TypeAlias = Callable[[int], IssuedAt | None]
"""Finds the line that captured a step."""


class StepLines:
    """The lines of the client's program in which the steps of programs were captured.

    They outlive a program for a while, because what it failed may be told later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[str, int, Locate]] = {}
        self._ended: deque[int] = deque()
        self._fading: deque[int] = deque()
        self._fading_steps = 0

    def add(self, defined: int, name: str, num_steps: int, locate: Locate) -> None:
        """Remembers a program.

        Args:
            defined: The number of the command that defined it.
            name: Its name.
            num_steps: How many steps it has.
            locate: Finds a step's line.
        """
        with self._lock:
            self._known[defined] = name, num_steps, locate
            self._forget()

    def end(self, defined: int) -> None:
        """Notes that a program is gone; safe inside the garbage collector."""
        self._ended.append(defined)

    def _forget(self) -> None:
        while self._ended:
            defined = self._ended.popleft()
            self._fading.append(defined)
            self._fading_steps += self._known[defined][1] + 1
        while self._fading_steps > _REMEMBERED_STEPS:
            self._fading_steps -= self._known.pop(self._fading.popleft())[1] + 1

    def explain(self, failure: RemoteFailure) -> RemoteFailure:
        """Adds to a failure in a program which one it was, and the step's line."""
        with self._lock:
            known = self._known.get(failure.program)
        if known is None:
            return failure
        name, _, locate = known
        return replace(failure, program_name=name, captured_at=locate(failure.step))


class Capturing:
    """The part of a session that captures programs.

    Attributes:
        _recorders: The captures under way, by the thread that captures.
        _step_lines: Where the steps of its programs were captured.
    """

    _recorders: dict[int, Recorder]
    _step_lines: StepLines

    def capture(self, name: str | None = None) -> AbstractContextManager[Program]:
        """Records commands instead of running them.

        ::

            with session.capture() as program:
                x = program.input("x")
                program.output(step(x, weights))
            for _ in range(1000):
                x = program(x)

        Inside the block, what this thread issues on this session is written down: calls,
        lookups of functions, allocations, collectives, and copies of arrays of up to
        64 KiB to worker 0. Other threads go on as usual. References made inside are of
        use inside only, except as outputs; those from outside are taken by reference:
        each run sees what their registers hold then, and in-place changes are seen
        outside. A run ends with its first failing step; see :class:`Program`.

        Args:
            name: What reports call the program.

        Returns:
            The program, to be entered with ``with``; a block that raises discards it.

        Raises:
            CaptureError: On entering: this thread captures already. Inside the block:
                a call that would have to wait, such as a sync.
            SessionError: The session is closed or lost.
        """
        from disco_client.recorder import Capture

        return Capture(self, name)  # type: ignore[arg-type]  (every session is Capturing)
