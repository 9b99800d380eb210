"""What ranks printed: what is kept of it, for how long, and how it is read."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_server.controller import logs
from disco_server.controller.logs import Logs, SessionLog


def say(log, worker, *lines, stderr=False):
    log.add(worker, f"node-{worker}", stderr, lines)


async def all_of(log, **how):
    return [part async for part in log.read(**how)]


def lines_of(parts):
    return [line for part in parts for printed in part.printed for line in printed.lines.lines]


def read(log, **how):
    return lines_of(asyncio.run(all_of(log, **how)))


def test_lines_come_in_their_order_with_who_printed_them():
    """All of them, those of one rank, or the last."""
    log = SessionLog()
    say(log, 0, "a", "b")
    say(log, 1, "c", stderr=True)
    say(log, 0, "d")
    assert read(log) == ["a", "b", "c", "d"]
    assert read(log, worker=0) == ["a", "b", "d"]
    assert read(log, last=2) == ["c", "d"]
    assert read(log, worker=0, last=2) == ["b", "d"]
    assert read(log, last=0) == read(log, worker=7) == read(log, worker=0, last=0) == []
    (part,) = asyncio.run(all_of(log, worker=1))
    (said,) = (printed.lines for printed in part.printed)
    assert (said.worker, said.node, said.stderr, list(said.lines)) == (1, "node-1", True, ["c"])
    assert part.lost == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=30),
    st.sampled_from([None, 0, 1, 2]),
    st.one_of(st.none(), st.integers(0, 12)),
)
def test_no_more_is_kept_than_was_said(said, worker, last):
    """The last lines of a rank or of all are the last of what is kept, and none is twice."""
    log, every, count = SessionLog(max_lines=10), [], 0
    for who, size in said:
        lines = [f"{count + i}" for i in range(size)]
        count += size
        say(log, who, *lines)
        every += [(who, line) for line in lines]
        assert log.nbytes >= 0
    kept = read(log)
    assert len(kept) <= 10
    assert kept == [line for _, line in every][len(every) - len(kept) :]
    mine = [line for who, line in every[len(every) - len(kept) :] if worker in (None, who)]
    if last is not None:
        mine = mine[max(len(mine) - last, 0) :]
    assert read(log, worker=worker, last=last) == mine


def test_bytes_are_bounded_too():
    """Long lines push out more of those before them."""
    log = SessionLog(max_bytes=1000)
    for i in range(10):
        say(log, 0, f"{i}" * 300)
    assert read(log) == ["8" * 300, "9" * 300]
    say(log, 0, "x" * 2000)
    assert read(log) == []


def test_who_follows_gets_what_comes_until_the_end():
    """Nothing twice, and the reading ends with the session."""

    async def scenario():
        log = SessionLog()
        say(log, 0, "before")
        parts = log.read(follow=True)
        assert lines_of([await anext(parts)]) == ["before"]
        waiting = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        assert not waiting.done()
        say(log, 1, "after")
        assert lines_of([await waiting]) == ["after"]
        log.close()
        assert [part async for part in parts] == []

    asyncio.run(scenario())


@pytest.mark.parametrize("worker", [None, 0], ids=["all", "one"])
def test_who_reads_too_slowly_is_told_what_is_lost(worker):
    """Nobody waits for him; of one rank it is the lines of that rank that are counted."""

    async def scenario():
        log = SessionLog(max_lines=4)
        say(log, 0, "first")
        parts = log.read(worker=worker, follow=True)
        await anext(parts)
        for i in range(10):
            say(log, 0, f"{i}")
            say(log, 1, f"-{i}")
        part = await anext(parts)
        expected = ["8", "-8", "9", "-9"] if worker is None else ["8", "9"]
        assert lines_of([part]) == expected
        assert part.lost == (16 if worker is None else 8)
        for i in range(4):
            say(log, 1, f"+{i}")
        say(log, 0, "last")
        part = await anext(parts)
        assert (lines_of([part])[-1], part.lost) == ("last", 1 if worker is None else 0)

    asyncio.run(scenario())


def test_what_is_lost_is_told_even_where_nothing_is_left():
    """A rank all of whose new lines were pushed out by others."""

    async def scenario():
        log = SessionLog(max_lines=2)
        parts = log.read(worker=0, follow=True)
        waiting = asyncio.ensure_future(anext(parts))
        await asyncio.sleep(0)
        say(log, 0, "a")
        say(log, 1, "b", "c")
        part = await waiting
        assert (list(part.printed), part.lost) == ([], 1)

    asyncio.run(scenario())


def test_what_ended_sessions_printed_is_kept_for_a_while(monkeypatch):
    """Of the last few of them; and who asks for one that printed nothing does not wait."""
    monkeypatch.setattr(logs, "ENDED_SESSIONS", 2)
    kept = Logs()
    for session in range(4):
        kept.add(session, 0, "a", False, [f"of {session}"])
        kept.add(session, 0, "a", False, [])
        kept.end(session)
    kept.end(9)
    assert [read(kept.of(session, over=True)) for session in range(4)] == [
        *([], []),
        *(["of 2"], ["of 3"]),
    ]
    assert read(kept.of(9, over=True), follow=True) == []
    monkeypatch.setattr(logs, "ENDED_S", -1.0)
    assert read(kept.of(3, over=True)) == []


def test_all_sessions_together_are_bounded(monkeypatch):
    """The one with the most loses its oldest lines."""
    monkeypatch.setattr(logs, "ALL_BYTES", 2000)
    kept = Logs()
    kept.add(1, 0, "a", False, ["small"])
    for i in range(10):
        kept.add(2, 0, "a", False, [f"{i}" * 400])
    assert read(kept.of(1)) == ["small"]
    assert [line[0] for line in read(kept.of(2))] == ["6", "7", "8", "9"]
