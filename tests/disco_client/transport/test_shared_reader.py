"""Threads that wait take turns at reading; a keeper reads where none does."""

from __future__ import annotations

import collections
import os
import signal
import threading
import time

import pytest

from disco_client.errors import Reentered
from disco_client.transport.shared_reader import READABLE, SharedReader

LIMIT_S = 20.0


class Replies:
    """Each byte of a pipe frees the lock of its number; a keeper's thread keeps the reader."""

    def __init__(self):
        self.readable, self._writable = os.pipe()
        os.set_blocking(self.readable, False)
        self.locks = [threading.Lock() for _ in range(4)]
        for lock in self.locks:
            lock.acquire()
        self.read_by = []
        self.fails = []
        self._came = collections.deque()
        self.reader = SharedReader(self._handle)
        self.reader.replies.register(self.readable, READABLE)
        self._over = False
        self._keeper = threading.Thread(target=self._keep)
        self._keeper.start()

    def _handle(self, ready):
        if any(fd == self.readable for fd, _ in ready):
            self._came.extend(os.read(self.readable, 16))
        while self._came:
            if threading.current_thread() in self.fails:
                self.fails.clear()
                fail()
            self.read_by.append(threading.current_thread())
            self.locks[self._came[0]].release()
            self._came.popleft()

    def _keep(self):
        while not self._over:
            self.reader.keep()
        self.reader.close()

    def answer(self, number):
        os.write(self._writable, bytes([number]))

    def wait(self, number, seconds=LIMIT_S, send=lambda: None):
        return self.reader.wait(self.locks[number], seconds, send)

    def close(self):
        self._over = True
        self.reader.wake()
        self._keeper.join(LIMIT_S)
        os.close(self.readable)
        os.close(self._writable)


@pytest.fixture
def replies():
    made = Replies()
    yield made
    made.close()


def test_a_thread_that_waits_reads_by_itself(replies):
    """And what comes for no thread is read by the keeper, soon after."""
    assert replies.wait(0, send=lambda: replies.answer(0))
    assert replies.read_by == [threading.current_thread()]
    replies.answer(1)
    assert replies.locks[1].acquire(timeout=LIMIT_S)
    assert replies.read_by[1] is not threading.current_thread()


def test_a_wait_ends_with_its_time(replies):
    """Nothing is lost by that."""
    began = time.monotonic()
    assert not replies.wait(0, 0.05)
    assert time.monotonic() - began >= 0.05
    replies.answer(0)
    assert replies.wait(0)


def test_who_waits_while_another_reads_is_served_after_it_too(replies, monkeypatch):
    """The keeper takes over at once where the thread that read has its own answer."""
    monkeypatch.setattr("disco_client.transport.shared_reader._IDLE_S", 600.0)
    leads = threading.Event()
    got = []
    first = threading.Thread(target=lambda: got.append(replies.wait(0, send=leads.set)))
    first.start()
    assert leads.wait(LIMIT_S)
    follows = threading.Event()
    second = threading.Thread(target=lambda: got.append(replies.wait(1, send=follows.set)))
    second.start()
    assert follows.wait(LIMIT_S)
    replies.answer(0)
    first.join(LIMIT_S)
    replies.answer(1)
    second.join(LIMIT_S)
    assert got == [True, True]


def test_a_wait_that_is_interrupted_leaves_the_reader_as_it_was(replies):
    """Ctrl-C while a thread only waits is delivered at once, and the next wait reads again."""

    def interrupt():
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        replies.wait(0)
    assert replies.wait(0, send=lambda: replies.answer(0))


def fail():
    msg = "in the middle"
    raise ValueError(msg)


def test_what_is_raised_in_the_middle_of_sending_leaves_the_reader_as_it_was(replies):
    """The thread reads no more, so that the next wait, or the keeper, does."""
    with pytest.raises(ValueError, match="in the middle"):
        replies.wait(0, send=fail)
    assert not replies.reader.entered
    assert replies.wait(0, send=lambda: replies.answer(0))
    assert replies.read_by == [threading.current_thread()]
    with pytest.raises(ValueError, match="in the middle"):
        replies.wait(1, send=fail)
    replies.answer(1)
    assert replies.locks[1].acquire(timeout=LIMIT_S)


def test_what_is_raised_in_the_middle_of_handling_is_handled_again(replies):
    """By the next thread that waits, though nothing else comes; or else by the keeper."""
    for number, wait in enumerate(
        (lambda: replies.wait(0), lambda: replies.locks[1].acquire(timeout=LIMIT_S))
    ):
        replies.fails.append(threading.current_thread())
        with pytest.raises(ValueError, match="in the middle"):
            replies.wait(number, send=lambda number=number: replies.answer(number))
        assert not replies.reader.entered
        assert wait()


def test_a_handler_waits_where_its_thread_only_polls(replies):
    """And its thread then looks whether its own reply has come, which the handler has read."""
    got = []

    def enter(_signum, _frame):
        replies.answer(0)
        got.append(replies.wait(1, send=lambda: replies.answer(1)))

    def interrupt():
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, enter)
    try:
        threading.Thread(target=interrupt).start()
        assert replies.wait(0)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert got == [True]


def test_who_waits_in_the_middle_of_sending_is_refused(replies):
    """A reply that it waited for could not be read; the call in whose middle it is goes on."""
    raised = []

    def send():
        with pytest.raises(Reentered) as refused:
            replies.wait(1)
        raised.append(refused.type)
        replies.answer(0)

    assert replies.wait(0, send=send)
    assert raised == [Reentered]


def test_a_reader_that_is_closed_is_not_waited_in(replies):
    """A wait after the end takes the lock if it is free, or its time."""
    replies.locks[0].release()
    replies.close()
    assert replies.wait(0)
    assert not replies.wait(1, 0.01)
    replies.close = lambda: None
