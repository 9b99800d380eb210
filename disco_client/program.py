"""Captured programs: commands that are recorded once and run often, as one command each time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn, Self, TypeVar, overload

from disco_client.call_sites import Site
from disco_client.command_log import MAX_COMMAND_BYTES, CommandLog
from disco_client.copies import Handle
from disco_client.core import Distributed, DPackedFunc, DRef, SessionCore, core_of
from disco_client.errors import CaptureError
from disco_client.scopes import Scope, current_owner
from disco_client.waiting import Deadline
from disco_client.wire.codec import Action, EncodedCommand, EncodedProgram
from disco_client.wire.values import INLINE_ARRAY_BYTES, MAX_STEPS

__all__ = ["Capture", "Definition", "Program", "Recorder", "RecordingLog"]

_Whole = TypeVar("_Whole", bound=Distributed)


class RecordingLog(CommandLog):
    """A log that is never sent; its sequence numbers are the steps of a program.

    Attributes:
        nested_steps: How many steps the programs have that the recorded ones run.
    """

    def __init__(self) -> None:
        super().__init__(num_workers=1)
        self.nested_steps = 0

    def release(self, register: int) -> None:
        """Does nothing: each register is written once, and the workers see its last use."""

    @property
    def num_steps(self) -> int:
        """How many steps there are, those of programs inside it included."""
        return self.last_seq + self.nested_steps

    def is_full(self) -> bool:
        """False: nothing waits here.

        Raises:
            CaptureError: The program would be too long.
        """
        nbytes = self._batches.filling.before + self._batches.filling.nbytes
        if self.num_steps >= MAX_STEPS or nbytes > MAX_COMMAND_BYTES:
            msg = (
                f"expected a program of at most {MAX_STEPS} steps and {MAX_COMMAND_BYTES} bytes of "
                "values; capture a part of it, and run that several times"
            )
            raise CaptureError(msg)
        return False

    def _has_room(self) -> bool:
        """Asks for each command anew, because the programs inside of this one count too."""
        has_room = super()._has_room()
        self._room = 0
        return has_room

    def encode(self) -> list[bytes]:
        """Returns the batches as they travel; the positions of their steps are kept."""
        with self._lock:
            batches = self._batches
            batches.seal()
            sealed = [batch for batch in batches if batch is not batches.filling]
            return [batch.leave().encode().payload for batch in sealed]

    def sites(self) -> list[Site]:
        """The positions in the program that issued the encoded steps, in order."""
        with self._lock:
            return [site for batch in self._batches for site in batch.sites]


class Recorder(SessionCore):
    """Takes a session's place in one task or thread; encodes as it does, but sends nothing.

    Args:
        core: The session's.
        name: What the program is called.
    """

    def __init__(self, core: SessionCore, name: str) -> None:
        # It has the inbox and the transport of the session, and closes neither.
        self._steps = RecordingLog()
        super().__init__(self._steps, core.inbox, core.transport)
        self._session = core
        self._program_name = name
        self._owner: Scope | None = None
        self._recording = False
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._taken: dict[int, tuple[int, DRef]] = {}
        self._nothing_outside = (
            f"this reference was made inside the capture of program {name!r} and stands for "
            "nothing outside; make it an output of the program: program.output(...)"
        )

    # The program's part ----------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """How many commands are recorded."""
        return self.log.last_seq

    def check_here(self) -> None:
        """Makes sure that this task or thread is capturing here.

        Raises:
            CaptureError: It is not.
        """
        self._session.log.check_open()
        if not self._recording:
            raise CaptureError(self._nothing_outside)
        if current_owner() is not self._owner:
            self._refuse("another task or thread than the one that captures cannot take part")

    def add_input(self) -> DRef:
        """Makes a register that each run fills."""
        (register,) = self.log.allocate(1)
        self._inputs.append(register)
        return DRef(register, self.face())

    def add_outputs(self, references: Sequence[object]) -> None:
        """Notes the references whose content a run returns.

        Raises:
            TypeError: Something is no reference.
        """
        for reference in references:
            if not isinstance(reference, DRef):
                msg = (
                    f"expected a reference as an output, got {reference!r} of type "
                    f"{type(reference).__name__}"
                )
                raise TypeError(msg)
        self._outputs += [self.check_ref(reference) for reference in references]  # type: ignore[arg-type]  (checked above)

    def begin(self, owner: Scope) -> None:
        """Begins the recording of what a task or thread issues.

        Raises:
            CaptureError: It has begun before.
        """
        if self._owner is not None:
            raise CaptureError("a capture cannot be entered again; begin another one")
        self._owner, self._recording = owner, True

    def end(self) -> Scope | None:
        """Ends the recording; returns whose it was."""
        self._recording = False
        return self._owner

    def forget(self) -> None:
        """Drops the references that were taken from outside."""
        self._taken = {}

    def define(self) -> Definition:
        """Sends what was recorded to the workers.

        Raises:
            EncodingError: It is too large.
            SessionError: The session is closed or lost.
        """
        session, steps = self._session, self._steps
        kept = [session.check_ref(ref) for _, ref in self._taken.values()]
        encoded = EncodedProgram(
            batches=steps.encode(),
            inputs=self._inputs,
            captured=[register for register, _ in self._taken.values()],
            registers=kept,
            outputs=self._outputs,
            name=self._program_name,
        )

        def fill(command: EncodedCommand) -> int:
            command.program.CopyFrom(encoded)
            return command.ByteSize()

        session.check_entered()
        defined, register = session.log.issue(Action.DEFINE_PROGRAM, fill, reg=int)
        # Not by references: these could end before the program does.
        session.log.registers.owners.keep(register, kept)
        definition = Definition(register, session.face(), steps.num_steps)
        session.step_lines.add(defined, self._program_name, steps.sites())
        weakref.finalize(definition, session.step_lines.end, defined).atexit = False
        return definition

    # What a session does, differently -----------------------------------------------

    def shutdown(self) -> None:
        """Ends the session itself."""
        self._session.shutdown()

    def __repr__(self) -> str:
        return f"<capture of program {self._program_name!r} on {self._session!r}>"

    def builtin(self, name: str, deadline: Deadline | None = None) -> DPackedFunc:
        """One that the session has looked up, or looks up now, for all programs."""
        return self._session.builtin(name, deadline)

    def check_ref(self, ref: DRef) -> int:
        """The register of a reference in the program; one from outside is taken along."""
        self.check_here()
        core = ref._core  # noqa: SLF001  (a recorder is one)
        if core is self:
            return ref.reg_id
        if core is not self._session:
            return core.lend(ref, self)
        if core.is_builtin(ref, "runtime.disco.init_ccl"):
            self._refuse("init_ccl waits for the workers; call it before the capture")
        if isinstance(ref, Definition):
            self._steps.nested_steps += ref.num_steps
        known = self._taken.get(ref.reg_id)
        if known is None:
            (register,) = self.log.allocate(1)
            known = self._taken[ref.reg_id] = register, ref
        return known[0]

    def lend(self, ref: DRef, to: SessionCore) -> int:
        """Called when the session is given a reference of the program: mostly raises an error."""
        if to is self._session and to.here() is self:
            return ref.reg_id  # to be wrapped as a function or a module
        raise CaptureError(self._nothing_outside)

    def look_up(self, name: str, deadline: Deadline | None = None) -> DPackedFunc:
        """Records a lookup."""
        self.check_here()
        return super().look_up(name, deadline)

    def next_ticket(self) -> int:
        """Refuses a large array."""
        self._refuse(
            f"an array of more than {INLINE_ARRAY_BYTES} bytes cannot be a part of it; "
            "copy it to the workers before the capture, or make it an input"
        )

    def question(self, *_args: Any, **_options: Any) -> NoReturn:
        """Refuses to fetch a value."""
        self.check_here()
        self._refuse("fetching a value waits for the workers; do it outside of the capture")

    def check_executes(self, why: str) -> NoReturn:
        """Refuses what makes sense only for commands that are executed."""
        self.check_here()
        self._refuse(why)

    def send_array(
        self,
        action: Action,
        ref: DRef | None,
        worker: int,
        array: Any,
        *,
        answers: int,
        timeout: float | None = None,
    ) -> DRef:
        """Records a copy of a small array to worker 0."""
        self.check_here()
        if answers:
            self._refuse("debug_copy_from waits for the worker; do it outside of the capture")
        return super().send_array(action, ref, worker, array, answers=answers, timeout=timeout)

    def sync(self, worker: int | None = None, timeout: float | None = None) -> NoReturn:
        """Refuses to wait."""
        del timeout
        self.mark(worker)

    def mark(self, worker: int | None = None, deadline: Deadline | None = None) -> NoReturn:
        """Refuses to wait."""
        del worker, deadline
        self.check_here()
        self._refuse("a sync waits for the workers; do it outside of the capture")

    def _refuse(self, why: str) -> NoReturn:
        raise CaptureError(f"while program {self._program_name!r} is captured: {why}")


class Definition(DRef):
    """The register of a program, which keeps the registers that the program took from outside.

    Attributes:
        num_steps: How many steps it has, those of programs inside it included.
    """

    __slots__ = ("num_steps",)

    def __init__(self, reg_id: int, session: Any, num_steps: int) -> None:
        super().__init__(reg_id, session)
        self.num_steps: int = num_steps


class Program(Handle):
    """Commands that were captured; calling it runs them on every worker as one command.

    Made by :meth:`Session.capture <disco_client.Session.capture>`. It may be called any
    number of times, from any thread, and inside another capture, of which it then
    becomes a part. What it took from outside stays alive as long as it does.

    Attributes:
        name: Its name, for people.
        inputs: The names of its inputs, in order.
        num_steps: How many commands it has.
        num_outputs: How many references a run returns.

    Examples:
        >>> add = session.get_global_func("numpy.add")
        >>> with session.capture("twice") as program:
        ...     x = program.input("x")
        ...     program.output(add(add(x, 1), 1))
        >>> print(program(40).get())
        42
    """

    _instead: ClassVar[str] = "pass the program itself, or capture it elsewhere"

    def __init__(self, name: str, recorder: Recorder) -> None:
        """Made by a session, never by a program."""
        self.name = name
        self.inputs: tuple[str, ...] = ()
        self.num_steps: int = 0
        self.num_outputs: int = 0
        self._recorder: Recorder | None = recorder
        self._output_names: tuple[str, ...] = ()
        self._like: dict[str, Distributed] = {}
        self._outputs: list[Distributed | None] = []
        self._ref: Definition | None = None
        self._state = "being captured"

    def __copy__(self) -> Self:
        # It is one: while it is captured its inputs are noted here, and close() ends it.
        return self

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
            CaptureError: The capture has ended, or runs in another task or thread.
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
        return like._held_by(reference)

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
            CaptureError: The capture has ended, or runs in another task or thread.
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
            ConfigError: A distributed tensor has another placement than the program expects.
            CaptureError: The program is closed, or not yet there.
            EncodingError: An input is of a kind that cannot travel.
            SessionError: The session is closed or lost.
        """
        ref = self._ref
        if ref is None:
            msg = f"program {self.name!r} cannot run: it is {self._state}"
            raise CaptureError(msg)
        given = list(zip(self.inputs, self._bind(args, inputs), strict=True))
        here = core_of(ref).here()
        return self._name_outputs(_run(here, ref, given, self.num_outputs))

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
            like._refuse_unlike(bound[name], f"input {name!r} of program {self.name!r}")
        return [bound[name] for name in names]

    def _name_outputs(self, references: list[DRef]) -> Any:
        results = [
            ref if like is None else like._held_by(ref)
            for ref, like in zip(references, self._outputs, strict=True)
        ]
        if self._output_names:
            return dict(zip(self._output_names, results, strict=True))
        if len(results) == 1:
            return results[0]
        return tuple(results) or None

    def close(self) -> None:
        """Forgets the program here and on the workers; idempotent.

        Runs that were issued before still happen. A program without references is closed
        automatically.
        """
        if self._recorder is None and self._ref is not None:
            self._state = "closed"
            self._ref = None

    def end_capture(self, num_steps: int, ref: Definition | None) -> None:
        """Makes it ready to run, or discards it where there is no definition."""
        self.num_steps, self._recorder, self._ref = num_steps, None, ref
        self._state = (
            "ready" if ref is not None else "discarded, because its capture did not end well"
        )

    def __repr__(self) -> str:
        steps = self.num_steps if self._recorder is None else self._recorder.num_steps
        names = ", ".join(self._output_names) or self.num_outputs or "none"
        return (
            f"<Program {self.name!r}: steps: {steps}, inputs: {', '.join(self.inputs) or 'none'}, "
            f"outputs: {names}, {self._state.partition(',')[0]}>"
        )


def _run(
    here: SessionCore, program: DRef, values: Iterable[tuple[str, object]], num_outputs: int
) -> list[DRef]:
    """Issues one run, or records it inside a capture."""
    log = here.log
    function = here.check_ref(program)
    face = here.face()
    references = [DRef(register, face) for register in log.allocate(num_outputs)]
    uploads = here.uploads()

    def fill(command: EncodedCommand) -> int:
        here.encode_arguments(command, values, uploads)
        command.results.extend(reference.reg_id for reference in references)
        return command.ByteSize()

    with uploads:
        log.issue(Action.RUN_PROGRAM, fill, func=function, reg=0)
        uploads.send()
    return references


class Capture:
    """The ``with`` block of a capture.

    Args:
        core: Of the session whose commands are recorded.
        name: The name of the program, or None.
        show: Makes what programs hold as the session of a reference made inside.
    """

    _entered = False

    def __init__(
        self, core: SessionCore, name: str | None, show: Callable[[SessionCore], object]
    ) -> None:
        self._core = core
        self._recorder = Recorder(core, name or "program")
        self._face = show(self._recorder)  # as long as the block, it has one
        self._program = Program(name or "program", self._recorder)

    def __enter__(self) -> Program:
        recorders = self._core.recorders
        owner = current_owner()
        if owner in recorders:
            msg = (
                "this task or thread captures a program of this session already; end that one "
                "first, and call it inside the next capture"
            )
            raise CaptureError(msg)
        self._entered = True
        self._recorder.begin(owner)
        recorders[owner] = self._recorder
        return self._program

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        recorder, definition = self._recorder, None
        self._end()
        try:
            if kind is None:
                definition = recorder.define()
        finally:
            recorder.forget()
            self._program.end_capture(recorder.num_steps, definition)

    def _end(self) -> None:
        owner, recorders = self._recorder.end(), self._core.recorders  # a forked child has none
        if owner is not None and recorders.get(owner) is self._recorder:
            recorders.pop(owner, None)

    def __del__(self) -> None:
        if self._entered:
            self._end()  # where an exception came before the first line of __exit__
