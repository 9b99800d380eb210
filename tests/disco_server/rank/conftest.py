"""Writing programs as a client does, and running them as a rank does."""

from __future__ import annotations

import pytest

from disco_client.program import RecordingLog
from disco_client.wire.codec import Action, EncodedProgram, encode_value
from disco_server.rank.program import UNWRITTEN, Linker, compile_program
from disco_server.rank.registers import RegisterFile


class ProgramRank:
    """Worker 1 of a session: its registers, and the functions that it knows."""

    def __init__(self):
        self.registers = RegisterFile()
        self.known = {}
        self.copied = []

    def linker(self):
        return Linker(1, self.registers.read, self.known.__getitem__, self._copy_into)

    def _copy_into(self, held, value):
        self.copied.append((held, list(value.array.shape)))

    def compile(self, recording, defined=7):
        return compile_program(recording.encode(), defined, self.linker())

    def run(self, recording, *args):
        results = [UNWRITTEN] * len(recording.outputs)
        self.compile(recording).run(list(args), results, self.registers.read)
        return results


class Value(int):
    """An argument that stands for a register."""


class Recording:
    """Writes a program as a client does."""

    def __init__(self):
        self.log = RecordingLog()
        self.inputs, self.captured, self.registers, self.outputs = [], [], [], []

    def input(self):
        self.inputs += self.log.allocate(1)
        return Value(self.inputs[-1])

    def take(self, register):
        self.captured += self.log.allocate(1)
        self.registers.append(register)
        return Value(self.captured[-1])

    def plain(self, func, *args):
        column = [arg * 2 + 1 if isinstance(arg, Value) else arg * 2 for arg in args]
        return Value(self.log.issue_call(func, column, int))

    def issue(self, action, *args, func=0, reg=None, workers=(), results=()):
        def fill(command):
            for arg in args:
                encode_value(command.args.add(), arg, register_of=register_of)
            command.results.extend(results)
            return 0

        return Value(
            self.log.issue(
                action, fill, func=func, reg=int if reg is None else reg, workers=workers
            )[1]
        )

    def call(self, func, *args):
        return self.issue(Action.CALL_PACKED, *args, func=func)

    def new(self, count):
        """Registers for the results of a run."""
        return [Value(register) for register in self.log.allocate(count)]

    def encode(self):
        return EncodedProgram(
            batches=self.log.encode(),
            inputs=self.inputs,
            captured=self.captured,
            registers=self.registers,
            outputs=self.outputs,
            name="p",
        )


def register_of(value):
    return int(value) if isinstance(value, Value) else None


@pytest.fixture(scope="session")
def new_recording():
    """Makes programs that are being written."""
    return Recording


@pytest.fixture
def recording():
    """A program that is being written."""
    return Recording()


@pytest.fixture(scope="session")
def new_rank():
    """Makes ranks: an echo in register 1, a sum in 2, a failure in 3."""

    def make():
        made = ProgramRank()
        made.registers.write(1, lambda *args: args[0] if len(args) == 1 else list(args))
        made.registers.write(2, lambda first, second: first + second)
        made.registers.write(3, lambda: 1 / 0)
        return made

    return make


@pytest.fixture
def rank(new_rank):
    """Worker 1 of a session that runs programs."""
    return new_rank()
