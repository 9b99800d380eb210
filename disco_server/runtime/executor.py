"""One command at a time, in order; errors become replies and poisoned registers.

The executor does no I/O of its own: whoever runs it hands it batches, and gives
it an :class:`Outlet` for what goes back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from disco_client.errors import EncodingError
from disco_client.transport.base import OutgoingBatch
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedCommand,
    EncodedReply,
    EncodedValue,
    FailureKind,
    decode_args,
    encode_failure,
    encode_value,
    type_name,
)
from disco_client.wire.flight import Flag, what_of
from disco_client.wire.inspection import ACTION_NAMES
from disco_client.wire.values import Opaque, dtype_from_name, is_array
from disco_server.observe.flight import SLOT_MASK
from disco_server.runtime.context import Worker
from disco_server.runtime.device_porter import DevicePorter
from disco_server.runtime.errors import ArgumentRefused, describe_failure, repr_of
from disco_server.runtime.fitting import check_call, check_fits, is_any_array
from disco_server.runtime.function_names import FunctionNames
from disco_server.runtime.functions import NamedCall
from disco_server.runtime.outlet import Outlet
from disco_server.runtime.program import UNWRITTEN, Program, StepFailed, compile_program
from disco_server.runtime.register_file import Poison, Poisoned, RegisterFile
from disco_server.runtime.steps import Linker

__all__ = ["Executor"]

import_module("disco_server.runtime.offered")  # registers what every worker can do

_ACK_COMMANDS = 1024
"""How many commands may run before the client hears of it, if nothing else is said."""

_ACK_BYTES = 1 << 20
_MAX_REPLY_BYTES = 32 << 20
"""What an answer may hold besides arrays, so that every relay passes it."""


class Executor:
    """Runs one rank's commands; exactly one thread uses it."""

    def __init__(self, worker: Worker, outlet: Outlet) -> None:
        self._worker = worker
        self._outlet = outlet
        self._porter = DevicePorter(worker, outlet.porter)
        self._live = outlet.live
        self._flight = worker.flight
        what, limit = what_of(Action.CALL_PACKED), worker.max_registers
        self.registers = worker.registers = RegisterFile(what, limit)
        self._names = FunctionNames(worker, self.registers)
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

    def run(self, first_seq: int, calls: list[int], commands: Iterable[EncodedCommand]) -> None:
        """Executes commands; ``calls`` is their column of plain calls, or empty."""
        flight = self._flight
        due = flight.begin(max(first_seq, self.seq + 1))
        if calls:
            self._run_column(first_seq, calls, iter(commands), due)
        else:
            for seq, command in enumerate(commands, first_seq):
                self._run_command(seq, command)
                if seq >= due:
                    due = flight.stamp(seq)
        flight.finish(self.seq)

    def _acknowledge(self) -> None:
        """Tells the client how far this rank is, if it has not heard for long."""
        if self.seq - self._acked >= _ACK_COMMANDS or self._bytes >= _ACK_BYTES:
            self._send(EncodedReply(ack=self.seq), self.seq)

    def _run_command(self, seq: int, command: EncodedCommand) -> None:
        if seq <= self.seq:
            return  # sent again after a lost connection
        self._worker.position = seq
        if command.released:
            self.registers.release(command.released)
        if not self._reserve(seq, command):
            self.seq = seq
            return
        target = command.worker_plus_one
        here = not target or target == self._worker.worker_id + 1
        self._flight.kinds[seq & SLOT_MASK] = self._what(command, here=here)
        if here:
            self._porter.begin()
            handler = self._handlers.get(command.action)
            if handler is None:
                self._refuse_action(seq, command)
            else:
                handler(seq, command)
        self.seq = seq

    def _reserve(self, seq: int, command: EncodedCommand) -> bool:
        """Makes sure that there is a command's register; otherwise says why not."""
        try:
            self.registers.reserve(max((command.reg, *command.results)))
        except ArgumentRefused as error:
            self._flight.kinds[seq & SLOT_MASK] = what_of(command.action & _ACTIONS)
            self._fail(seq, command, error, poison=False)
            return False
        return True

    def _what(self, command: EncodedCommand, *, here: bool) -> int:
        """What the flight recorder keeps of a command."""
        if command.func and command.func < len(self.registers.labels):
            return self.registers.labels[command.func]
        what = what_of(command.action & _ACTIONS)
        return what if here else what | Flag.ELSEWHERE

    def _run_column(  # noqa: C901, PLR0912, PLR0915  (calls inside it would cost too much)
        self, first_seq: int, calls: list[int], commands: Iterator[EncodedCommand], due: int
    ) -> None:
        """Executes a batch whose plain calls stand in one column of numbers.

        This loop is where the workers of a busy session spend their time, so it
        looks into the registers itself; see commands.proto for the column.
        """
        worker, registers, flight = self._worker, self.registers, self._flight
        slots, labels, unnamed = registers.slots, registers.labels, registers.unnamed
        kinds = flight.kinds
        mask, done, size = SLOT_MASK, self.seq, len(slots)
        at, end, seq = 0, len(calls), first_seq - 1
        while at < end:
            seq += 1
            released = calls[at]
            if released < 0:
                at += 1
                self._run_command(seq, next(commands))
                size = len(slots)
                if seq >= due:
                    due = flight.stamp(seq)
                continue
            head = at + 1 + released
            func, reg, first_arg = calls[head], calls[head + 1], head + 3
            after = first_arg + calls[head + 2]
            if after > end or after < first_arg:
                msg = f"the column of calls breaks off at {head}"
                raise ValueError(msg)
            if seq > done:
                worker.position = seq
                if reg >= size:
                    if not self._reserve(seq, EncodedCommand(action=_CALL, func=func, reg=reg)):
                        registers.release(calls[at + 1 : head])
                        at = after
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
                    if registers.poisoned or not callable(function):
                        check_call(func, function, args)
                    slots[reg] = function(*args)
                except Poisoned as read:
                    self._skip(seq, reg, read.poison)
                except Exception as error:  # noqa: BLE001  (user code may raise anything)
                    self._fail(seq, EncodedCommand(action=_CALL, func=func, reg=reg), error)
                if seq >= due:
                    due = flight.stamp(seq)
            at = after
        self.seq = max(seq, done)

    # The commands -----------------------------------------------------------------

    def _call(self, seq: int, command: EncodedCommand) -> None:
        registers = self.registers
        try:
            func = registers.read(command.func)
            args = decode_args(command.args, registers.read, self._porter)
            if not callable(func):
                check_call(command.func, func)
            result = func(*args)
            registers.write(command.reg, result)
            if isinstance(result, NamedCall):
                self._names.label(command.reg, result.name)
        except Poisoned as read:
            self._porter.let_go(command.args)
            self._skip(seq, command.reg, read.poison)
        except Exception as error:  # noqa: BLE001  (user code may raise anything)
            self._fail(seq, command, error)

    def _get_function(self, seq: int, command: EncodedCommand) -> None:
        try:
            name = self._args(command)[0]
            what = self._flight.label_of(command.action, str(name))
            self._flight.kinds[seq & SLOT_MASK] = what
            func = self._names.find(str(name))
        except Exception as error:  # noqa: BLE001  (a module may raise anything when imported)
            self._fail(seq, command, error)
            return
        if command.reg:
            self._names.put(command.reg, func, str(name))

    def _kill(self, _seq: int, command: EncodedCommand) -> None:
        if command.args:  # a client that knows of none begins
            self.registers.clear()
        elif command.reg:
            self.registers.release((command.reg,))

    def _sync(self, seq: int, command: EncodedCommand) -> None:
        try:
            self._worker.settle()
        except Exception as error:  # noqa: BLE001  (whatever the device says)
            self._fail(seq, command, error)
        else:
            self._send(EncodedReply(seq=seq, ack=seq), seq)

    def settle(self) -> None:
        """Waits until the device has done all that was executed; reports what failed there."""
        try:
            self._worker.settle()
        except Exception as error:  # noqa: BLE001  (whatever the device says)
            self._report(self.seq, error, ACTION_NAMES[Action.SYNC_WORKER], answers=0)

    def _get(self, seq: int, command: EncodedCommand) -> None:
        try:
            self._answer(seq, self.registers.read(command.reg))
        except Poisoned as read:
            self._answer_poison(seq, read.poison)
        except Exception as error:  # noqa: BLE001  (a device may have failed meanwhile)
            self._fail(seq, command, error, poison=False)

    def _copy_from(self, seq: int, command: EncodedCommand) -> None:
        try:
            shape, dtype = self._args(command)
            value = self.registers.read(command.reg)
            check_fits(value, tuple(shape), dtype)
            if self._live is not None and is_array(value):
                value = value.copy()  # what is in it now, whatever comes next
            self._answer(seq, value)
        except Poisoned as read:
            self._answer_poison(seq, read.poison)
        except Exception as error:  # noqa: BLE001  (whatever came is answered)
            self._fail(seq, command, error)

    def _copy_to(self, seq: int, command: EncodedCommand) -> None:
        is_new = False
        try:
            is_new = command.args[1].bool
            if is_new:
                self.registers.write(command.reg, self._args(command)[0])
                return
            self._copy_into(self.registers.read(command.reg), command.args[0])
        except Poisoned:
            self._porter.let_go(command.args)  # the cause is known to the client already
        except Exception as error:  # noqa: BLE001  (whatever came is reported)
            # An array that was there may be overwritten in part; a new one has not come.
            self._fail(seq, command, error, poison=is_new)

    def _set(self, seq: int, command: EncodedCommand) -> None:
        try:
            try:
                held = self.registers.read(command.reg)
            except Poisoned:
                held = None  # a good value heals the register
            if is_any_array(held):
                self._copy_into(held, command.args[0])
            else:
                self.registers.write(command.reg, self._args(command)[0])
        except Exception as error:  # noqa: BLE001  (whatever came is answered)
            self._fail(seq, command, error, poison=False)
        else:
            self._send(EncodedReply(seq=seq, ack=seq), seq)

    def _define(self, seq: int, command: EncodedCommand) -> None:
        worker, read = self._worker, self.registers.read
        linker = Linker(
            worker.worker_id, read, self._names.find, self._copy_into, self._porter.arrived
        )
        try:
            program = compile_program(command.program, seq, linker)
        except Poisoned as found:
            self._skip(seq, command.reg, found.poison)
        except Exception as error:  # noqa: BLE001  (whatever came is reported)
            self._fail(seq, command, error)
        else:
            self.registers.write(command.reg, program)
            self._names.label(command.reg, command.program.name, Action.RUN_PROGRAM)

    def _run_program(self, seq: int, command: EncodedCommand) -> None:
        results: list[Any] = [UNWRITTEN] * len(command.results)
        poison = None
        try:
            program = self.registers.read(command.func)
            if not isinstance(program, Program):
                msg = f"expected a program in register {command.func}, got {program!r}"
                raise ArgumentRefused(msg)  # noqa: TRY301  (reported like everything below)
            try:
                program.run(self._args(command), results, self.registers.read)
            except StepFailed as failed:
                name = failed.function or self._names.of(failed.register)
                inside = program.defined, failed.step
                poison = self._report(seq, failed.error, name, inside)
        except Poisoned as found:
            poison = found.poison
            self._flight.mark(seq, Flag.SKIPPED)
            self._worker.cannot_enter(seq)
        except Exception as error:  # noqa: BLE001  (whatever came is reported)
            poison = self._report(seq, error, ACTION_NAMES[command.action])
        if poison is not None:
            self._porter.let_go(command.args)
        for register, result in zip(command.results, results, strict=True):
            self.registers.write(register, poison if result is UNWRITTEN else result)

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
        self._outlet.reply(reply.SerializeToString())

    def _answer(self, seq: int, value: Any) -> None:
        if self._live is not None:
            self._acked, self._bytes = seq, 0
            self._live(seq, value if self._worker.arrays.on_host else self._porter.host_form(value))
            return
        reply = EncodedReply(seq=seq, ack=seq)
        self._encode(reply.value, value)
        self._send(reply, seq)

    def _encode(self, out: EncodedValue, value: Any) -> None:
        with contextlib.suppress(EncodingError):
            encode_value(out, value, self._porter)
            if out.ByteSize() <= _MAX_REPLY_BYTES:
                return
        out.Clear()
        encode_value(out, Opaque(type_name(value), repr_of(value)))

    def _answer_poison(self, seq: int, poison: Poison) -> None:
        reply = EncodedReply(seq=seq, ack=seq)
        encode_failure(reply.failure, poison.failure, poison.kind)
        self._send(reply, seq)

    def _skip(self, seq: int, register: int, poison: Poison) -> None:
        """Passes a cause on to the result of a command that could not run for it."""
        self._flight.mark(seq, Flag.SKIPPED)
        self.registers.write(register, poison)
        self._worker.cannot_enter(seq)

    def _fail(
        self, seq: int, command: EncodedCommand, error: Exception, *, poison: bool = True
    ) -> None:
        self._porter.let_go(command.args)
        name = self._names.of(command.func) or ACTION_NAMES.get(command.action, "")
        cause = self._report(seq, error, name)
        if poison and command.action in _WRITES and command.reg:
            self.registers.write(command.reg, cause)

    def _report(
        self,
        seq: int,
        error: Exception,
        function: str,
        inside: tuple[int, int] = (0, 0),
        answers: int | None = None,  # the command, unless it is no command's own: 0
    ) -> Poison:
        """Tells the client and the peers of a failure, perhaps in a step of a program."""
        self._flight.mark(seq, Flag.FAILED)
        failure, kind = describe_failure(
            error,
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
        # Told before peers are released, so that the cause arrives first.
        self._send(reply, seq)
        self._worker.cannot_enter(seq)
        return Poison(failure, kind)


_CALL: Any = Action.CALL_PACKED
_ACTIONS = 0x7F
"""More than there are; what a peer sends may be anything."""

_WRITES = (
    Action.CALL_PACKED,
    Action.GET_GLOBAL_FUNC,
    Action.COPY_TO_WORKER0,
    Action.DEFINE_PROGRAM,
)
"""Actions whose result is the content of their register."""
