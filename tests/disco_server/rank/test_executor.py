"""Commands of one rank, in order: results, answers, poison, acknowledgements."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco_client import Opaque, Shape
from disco_client.errors import EncodingError
from disco_client.tracing.ring import read_flight
from disco_client.wire.batch import (
    command_of,
    parts_of,
    plain_call,
    read_batch,
    write_column,
)
from disco_client.wire.codec import (
    Action,
    ArrayPorter,
    EncodedBatch,
    FailureKind,
    decode_failure,
    decode_value,
    encode_value,
)
from disco_server.rank import executor as module
from disco_server.rank import functions
from disco_server.rank.executor import Executor
from disco_server.rank.worker import DevicePorter, Worker
from fakes import Replies


class Rank:
    """An executor with a program to run: worker 1 of 2."""

    def __init__(self):
        self.passed = []
        self.out = Replies()
        self.worker = Worker(1, 2, 1, open_groups=None, node="n", allow_modules=("numpy",))
        self.worker.cannot_enter = self.passed.append
        self.executor = Executor(self.worker, self.out)
        self.seq = 0
        self.next_reg = 1

    def run(self, *commands):
        batch = EncodedBatch()
        for command in commands:
            batch.commands.add().MergeFrom(command)
        first = self.seq + 1
        self.seq += len(commands)
        self.executor.run_batch(first, batch.SerializeToString())
        return self.out.take()

    def read(self, register):
        return self.executor.registers.read(register)


def command(action, *args, reg=0, func=0, worker=None, released=()):
    made = EncodedBatch().commands.add()
    made.action = action
    made.reg, made.func = reg, func
    made.workers.extend(() if worker is None else (worker,))
    made.released.extend(released)
    for arg in args:
        if isinstance(arg, Register):
            made.args.add().reg = arg
        else:
            encode_value(made.args.add(), arg)
    return made


class Register(int):
    """An argument that stands for a register's content."""


def get_func(name, reg):
    return command(Action.GET_GLOBAL_FUNC, name, reg=reg)


def call(func, reg, *args, **options):
    return command(Action.CALL_PACKED, *args, reg=reg, func=func, **options)


def fetch(reg, worker=1):
    return command(Action.DEBUG_GET_FROM_REMOTE, reg=reg, worker=worker)


SYNC = command(Action.SYNC_WORKER)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """A few functions of these tests' own."""

    def fail(*_args):
        msg = "it failed"
        raise KeyError(msg)

    own = {
        "t.echo": lambda *args: args[0] if len(args) == 1 else list(args),
        "t.fail": fail,
        "t.named": lambda **named: named,
        "t.big": lambda: "x" * 50,
        "t.exit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    }
    monkeypatch.setattr(functions, "_registry", {**functions._registry, **own})


@pytest.fixture
def rank():
    return Rank()


def test_a_program_runs_from_function_to_result(rank):
    """Registers become their content, and the answer carries the acknowledgement."""
    replies = rank.run(get_func("t.echo", 1), call(1, 2, 5, "x"), call(1, 3, Register(2)), fetch(3))
    (reply,) = replies
    assert (reply.seq, reply.ack) == (4, 4)
    assert decode_value(reply.value) == [5, "x"]
    assert rank.read(2) is rank.read(3)


def test_a_sync_is_answered_and_nothing_else_need_be(rank):
    """Calls are silent while nothing goes wrong."""
    assert rank.run(get_func("t.echo", 1), call(1, 2, 5)) == []
    (reply,) = rank.run(SYNC)
    assert (reply.seq, reply.ack, reply.WhichOneof("outcome")) == (3, 3, None)


def test_a_command_for_another_worker_only_counts(rank):
    """It is acknowledged with the rest, and its registers are freed here, too."""
    rank.run(get_func("t.echo", 1), call(1, 2, 5), call(1, 3, 6))
    theirs = command(Action.DEBUG_GET_FROM_REMOTE, reg=2, worker=0, released=[3])
    (reply,) = rank.run(theirs, SYNC)
    assert (reply.seq, reply.ack) == (5, 5)
    assert rank.read(3) is None


def test_a_call_of_chosen_workers_leaves_none_on_the_others(rank):
    """Whatever it would have read; the flight recorder says that it was for others."""
    rank.run(get_func("t.fail", 1), call(1, 2, 5), get_func("t.echo", 3), call(3, 4, 6))
    assert rank.run(call(3, 4, Register(2), worker=0), call(3, 5, 7, worker=1)) == []
    assert (rank.read(4), rank.read(5)) == (None, 7)
    flight = read_flight(*rank.worker.flight.copy()).commands
    assert [each.elsewhere for each in flight] == [False] * 4 + [True, False]
    assert flight[4].name == "t.echo"


def test_keywords_are_the_last_arguments(rank):
    """Each has a name of its own, or the call is refused."""
    rank.run(get_func("t.named", 1))
    for names, reply in ((["a", "b"], None), (["a"] * 2, "own"), (list("abc"), "own")):
        made = call(1, 2, 5, 6)
        made.keywords.extend(names)
        replies = rank.run(made)
        assert bool(replies) == (reply is not None)
        if replies:
            failure, kind = decode_failure(replies[0].failure)
            assert (kind, reply in failure.message) == (FailureKind.BAD_ARGUMENT, True)
        else:
            assert rank.read(2) == {"a": 5, "b": 6}


def test_an_exception_is_reported_at_once_and_poisons_the_result(rank):
    """With its function's name; the rank tells its peers that it will not come."""
    (reply,) = rank.run(get_func("t.fail", 1), call(1, 2, 5))
    failure, kind = decode_failure(reply.failure)
    assert (reply.seq, reply.ack, kind) == (2, 2, FailureKind.EXCEPTION)
    assert (failure.worker, failure.node, failure.seq) == (1, "n", 2)
    assert (failure.function, failure.exception) == ("t.fail", "KeyError")
    assert rank.passed == [2]
    (reply,) = rank.run(fetch(2))
    assert (reply.seq, decode_failure(reply.failure)[0].seq) == (3, 2)


def test_what_reads_poison_is_skipped_with_the_first_cause(rank):
    """It says only which command is left out for which; a new result heals the register."""
    rank.run(get_func("t.fail", 1), get_func("t.echo", 2), call(1, 3))
    said = rank.run(call(2, 4, Register(3)), call(2, 5, [1], Register(4)), call(3, 6))
    assert [(reply.seq, reply.failure.seq, reply.failure.message) for reply in said] == [
        (4, 3, ""),
        (5, 3, ""),
        (6, 3, ""),
    ]
    assert rank.passed == [3, 4, 5, 6]
    for register in (4, 5, 6):
        (reply,) = rank.run(fetch(register))
        assert decode_failure(reply.failure)[0].seq == 3
    rank.run(call(2, 4, "fine"))
    (reply,) = rank.run(fetch(4))
    assert decode_value(reply.value) == "fine"


def test_poison_is_found_inside_lists_and_maps(rank):
    """A call with such an argument does not run half."""
    rank.run(get_func("t.fail", 1), get_func("t.echo", 2), call(1, 3))
    deep = command(Action.CALL_PACKED, reg=4, func=2)
    deep.args.add().list.items.add().map.items.add(key="k").value.reg = 3
    rank.run(deep)
    (reply,) = rank.run(fetch(4))
    assert decode_failure(reply.failure)[0].seq == 3


def test_the_name_in_a_report_is_that_of_the_called_function(rank):
    """A register that was used again does not lend its old name."""
    rank.run(get_func("t.fail", 1), get_func("t.echo", 2))
    rank.run(call(2, 1, Register(1), released=[]))  # register 1: still the function, echoed
    (reply,) = rank.run(call(1, 3))
    assert reply.failure.function == "t.fail"
    rank.executor.registers.write(1, lambda: 1 / 0)
    (reply,) = rank.run(call(1, 3))
    assert (reply.failure.exception, reply.failure.function) == ("ZeroDivisionError", "")


@pytest.mark.parametrize("name", ["t.missing", "os.system"])
def test_a_missing_function_is_a_failure_of_its_lookup(rank, name):
    """Calls of it are skipped for that reason."""
    reply, left_out = rank.run(get_func(name, 1), call(1, 2))
    assert (left_out.seq, left_out.failure.seq) == (2, 1)
    assert (reply.failure.kind, reply.failure.function) == (
        FailureKind.NOT_FOUND,
        "get_global_func",
    )
    assert reply.seq == 1


def test_a_lookup_without_a_register_only_asks_whether_it_is_there(rank):
    """As in the original: register 0 takes nothing."""
    assert rank.run(get_func("t.echo", 0)) == []
    assert rank.read(0) is None
    assert len(rank.run(get_func("t.missing", 0))) == 1


def test_calling_what_is_no_function_says_what_it_is(rank):
    """None for a register that nobody wrote."""
    (reply,) = rank.run(call(9, 2))
    assert "register 9, got None" in reply.failure.message


def test_a_register_is_killed_by_a_command_or_along_with_one(rank):
    """Before the command that brings the news runs."""
    rank.run(get_func("t.echo", 1), call(1, 2, 5), call(1, 3, 6))
    rank.run(command(Action.KILL_REG, reg=2))
    assert rank.read(2) is None
    rank.run(call(1, 4, Register(3), released=[3]))
    assert rank.read(4) is None
    assert rank.executor.registers.statistics()[1] == 1


def test_what_was_executed_is_not_executed_again(rank):
    """Commands sent twice, after a lost connection, count once; a gap is an error."""
    rank.run(get_func("t.echo", 1), call(1, 2, 5))
    rank.executor.registers.write(2, "changed")
    batch = EncodedBatch()
    for each in (get_func("t.echo", 1), call(1, 2, 5), call(1, 3, 7)):
        batch.commands.add().MergeFrom(each)
    rank.executor.run_batch(1, batch.SerializeToString())
    assert (rank.read(2), rank.read(3), rank.executor.seq) == ("changed", 7, 3)
    with pytest.raises(EncodingError, match="expected command #4 next, got #6"):
        rank.executor.run_batch(6, batch.SerializeToString())


def test_a_long_silent_program_acknowledges_from_time_to_time(rank, monkeypatch):
    """By count and by bytes, so that the client may drop what it keeps."""
    monkeypatch.setattr(module, "_ACK_COMMANDS", 10)
    monkeypatch.setattr(module, "_ACK_BYTES", 1000)
    rank.run(get_func("t.echo", 1))
    assert rank.run(*[call(1, 2, 5) for _ in range(8)]) == []
    (reply,) = rank.run(call(1, 2, 5))
    assert (reply.seq, reply.ack) == (0, 10)
    (reply,) = rank.run(call(1, 2, "x" * 2000))
    assert (reply.seq, reply.ack) == (0, 11)


@pytest.mark.parametrize(
    ("held", "shape", "dtype", "fits"),
    [
        (np.arange(6), (2, 3), "int64", True),
        (np.arange(6), (6,), "int32", False),
        (np.arange(6), (5,), "int64", False),
        ("text", (1,), "int64", False),
        (None, (1,), "int64", False),
    ],
    ids=["shape", "dtype", "size", "text", "none"],
)
def test_a_copy_from_is_answered_only_where_it_fits(rank, held, shape, dtype, fits):
    """Number of elements and dtype; shapes may differ."""
    rank.executor.registers.write(2, held)
    ask = command(Action.COPY_FROM_WORKER0, Shape(shape), np.dtype(dtype), reg=2)
    (reply,) = rank.run(ask)
    if fits:
        np.testing.assert_array_equal(decode_value(reply.value), held)
    else:
        assert (reply.failure.kind, reply.failure.function) == (
            FailureKind.BAD_ARGUMENT,
            "copy_from_worker_0",
        )


def test_a_copy_to_fills_in_place_and_is_silent(rank):
    """A misfit is reported and poisons the register, until another copy overwrites it all."""

    def copy(array, reg):
        return command(Action.COPY_TO_WORKER0, array, False, reg=reg)

    held = np.zeros((2, 2), "int32")
    rank.executor.registers.write(2, held)
    assert rank.run(copy(np.arange(4, dtype="int32"), 2)) == []
    assert held.tolist() == [[0, 1], [2, 3]]
    (reply,) = rank.run(copy(np.arange(4.0), 2))
    assert reply.failure.function == "copy_to_worker_0"
    (reply,) = rank.run(fetch(2))
    assert reply.failure.function == "copy_to_worker_0"
    assert rank.run(copy(np.ones(4, "int32"), 2)) == []
    assert rank.read(2) is held
    assert held.tolist() == [[1, 1], [1, 1]]
    rank.run(get_func("t.fail", 1), call(1, 3))
    assert rank.run(copy(np.arange(4.0), 3)) == []


def test_a_copy_to_a_new_register_is_the_array_itself(rank):
    """Whatever the register held before, poison included."""
    rank.run(get_func("t.fail", 1), call(1, 2))
    assert rank.run(command(Action.COPY_TO_WORKER0, np.arange(3), True, reg=2)) == []
    assert rank.read(2).tolist() == [0, 1, 2]


def test_setting_a_register_is_always_answered(rank):
    """In place where an array fits, refused where it does not, a new value elsewhere."""
    held = np.zeros(2)
    rank.executor.registers.write(2, held)
    (reply,) = rank.run(command(Action.DEBUG_SET_REGISTER, np.ones(2), reg=2))
    assert (reply.seq, held.tolist(), rank.read(2) is held) == (1, [1, 1], True)
    (reply,) = rank.run(command(Action.DEBUG_SET_REGISTER, np.ones(3), reg=2))
    assert reply.failure.function == "debug_copy_from"
    rank.run(command(Action.DEBUG_SET_REGISTER, np.ones(3), reg=5))
    assert rank.read(5).tolist() == [1, 1, 1]


def fail(*_args):
    """What a device says that has failed."""
    raise MemoryError


class Lost(DevicePorter):
    """Cannot read what lies on its device any more."""

    content = offer = fail


@pytest.mark.parametrize("size", [3, 5000])
def test_an_answer_that_cannot_be_made_is_a_failure_of_its_command(rank, size):
    """Not the end of the rank; what the register holds may be good for others."""
    rank.executor.registers.write(2, np.zeros(size))
    rank.executor._porter = Lost(rank.worker, ArrayPorter())
    for asked in (fetch(2), command(Action.COPY_FROM_WORKER0, Shape((size,)), "float64", reg=2)):
        (reply,) = rank.run(asked)
        assert (reply.seq, reply.failure.exception) == (rank.seq, "MemoryError")
    assert rank.read(2).size == size


def test_what_waiting_for_the_device_finds_is_no_commands_own(rank, monkeypatch):
    """The last command has perhaps failed by itself, which is known."""
    rank.run(get_func("t.echo", 1))
    rank.executor.settle()
    assert rank.out.take() == []
    monkeypatch.setattr(rank.worker.place, "settle", fail)
    rank.executor.settle()
    (reply,) = rank.out.take()
    assert (reply.seq, reply.ack, reply.failure.seq) == (0, 1, 1)
    assert reply.failure.function == "sync_worker"
    (reply,) = rank.run(SYNC)
    assert (reply.seq, reply.failure.exception) == (2, "MemoryError")


class Shy:
    """Raises where it should describe itself."""

    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [(object(), "<object"), (Shy(), "its repr raised"), (len, "<built-in")],
    ids=["object", "shy", "function"],
)
def test_what_cannot_travel_is_answered_by_a_description(rank, value, text):
    """Never by silence, and never by the end of the rank."""
    rank.executor.registers.write(2, value)
    (reply,) = rank.run(fetch(2))
    came = decode_value(reply.value)
    assert isinstance(came, Opaque)
    assert came.text.startswith(text)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([np.full(2000, 1 << 62, object)], r"at \[0\]: .* got numpy.ndarray of Python's objects: "),
        ({"k" * 500: object()}, r"at \['k{500}'\]: a value of type builtins.object cannot travel"),
        ([{(len,): 1}], r"at \[0\] in the key \(<built-in function len>,\)\[0\]: a value of"),
        (
            [{Shy(): 1}],
            r"at \[0\] in the key <its repr raised RuntimeError>: a value of type .*Shy",
        ),
        (["\ud800", "x" * 5000], r"at \[0\]: expected text that UTF-8 can encode, got "),
    ],
    ids=["array", "path", "key", "shy key", "text"],
)
def test_what_cannot_travel_inside_is_named_by_path_and_type(rank, value, reason):
    """However long its path and its repr are, and where it has none; the register keeps it."""
    rank.executor.registers.write(2, value)
    (reply,) = rank.run(fetch(2))
    assert re.match(reason, reply.failure.message), reply.failure.message
    assert rank.executor.registers.read(2) is value


def test_an_answer_too_large_for_the_relays_is_refused(rank, monkeypatch):
    """It would break the connection of everything else."""
    monkeypatch.setattr(module, "_MAX_REPLY_BYTES", 40)
    rank.run(get_func("t.big", 1), call(1, 2))
    (reply,) = rank.run(fetch(2))
    assert "takes at most 40 bytes without its arrays, got a builtins" in reply.failure.message


def test_an_action_of_a_newer_client_is_refused_by_its_number(rank):
    """And the rank goes on."""
    unknown = command(Action.CALL_PACKED)
    unknown.action = 77
    (reply,) = rank.run(unknown)
    assert "number 77" in reply.failure.message
    assert len(rank.run(SYNC)) == 1


def test_leaving_is_left_to_the_process(rank):
    """sys.exit in a function ends the rank, as it ends any program."""
    with pytest.raises(SystemExit):
        rank.run(get_func("t.exit", 1), call(1, 2))


def test_a_shut_down_stops_the_loop(rank):
    """Whoever runs the executor looks at it."""
    assert not rank.executor.stopped
    rank.run(command(Action.SHUT_DOWN))
    assert rank.executor.stopped


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_command_that_parses_is_survived(raw):
    """Random commands are executed, refused or ignored; only what is no batch is an error."""
    from google.protobuf.message import DecodeError

    rank = Rank()
    try:
        batch = EncodedBatch.FromString(raw)
        rank.executor.run_batch(1, raw)
    except (DecodeError, EncodingError):
        return
    assert batch.calls or rank.executor.seq == batch.skipped + len(batch.commands)


@pytest.mark.parametrize(
    "batch",
    [
        EncodedBatch(calls=[0]),
        EncodedBatch(calls=[0, 1, 2]),
        EncodedBatch(calls=[0, 1, 2, -3]),
        EncodedBatch(calls=[-1]),
    ],
    ids=["empty", "cut", "fewer than no arguments", "without a command"],
)
def test_what_no_client_writes_is_refused_as_no_batch(rank, batch):
    """A column that ends too early, after what went before."""
    rank.run(SYNC)
    with pytest.raises(EncodingError, match="cannot read the batch after command #1"):
        rank.executor.run_batch(2, batch.SerializeToString())


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(Action)[1:]),
            st.integers(0, 5),
            st.integers(0, 5),
            st.lists(st.integers(0, 5).map(Register) | st.integers(-2, 2) | st.just("t.echo")),
        ),
        max_size=20,
    )
)
def test_any_program_of_known_actions_is_executed_to_its_end(program):
    """Whatever the registers hold and the arguments are: one position after the other."""
    rank = Rank()
    rank.run(get_func("t.echo", 1), get_func("t.fail", 2))
    rank.run(*(command(act, *args, reg=reg, func=func) for act, reg, func, args in program))
    assert rank.executor.seq == rank.seq
    assert rank.passed == sorted(rank.passed)
    assert len(rank.run(SYNC)) == 1


def both_forms(program):
    """The same program as a column with a command here and there, and read, as single commands."""
    entries = []
    for released, func, reg, args in program:
        if "text" in args:
            entries.append(call(func, reg, *args, released=released))
        else:
            numbers = [2 * arg + isinstance(arg, Register) for arg in args]
            entries.append(plain_call(released, func, reg, numbers))
    calls, commands = write_column(entries)
    column = EncodedBatch(calls=calls, commands=commands)
    read = (entry for _, entry in read_batch(1, column))
    plain = [command_of(each) if isinstance(each, tuple) else each for each in read]
    return EncodedBatch(commands=plain).SerializeToString(), column.SerializeToString()


registers = st.integers(1, 5)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(3, 5), max_size=2),
            registers,
            st.integers(3, 5) | st.just(200),
            st.lists(registers.map(Register) | st.integers(-9, 9) | st.just("text"), max_size=4),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_column_of_calls_does_what_the_commands_do(program):
    """Byte for byte the same answers, the same registers, and nothing when it comes again."""
    outcomes = []
    for batch in both_forms(program):
        rank = Rank()
        rank.run(get_func("t.echo", 1), get_func("t.fail", 2))
        for _ in range(2):
            rank.executor.run_batch(3, batch)
        held = [value for value in rank.executor.registers.slots if value is not None]
        outcomes.append((rank.out.raw, held, rank.passed, rank.executor.seq))
    assert outcomes[0] == outcomes[1]


@settings(deadline=None)
@given(st.lists(st.integers(-2, 5), min_size=1, max_size=12), st.integers(0, 2))
def test_a_column_is_read_as_everybody_reads_it(calls, beside):
    """Whatever its numbers are: the same commands are in it, or it is refused."""
    batch = EncodedBatch(calls=calls, commands=[SYNC] * beside)
    rank = Rank()
    try:
        read = list(read_batch(1, batch))
    except EncodingError:
        with pytest.raises(EncodingError, match="cannot read the batch"):
            rank.executor.run_batch(1, batch.SerializeToString())
    else:
        for gone, func, reg, args in (parts_of(each) for _, each in read if type(each) is tuple):
            # There is no register below 0, and a column that names one is not looked at for it.
            assume(min(func, reg, *gone, *(arg >> 1 for arg in args if arg & 1)) >= 0)
        rank.executor.run_batch(1, batch.SerializeToString())
        assert rank.executor.seq == read[-1][0]
