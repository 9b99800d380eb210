"""What went wrong on a worker, as the client of a real cluster gets to know it."""

from __future__ import annotations

import pytest

from disco_client import (
    BadArgument,
    Opaque,
    RemoteException,
    connect,
)
from disco_client.command_log import MAX_COMMAND_BYTES
from fakes import echo, pair

session = pair


def call(session, name, *args):
    """Worker 0's result of a function."""
    return session.get_global_func(name)(*args).debug_get_from_remote(0)


def test_an_exception_comes_back_with_both_of_its_sides(session):
    """Rank, node, command, function and traceback; and the line here that issued it."""
    issued = session.statistics()["issued"]
    line = test_an_exception_comes_back_with_both_of_its_sides.__code__.co_firstlineno + 4
    session.get_global_func("tests.fail_on")(1, "such a pity")
    with pytest.raises(RemoteException) as raised:
        session.sync_all()
    error = raised.value
    assert (error.worker, error.node) == (1, session.workers[1].node)
    assert (error.seq, error.function) == (issued + 2, "tests.fail_on")
    assert (error.exception, error.failures[0].message) == ("ValueError", "such a pity")
    assert "disco_test_functions.py" in error.remote_traceback
    assert "executor.py" not in error.remote_traceback
    assert error.issued_at.filename == __file__
    assert error.issued_at.line == line
    assert error.issued_at.function == "test_an_exception_comes_back_with_both_of_its_sides"
    for part in ("such a pity", "worker 1 (", f"line {line}", "raise ValueError"):
        assert part in str(error)
    session.sync_all()
    assert echo(session, "alive") == ["alive"] * 2


def test_the_first_cause_comes_through_a_chain_of_calls(session):
    """What reads a failed result is skipped, with the same cause; other ranks go on."""
    add = session.get_global_func("tests.add")
    first = session.get_global_func("tests.fail_on")(1, "the cause")
    cause_seq = session.statistics()["issued"]
    last = first
    for _ in range(5):
        last = add(last, 1)
    with pytest.raises(RemoteException, match="the cause") as raised:
        session.sync_all()
    assert raised.value.seq == cause_seq
    assert not hasattr(raised.value, "__notes__")
    assert last.debug_get_from_remote(0) == 5
    with pytest.raises(RemoteException, match="the cause") as again:
        last.debug_get_from_remote(1)
    assert again.value.seq == cause_seq
    session.sync_all()


def test_later_failures_are_counted_under_the_first(session):
    """One error a sync: the oldest, and how many followed."""
    fail = session.get_global_func("tests.fail_on")
    results = [fail(0, f"number {index}") for index in range(3)]
    with pytest.raises(RemoteException, match="number 0") as raised:
        session.sync_all()
    assert "2 later commands" in raised.value.__notes__[0]
    del results
    session.sync_all()


def test_fetching_raises_what_went_wrong_before(session):
    """Not only a sync tells; whichever call waits first does."""
    session.get_global_func("tests.fail_on")(0, "unseen")
    fine = session.get_global_func("tests.echo")(1)
    with pytest.raises(RemoteException, match="unseen"):
        fine.debug_get_from_remote(0)
    assert fine.debug_get_from_remote(0) == 1


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("tests.shy", (True,), "its text raised RuntimeError"),
        ("tests.raise_text", ("surrogate",), r"snow\\udce9"),
        ("tests.raise_text", ("long",), "characters left out"),
        ("tests.raise_text", ("empty",), "ValueError: "),
        ("tests.echo", (), "TypeError|IndexError|\\[\\]"),
    ],
)
def test_no_exception_is_too_strange_to_report(session, name, args, text):
    """Whatever its text does, the worker lives and the client is told."""
    result = session.get_global_func(name)(*args)
    if name == "tests.echo":
        assert result.debug_get_from_remote(0) == []
        return
    with pytest.raises(RemoteException, match=text):
        session.sync_all()
    assert echo(session, "alive") == ["alive"] * 2


def test_what_cannot_travel_is_described(session):
    """An object stays where it is; the client learns its type and how it looks."""
    came = call(session, "tests.shy", False)
    assert isinstance(came, Opaque)
    assert came.type == "disco_test_functions.Shy"
    assert came.text == "its repr raised RuntimeError"


def test_a_result_with_something_that_cannot_travel_is_refused(session):
    """By its place and type, where it is fetched; it stays on the workers."""
    echo_there, shy = session.get_global_func("tests.echo"), session.get_global_func("tests.shy")
    whole = echo_there({"a": [1, shy(False)]})
    with pytest.raises(BadArgument, match=r"at \['a'\]\[1\]: a value of type .*Shy cannot travel"):
        whole.get()
    session.sync_all()
    assert echo(session, "alive") == ["alive"] * 2


def test_a_result_that_is_too_large_is_refused(session):
    """Its arrays do not count, which have a way of their own."""
    large = session.get_global_func("tests.text_of_bytes")(MAX_COMMAND_BYTES + 1)
    with pytest.raises(BadArgument, match="at most 33554432 bytes without its arrays, got a built"):
        large.get()
    assert echo(session, "alive") == ["alive"] * 2


def test_a_with_block_raises_what_nobody_has_seen(cluster):
    """Leaving it is a sync; an error of the block itself goes first."""

    def use(own_error=None):
        with connect(cluster.address, num_workers=1) as session:
            session.import_python_module("disco_test_functions")
            session.get_global_func("tests.fail_on")(0, "unseen")
            if own_error is not None:
                raise own_error

    with pytest.raises(RemoteException, match="unseen"):
        use()
    with pytest.raises(KeyError):
        use(KeyError())
