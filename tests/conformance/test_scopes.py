"""Errors reach the scope that issued the command: a block, an asyncio task, or a thread."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import disco_client as di

REQUESTS = 24


def serve(session, number):
    """One request of a service; every third is a bad one, in one of three ways."""
    add, ones = session.get_global_func("conformance.add"), session.get_global_func("numpy.ones")
    fail = session.get_global_func("conformance.fail_on")
    array = ones([4], "float64")
    if number % 9 == 0:
        fail([0], f"request {number} is bad")
    elif number % 9 == 3:
        session.allreduce(add(array, fail([1], f"request {number} is bad")), ones([4], "float64"))
    elif number % 9 == 6:
        array = add(array, fail([0, 1], f"request {number} is bad"))
    out = add(array, number).numpy()
    session.sync_all()
    return out


def judge(serve_one, number):
    """What is wrong with how a request ended; nothing, if all is right."""
    try:
        out = serve_one(number)
    except di.RemoteError as error:
        right = number % 3 == 0 and f"request {number} is bad" in str(error)
        return None if right else f"{number}: {error}"
    return None if number % 3 and np.array_equal(out, np.ones(4) + number) else f"{number}: {out}"


def test_threads_that_share_a_session_get_exactly_their_own_errors(session):
    """A service with a pool of threads, with valid and with bad requests."""
    with ThreadPoolExecutor(6) as pool:
        wrong = list(pool.map(lambda n: judge(lambda k: serve(session, k), n), range(REQUESTS)))
    assert not [each for each in wrong if each]


def test_tasks_that_share_a_session_get_exactly_their_own_errors(session):
    """Each request is a task, and what it does is mixed with what the others do."""
    fail = session.get_global_func("conformance.fail_on")
    echo = session.get_global_func("conformance.echo")

    async def request(number):
        for step in range(3):
            if number % 3 == 0 and step == 1:
                fail([0], f"request {number} is bad")
            echo(number)
            await asyncio.sleep(0)
        with pytest.raises(di.RemoteError) if number % 3 == 0 else nothing() as raised:
            session.sync_all()
        assert number % 3 or f"request {number} is bad" in str(raised.value)

    async def main():
        await asyncio.gather(*map(request, range(REQUESTS)))

    asyncio.run(main())


@pytest.mark.parametrize("opened", ["before", "by a task"])
def test_a_task_gets_its_errors_in_to_thread_too(session, opened):
    """Also where it uses the session nowhere else, and threads of the pool serve others next."""
    fail = session.get_global_func("conformance.fail_on")

    async def request(number):
        if number % 3 == 0:
            await asyncio.to_thread(fail, [0], f"request {number} is bad")
        else:
            await asyncio.to_thread(session.get_global_func, "conformance.echo")
        if number % 2:
            await asyncio.sleep(0)
        with pytest.raises(di.RemoteError) if number % 3 == 0 else nothing() as raised:
            await asyncio.to_thread(session.sync_all)
        assert number % 3 or f"request {number} is bad" in str(raised.value)
        session.sync_all()

    async def main():
        if opened == "by a task":
            session.sync_all()
        await asyncio.gather(*map(request, range(REQUESTS)))

    asyncio.run(main())


class nothing:  # noqa: N801  (stands beside pytest.raises)
    """A block in which nothing is expected to go wrong."""

    def __enter__(self):
        return None

    def __exit__(self, *_raised):
        return False


def test_a_block_is_a_scope_of_its_own(session):
    """Its errors are raised inside, and those around it outside; blocks may nest."""
    fail = session.get_global_func("conformance.fail_on")
    fail([0], "outside")
    with session.scope():
        session.sync_all()
        fail([0], "in the outer block")
        with session.scope():
            session.sync_all()
            fail([0], "in the inner block")
            with pytest.raises(di.RemoteException, match="in the inner block"):
                session.sync_all()
        with pytest.raises(di.RemoteException, match="in the outer block"):
            session.sync_all()
    with pytest.raises(di.RemoteException, match="outside"):
        session.sync_all()


def test_a_block_holds_for_threads_that_work_in_its_context(session):
    """A copy of the context belongs to the block, as long as the block lasts."""
    fail = session.get_global_func("conformance.fail_on")
    with session.scope():
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(fail, [0], "in the block"))
        thread.start()
        thread.join()
        with pytest.raises(di.RemoteException, match="in the block"):
            session.sync_all()


def test_a_block_of_a_finalizer_gets_its_errors(session):
    """Those of before and after it are the thread's, whose context the finalizer leaves alone."""
    fail = session.get_global_func("conformance.fail_on")
    seen = []

    class Finalized:
        def __init__(self):
            self.itself = self

        def __del__(self):
            fail([0], "before the block")
            try:
                with session.scope():
                    fail([0], "in the block")
                    session.sync_worker_0()
            except di.RemoteError as error:
                seen.append(str(error))

    Finalized()
    before = contextvars.copy_context()
    gc.collect()
    assert dict(contextvars.copy_context()) == dict(before)
    (told,) = seen
    assert "in the block" in told
    with pytest.raises(di.RemoteError, match="before the block"):
        session.sync_worker_0()
    session.sync_worker_0()


def test_a_block_can_be_entered_once(session):
    """Each entry is another scope."""
    block = session.scope()
    with block, pytest.raises(RuntimeError, match="entered once"):
        block.__enter__()
    with pytest.raises(RuntimeError, match="entered once"):
        block.__enter__()


def test_what_is_left_unseen_is_listed_and_raised_by_leaving(open_session):
    """Of a block and of a task; looking at it changes nothing."""
    session = open_session(1)
    fail = session.get_global_func("conformance.fail_on")
    assert session.failures() == di.Failures()
    with session.scope():
        fail([0], "by a block")

    async def task():
        fail([0], "by a task")

    asyncio.run(task())
    session.sync_all()
    left = session.failures()
    assert left.total == 2
    assert ["by a block" in str(left.last[0]), "by a task" in str(left.last[1])] == [True, True]
    with pytest.raises(di.RemoteException, match="by a block"), session:
        session.sync_all()


def test_the_opener_is_told_of_what_a_thread_left_that_has_ended(open_session):
    """By its next sync; neither another thread is, nor one that got the same number."""
    session = open_session(1)
    fail = session.get_global_func("conformance.fail_on")
    session.sync_all()
    wrong = []

    def run(work, *args):
        thread = threading.Thread(target=guarded, args=(work, *args))
        thread.start()
        thread.join()

    def guarded(work, *args):
        try:
            work(*args)
        except di.DiscoError as error:
            wrong.append(error)

    run(fail, [0], "by a thread")
    for _ in range(5):  # threads that end are followed by others of the same number
        run(session.sync_all)
    assert not wrong
    with pytest.raises(di.RemoteException, match="by a thread"):
        session.sync_all()
    session.sync_all()


def test_a_fetch_raises_what_its_value_depends_on_whoever_issued_that(session):
    """And whoever issued it is told as well."""
    fail = session.get_global_func("conformance.fail_on")
    echo = session.get_global_func("conformance.echo")
    with session.scope():
        ref = echo(fail([0], "the cause"))
        with session.scope():
            with pytest.raises(di.RemoteException, match="the cause"):
                ref.debug_get_from_remote(0)
            session.sync_all()
        with pytest.raises(di.RemoteException, match="the cause"):
            session.sync_all()


COLLECTIVES = ["allreduce", "allgather", "broadcast_from_worker0", "all_to_all", "reduce_scatter"]


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("how", ["mismatch", "aborted", "skipped", "captured"])
def test_a_failed_collective_poisons_its_destination(session, tools, name, how):
    """Its former content is not read; a collective that overwrites it makes it good."""
    src = session.broadcast(np.ones(4))
    into = session.empty((8,) if name == "allgather" else (4,), "float64")
    part = session.empty((2,) if name == "reduce_scatter" else (4,), "float64")
    into = part if name == "reduce_scatter" else into
    call = getattr(session, name)
    with session.capture() as program:
        call(program.input("x"), into)
        program.output(into)
    ways = {
        "mismatch": lambda: call(session.empty((5,), "float64"), into),
        "aborted": lambda: call(tools.call("add", src, tools.call("fail_on", [1], "no")), into),
        "skipped": lambda: call(tools.call("fail_on", [0, 1], "no"), into),
        "captured": lambda: program(session.empty((5,), "float64")),
    }
    with session.scope():
        ways[how]()
        with pytest.raises(di.RemoteError) as first:
            session.sync_all()
    for worker in tools.workers:
        with pytest.raises(di.RemoteError) as again:
            into.debug_get_from_remote(worker)
        assert again.value.seq >= first.value.seq
    session.sync_all()
    if how == "captured":
        program(src)
    else:
        call(src, into)
    assert into.numpy().any()


def test_the_cause_of_an_aborted_collective_is_found_in_another_scope(session, tools):
    """Also where that has been raised there already."""
    ones, into = session.broadcast(np.ones(4)), session.empty((4,), "float64")
    with session.scope():
        src = tools.call("add", ones, tools.call("fail_on", [1], "the cause"))
        with pytest.raises(di.RemoteException, match="the cause"):
            session.sync_all()
    with session.scope():
        session.allreduce(src, into)
        with pytest.raises(di.RemoteException, match="the cause") as raised:
            session.sync_all()
    assert "could not be executed" in raised.value.__notes__[0]


def test_a_failed_copy_poisons_its_destination(session):
    """Until another one overwrites it."""
    into = session.broadcast(np.zeros(4))
    with session.scope():
        session.copy_to_worker_0(np.ones(5), into)
        with pytest.raises(di.BadArgument):
            session.sync_all()
    with pytest.raises(di.BadArgument):
        into.numpy()
    session.copy_to_worker_0(np.ones(4), into)
    assert into.numpy().tolist() == [1, 1, 1, 1]


# The first cause ---------------------------------------------------------------------------


def test_a_refused_import_is_named_by_what_it_would_have_registered(session, tools, kind):
    """The first cause is shown, whoever notices the consequence first, and later too."""
    module = "disco_test_that_is_not_there"
    with session.scope():
        session.import_python_module(module)
        scale = session.get_global_func("my.scale")
        with pytest.raises((di.NotAllowed, di.FunctionNotFound), match=module) as first:
            scale(1).debug_get_from_remote(0)
        assert first.value.function == "runtime.disco._import_python_module"
    with session.scope():
        scale = session.get_global_func("my.scale")
        with pytest.raises(di.FunctionNotFound) as second:
            scale(1).debug_get_from_remote(0)
    assert "no function named 'my.scale' was registered" in str(second.value)
    assert f"import_python_module({module!r})" in str(second.value)


def test_a_missing_function_of_disco_says_what_is_near(session):
    """Rather than that there is no module 'runtime'."""
    with pytest.raises(di.FunctionNotFound) as missing:
        session.get_global_func("runtime.disco.alreduce")(1).debug_get_from_remote(0)
    said = str(missing.value)
    assert "no function named 'runtime.disco.alreduce'" in said
    assert "'runtime.disco.allreduce'" in said
    assert "module" not in said.splitlines()[0]
