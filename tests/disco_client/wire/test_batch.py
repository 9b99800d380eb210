"""The column of plain calls: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.errors import EncodingError
from disco_client.wire.batch import (
    OutgoingBatch,
    add_to_batch,
    command_of,
    parts_of,
    plain_call,
    read_batch,
    write_column,
)
from disco_client.wire.codec import Action, EncodedBatch, EncodedCommand, EncodedEnvelope

REGISTERS = st.integers(0, 2**31)
ARGS = st.lists(st.integers(-(2**62), 2**62), max_size=4)
PARTS = st.tuples(st.lists(REGISTERS, max_size=3), REGISTERS, REGISTERS, ARGS)
CALLS = PARTS.map(lambda parts: plain_call(*parts))
COMMANDS = st.builds(
    lambda reg: EncodedCommand(action=Action.GET_GLOBAL_FUNC, reg=reg), st.integers(1, 99)
)
ENTRIES = st.lists(CALLS | COMMANDS, max_size=8)


def batch_of(entries, skipped=0):
    calls, commands = write_column(entries)
    return EncodedBatch(calls=calls, commands=commands, skipped=skipped)


@given(ENTRIES, st.integers(1, 2**40), st.integers(0, 9))
def test_what_was_written_is_read_in_order(entries, first, skipped):
    """Each command has its number, behind those that are left out."""
    read = list(read_batch(first, batch_of(entries, skipped)))
    assert read == list(enumerate(entries, first + skipped))


@given(st.lists(COMMANDS, max_size=4))
def test_there_is_a_column_only_where_there_is_a_plain_call(commands):
    """Commands alone travel without one."""
    assert write_column(commands) == ([], commands)


@given(ENTRIES)
def test_what_was_read_is_written_to_another_batch(entries):
    """One by one it makes the same batch, with a column where the first had one."""
    whole, copied = batch_of(entries), EncodedBatch()
    for _, entry in read_batch(1, whole):
        add_to_batch(copied, entry, in_column=bool(whole.calls))
    assert copied == whole


@given(st.lists(CALLS | COMMANDS, min_size=1, max_size=8), st.data())
def test_a_column_that_breaks_off_is_refused(entries, data):
    """The error says where; what stands before is read."""
    batch = batch_of(entries)
    if not batch.calls:
        return
    ends = {len(write_column(entries[:n])[0] or [-1] * n) for n in range(len(entries) + 1)}
    cut = data.draw(st.integers(0, len(batch.calls) - 1).filter(lambda at: at not in ends))
    del batch.calls[cut:]
    with pytest.raises(EncodingError, match="its column breaks off at"):
        list(read_batch(1, batch))


def test_a_column_that_names_a_command_too_many_is_refused():
    """The batch has fewer commands beside its column than that says."""
    batch = EncodedBatch(calls=[-1, 0, 1, 2, 0, -1], commands=[EncodedCommand()])
    with pytest.raises(EncodingError, match="its column breaks off at 5"):
        list(read_batch(1, batch))


@given(PARTS)
def test_a_plain_call_has_the_parts_of_which_it_was_made(parts):
    """Registers to release, function, result and arguments."""
    assert parts_of(plain_call(*parts)) == (tuple(parts[0]), *parts[1:3], tuple(parts[3]))


def test_a_plain_call_may_be_spelled_out():
    """As a command, its arguments are values."""
    command = command_of(plain_call((4, 5), 1, 2, (7, 12, -2)))
    assert (command.action, command.func, command.reg) == (Action.CALL_PACKED, 1, 2)
    assert list(command.released) == [4, 5]
    assert [(arg.WhichOneof("kind"), arg.reg or arg.int) for arg in command.args] == [
        ("reg", 3),
        ("int", 6),
        ("int", -1),
    ]


def test_a_batch_travels_with_its_numbers():
    """The envelope names the session, and the worker whose node alone gets it."""
    sent = OutgoingBatch(3, 4, [0, 1, 2, 0, 0, 1, 3, 0], []).encode()
    assert (sent.first_seq, sent.last_seq, sent.in_column) == (3, 4, True)
    read = EncodedEnvelope.FromString(sent.envelope(7, worker=1))
    assert (read.session, read.worker_plus_one, read.first_seq, read.last_seq) == (7, 2, 3, 4)
    assert [seq for seq, _ in read_batch(3, EncodedBatch.FromString(read.payload))] == [3, 4]
