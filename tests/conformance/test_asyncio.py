"""Awaits, futures, timeouts, and what does not wait in an event loop."""

from __future__ import annotations

import ast
import asyncio
import concurrent.futures
import contextlib
import gc
import threading
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client as di

LARGE = 1 << 18
"""Elements of an array that travels beside the commands."""


def memories():
    """How many pieces of shared memory for arrays this process and its children have open."""
    me = psutil.Process()
    count = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            count += sum("disco-array" in str(each.readlink()) for each in fds(process.pid))
        except OSError:  # it has ended
            continue
    return count


def fds(pid):
    return list(Path(f"/proc/{pid}/fd").glob("*"))


@pytest.fixture
def issued(eventually):
    """Counts a session's commands, once the registers of dead references have been released."""

    def count(session):
        gc.collect()  # which otherwise frees some of other tests between two counts
        eventually(lambda: not session._core.log.registers.dead)
        return session.statistics()["issued"]

    return count


# Values and timeouts ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 7, "text", b"bytes", [1, {"a": 2.5}]])
def test_get_fetches_any_value(session, tools, value):
    """Of one worker, worker 0 by default, or of all in a list."""
    ref = tools.call("echo", value)
    assert ref.get() == value
    assert ref.get(worker=1) == value
    assert ref.get_all() == [value] * session.num_workers


def test_get_returns_plain_arrays(session, tools):
    """Small ones and large ones."""
    for part in (tools.counting(3), tools.counting(LARGE)):
        ref = tools.place(part)
        assert type(ref.get(1)) is np.ndarray
        assert [np.array_equal(*each) for each in zip(ref.get_all(), part, strict=True)] == [
            True
        ] * len(part)


def test_whatever_waits_ends_with_its_timeout_and_may_be_repeated(session, tools, waiter):
    """Nothing is lost: what was issued is executed in its order, and later questions answered."""
    array = session.broadcast(np.ones(4))
    late = tools.call("wait_for_file", str(waiter))
    into = np.zeros(4)
    waits = [
        late.get,
        late.get_all,
        array.numpy,
        lambda **limit: array.debug_get_from_remote(0, **limit),
        lambda **limit: session.copy_from_worker_0(into, array, **limit),
        lambda **limit: session.sync_worker(1, **limit),
        session.sync_worker_0,
        session.sync_all,
        lambda **limit: late.future().result(**limit),
        lambda **limit: asyncio.run(session.synced(**limit)),
        lambda **limit: asyncio.run(array.get_into(into, **limit)),
        lambda **limit: array.debug_copy_from(0, np.full(4, 2.0), **limit),
    ]
    for wait in waits:
        with pytest.raises(di.DiscoTimeout) as raised:
            wait(timeout=0.01)
        assert isinstance(raised.value, TimeoutError)
    after = tools.call("add", array, 1)
    waiter.touch()
    assert after.numpy().tolist() == [3, 3, 3, 3]  # the copy that was not waited for was made
    for wait in waits:
        wait(timeout=60)
    assert into.tolist() == [2, 2, 2, 2]
    assert not session._core.inbox.answers.expected


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
def test_a_timeout_is_a_number_of_seconds(session, tools, timeout, issued):
    """Others are refused before anything is asked."""
    ref = tools.call("echo", 1)
    before = issued(session)
    with pytest.raises(di.ConfigError, match="timeout of 0 or more seconds"):
        ref.get(timeout=timeout)
    assert issued(session) == before


async def value_of(ref):
    """What a task awaits."""
    return await ref


def test_answers_that_were_abandoned_leave_nothing(session, tools, tmp_path, eventually):
    """Large arrays too: neither here nor where the workers are."""
    ref = tools.place([np.ones(LARGE)] * session.num_workers)

    def abandon(number):
        held = tmp_path / str(number)
        tools.call("wait_for_file", str(held))
        future = ref.future(1)
        with pytest.raises(di.DiscoTimeout):
            ref.get(1, timeout=0)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(value_of(ref), 0.01))
        assert future.cancel()
        held.touch()
        session.sync_all()

    for number in range(3):
        abandon(number)
    ref.get()
    before = memories()
    abandoned = 24
    for number in range(3, 3 + abandoned):
        abandon(number)
    assert not session._core.inbox.answers.expected
    assert ref.get().sum() == LARGE
    # Memory is kept for the next array: as much as answers were ever under way at once.
    eventually(lambda: memories() < before + abandoned)


# Awaits -------------------------------------------------------------------------------------


def test_a_reference_can_be_awaited(session, tools):
    """Worker 0's value, of any size, also by several tasks; and a distributed tensor as a whole."""
    small, large = tools.call("echo", [1, 2]), session.copy_to_worker_0(np.arange(LARGE))
    tensor = session.distribute(np.arange(8.0), placement="S[0]")

    async def main():
        assert await small == [1, 2]
        found = await asyncio.gather(value_of(small), value_of(large), value_of(large))
        assert [found[0], *map(np.sum, found[1:])] == [[1, 2], *[LARGE * (LARGE - 1) / 2] * 2]
        into = np.zeros((2, LARGE // 2), "int64")
        await large.get_into(into)
        assert into[1, -1] == LARGE - 1
        assert (await (tensor + 1)).tolist() == list(range(1, 9))
        await session.synced()

    asyncio.run(main())


@pytest.mark.timeout(300)
def test_ten_thousand_awaits_need_no_threads(session, tools, kind):
    """Each gets its own value; sessions of other kinds than a cluster's are given fewer."""
    count = 10_000 if kind.name == "connect" else 2_000
    refs = [tools.call("echo", number) for number in range(100)]

    async def main():
        await refs[0]
        before = threading.active_count()
        pending = [asyncio.ensure_future(value_of(refs[n % 100])) for n in range(count)]
        await pending[0]
        assert threading.active_count() <= before
        assert await asyncio.gather(*pending) == [n % 100 for n in range(count)]
        assert threading.active_count() <= before

    asyncio.run(main())


def test_tasks_that_await_get_exactly_their_own_errors(session, tools):
    """Of mixed requests; where a collective was aborted, its cause."""
    ones, into = session.broadcast(np.ones(4)), session.empty((4,), "float64")

    async def request(number):
        if number % 9 == 0:
            tools.call("fail_on", [0], f"request {number} is bad")
        elif number % 9 == 3:
            bad = tools.call("add", ones, tools.call("fail_on", [1], f"request {number} is bad"))
            session.allreduce(bad, session.empty((4,), "float64"))
        elif number % 9 == 6:
            return await tools.call("fail_on", [0, 1], f"request {number} is bad")
        value = await tools.call("add", ones, number)
        await session.synced()
        return value.sum()

    async def main():
        return await asyncio.gather(*map(request, range(27)), return_exceptions=True)

    session.allreduce(ones, into)
    for number, found in enumerate(asyncio.run(main())):
        if number % 3:
            assert found == 4 + 4 * number
        else:
            assert isinstance(found, di.RemoteException)
            assert f"request {number} is bad" in str(found)


@pytest.mark.parametrize("how", ["await", "get", "synced"])
def test_errors_of_requests_leave_no_cycles(session, tools, how):
    """Where many requests are bad, collecting those would keep the event loop from its work."""

    async def request():
        with session.scope():
            bad = tools.call("fail_on", [0], "bad")
            if how == "synced":
                await session.synced()
            elif how == "get":
                await asyncio.to_thread(bad.get)
            else:
                await bad

    async def main():
        for _ in range(4):
            with pytest.raises(di.RemoteException):
                await request()
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        for _ in range(4):
            with contextlib.suppress(di.RemoteException):
                await request()
        gc.collect()

    try:
        asyncio.run(main())
        found = [each for each in gc.garbage if isinstance(each, di.RemoteError | di.RefFuture)]
        assert not found
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def test_cancelling_an_await_cancels_the_wait_and_not_the_work(session, tools, waiter):
    """What was issued is executed, and can be fetched."""
    tools.call("wait_for_file", str(waiter))
    changed = tools.call("add", session.broadcast(np.ones(2)), 4)

    async def main():
        task = asyncio.ensure_future(value_of(changed))
        done, _ = await asyncio.wait([task], timeout=0.02)
        assert not done
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiter.touch()
        assert (await changed).tolist() == [5, 5]

    asyncio.run(main())


def test_an_await_goes_on_while_a_thread_waits_for_something_else(session, tools, waiter):
    """Also on sessions whose waiting threads receive by themselves."""
    first, second = tools.call("echo", 0), tools.call("echo", 1)
    tools.call("wait_on", 0, str(waiter))
    thread = threading.Thread(target=first.get)
    thread.start()

    async def main():
        for _ in range(50):
            assert await second.future(1) == 1
        assert thread.is_alive()
        waiter.touch()

    asyncio.run(main())
    thread.join()


# Futures ------------------------------------------------------------------------------------


def test_what_is_issued_afterwards_does_not_delay_a_future(session, tools, waiter, issued):
    """Its question has its number when it is made, and leaves then."""
    ref = session.copy_to_worker_0(np.arange(4))
    before = issued(session)
    future = ref.future()
    assert issued(session) == before + 1
    tools.call("wait_for_file", str(waiter))
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(timeout=60).tolist() == [0, 1, 2, 3]
    assert not waiter.exists()
    assert future.ref is ref


def test_futures_come_as_they_complete(session, tools, waiter):
    """With ``for`` and with ``async for``; what went wrong is raised by its future alone."""
    good, bad = tools.call("echo", 1), tools.call("fail_on", [1], "no")
    tools.call("wait_on", 0, str(waiter))
    asked = [tools.call("echo", 2).future(0), good.future(1)]
    assert next(iter(di.as_completed(asked))) is asked[1]
    with pytest.raises(di.DiscoTimeout):
        list(di.as_completed(asked, timeout=0.01))
    waiter.touch()
    with pytest.raises(di.RemoteException, match="no"):
        asked[1].result()
    assert {each.result(): each for each in di.as_completed(asked[:1])} == {2: asked[0]}

    async def main():
        refs = [tools.call("echo", number) for number in range(20)]
        return [await each async for each in di.as_completed([*refs, good.future()])]

    assert sorted(asyncio.run(main())) == sorted([*range(20), 1])
    with pytest.raises(di.RemoteException, match="no"):
        next(iter(di.as_completed([bad], worker=1))).result()


def test_a_future_s_functions_may_use_the_session(session, tools):
    """They are not called in the thread that reads replies."""
    ref, found = tools.call("echo", 3), concurrent.futures.Future()
    future = ref.future()
    future.add_done_callback(lambda done: found.set_result(done.result() + ref.get()))
    assert found.result(timeout=60) == 6


@pytest.mark.parametrize("count", [4, 12])
def test_functions_of_futures_may_wait_for_large_answers(session, tools, waiter, count):
    """As many of them as read answers, and more; none waits for ever."""
    large = tools.place([np.arange(LARGE)] * session.num_workers)
    tools.call("wait_for_file", str(waiter))
    asked = [tools.call("echo", number).future() for number in range(count)]
    found = [concurrent.futures.Future() for _ in asked]
    for future, value in zip(asked, found, strict=True):
        future.add_done_callback(
            lambda done, value=value: value.set_result(done.result() + large.future(1).result()[-1])
        )
    waiter.touch()
    last = LARGE - 1
    assert [value.result(timeout=20) for value in found] == [last + n for n in range(count)]


def test_functions_of_futures_may_wait_for_each_other(session, tools, waiter):
    """For another one's function, which waits for an answer, and for what comes after it."""
    large = tools.place([np.arange(LARGE)] * session.num_workers)
    tools.call("wait_for_file", str(waiter))
    asked = [tools.call("echo", number).future() for number in range(12)]
    found = [concurrent.futures.Future() for _ in asked]

    def work(done):
        inner, value = large.future(), concurrent.futures.Future()
        inner.add_done_callback(
            lambda _done: value.set_result(next(iter(di.as_completed([large], 1))).result()[-1])
        )
        number = done.result()
        before = found[number + 1].result(60) if number < len(found) - 1 else 0
        found[number].set_result(before + value.result(60))

    for future in asked:
        future.add_done_callback(work)
    waiter.touch()
    assert found[0].result(timeout=20) == 12 * (LARGE - 1)


def test_functions_that_wait_keep_no_answer_from_others(session, tools, waiter):
    """An await and a wait are answered, however many functions of futures wait for something."""
    large, over = tools.place([np.arange(LARGE)] * session.num_workers), threading.Event()
    tools.call("wait_for_file", str(waiter))
    asked = [tools.call("echo", number).future() for number in range(8)]
    for future in asked:
        future.add_done_callback(lambda _done: over.wait(60))
    waiter.touch()
    try:
        assert asyncio.run(asyncio.wait_for(value_of(large), 20))[-1] == LARGE - 1
        assert large.future(1).result(timeout=20)[-1] == LARGE - 1
        assert large.future(1).result()[-1] == LARGE - 1
    finally:
        over.set()


def test_a_function_of_a_future_is_called_also_where_a_thread_waits_for_its_value(
    session, tools, waiter, caplog, eventually
):
    """Not in that thread; one that fails is logged, and the others are called all the same."""
    tools.call("wait_for_file", str(waiter))
    future, called = tools.call("echo", 5).future(), concurrent.futures.Future()
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(lambda done: called.set_result((done, threading.get_ident())))
    with pytest.raises(di.DiscoTimeout):
        future.result(timeout=0.01)
    assert not called.done()
    waiter.touch()
    assert future.result(timeout=60) == 5
    done, thread = called.result(timeout=60)
    assert done is future
    assert thread != threading.get_ident()
    logged = eventually(lambda: [each for each in caplog.records if each.name == "disco.futures"])
    assert [record.exc_info[0] for record in logged] == [ZeroDivisionError]


def test_a_future_that_is_cancelled_ends_the_wait_of_another_thread(
    session, tools, waiter, eventually
):
    """What was asked is taken back, and the session goes on."""
    tools.call("wait_for_file", str(waiter))
    future, ended = tools.call("echo", 5).future(), concurrent.futures.Future()

    def wait():
        try:
            future.result()
        except concurrent.futures.CancelledError:
            ended.set_result(True)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: not session._core.inbox.answers.unattended)  # the thread attends to it
    assert future.cancel()
    assert ended.result(timeout=60)
    thread.join()
    waiter.touch()
    assert tools.call("echo", 6).get() == 6


def test_an_error_that_no_future_was_asked_for_is_raised_by_the_next_wait(
    session, tools, eventually
):
    """It belongs to the scope that made the future."""
    tools.call("fail_on", [0], "nobody has seen it")
    future = tools.call("echo", 1).future()
    concurrent.futures.wait([future])
    del future
    raised = []

    def wait():
        try:
            session.sync_all()
        except di.RemoteException as error:
            raised.append(str(error))
        return raised

    eventually(wait)  # the thread that has found it may still hold the future
    assert "nobody has seen it" in raised[0]
    session.sync_all()


# Captures -----------------------------------------------------------------------------------


def test_a_capture_across_an_await_records_its_own_task(session, tools):
    """Blocks inside it too; other tasks run as usual meanwhile."""
    add, ones = session.get_global_func("conformance.add"), session.broadcast(np.ones(2))

    async def other(turn):
        await turn.acquire()
        found = await add(ones, 5)
        turn.release()
        return found

    async def main():
        turn = asyncio.Semaphore(0)
        task = asyncio.ensure_future(other(turn))
        with session.capture() as program:
            x = program.input("x")
            first = add(x, 1)
            turn.release()
            assert (await task).tolist() == [6, 6]
            with session.scope():
                program.output(add(first, 1))
            with pytest.raises(di.CaptureError):
                await first
        assert program.num_steps == 2
        assert (await program(ones)).tolist() == [3, 3]

    asyncio.run(main())


# Sessions that must not wait in an event loop -------------------------------------------------


def test_calls_that_would_wait_in_an_event_loop_are_refused(
    open_session, tmp_path, tools_of, issued
):
    """They say what to do and issue nothing; threads may wait as ever."""

    async def main():
        async with open_session(2) as session:
            tools = tools_of(session)
            array, large = np.ones(4), np.ones(LARGE)
            ref = await session.put(array)
            tensor = session.distribute(array)
            mask = tensor > 0
            await session.synced()
            before = issued(session)
            waits = [
                ref.numpy,
                lambda: ref.debug_get_from_remote(0),
                lambda: ref.debug_copy_from(0, array),
                lambda: session.copy_from_worker_0(array, ref),
                lambda: session.copy_to_worker_0(large),
                lambda: session.call_packed(ref, large),
                lambda: session.broadcast(large),
                lambda: session.scatter(np.ones((2, LARGE))),
                lambda: session.distribute(large),
                tensor.numpy,
                lambda: tensor.shard(0),
                lambda: float(tensor[0]),
                session.sync_all,
                session.sync_worker_0,
                lambda: session.init_ccl("mpi"),
                lambda: session.published("name"),
                session.list_published,
                lambda: session.save(tmp_path / "saved", {"x": tensor}),
                lambda: session.load(tmp_path / "saved"),
                lambda: session.load_weights(tmp_path, {"*": None}),
                lambda: session.checkpoint(tmp_path),
                lambda: session.load_vm_module(__file__),
                lambda: session.trace(tmp_path / "trace"),
                session.diagnose,
                lambda: tensor[mask],
                lambda: np.flatnonzero(tensor),
            ]
            for wait in waits[:11] + waits[12:]:
                with pytest.raises(di.WouldBlock, match=r"await|thread"):
                    wait()
            assert issued(session) == before
            with pytest.raises(di.WouldBlock):
                waits[11]()
            assert (await asyncio.to_thread(ref.numpy)).tolist() == [1, 1, 1, 1]
            assert (await ref.get(0)).tolist() == [1, 1, 1, 1]
            assert await tools.call("echo", 3).get_all() == [3, 3]
            assert (await (await session.put(large))).sum() == LARGE
            with pytest.raises(di.DiscoTimeout):
                await tools.call("nap", 0.2).get(timeout=0.01)

    asyncio.run(main())


def test_arrays_are_brought_to_all_workers_without_stopping_the_loop(open_session, tools_of):
    """Small and large ones, in their place among the commands; also if no longer awaited."""

    async def main():
        async with open_session(2) as session:
            tools = tools_of(session)
            for count in (4, LARGE):
                array, rows = np.arange(float(count)), np.arange(2.0 * count).reshape(2, count)
                tools.call("nap", 0.1)
                copies, slices, tensor = await asyncio.gather(
                    session.abroadcast(array),
                    session.ascatter(rows),
                    session.adistribute(array, placement="S[0]"),
                )
                np.testing.assert_array_equal(await copies.get(1), array)
                np.testing.assert_array_equal(await slices.get(1), rows[1])
                np.testing.assert_array_equal(await tensor, array)
                for send in (session.abroadcast, session.ascatter, session.adistribute):
                    sending = asyncio.ensure_future(send(rows))
                    await asyncio.sleep(0)  # it begins, and has not ended
                    sending.cancel()
                    assert await tools.call("echo", 3).get_all() == [3, 3]
                    assert sending.cancelled() == (count == LARGE or send == session.adistribute)
            assert await session.abroadcast(array, copies, tag="again") is copies
            with pytest.raises(di.ConfigError, match="one for each worker"):
                await session.ascatter(np.ones((3, LARGE)))
            with pytest.raises(di.ConfigError, match="splits an axis that a tensor"):
                await session.adistribute(array, placement="S[3]")

    asyncio.run(main())


async def take_advice(call, **known):
    """What comes of the advice for a call that would wait, taken word for word."""
    with pytest.raises(di.WouldBlock) as refused:
        call()
    code = str(refused.value).partition("instead: ")[2].partition(";")[0]
    names = {"asyncio": asyncio, **known}
    assigned, equals, _ = code.partition(" = ")
    program = compile(code, "advice", "exec" if equals else "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = await eval(program, names)
    return names[assigned] if equals else result


def test_the_advice_for_distributed_tensors_can_be_taken_as_it_is_written(open_session):
    """It does what the refused call would have done, for whatever raises it."""

    async def main():
        async with open_session(2) as session:
            array, mesh = np.arange(float(LARGE)), session.mesh()
            tensor = session.distribute(np.ones(4), mesh, "S[0]")
            names = {"session": session, "array": array, "mesh": mesh, "placement": "S[0]"}
            for fetch in (tensor.numpy, partial(np.asarray, tensor), tensor.tolist):
                assert (await take_advice(fetch, tensor=tensor)).tolist() == [1.0] * 4
            part = await take_advice(partial(tensor.shard, 1), tensor=tensor)
            assert part.tolist() == [1.0] * 2
            total = tensor.sum()
            for number in (float, int, bool, "{:.1f}".format):
                got = await take_advice(partial(number, total), tensor=total)
                assert number(got) == number(4.0)
            whole = await take_advice(partial(session.distribute, array), **names)
            for compute in (
                np.add,
                lambda x, y: np.where(x > 5, y, 0.0),
                lambda x, y: np.concatenate([x, y]),
            ):
                other = await take_advice(partial(compute, whole, array), **names)
                np.testing.assert_array_equal(await compute(whole, other), compute(array, array))

    asyncio.run(main())


def test_the_advice_for_arrays_can_be_taken_as_it_is_written(open_session, tools_of):
    """Large ones on their way to workers, and any on their way back."""

    async def main():
        async with open_session(2) as session:
            tools_of(session)
            echo = session.get_global_func("conformance.echo")
            array = np.arange(float(LARGE))
            names = {"session": session, "array": array}
            for send in (partial(echo, array), partial(session.broadcast, array)):
                ref = await take_advice(send, **names)
                np.testing.assert_array_equal(await echo(ref).get(1), array)
            rows = np.ones((2, LARGE))
            ref = await take_advice(partial(session.scatter, rows), session=session, array=rows)
            assert (await ref).shape == (LARGE,)
            ref = await take_advice(partial(session.copy_to_worker_0, array), **names)
            np.testing.assert_array_equal(await ref, array)
            again = partial(session.copy_to_worker_0, array, ref)
            assert await take_advice(again, **names, ref=ref) is ref
            filled = np.zeros(LARGE)
            await take_advice(
                partial(session.copy_from_worker_0, filled, ref), ref=ref, array=filled
            )
            np.testing.assert_array_equal(filled, array)
            replace = partial(ref.debug_copy_from, 1, array)
            await take_advice(replace, ref=ref, worker=1, array=array)
            np.testing.assert_array_equal(await ref.get(1), array)

    asyncio.run(main())


def test_the_advice_for_other_calls_can_be_taken_as_it_is_written(open_session, tmp_path):
    """Of files, names and what the ranks do."""
    path = tmp_path / "disco_advised.py"
    path.write_text("def seven(): return 7\n")

    async def main():
        async with open_session(2) as session:
            take = partial(take_advice, session=session, name="known", path=str(path), source=path)
            session.publish("known", session.broadcast(np.ones(4)))
            await take(session.sync_all)
            assert await take(lambda: session.ccl) == (await asyncio.to_thread(lambda: session.ccl))
            module = await take(partial(session.load_vm_module, str(path)))
            assert await take(module.names, module=module) == ["seven"]
            assert not await take(lambda: "known" in module, module=module)
            await take(partial(session.load_source, path))
            assert await take(session.list_published) == ["known"]
            assert (await (await take(partial(session.published, "known")))).tolist() == [1.0] * 4
            assert len((await take(session.flight)).ranks) == 2
            assert (await take(session.diagnose)).verdict

    asyncio.run(main())


def until_refused(call):
    """What a call returned for 0, 1, 2 and so on until it would have waited, and what it said."""
    made = []
    try:
        while len(made) < 10_000:
            made.append(call(len(made)))
    except di.WouldBlock as error:
        return made, str(error)
    return made, "it was not refused"


def test_ready_awaits_room_for_commands(open_session, tmp_path, tools_of, issued):
    """Without room a call is refused and issues nothing."""
    held = tmp_path / "held"

    async def main():
        async with open_session(1) as session:
            tools = tools_of(session)
            echo = session.get_global_func("conformance.echo")
            session._core.log.window.commands = 8192
            tools.call("wait_for_file", str(held))
            refs, said = until_refused(echo)
            assert "await session.ready()" in said
            before = issued(session)
            ready = asyncio.ensure_future(session.ready())
            awaited = asyncio.ensure_future(value_of(refs[-1]))
            await asyncio.sleep(0)
            assert not ready.done()
            assert issued(session) == before
            held.touch()
            await ready
            for _ in range(8192 // 8):
                echo(5)
            assert await awaited == len(refs) - 1

    asyncio.run(main())


def test_leaving_an_asyncio_session_raises_what_is_unseen(open_session):
    """And ends it, however it is left."""

    async def main():
        async with open_session(1) as session:
            session.get_global_func("conformance.fail_on")([0], "not seen")

    with pytest.raises(di.RemoteException, match="not seen"):
        asyncio.run(main())
