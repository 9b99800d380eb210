"""The calls of those who watch: over gRPC, with what real ranks do and print."""

from __future__ import annotations

import contextlib

import pytest

from disco_client import connect, errors
from disco_client.transport.admin import ask_for_overview, close_session, read_logs
from disco_client.transport.channel import ReloadingChannel


@pytest.fixture
def line(cluster):
    """To the cluster's controller."""
    dialled = ReloadingChannel(cluster.address)
    yield dialled
    dialled.close()


@pytest.fixture
def printing(open_session):
    """Lets ranks of a session print, and waits until they have."""

    def go(*lines, **options):
        session = open_session(2, logs=False, **options)
        say = session.get_global_func("builtins.print")
        for each in lines:
            say(each)
        session.sync_all()
        return session

    return go


def view_of(line, session):
    (found,) = [s for s in ask_for_overview(line).sessions if s.name == session.name]
    return found


def said(*arguments, **how):
    options = {"worker": None, "last": None, "follow": False} | how
    with contextlib.closing(read_logs(*arguments, **options)) as found:
        return [(part.worker, text) for part in found for text in part.lines]


def test_an_overview_has_what_each_rank_does(line, open_session, eventually):
    """What runs and since when, what it has executed, its memory and its collectives."""
    session = open_session(2)
    array = session.empty((1024,), "float32")
    session.allreduce(array, array)
    session.sync_all()
    done = eventually(  # what a rank did last may not be noted yet
        lambda: next((v for v in [view_of(line, session)] if v.state == "idle"), None)
    )
    assert (done.queued, done.attached) == (0, True)
    assert [(r.worker, r.pid) for r in done.ranks] == [(r.worker, r.pid) for r in session.workers]
    for rank in done.ranks:
        assert (rank.state, rank.current) == ("running", None)
        assert rank.executed == done.issued > 0
        assert rank.collectives >= 1
        assert rank.collective_bytes == 4096
        assert rank.memory_bytes > 1 << 20
    session.get_global_func("time.sleep")(5)
    busy = eventually(
        lambda: next((v for v in [view_of(line, session)] if all(r.current for r in v.ranks)), None)
    )
    assert {rank.current.what for rank in busy.ranks} == {"time.sleep"}
    assert busy.executed < busy.issued
    close_session(line, session.name)


def test_logs_have_what_ranks_printed(line, printing, eventually):
    """Of all ranks or of one, the last lines or all; also when the session is over."""
    session = printing("one", "two")

    def all_four():
        found = said(line, session.name)
        return found if len(found) == 4 else None

    everything = eventually(all_four)
    assert sorted(everything) == [(0, "one"), (0, "two"), (1, "one"), (1, "two")]
    assert said(line, session.session_id, worker=1) == [(1, "one"), (1, "two")]
    assert said(line, session.name, worker=1, last=1) == [(1, "two")]
    session.shutdown()
    assert sorted(said(line, session.session_id)) == sorted(everything)
    assert sorted(said(line, session.session_id, follow=True)) == sorted(everything)


def test_who_follows_reads_on_until_the_session_ends(line, printing):
    """What comes later comes as it is printed."""
    session = printing("first")
    parts = read_logs(line, session.name, worker=0, last=None, follow=True)
    assert next(parts).lines == ("first",)
    session.get_global_func("builtins.print")("later")
    assert next(parts).lines == ("later",)
    session.shutdown()
    assert list(parts) == []


def test_what_there_is_not_is_said(line, printing):
    """A session that nobody knows, a rank that it has not."""
    session = printing()
    with pytest.raises(errors.NoSuchSession, match="got 'nope'; there run"):
        said(line, "nope")
    with pytest.raises(errors.ConfigError, match="rank from 0 to 1, got 2"):
        said(line, session.name, worker=2)
    with pytest.raises(errors.NoSuchSession, match="got 'nope'; there run"):
        close_session(line, "nope")


def test_a_session_is_ended_by_its_name_or_its_id(line, cluster, eventually):
    """Its program hears of it, and who stopped it is in the message where that is known."""
    for which in ("name", "session_id"):
        with connect(cluster.address, num_workers=1, name="to stop") as session:
            number, name = close_session(line, getattr(session, which))
            assert (f"{number:016x}", name) == (session.session_id, "to stop")
            with pytest.raises(errors.SessionLost, match="'to stop' was closed on request"):
                eventually(session.sync_all)
