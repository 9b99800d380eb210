"""One command at a time, in order; errors become replies and poisoned registers.

The executor does no I/O of its own: its caller hands it batches, and gives it a
:class:`ReplySink` for the replies.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import disco_server.rank.builtins  # noqa: F401  # pyright: ignore[reportUnusedImport]  (registers functions)
from disco_client.errors import EncodingError, RemoteFailure
from disco_client.tracing.ring import Flag, what_of
from disco_client.wire.array_likes import ArrayRefused
from disco_client.wire.batch import command_of, plain_call
from disco_client.wire.codec import (
    INTERRUPTIBLE,
    Action,
    EncodedBatch,
    EncodedCommand,
    EncodedReply,
    EncodedValue,
    FailureKind,
    InterruptedAt,
    decode_args,
    encode_failure,
    encode_value,
    registers_in,
    split_keywords,
    type_name,
)
from disco_client.wire.reports import ACTION_NAMES, EncodedHoldingsRequest
from disco_client.wire.values import ArrayPorter, dtype_from_name, is_array
from disco_server.collectives.types import AbortedError
from disco_server.devices.foreign import destination, native
from disco_server.modules.unfinished import refuse_to_fetch
from disco_server.observe.flight import SLOT_MASK
from disco_server.rank.coroutines import finished
from disco_server.rank.errors import (
    ArgumentRefused,
    FunctionMissing,
    brief,
    describe_failure,
    opaque_of,
)
from disco_server.rank.functions import (
    OWN_NAMES,
    NamedCall,
    destination_of,
    is_uninterrupted,
    registry,
    resolve,
)
from disco_server.rank.holdings import describe_holdings
from disco_server.rank.interrupts import is_changeable
from disco_server.rank.program import (
    UNWRITTEN,
    CompiledProgram,
    Linker,
    Overwritten,
    StepFailed,
    compile_program,
)
from disco_server.rank.registers import (
    Poison,
    Poisoned,
    RegisterFile,
    check_call,
    check_fits,
    is_any_array,
)
from disco_server.rank.signals import CALL_ENDS, CommandInterrupted, NotBegun
from disco_server.rank.time_limits import CommandLimits
from disco_server.rank.worker import DevicePorter, Worker

if TYPE_CHECKING:
    from disco_client.wire.batch import OutgoingBatch

__all__ = ["Executor", "FunctionNames", "ReplySink"]


# Whether what a register holds can be called, or copied into or out of.


# What an executor needs from its caller.


class ReplySink(Protocol):
    """Takes an executor's answers, and provides arrays that are outside the log."""

    def reply(self, raw: bytes, ack: int) -> None:
        """Sends one encoded reply to the client, with what it acknowledges."""
        ...

    @property
    def live(self) -> Callable[[int, Any], None] | None:
        """Answers command ``seq`` with an object; None where the client is elsewhere."""
        ...

    @property
    def porter(self) -> ArrayPorter:
        """Carries the arrays that are too large for a command."""
        ...


# Which names the functions in a rank's registers have.


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
        """Finds a function that was registered, or that an allowed module exports.

        Raises:
            Exception: There is none, it is not allowed, or its module raised when imported.
        """
        try:
            func = self._resolve(name)
        except FunctionMissing:
            failed = self._worker.failed_imports
            python_s = name.partition(".")[0] in sys.stdlib_module_names
            if not failed or python_s or name.startswith(OWN_NAMES):
                raise
            # That is the first cause, rather than whatever else the name could have been.
            why = "; ".join(failed.values())
            msg = f"no function named {name!r} was registered on this worker: {why}"
            raise FunctionMissing(msg) from None
        if name not in registry():
            self._worker.audit("function imported", name, "")
        return func

    def put(self, register: int, func: object, name: str) -> None:
        """Writes a function into a register, under the name by which it was found."""
        self._registers.write(register, func)
        self._names[register] = func, name
        self.label(register, name)

    def label(self, register: int, name: str, action: int = Action.CALL_PACKED) -> None:
        """Sets the name by which the flight recorder records calls of this register's function."""
        self._registers.labels[register] = self._worker.flight.label_of(action, name)

    def of(self, register: int) -> str:
        """The name of the function in a register, where it was found by name or has one."""
        held = self._registers.peek(register)
        if isinstance(held, NamedCall):
            return held.name
        func, name = self._names.get(register, (None, ""))
        # The register may hold another function by now.
        return name if register and self._registers.holds(register, func) else ""


_ACK_COMMANDS = 1024
"""How many commands may run before an acknowledgement, if no other reply is sent."""

_ACK_BYTES = 1 << 20
_MAX_REPLY_BYTES = 32 << 20
"""What an answer may hold besides arrays, so that every relay passes it."""


class Executor:
    """Runs one rank's commands; exactly one thread uses it.

    Args:
        worker: The rank.
        sink: Takes its answers.
        longest_s: How long a command may take, in seconds; 0 for any time.

    Raises:
        RuntimeError: The system starts no thread that would watch that.
    """

    def __init__(self, worker: Worker, sink: ReplySink, longest_s: float = 0.0) -> None:
        self._worker = worker
        self._sink = sink
        self._porter = DevicePorter(worker, sink.porter)
        self._live = sink.live
        self._flight = worker.flight
        self._guard = worker.guard
        self._limits = CommandLimits(worker.guard, longest_s, worker.limit_passed)
        what, limit = what_of(Action.CALL_PACKED), worker.max_registers
        self.registers = worker.registers = RegisterFile(what, limit)
        worker.guard.cancelled = worker.flight.cancelled
        worker.guard.on_interrupt = partial(setattr, self.registers, "suspect", True)
        self._names = FunctionNames(worker, self.registers)
        self._programs: WeakSet[CompiledProgram] = WeakSet()
        self.seq = 0
        self._acked = 0
        self._bytes = 0
        self.stopped = False
        self._handlers: dict[int, Callable[[int, EncodedCommand], None]] = {
            Action.SHUT_DOWN: self._shut_down,
            Action.KILL_REG: self._kill,
            Action.GET_GLOBAL_FUNC: self._get_function,
            Action.CALL_PACKED: self._call,
            Action.SYNC_WORKER: self._sync,
            Action.COPY_FROM_WORKER0: self._copy_from,
            Action.COPY_TO_WORKER0: self._copy_to,
            Action.DEBUG_GET_FROM_REMOTE: self._get,
            Action.DEBUG_SET_REGISTER: self._set,
            Action.DEFINE_PROGRAM: self._define,
            Action.RUN_PROGRAM: self._run_program,
        }

    def run_batch(self, first_seq: int, payload: bytes) -> None:
        """Executes the commands of a batch that were not executed before.

        Raises:
            EncodingError: Commands are missing between the last one and these, or
                this is no batch that a client writes.
        """
        if first_seq > self.seq + 1:
            msg = f"expected command #{self.seq + 1} next, got #{first_seq}"
            raise EncodingError(msg)
        batch = EncodedBatch.FromString(payload)
        if batch.skipped:
            first_seq += batch.skipped
            self.seq = max(self.seq, first_seq - 1)
        try:
            self.run(first_seq, list(batch.calls), batch.commands)
        except (IndexError, StopIteration, ValueError) as error:
            msg = f"cannot read the batch after command #{self.seq}: {error!r}"
            raise EncodingError(msg) from error
        self._bytes += len(payload)
        self._acknowledge()

    def run_decoded(self, batch: OutgoingBatch) -> None:
        """Executes the commands of a batch that never left this process."""
        self.run(batch.first_seq, batch.calls, batch.commands)
        self._bytes += batch.bulk
        self._acknowledge()

    def run(self, first_seq: int, calls: list[int], commands: Sequence[EncodedCommand]) -> None:
        """Executes commands; ``calls`` is their column of plain calls, or empty."""
        flight = self._flight
        due = flight.begin(max(first_seq, self.seq + 1))
        if calls:
            self._run_column(first_seq, calls, commands, due)
        else:
            self._run_commands(first_seq, commands, due)
        flight.finish(self.seq)

    def _run_commands(self, first_seq: int, commands: Sequence[EncodedCommand], due: int) -> None:
        """Executes a batch without a column."""
        last = first_seq + len(commands) - 1
        while self.seq < last:
            try:
                at = max(first_seq, self.seq + 1)
                for seq, command in enumerate(commands[at - first_seq :], at):
                    self._run_command(seq, command)
                    if seq >= due:
                        due = self._flight.stamp(seq)
            except CommandInterrupted:  # of a command that was over by then
                pass

    def _acknowledge(self) -> None:
        """Acknowledges this rank's progress, if no reply was sent for many commands."""
        if self.seq - self._acked >= _ACK_COMMANDS or self._bytes >= _ACK_BYTES:
            self._send(EncodedReply(ack=self.seq), self.seq)

    def _run_command(self, seq: int, command: EncodedCommand) -> None:
        if seq <= self.seq:
            return  # sent again after a lost connection
        self._guard.position = seq
        if command.released:
            self.registers.release(command.released)
        if not self._reserve(seq, command):
            self.seq = seq
            return
        chosen = command.workers
        here = not chosen or self._worker.worker_id in chosen
        self._flight.kinds[seq & SLOT_MASK] = self._what(command, here=here)
        if here and self._is_left_out(seq, command):
            begun = command.interrupted == InterruptedAt.WITHIN
            self._leave_interrupted(seq, command, begun=begun)
        elif here and command.limit_s:
            self._execute_limited(seq, command)
        elif here:
            self._execute(seq, command)
        elif command.action == _CALL or _brings_anew(command):
            self.registers.write(command.reg, None)
        self.seq = seq

    def _execute(self, seq: int, command: EncodedCommand) -> None:
        self._porter.begin()
        handler = self._handlers.get(command.action, self._refuse_action)
        if command.workers:
            with self._worker.only(command.workers):
                handler(seq, command)
        else:
            handler(seq, command)

    def _execute_limited(self, seq: int, command: EncodedCommand) -> None:
        try:
            self._limits.begin(seq, command.limit_s)
        except RuntimeError as error:  # the system starts no thread
            name = self._names.of(command.func) or ACTION_NAMES.get(command.action, "")
            self._spoil_results(command, self._report(seq, error, name))
            return
        try:
            self._execute(seq, command)
        finally:
            self._limits.end()
        # A peer may wait for this rank in it, and cannot know that this one has gone past.
        self._worker.cannot_enter(seq)

    def _reserve(self, seq: int, command: EncodedCommand) -> bool:
        """Makes sure that there is a command's register; otherwise reports why not."""
        try:
            self.registers.reserve(command.reg)
            if command.action == _RUN_PROGRAM:
                self.registers.reserve(max(command.results, default=0))
        except ArgumentRefused as error:
            self._flight.kinds[seq & SLOT_MASK] = what_of(command.action & _ACTIONS)
            self._fail(seq, command, error, poison=False)
            return False
        return True

    def _what(self, command: EncodedCommand, *, here: bool) -> int:
        """What the flight recorder keeps of a command."""
        if command.func and command.func < len(self.registers.labels):
            what = self.registers.labels[command.func]
        else:
            what = what_of(command.action & _ACTIONS)
        return what if here else what | _ELSEWHERE

    def _run_column(  # noqa: C901, PLR0912, PLR0915  (calls inside it would cost too much)
        self, first_seq: int, calls: list[int], commands: Sequence[EncodedCommand], due: int
    ) -> None:
        """Executes a batch whose plain calls stand in one column of numbers.

        This loop is where the workers of a busy session spend their time, so it
        looks into the registers itself; see commands.proto for the column.
        """
        registers, flight = self.registers, self._flight
        guard = self._guard
        slots, labels, unnamed = registers.slots, registers.labels, registers.unnamed
        kinds, unfinished = flight.kinds, CoroutineType
        mask, done, size = SLOT_MASK, self.seq, len(slots)
        # What has been executed: all three go on together, right after a command.
        at, seq, beside = 0, first_seq, 0
        end = len(calls)
        while at < end:
            try:
                while at < end:
                    released = calls[at]
                    if released < 0:
                        guard.land()
                        self._run_command(seq, commands[beside])
                        size = len(slots)
                        at, seq, beside = at + 1, seq + 1, beside + 1
                        if seq > due:
                            due = flight.stamp(seq - 1)
                        continue
                    head = at + 1 + released
                    func, reg, first_arg = calls[head], calls[head + 1], head + 3
                    after = first_arg + calls[head + 2]
                    if after > end or after < first_arg:
                        msg = f"the column of calls breaks off at {head}"
                        raise ValueError(msg)
                    if seq > done:
                        suspect = registers.suspect
                        if suspect:
                            guard.land()  # nothing of the command before comes in this one
                        guard.position = seq
                        if reg >= size:
                            if not self._reserve(
                                seq, EncodedCommand(action=_CALL, func=func, reg=reg)
                            ):
                                registers.release(calls[at + 1 : head])
                                at, seq = after, seq + 1
                                continue
                            size = len(slots)
                        if released:
                            for dead in (calls[at + 1],) if released == 1 else calls[at + 1 : head]:
                                if dead < size:
                                    slots[dead] = None
                                    labels[dead] = unnamed
                        try:
                            kinds[seq & mask] = labels[func]
                            function = slots[func]
                            args: list[Any] = calls[first_arg:after]
                            place = 0
                            for arg in args:
                                args[place] = slots[arg >> 1] if arg & 1 else arg >> 1
                                place += 1  # noqa: SIM113  (faster)
                            guard.calling = True
                            if suspect or not callable(function):
                                self._check_begin(seq, func, function, args)
                            slots[reg] = result = function(*args)
                            guard.calling = False
                            if result is not None:
                                if type(result) is unfinished:
                                    slots[reg] = finished(guard, result)
                                result = None  # the register alone has it
                        except BaseException as error:  # noqa: BLE001  (user code may raise anything)
                            guard.calling = False
                            try:  # noqa: SIM105  (it may come before a context is entered)
                                guard.land()
                            except CommandInterrupted:
                                pass
                            command = command_of(plain_call((), func, reg, calls[first_arg:after]))
                            self._end_call(seq, command, command.args, error)
                        if seq >= due:
                            due = flight.stamp(seq)
                    at, seq = after, seq + 1
                guard.land()
            except CommandInterrupted:  # of a command that was over by then
                done = max(done, guard.position)
        self.seq = max(seq - 1, done)

    def describe_holdings(self, payload: bytes) -> bytes:
        """Answers a question about programs and published tensors; see ``rank.holdings``."""
        asked = EncodedHoldingsRequest.FromString(payload)
        published, name_of = self._worker.published, self._names.of
        return describe_holdings(asked, self._programs, published, name_of).SerializeToString()

    # What the program has interrupted ---------------------------------------------

    def _check_begin(self, seq: int, register: int, function: Any, args: Sequence[Any]) -> None:
        """Makes sure that a call may begin.

        Raises:
            NotBegun: The program has interrupted its command.
            Exception: As of `check_call`.
        """
        if self._guard.is_left_out(seq):
            raise NotBegun
        check_call(register, function, args)

    def _is_left_out(self, seq: int, command: EncodedCommand) -> bool:
        """Whether a command is not executed, because the program has interrupted it."""
        here = self._guard.is_left_out(seq) and command.action in INTERRUPTIBLE
        if here or command.interrupted:  # or on other workers
            return not is_uninterrupted(self.registers.peek(command.func))
        return False

    def _is_interrupted(self, seq: int, error: BaseException) -> bool:
        """Whether a command has failed because the program has interrupted it."""
        if isinstance(error, CommandInterrupted) or self._guard.aimed == seq:
            return True
        # A peer may have gone past its collective for that.
        return self._guard.is_left_out(seq) and isinstance(error, (Poisoned, AbortedError))

    def _note_interrupted(self, seq: int, function: str, *, begun: bool) -> Poison:
        """Notes that a command is not executed to its end; returns what its result is."""
        self._flight.mark(seq, Flag.SKIPPED)
        self._worker.interruption.note(seq, begun=begun)
        self._porter.withdraw()
        # Of all that are left out, so that peers in any of them learn it at once.
        self._worker.cannot_enter(max(seq, self._guard.until))
        return self._worker.interruption.poison(seq, function, begun=begun)

    def _leave_interrupted(self, seq: int, command: EncodedCommand, *, begun: bool) -> None:
        """Finishes a command that has not begun here, or not on these workers."""
        poison = self._note_interrupted(seq, self._names.of(command.func), begun=begun)
        self._spoil_results(command, poison)
        if command.interrupted == InterruptedAt.WITHIN:
            self._spoil_arguments(seq, command)

    def _spoil_results(self, command: EncodedCommand, poison: Poison) -> None:
        """Poisons what a command would have written that has not begun."""
        self._porter.let_go(command.args)
        if command.action == _RUN_PROGRAM:
            self._end_run(command, [UNWRITTEN] * len(command.results), poison, -1)
        elif command.action == Action.COPY_TO_WORKER0 and not _brings_anew(command):
            self.registers.spoil(command.reg, poison)
        else:
            into = self._destination(command, command.args)
            if into:
                self.registers.spoil(into, poison)
            self.registers.write(command.reg, poison)

    def _spoil_arguments(self, seq: int, command: EncodedCommand) -> None:
        """Lets arguments be stale that a command may have changed on the workers before these."""
        registers = self.registers
        for register in registers_in(command.args):
            held = registers.peek(register)
            if type(held) is not Poison and is_changeable(held):
                registers.write(register, self._worker.interruption.stale(seq))

    # The commands -----------------------------------------------------------------

    def _call(self, seq: int, command: EncodedCommand) -> None:
        registers = self.registers
        try:
            func = registers.read(command.func)
            args = decode_args(command.args, registers.read, self._porter)
            if not callable(func):
                check_call(command.func, func)
            names = command.keywords
            named = split_keywords(args, names) if names else {}
            run = _run_anyway if is_uninterrupted(func) else self._guard.run
            result = finished(self._guard, run(func, *args, **named))
            registers.write(command.reg, result)
            if isinstance(result, NamedCall):
                self._names.label(command.reg, result.name)
        except BaseException as error:  # noqa: BLE001  (user code may raise anything)
            self._end_call(seq, command, command.args, error)

    def _end_call(
        self, seq: int, command: EncodedCommand, args: Sequence[EncodedValue], error: BaseException
    ) -> None:
        """Finishes a call that failed, or that has read poison."""
        if isinstance(error, CommandInterrupted) and is_uninterrupted(
            self.registers.peek(command.func)
        ):
            self._call(seq, command)  # once more, as it was one of a column
            return
        into = self._destination(command, args)
        if self._is_interrupted(seq, error) or not isinstance(error, Poisoned):
            self._fail(seq, command, error, into)
            return
        try:
            self._call_over(command, args, into, error.poison)
        except Poisoned as read:
            self._porter.let_go(command.args)
            self._skip(seq, command.reg, read.poison, into)
        except BaseException as raised:  # noqa: BLE001  (user code may raise anything)
            trace = raised.__traceback__  # without the frame that a first call does not have
            self._fail(seq, command, raised.with_traceback(trace and trace.tb_next), into)

    def _destination(self, command: EncodedCommand, args: Sequence[EncodedValue]) -> int:
        """The register that a call overwrites beside its result's; 0 for none."""
        place = self._destination_of(command.func, len(args), command.keywords)
        return args[place].reg if 0 <= place < len(args) else 0

    def _call_over(
        self, command: EncodedCommand, args: Sequence[EncodedValue], into: int, poison: Poison
    ) -> None:
        """Makes a call that has read poison all the same, if it only overwrites that.

        Raises:
            Poisoned: It reads more than that.
            Exception: The call failed.
        """
        registers, met = self.registers, 0
        if not into or any(arg.WhichOneof("kind") == "array" for arg in args):
            raise Poisoned(poison)
        held = registers.to_overwrite(into)

        def read(register: int) -> Any:
            nonlocal met
            met += register == into
            return held if register == into and met == 1 else registers.read(register)

        values = decode_args(args, read, self._porter)
        named = split_keywords(values, command.keywords)
        result = self._guard.run(registers.read(command.func), *values, **named)
        result = finished(self._guard, result)
        registers.write(into, held)
        registers.write(command.reg, result)

    def _get_function(self, seq: int, command: EncodedCommand) -> None:
        try:
            name = self._args(command)[0]
            what = self._flight.label_of(command.action, str(name))
            self._flight.kinds[seq & SLOT_MASK] = what
            # Also where the command is interrupted and has not begun: what is found stays. Only
            # an import, which may take long, is broken off.
            if str(name) in registry() or self._guard.is_left_out(seq):
                func = self._names.find(str(name))
            else:
                func = self._guard.run(self._names.find, str(name))
        except BaseException as error:  # noqa: BLE001  (a module may raise anything when imported)
            self._fail(seq, command, error)
            return
        if command.reg:
            self._names.put(command.reg, func, str(name))

    def _kill(self, _seq: int, command: EncodedCommand) -> None:
        if command.args:  # a client without any registers begins
            self.registers.clear()
        elif command.reg:
            self.registers.release((command.reg,))

    def _sync(self, seq: int, command: EncodedCommand) -> None:
        try:
            self._worker.settle()
        except Exception as error:  # noqa: BLE001  (whatever the device raises)
            self._fail(seq, command, error)
        else:
            self._send(EncodedReply(seq=seq, ack=seq), seq)

    def settle(self) -> None:
        """Waits until the device has done all that was executed; reports what failed there."""
        try:
            self._worker.settle()
        except Exception as error:  # noqa: BLE001  (whatever the device raises)
            self._report(self.seq, error, ACTION_NAMES[Action.SYNC_WORKER], answers=0)

    def _get(self, seq: int, command: EncodedCommand) -> None:
        itself = bool(command.args)
        try:
            value = self.registers.read(command.reg)
            if not itself:
                refuse_to_fetch(value)
            self._answer(seq, value, itself=itself)
        except Poisoned as read:
            self._answer_poison(seq, read.poison)
        except BaseException as error:  # noqa: BLE001  (a device may have failed meanwhile)
            self._fail(seq, command, error, poison=False)

    def _copy_from(self, seq: int, command: EncodedCommand) -> None:
        try:
            shape, dtype = self._args(command)
            value = native(self.registers.read(command.reg))
            check_fits(value, tuple(shape), dtype)
            self._answer(seq, value)
        except Poisoned as read:
            self._answer_poison(seq, read.poison)
        except BaseException as error:  # noqa: BLE001  (whatever came is answered)
            self._fail(seq, command, error)

    def _copy_to(self, seq: int, command: EncodedCommand) -> None:
        register, is_new = command.reg, False
        try:
            is_new = command.args[1].bool
            if is_new:
                self.registers.write(register, self._args(command)[0])
                return
            held = self.registers.to_overwrite(register)
            self._copy_into(held, command.args[0])
            self.registers.write(register, held)
        except Poisoned:
            self._porter.let_go(command.args)  # the cause is known to the client already
        except BaseException as error:  # noqa: BLE001  (whatever came is reported)
            self._fail(seq, command, error, 0 if is_new else register, poison=is_new)

    def _set(self, seq: int, command: EncodedCommand) -> None:
        register, held = command.reg, None
        try:
            with contextlib.suppress(Poisoned):  # a good value replaces the poison
                held = self.registers.to_overwrite(register)
            if is_any_array(held):
                self._copy_into(held, command.args[0])
                self.registers.write(register, held)
            else:
                self.registers.write(register, self._args(command)[0])
        except BaseException as error:  # noqa: BLE001  (whatever came is answered)
            # What was refused has not been touched, and the request is answered with the error.
            refused = isinstance(error, (ArgumentRefused, ArrayRefused))
            into = register if is_any_array(held) and not refused else 0
            self._fail(seq, command, error, into, poison=False)
        else:
            self._send(EncodedReply(seq=seq, ack=seq), seq)

    def _define(self, seq: int, command: EncodedCommand) -> None:
        worker, read = self._worker, self.registers.read
        linker = Linker(
            worker.worker_id,
            read,
            self._names.find,
            self._copy_into,
            worker.only,
            self._porter.arrived,
            self._destination_of,
            partial(finished, self._guard),
        )
        try:
            program = compile_program(command.program, seq, linker)
        except Poisoned as found:
            self._skip(seq, command.reg, found.poison)
        except BaseException as error:  # noqa: BLE001  (whatever came is reported)
            self._fail(seq, command, error)
        else:
            self.registers.write(command.reg, program)
            self._programs.add(program)
            self._names.label(command.reg, command.program.name, Action.RUN_PROGRAM)

    def _run_program(self, seq: int, command: EncodedCommand) -> None:
        results: list[Any] = [UNWRITTEN] * len(command.results)
        poison, done = None, -1
        try:
            program = self.registers.read(command.func)
            if not isinstance(program, CompiledProgram):
                msg = f"expected a program in register {command.func}, got {program!r}"
                raise ArgumentRefused(msg)  # noqa: TRY301  (reported like everything below)
            anew = {_overwrites(each, command) for each in program.overwritten if each.first} - {0}

            def read(register: int) -> Any:
                held = self.registers
                return held.to_overwrite(register) if register in anew else held.read(register)

            try:
                values = decode_args(command.args, read, self._porter)
                self._guard.run(program.run, values, results, read)
            except StepFailed as failed:
                name = failed.function or self._names.of(failed.register)
                inside = program.defined, failed.step
                done = failed.place
                poison = self._why_failed(seq, failed.error, name, inside)
        except Poisoned as found:
            poison = found.poison.cause
            self._leave_out(seq, poison)
        except BaseException as error:  # noqa: BLE001  (whatever came is reported)
            poison = self._why_failed(seq, error, ACTION_NAMES[command.action])
        if poison is not None:
            self._porter.let_go(command.args)
        self._end_run(command, results, poison, done)

    def _end_run(
        self, command: EncodedCommand, results: list[Any], poison: Poison | None, done: int
    ) -> None:
        """Writes what a run of a program has made; see `_settle_overwritten`."""
        program = self.registers.peek(command.func)
        for each in program.overwritten if isinstance(program, CompiledProgram) else ():
            self._settle_overwritten(each, command, results, poison, done)
        for register, result in zip(command.results, results, strict=True):
            self.registers.write(register, poison if result is UNWRITTEN else result)

    def _settle_overwritten(
        self,
        each: Overwritten,
        command: EncodedCommand,
        results: list[Any],
        poison: Poison | None,
        done: int,
    ) -> None:
        """Poisons what a run that failed has not overwritten, and clears the poison of what it has.

        Args:
            each: What steps of the program overwrite.
            command: The run.
            results: Its outputs.
            poison: Why it failed; None if it did not.
            done: How many steps are done, if it failed.
        """
        registers, register = self.registers, _overwrites(each, command)
        if poison is not None and each.step >= done:
            for output in each.outputs:
                results[output] = UNWRITTEN
            if register:
                registers.spoil(register, poison)
        elif register and each.first:
            registers.write(register, registers.to_overwrite(register))

    def _destination_of(self, function: int | str, count: int, names: Sequence[str]) -> int:
        """Which argument of a call a function overwrites, by its name or register."""
        if isinstance(function, str):
            return destination_of(registry().get(function), count, names)
        return destination_of(self.registers.peek(function), count, names)

    def _shut_down(self, _seq: int, _command: EncodedCommand) -> None:
        self.stopped = True

    def _refuse_action(self, seq: int, command: EncodedCommand) -> None:
        error = ArgumentRefused(
            f"expected an action this worker knows, got number {command.action}"
        )
        self._fail(seq, command, error)

    def _args(self, command: EncodedCommand) -> list[Any]:
        return decode_args(command.args, self.registers.read, self._porter)

    def _copy_into(self, held: Any, value: EncodedValue) -> None:
        """Copies a host array into the array of a register, with one copy where it can."""
        array = value.array
        dtype = dtype_from_name(array.dtype)
        held = destination(held)
        fits = is_any_array(held) and held.dtype == dtype
        fits = fits and held.size == math.prod(array.shape)
        if fits and array.WhichOneof("data") == "ticket" and held.flags.c_contiguous:
            self._porter.collect_into(array.ticket, held.reshape(-1))
            return
        came = self._porter.collect_on_host(value, self.registers.read)
        check_fits(held, came.shape, came.dtype)
        if is_array(held):
            held[...] = came.reshape(held.shape)
        else:
            self._worker.arrays.fill(held, came)

    # Answers --------------------------------------------------------------------------

    def _send(self, reply: EncodedReply, ack: int) -> None:
        self._acked = ack
        self._bytes = 0
        self._sink.reply(reply.SerializeToString(), ack)

    def _answer(self, seq: int, value: Any, *, itself: bool = False) -> None:
        """Answers a question with a value; ``itself``: the very object, where it can be reached."""
        if self._live is not None:
            # A copy has its content now, whatever runs next.
            value = self._porter.shared(value) if itself else self._porter.copied(value)
            self._acked, self._bytes = seq, 0
            self._live(seq, value)
            return
        reply = EncodedReply(seq=seq, ack=seq)
        self._encode(reply.value, value)
        self._send(reply, seq)

    def _encode(self, out: EncodedValue, value: Any) -> None:
        try:
            encode_value(out, value, self._porter)
        except ArrayRefused:
            raise
        except EncodingError as error:
            stand_in = opaque_of(value, error)
            self._porter.withdraw()
            out.Clear()
            encode_value(out, stand_in)
        if out.ByteSize() > _MAX_REPLY_BYTES:
            msg = (
                f"expected a value that takes at most {_MAX_REPLY_BYTES} bytes without its arrays,"
                f" got a {type_name(value)} that takes {out.ByteSize()}; return arrays instead, or"
                " parts of it"
            )
            raise EncodingError(msg)

    def _answer_poison(self, seq: int, poison: Poison) -> None:
        reply = EncodedReply(seq=seq, ack=seq)
        encode_failure(reply.failure, poison.failure, poison.kind)
        self._send(reply, seq)

    def _skip(self, seq: int, register: int, poison: Poison, into: int = 0) -> None:
        """Poisons, with the same cause, what a command that could not run would have written."""
        self.registers.write(register, poison.cause)
        if into:
            self.registers.spoil(into, poison)
        self._leave_out(seq, poison)

    def _leave_out(self, seq: int, poison: Poison) -> None:
        """Reports a command that could not run to the client, with the cause, and to the peers."""
        self._flight.mark(seq, Flag.SKIPPED)
        if self._worker.num_workers > 1:
            # A peer's collective may be aborted for it, and the client looks for the cause.
            cause = RemoteFailure(self._worker.worker_id, poison.failure.seq, "")
            reply = EncodedReply(seq=seq, ack=seq)
            encode_failure(reply.failure, cause, poison.kind)
            self._send(reply, seq)
        self._worker.cannot_enter(seq)

    def _fail(
        self,
        seq: int,
        command: EncodedCommand,
        error: BaseException,
        into: int = 0,
        *,
        poison: bool = True,
    ) -> None:
        """Reports why a command failed, and poisons what it writes.

        Args:
            seq: The command's number.
            command: The command.
            error: What it raised.
            into: The register that it writes into, beside that of its result.
            poison: Whether its result's register is poisoned.
        """
        name = self._names.of(command.func) or ACTION_NAMES.get(command.action, "")
        cause = self._why_failed(seq, error, name)
        self._porter.let_go(command.args)
        if poison and command.action in _WRITES and command.reg:
            self.registers.write(command.reg, cause)
        if into:
            self.registers.spoil(into, cause)

    def _why_failed(
        self, seq: int, error: BaseException, function: str, inside: tuple[int, int] = (0, 0)
    ) -> Poison:
        """Reports a failure, unless the program has interrupted the command and knows it."""
        if self._is_interrupted(seq, error):
            passed = self._limits.passed(seq, error)
            if passed is not None:
                return self._report(seq, passed, function, inside)
            begun = not isinstance(error, (NotBegun, Poisoned))
            return self._note_interrupted(seq, function, begun=begun)
        return self._report(seq, error, function, inside)

    def _report(
        self,
        seq: int,
        error: BaseException,
        function: str,
        inside: tuple[int, int] = (0, 0),
        answers: int | None = None,  # the command, unless it is no command's own: 0
    ) -> Poison:
        """Reports a failure to the client and the peers, perhaps in a step of a program.

        Raises:
            BaseException: The error, where it ends the rank instead (`CALL_ENDS`).
        """
        if isinstance(error, CALL_ENDS):
            raise error
        self._flight.mark(seq, Flag.FAILED)
        self._porter.withdraw()  # this failure replaces the answer that named it
        failure, kind = describe_failure(
            self._worker.cause_of(seq, error),
            worker=self._worker.worker_id,
            node=self._worker.node,
            seq=seq,
            function=function,
        )
        program, step = inside
        failure = replace(failure, program=program, step=step)
        if kind is FailureKind.NOT_ALLOWED:
            self._worker.audit("refused", function, failure.message)
        reply = EncodedReply(seq=seq if answers is None else answers, ack=seq)
        encode_failure(reply.failure, failure, kind)
        # Sent before peers are released, so that the cause arrives first.
        self._send(reply, seq)
        self._worker.failed(seq, _cause(failure))
        return Poison(failure, kind)


def _cause(failure: RemoteFailure) -> str:
    """What was raised and where, in one line, for peers that wait in another library."""
    lines = [line.strip() for line in failure.traceback.splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    what = ": ".join(filter(None, (failure.exception, failure.message)))
    return brief(f"{what} ({places[-1]})" if places else what)


def _run_anyway(func: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Calls a function as work of the rank's own, which nothing interrupts."""
    return func(*args, **named)


def _brings_anew(command: EncodedCommand) -> bool:
    """Whether a command copies an array of the client's into a new register."""
    if command.action != Action.COPY_TO_WORKER0:
        return False
    return len(command.args) > 1 and command.args[1].bool


def _overwrites(each: Overwritten, command: EncodedCommand) -> int:
    """The session's register that a run of a program overwrites; 0 for none."""
    if each.input >= 0:
        return command.args[each.input].reg if each.input < len(command.args) else 0
    return each.register


_CALL: Any = Action.CALL_PACKED
_RUN_PROGRAM: Any = Action.RUN_PROGRAM
_ACTIONS = 0x7F
"""More than there are; a peer may send any number."""

_ELSEWHERE = int(Flag.ELSEWHERE)
"""As a plain number: with the flag itself, each other worker's command would make a new one."""

_WRITES = (
    Action.CALL_PACKED,
    Action.GET_GLOBAL_FUNC,
    Action.COPY_TO_WORKER0,
    Action.DEFINE_PROGRAM,
)
"""Actions whose result is the content of their register."""
