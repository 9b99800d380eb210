"""Threads that wait take turns at reading; a keeper reads where none does."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

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
        self.torn = []
        self.reader = SharedReader(self._handle)
        self.reader.replies.register(self.readable, READABLE)
        self._over = False
        self._keeper = threading.Thread(target=self._keep)
        self._keeper.start()

    def _handle(self, ready):
        if any(fd == self.readable for fd, _ in ready):
            for number in os.read(self.readable, 16):
                self.read_by.append(threading.current_thread())
                self.locks[number].release()

    def _keep(self):
        while not self._over:
            self.reader.keep()
        self.reader.close()

    def answer(self, number):
        os.write(self._writable, bytes([number]))

    def wait(self, number, seconds=LIMIT_S, send=lambda: None):
        return self.reader.wait(self.locks[number], seconds, send, self.torn.append)

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
    """Ctrl-C while a thread only waits is delivered at once, and tears nothing."""

    def interrupt():
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        replies.wait(0)
    assert replies.torn == []
    assert replies.wait(0, send=lambda: replies.answer(0))


def test_what_is_raised_in_the_middle_of_work_is_told(replies):
    """So that the session, whose stream may be half written, can end."""

    def fail():
        msg = "in the middle"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="in the middle"):
        replies.wait(0, send=fail)
    assert [type(error) for error in replies.torn] == [ValueError]


def test_a_reader_that_is_closed_is_not_waited_in(replies):
    """A wait after the end takes the lock if it is free, or its time."""
    replies.locks[0].release()
    replies.close()
    assert replies.wait(0)
    assert not replies.wait(1, 0.01)
    replies.close = lambda: None
