"""Reading what many processes print, without doing nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter

import pytest

from disco_server.worker.rank_handle import OutputPoller


@pytest.fixture
def pipes():
    """Makes pipes: the end that the poller reads, and one to write to."""
    writing = []

    def make():
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        writing.append(theirs)
        return ours, theirs

    yield make
    for fd in writing:
        os.close(fd)


def run(test):
    """Runs a coroutine with a poller within a limit."""

    async def limited():
        poller = OutputPoller()
        try:
            async with asyncio.timeout(30):
                return await test(poller)
        finally:
            poller.close()

    return asyncio.run(limited())


def test_all_that_is_written_comes_and_then_the_end(pipes):
    """The pipe is closed then, whose other end others may hold for longer."""
    ours, theirs = pipes()
    text = os.urandom(1 << 20)

    async def read(poller):
        came, over = bytearray(), asyncio.Event()

        def take(data):
            came.extend(data)
            if not data:
                over.set()

        poller.add(ours, take)
        with os.fdopen(os.dup(theirs), "wb") as writer:
            os.set_inheritable(theirs, False)
            await asyncio.to_thread(writer.write, text)
        while len(came) < len(text):  # noqa: ASYNC110  (the other end is still open)
            await asyncio.sleep(0.01)
        assert not over.is_set()
        poller.remove(ours)
        poller.remove(ours)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(ours)
        return bytes(came)

    assert run(read) == text


def test_pipes_that_are_always_full_take_turns(pipes):
    """None of them is forgotten, and between two looks everything else has its turn."""
    ends = [pipes() for _ in range(20)]
    block = b"x\n" * (32 << 10)

    def fill(fd):
        with contextlib.suppress(BlockingIOError):  # it is full
            os.write(fd, block)

    async def read(poller):
        counts, turns = Counter(), 0
        for ours, theirs in ends:
            os.set_blocking(theirs, False)
            fill(theirs)

            def take(_data, theirs=theirs):
                counts[theirs] += 1
                fill(theirs)

            poller.add(ours, take)
        while min(counts[theirs] for _, theirs in ends) < 5:
            await asyncio.sleep(0)
            turns += 1
        for ours, _ in ends:
            poller.remove(ours)
        return counts, turns

    counts, turns = run(read)
    assert max(counts.values()) <= min(counts.values()) + 2, "in turn"
    assert turns > 10, "the loop turned meanwhile"


def test_the_end_of_a_stream_is_told_once(pipes):
    """Behind what was written before it, and nothing is read from there any more."""

    async def read(poller):
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        came, over = [], asyncio.Event()
        poller.add(ours, lambda data: (came.append(data), data or over.set()))
        os.write(theirs, b"last words")
        os.close(theirs)
        await over.wait()
        return came

    assert run(read) == [b"last words", b""]
