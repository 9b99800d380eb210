"""What workers print at a program whose standard error is missing, broken, or read by nobody."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LINE = "zw\u00f6lf " + "x" * 500
PATIENCE_S = 30.0
"""How long a wait may take that would never end, or fail, if printing ended the session."""

DROPPED = " dropped"


class Raising(io.StringIO):
    """A stream of the program's that cannot be written to."""

    def __init__(self):
        super().__init__()
        self.tried = False

    def write(self, text):
        self.tried = True
        raise RuntimeError("not today")


class Standing(io.StringIO):
    """One that takes nothing until it is told to."""

    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()

    def write(self, text):
        self.go_on.wait()
        return super().write(text)


@pytest.fixture
def begin(open_session, tools_of, monkeypatch, eventually):
    """Opens a session of a program whose standard error changes."""
    return lambda: Program(tools_of(open_session()), monkeypatch, eventually)


@dataclass
class Program:
    """What tests do with it."""

    tools: Any
    monkeypatch: Any
    eventually: Any

    def prints_to(self, stream, times=4):
        """Its workers print, and it waits for them each time."""
        self.monkeypatch.setattr(sys, "stderr", stream)
        for _ in range(times):
            self.tools.call("say", LINE)
            self.tools.session.sync_all(timeout=PATIENCE_S)

    def shows(self, *texts):
        """A stream that works gets them, with the next line."""
        self.prints_to(shown := io.StringIO(), 1)
        self.eventually(
            lambda: all(text in shown.getvalue() for text in (LINE, *texts)), what=f"{texts}"
        )


def test_a_standard_error_that_fails_ends_no_session(begin, tmp_path, eventually):
    """Workers print, the session goes on, and how much was dropped is told later."""
    speaking = begin()
    speaking.shows()
    speaking.prints_to(None)
    speaking.shows()
    closed = io.StringIO()
    closed.close()
    speaking.prints_to(closed)
    speaking.shows()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        speaking.prints_to(full)
        speaking.shows()
    with broken_pipe() as stream:
        speaking.prints_to(stream)
        speaking.shows()
    speaking.prints_to(raising := Raising())
    eventually(lambda: raising.tried, what="an attempt to write")
    speaking.shows(DROPPED)
    written = tmp_path / "ascii"
    with written.open("w", encoding="ascii") as stream:
        speaking.prints_to(stream)
        eventually(written.read_text, what="lines")
        speaking.shows()
    assert "] zw\\xf6lf xx" in written.read_text()


def test_a_standard_error_that_nobody_reads_holds_up_no_session(begin, eventually):
    """Workers print, the session goes on, and the lines come when somebody reads them."""
    speaking = begin()
    with unread_pipe() as (stream, read_end):
        speaking.prints_to(stream, 12)
        eventually(lambda: is_full(stream), what="a full pipe")
        assert b"[worker " in os.read(read_end, 1 << 20)
        with drained(read_end):  # of those that were being written there
            speaking.shows()
    with contextlib.closing(Standing()) as standing:
        speaking.prints_to(standing)
        standing.go_on.set()
        eventually(lambda: LINE in standing.getvalue(), what="the lines that waited")
    speaking.shows()


def is_full(stream):
    """Whether a pipe takes nothing more."""
    poll = select.poll()
    poll.register(stream, select.POLLOUT)
    return not poll.poll(0)


@contextlib.contextmanager
def broken_pipe():
    """A stream whose reader is gone."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream


@contextlib.contextmanager
def drained(read_end):
    """Somebody reads a pipe."""
    over = threading.Event()

    def read():
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        while not over.is_set():
            if poll.poll(10):
                os.read(read_end, 1 << 16)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        over.set()
        reading.join()


@contextlib.contextmanager
def unread_pipe():
    """A stream that has room for a page, and its other end."""
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream, ours
    os.close(ours)
