"""What a session is for a thread that captures: its commands are written down."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from disco_client.capture import Definition, Program
from disco_client.command_log import MAX_COMMAND_BYTES, CommandLog
from disco_client.errors import CaptureError
from disco_client.handles import DPackedFunc, DRef
from disco_client.session import Session
from disco_client.wire.codec import Action, EncodedCommand, EncodedProgram
from disco_client.wire.values import INLINE_ARRAY_BYTES, MAX_STEPS

__all__ = ["Capture", "Recorder", "RecordingLog"]


class RecordingLog(CommandLog):
    """A log that nobody sends; its sequence numbers are the steps of a program.

    Attributes:
        nested_steps: How many steps the programs have that the recorded ones run.
    """

    def __init__(self) -> None:
        super().__init__(session=0, num_workers=1)
        self.nested_steps = 0

    def release(self, register: int) -> None:
        """Does nothing: each register is written once, and the workers see its last use."""

    @property
    def num_steps(self) -> int:
        """How many steps there are, those of programs inside it included."""
        return self.last_seq + self.nested_steps

    def _await_room(self) -> None:
        nbytes = self._bytes_under_way + self._filling.nbytes
        if self.num_steps >= MAX_STEPS or nbytes > MAX_COMMAND_BYTES:
            msg = (
                f"expected a program of at most {MAX_STEPS} steps and {MAX_COMMAND_BYTES} bytes of "
                "values; capture a part of it, and run that several times"
            )
            raise CaptureError(msg)

    def encode(self) -> list[bytes]:
        """Returns the batches as they travel; the lines that issued them are kept."""
        with self._lock:
            self._seal()
            return [batch.leave(0).payload() for batch in self._sealed]


class Recorder(Session):
    """Takes a session's place in one thread; encodes as it does, but sends nothing.

    Args:
        session: The session.
        name: What the program is called.
    """

    def __init__(self, session: Session, name: str) -> None:
        # No session of its own: it has no transport, and nothing to close.
        self._session = session
        self._program_name = name
        self._transport = session._transport
        self._num_groups = session._num_groups
        self._closed = False
        self._recorders = {}
        self._thread = 0
        self._recording = False
        self._steps = RecordingLog()
        self._log = self._steps
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
        return self._log.last_seq

    def check_here(self) -> None:
        """Makes sure that this thread is capturing here.

        Raises:
            CaptureError: It is not.
        """
        if not self._recording:
            raise CaptureError(self._nothing_outside)
        if threading.get_ident() != self._thread:
            self._refuse("another thread than the one that captures cannot take part")

    def add_input(self) -> DRef:
        """Makes a register that each run fills."""
        (register,) = self._log.allocate(1)
        self._inputs.append(register)
        return DRef(register, self)

    def add_outputs(self, references: Sequence[object]) -> None:
        """Notes whose content a run returns.

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
        self._outputs += [self._check_ref(reference) for reference in references]  # type: ignore[arg-type]  (checked above)

    def begin(self, thread: int) -> None:
        """Begins the recording of what a thread issues.

        Raises:
            CaptureError: It has begun before.
        """
        if self._thread:
            raise CaptureError("a capture cannot be entered again; begin another one")
        self._thread, self._recording = thread, True

    def end(self) -> int:
        """Ends the recording; returns the thread."""
        self._recording = False
        return self._thread

    def forget(self) -> None:
        """Lets go of what was taken from outside."""
        self._taken = {}

    def define(self) -> Definition:
        """Sends what was recorded to the workers.

        Raises:
            EncodingError: It is too large.
            SessionError: The session is closed or lost.
        """
        session, steps = self._session, self._steps
        encoded = EncodedProgram(
            batches=steps.encode(),
            inputs=self._inputs,
            captured=[register for register, _ in self._taken.values()],
            registers=list(self._taken),
            outputs=self._outputs,
            name=self._program_name,
        )

        def fill(command: EncodedCommand) -> int:
            command.program.CopyFrom(encoded)
            return command.ByteSize()

        defined, register = session._log.issue(Action.DEFINE_PROGRAM, fill)
        kept = [ref for _, ref in self._taken.values()]
        definition = Definition(register, session, kept, steps.num_steps)
        session._step_lines.add(defined, self._program_name, self.num_steps, steps.site)
        weakref.finalize(definition, session._step_lines.end, defined).atexit = False
        return definition

    # What a session does, differently -----------------------------------------------

    def call_packed(self, func: DRef, *args: object) -> DRef:
        """Records a call."""
        if func is self._session._builtins.get("runtime.disco.init_ccl"):
            self._refuse("init_ccl waits for the workers; call it before the capture")
        return super().call_packed(func, *args)

    def shutdown(self) -> None:
        """Ends the session itself."""
        self._session.shutdown()

    def __repr__(self) -> str:
        return f"<capture of program {self._program_name!r} on {self._session!r}>"

    def _builtin(self, name: str) -> DPackedFunc:
        return self._session._builtin(name)

    def _check_ref(self, ref: DRef) -> int:
        self.check_here()
        if ref.session is self:
            return ref.reg_id
        if ref.session is not self._session:
            return ref.session._lend(ref, self)
        if isinstance(ref, Definition):
            self._steps.nested_steps += ref.num_steps
        known = self._taken.get(ref.reg_id)
        if known is None:
            (register,) = self._log.allocate(1)
            known = self._taken[ref.reg_id] = register, ref
        return known[0]

    def _lend(self, ref: DRef, to: Session) -> int:
        if to is self._session and to._here() is self:
            return ref.reg_id  # to be wrapped as a function or a module
        raise CaptureError(self._nothing_outside)

    def _look_up(self, name: str) -> DPackedFunc:
        self.check_here()
        return super()._look_up(name)

    def _release(self, register: int) -> None:
        """Does nothing; see :meth:`RecordingLog.release`."""

    def _take_ticket(self) -> int:
        self._refuse(
            f"an array of more than {INLINE_ARRAY_BYTES} bytes cannot be a part of it; "
            "copy it to the workers before the capture, or make it an input"
        )

    def _question(self, *_args: Any, **_options: Any) -> NoReturn:
        self.check_here()
        self._refuse("fetching a value waits for the workers; do it outside of the capture")

    def _send_array(
        self, action: Action, ref: DRef | None, worker: int, array: Any, *, answers: int
    ) -> int:
        self.check_here()
        if answers:
            self._refuse("debug_copy_from waits for the worker; do it outside of the capture")
        return super()._send_array(action, ref, worker, array, answers=answers)

    def _sync(self, worker: int | None) -> NoReturn:
        del worker
        self.check_here()
        self._refuse("a sync waits for the workers; do it outside of the capture")

    def _refuse(self, why: str) -> NoReturn:
        raise CaptureError(f"while program {self._program_name!r} is captured: {why}")


class Capture:
    """The ``with`` block of a capture.

    Args:
        session: Whose commands are recorded.
        name: The name of the program, or None.
    """

    def __init__(self, session: Session, name: str | None) -> None:
        self._session = session
        self._recorder = Recorder(session, name or "program")
        self._program = Program(name or "program", self._recorder)

    def __enter__(self) -> Program:
        recorders = self._session._recorders
        thread = threading.get_ident()
        if thread in recorders:
            msg = (
                "this thread captures a program of this session already; end that one first, and "
                "call it inside the next capture"
            )
            raise CaptureError(msg)
        self._recorder.begin(thread)
        recorders[thread] = self._recorder
        return self._program

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        recorder, definition = self._recorder, None
        self._session._recorders.pop(recorder.end())
        try:
            if kind is None:
                definition = recorder.define()
        finally:
            recorder.forget()
            self._program._end_capture(recorder.num_steps, definition)
