"""Limits of commands where the system is short of what they need."""

from __future__ import annotations

import threading

import pytest

import disco_client
from disco_server.rank.executor import Executor
from disco_server.rank.worker import Worker
from fakes import Replies


def test_a_worker_that_cannot_watch_fails_the_command_alone(monkeypatch):
    """The system starts no thread for it; nothing runs without its limit."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "disco-limits":
            raise RuntimeError("can't start new thread")
        start(thread)

    with disco_client.ThreadedSession(1) as session:
        add = session.get_global_func("numpy.add")
        with session.capture() as program:
            program.output(add(1, 2))
        session.sync_all()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with session.limit(60):
            for limited in (add(1, 2), program()):
                with pytest.raises(disco_client.RemoteException, match="can't start new thread"):
                    limited.get()
        monkeypatch.undo()
        assert add(1, 2).get() == 3
        assert add.limit(60)(1, 2).get() == 3


def test_a_rank_that_cannot_watch_all_commands_executes_none(monkeypatch):
    """What the operator has limited does not run without its limit."""

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    worker = Worker(0, 1, 1, open_groups=None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Executor(worker, Replies(), 60.0)
    Executor(worker, Replies())
