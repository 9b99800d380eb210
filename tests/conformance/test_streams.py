"""What generators on the workers yield comes to the program one by one."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle

import numpy as np
import pytest
from interrupting import GRACE_S, await_start
from reentry import watched

import disco_client as di
from disco_client.wire.values import INLINE_ARRAY_BYTES

BOTH = pytest.mark.parametrize("suffix", ["", "_async"], ids=["generator", "async-generator"])
LONG = 600.0
"""Seconds that nobody waits for."""


@pytest.fixture
def call(session, tools):
    """Calls a function of this file's module; workers have noted nothing yet."""
    session.sync_all()
    tools.results("stream.kept")
    return lambda name, *args: tools.call(f"stream.{name}", *args)


@pytest.fixture
def kept(tools):
    """What each worker has noted since the last look."""
    return lambda: tools.results("stream.kept")


def settle(session, *errors):
    """Takes the failure of a worker that was later than the answer of another one."""
    with contextlib.suppress(*errors):
        session.sync_all()


def line_of(error):
    """The line of the program that issued what has failed."""
    return next(line for line in str(error).splitlines() if "issued at" in line)


# Items ------------------------------------------------------------------------------------


@BOTH
def test_a_stream_has_the_items_of_a_generator(call, session, kept, suffix):
    """Of one worker, while all go through theirs; what it returns at its end is ignored."""
    assert list(call(f"count{suffix}", 4).stream()) == [0, 1, 2, 3]
    assert kept() == [[0, 1, 2, 3, "closed"]] * session.num_workers
    stream = call(f"count{suffix}", 2).stream(worker=1)
    assert list(stream) == [100, 101]
    assert list(stream) == []
    assert list(call(f"count{suffix}", 0).stream()) == []


def test_an_item_comes_before_the_next_one_is_made(call, waiter):
    """The generator waits for what the program does when it has the first one."""
    with watched():
        stream = call("gated", str(waiter)).stream()
        assert next(stream) == "before"
        waiter.touch()
        assert list(stream) == ["after"]


@BOTH
@pytest.mark.parametrize("ahead", [0, 2, 5])
def test_workers_make_so_many_items_ahead_and_no_more(call, session, kept, ahead, suffix):
    """None before the first item is wanted, then always as many as the program has said."""
    stream = call(f"count{suffix}", 100).stream(ahead=ahead)
    assert kept() == [[]] * session.num_workers
    made = []
    for taken in range(3):
        assert next(stream) == taken
        made += kept()[1]
        assert made == list(range(taken + 1 + ahead))


def test_items_are_what_a_fetch_would_return(call, kind):
    """An array as it was when it was yielded, and a description of what cannot travel."""
    for size in (2, INLINE_ARRAY_BYTES):
        got = list(call("reuses", size).stream(ahead=3))
        assert [(array == step).all() for step, array in enumerate(got)] == [True] * 3
    nothing, plain, *others = call("odd").stream()
    assert nothing is None
    assert plain == {"a": (1, 2)}
    assert [type(each) for each in others] == (
        [di.Opaque] * 2 if kind.processes else [np.ufunc, type]
    )


@BOTH
def test_workers_meet_in_each_step(call, session, suffix):
    """A generator may call collectives, as all workers go through theirs together."""
    workers = range(session.num_workers)
    ranks = sum(1.0 + worker for worker in workers)
    stream = call(f"reduced{suffix}", [4 for _ in workers]).stream(worker=1)
    assert [item.tolist() for item in stream] == [[ranks * step] * 2 for step in range(4)]


def test_a_worker_whose_generator_is_over_ends_the_collective_of_the_others(call, session):
    """Nobody waits for it for ever."""
    with watched():
        stream = call("reduced", [3, *[2 for _ in range(1, session.num_workers)]]).stream()
        assert [next(stream)[0] for _ in range(2)] == [0.0, 3.0]
        with pytest.raises(di.CollectiveAborted):
            next(stream)
    settle(session, di.RemoteError)


def test_methods_and_whatever_returns_a_generator_have_a_stream(call, session, tools):
    """Methods, a function of a name that references have, coroutines, and runs of programs."""
    model = session.create("stream.Model", 2)
    assert list(model.tokens("a").stream()) == ["a0", "a1"]
    assert list(model.stream("b").stream(1)) == ["b0", "b1"]
    assert list(call("returning", 2).stream()) == [0, 1]
    assert list(tools.call("disco_conformance_functions.streamed", 2).stream()) == [0, 1]
    with session.capture("generates") as program:
        program.output(session.get_global_func("stream.count")(program.input("number")))
    for number in (2, 3):
        assert list(program(number).stream()) == list(range(number))
    assert call("total", call("count", 4)).get() == 6


def test_only_chosen_workers_may_have_a_generator(session):
    """The items of another one are refused, with what to do."""
    count = session.get_global_func("stream.count").on(worker=1)
    assert list(count(2).stream(worker=1)) == [100, 101]
    with pytest.raises(di.BadArgument, match=r"got None.*on worker 0; ref\.stream\(worker="):
        next(count(2).stream())


# The end ----------------------------------------------------------------------------------


@BOTH
def test_a_generator_is_closed_when_the_loop_is_left(call, session, kept, suffix):
    """By a break, by an exception, by hand, or where no item was taken."""
    ended, workers = [0, 1, "closed"], session.num_workers
    for _ in call(f"count{suffix}", 9).stream(ahead=1):
        break
    assert kept() == [ended] * workers
    with contextlib.suppress(KeyError):
        for _ in call(f"count{suffix}", 9).stream(ahead=1):
            raise KeyError
    assert kept() == [ended] * workers
    ref = call(f"count{suffix}", 9)
    stream = ref.stream(ahead=1)
    next(stream)
    stream.close()
    assert kept() == [ended] * workers
    assert list(stream) == []
    del ref, stream
    call(f"count{suffix}", 9).stream()
    assert kept() == [[]] * workers


@BOTH
def test_an_error_of_a_generator_is_raised_in_its_place(call, session, suffix):
    """Behind the items before it, with the function, its line, and that of the loop."""
    got = []
    stream = call(f"fails{suffix}", 4).stream(ahead=8)
    with pytest.raises(di.RemoteException, match="told to fail") as failed:
        got.extend(stream)
    assert got == [0, 1, 2, 3]
    assert failed.value.failures[0].function == f"fails{suffix}"
    assert __file__ in line_of(failed.value)
    shown = failed.value.remote_traceback
    assert 'raise ValueError("told to fail")' in shown
    assert "disco_server" not in shown
    assert list(stream) == []
    settle(session, di.RemoteException)


def test_an_error_ahead_of_a_loop_that_is_left_is_not_lost(call, session):
    """The next wait raises it."""
    for _ in call("fails", 1).stream(ahead=1):
        break
    with pytest.raises(di.RemoteException, match="told to fail"):
        session.sync_all()


def test_a_call_that_failed_fails_its_stream(call, session):
    """With the first cause."""
    stream = session.get_global_func("stream.count")().stream()
    with pytest.raises(di.RemoteException, match="missing 1 required positional argument"):
        next(stream)
    settle(session, di.RemoteException)


@BOTH
@pytest.mark.parametrize("how", ["interrupt", "cancel", "limit"])
def test_a_step_that_waits_is_ended(call, session, kept, how, suffix):
    """The generator cleans up, and the stream has ended."""
    errors = {"limit": di.TimeLimit}.get(how, di.Interrupted)
    with watched():
        limit = session.limit(0.2) if how == "limit" else contextlib.nullcontext()
        with session.scope() as block, limit:
            stream = call(f"waits{suffix}", LONG).stream(ahead=1)
            assert next(stream) == 0
            if how != "limit":
                await_start(session, f"waits{suffix}")
            if how == "interrupt":
                assert session.interrupt(grace=GRACE_S) == ()
            elif how == "cancel":
                block.cancel()
            with pytest.raises(errors):
                next(stream)
            assert list(stream) == []
            settle(session, errors)
        settle(session, errors)
        for noted in kept():
            assert noted in (["CommandInterrupted"], ["CancelledError"])


# What is refused --------------------------------------------------------------------------


def test_a_generator_has_one_stream(call, session):
    """Another one is refused, and disturbs nothing."""
    ref = call("count", 3)
    stream = ref.stream()
    assert next(stream) == 0
    with pytest.raises(di.BadArgument, match="a generator that has no stream yet"):
        next(ref.stream())
    settle(session, di.BadArgument)
    assert list(stream) == [1, 2]
    with pytest.raises(di.BadArgument, match="a generator that has no stream yet"):
        next(ref.stream())
    settle(session, di.BadArgument)


@BOTH
def test_a_generator_is_not_fetched(call, session, suffix):
    """The error names what goes through it."""
    ref = call(f"count{suffix}", 3)
    for use in (ref.get, ref.numpy, ref.get_all, ref.future().result):
        with pytest.raises(di.BadArgument, match=r"generator \(count.*ref\.stream\(\)"):
            use()
        settle(session, di.BadArgument)


def test_what_is_no_generator_has_no_stream(call, tools, session):
    """The error says what it is; a worker and a number of items are checked at once."""
    for value, what in ((7, "7 of type int"), ([1], r"\[1\] of type list")):
        with pytest.raises(di.BadArgument, match=rf"a call returned, got {what}"):
            next(tools.call("echo", value).stream())
        settle(session, di.BadArgument)
    ref = call("count", 1)
    for wrong in (-1, True, 1.5, None):
        with pytest.raises(di.ConfigError, match="a number of items from 0"):
            ref.stream(ahead=wrong)
    with pytest.raises(di.ConfigError, match="expected a worker_id"):
        ref.stream(worker=99)


def test_a_captured_program_has_no_stream(call, session):
    """Neither of a generator inside, nor of one outside."""
    outside, stream = call("count", 3), call("count", 3).stream()
    with session.capture("no streams"):
        inside = session.get_global_func("stream.count")(3)
        for use in (inside.stream, outside.stream, stream.__next__):
            with pytest.raises(di.CaptureError, match="items of a stream are not known"):
                use()


def test_a_stream_is_no_value(call):
    """It can be neither pickled nor copied deeply, and a copy is the same stream."""
    stream = call("count", 2).stream()
    for refused in (pickle.dumps, copy.deepcopy):
        with pytest.raises(di.EncodingError, match="pass the items"):
            refused(stream)
    assert next(copy.copy(stream)) == 0
    assert list(stream) == [1]


# In an event loop -------------------------------------------------------------------------


@BOTH
def test_a_task_goes_through_a_stream(call, session, waiter, suffix):
    """The loop goes on meanwhile, and a wait that is cancelled loses no item."""

    async def main():
        assert [item async for item in call(f"count{suffix}", 4).stream(1)] == [100, 101, 102, 103]
        stream = call("gated", str(waiter)).stream(ahead=0)
        assert await anext(stream) == "before"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        waiter.touch()
        assert [item async for item in stream] == ["after"]
        stream = call(f"fails{suffix}", 1).stream()
        assert await anext(stream) == 0
        with pytest.raises(di.RemoteException, match="told to fail"):
            await anext(stream)
        assert [item async for item in stream] == []

    with watched():
        asyncio.run(main())
    settle(session, di.RemoteException)


def yielding():
    """Yields once."""
    yield 1


def test_a_loop_that_must_not_wait_is_not_stopped():
    """The error says what to do, and nothing is lost."""
    session = di.ThreadedSession(1)
    function = session.function(yielding)

    async def main():
        async with session:
            stream = function().stream()
            with pytest.raises(di.WouldBlock, match=r"async for item in ref\.stream\(\)"):
                next(stream)
            assert [item async for item in stream] == [1]

    with watched():
        asyncio.run(main())
