"""Ctrl-C while gRPC works: the call ends, and the channel is as good as before."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from concurrent import futures
from functools import partial

import grpc
import pytest

from disco_client.threads import call_undisturbed, check_threads, is_helper, start_thread
from disco_client.transport.calls import ask, run_uninterrupted


def echo(data, _context):
    return data


class Hanging:
    """A service whose one method answers nobody until he leaves."""

    def __init__(self):
        self.came, self.left = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, _data, context):
        gone = threading.Event()
        context.add_callback(gone.set)
        self.came.release()
        gone.wait(30)
        self.left.release()
        return b""


@pytest.fixture
def hanging():
    return Hanging()


@pytest.fixture
def channel(hanging):
    """To a server with a method that answers and one that does not."""
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Hang": grpc.unary_unary_rpc_method_handler(hanging),
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.S", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    server.stop(None)


def test_a_call_that_is_interrupted_is_cancelled_and_the_channel_serves_on(channel, hanging):
    """Several times in a row; the server sees each of them end."""
    for number in range(5):
        presser = threading.Thread(target=lambda: hanging.came.acquire() and press())
        presser.start()
        with pytest.raises(KeyboardInterrupt):
            ask(channel.unary_unary("/test.S/Hang"), b"", timeout=30)
        presser.join()
        assert hanging.left.acquire(timeout=20)
        assert (
            ask(channel.unary_unary("/test.S/Echo"), b"%d" % number, timeout=20) == b"%d" % number
        )


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_no_call_is_made_on_the_main_thread(channel):
    """Where signals are raised; one that is made on another stays there."""
    assert (
        run_uninterrupted(threading.current_thread, lambda thread: thread)
        is not threading.main_thread()
    )
    with futures.ThreadPoolExecutor(1) as pool:
        made = pool.submit(
            run_uninterrupted, threading.current_thread, lambda thread: thread
        ).result()
        assert made.name.startswith("ThreadPoolExecutor")


def test_what_a_call_raises_comes_back(channel):
    """With its status, as if it had been made here."""
    with pytest.raises(grpc.RpcError) as failed:
        ask(channel.unary_unary("/test.S/Nothing"), b"", timeout=20)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_without_a_thread_it_fails_at_once(channel, monkeypatch):
    """Nothing has begun, so nothing is waited for; the next call is as any other."""

    def no_thread(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            run_uninterrupted(pytest.fail, pytest.fail)
    assert run_uninterrupted(lambda: b"made", lambda made: made) == b"made"


@pytest.mark.parametrize("now", [1e9, 4e9], ids=["past", "future"])
def test_the_time_for_an_answer_is_not_counted_on_the_wall_clock(
    channel, hanging, monkeypatch, now
):
    """Which a program may freeze: answers come, and a call without one ends in its time."""
    monkeypatch.setattr(time, "time", lambda: now)
    assert ask(channel.unary_unary("/test.S/Echo"), b"here", timeout=20.0) == b"here"
    with pytest.raises(grpc.RpcError, match=r"no answer within 0\.2 s"):
        ask(channel.unary_unary("/test.S/Hang"), b"", timeout=0.2)
    assert hanging.left.acquire(timeout=20)


def call_grpc():
    with grpc.insecure_channel("127.0.0.1:1") as channel, contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/no/method").future(b"").result()


def start_plain():
    thread = threading.Thread(target=list)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("start", "helps"),
    [
        (call_grpc, True),
        (partial(check_threads, 1, "this test"), True),
        (partial(run_uninterrupted, int, int), True),
        (start_plain, False),
    ],
    ids=["grpc", "check", "call", "plain"],
)
def test_a_thread_that_others_wait_for_is_known_before_its_first_line(start, helps):
    """A finalizer may run there as early, and what it would wait for may need that thread."""
    seen: list[bool] = []

    def look(_frame, _event, _arg):
        sys.setprofile(None)
        seen.append(is_helper())

    threading.setprofile(look)
    try:
        start()
    finally:
        threading.setprofile(None)
    assert seen == [helps]


def test_a_thread_without_an_object_is_known_too():
    """In which a thread is started; the one that it is done for is no helper by that."""
    seen: list[bool] = []
    call_undisturbed(lambda: seen.append(is_helper()))
    assert seen == [True]
    assert not is_helper()


def test_a_thread_of_a_session_is_waited_for_until_it_begins_and_at_its_end():
    """Between them a finalizer may wait there, unless what the thread does is in the way."""
    seen: list[bool] = []

    def look_before(call):
        def look():
            seen.append(is_helper())
            call()

        return look

    for target in (list, lambda: seen.append(is_helper())):
        thread = threading.Thread(target=target)
        thread._started.set = look_before(thread._started.set)
        thread._delete = look_before(thread._delete)
        start_thread(thread)
        thread.join()
    assert seen == [True, True, True, False, False]  # the last is not looked up again
