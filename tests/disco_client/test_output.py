"""Texts for people at the client: lines of workers, reports, bars and records."""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import io
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from disco_client.notebook import WorkTable
from disco_client.output import (
    BackgroundWriter,
    StandardError,
    drop_logs,
    in_background,
    logger_of,
    print_logs,
    say,
)
from disco_client.waiting import LongWaits


def test_each_line_is_printed_with_its_rank(capsys):
    """On standard error, whichever of its two outputs the worker used."""
    print_logs(3, "node-1", False, ["first", "second"])
    print_logs(0, "node-0", True, ["third"])
    drop_logs(0, "node-0", True, ["fourth"])
    assert capsys.readouterr() == (
        "",
        "[worker 3 node-1] first\n[worker 3 node-1] second\n[worker 0 node-0] third\n",
    )


def test_a_sink_that_fails_learns_how_many_lines_it_has_missed():
    """Of each worker, before the next lines; whoever brought the lines is not told."""
    got, fails = [], True

    def sink(worker, node, stderr, lines):
        if fails:
            raise RuntimeError("not today")
        got.append((worker, lines))

    pass_on = in_background(sink)
    pass_on(0, "here", False, ["a", "b"])
    pass_on(1, "here", False, ["c"])
    fails = False
    pass_on(0, "here", False, ["d"])
    assert got == [(0, ["... 2 lines dropped"]), (1, ["... 1 line dropped"]), (0, ["d"])]


def test_a_sink_that_stands_still_holds_up_nobody(eventually):
    """What comes meanwhile has a bound; the rest is counted, and told when the sink goes on."""
    got, goes_on = [], threading.Event()

    def sink(worker, node, stderr, lines):
        goes_on.wait()
        got.extend(lines)

    pass_on = in_background(sink)
    for _ in range(400):
        pass_on(0, "here", False, ["x" * 10_000])
    goes_on.set()
    eventually(lambda: got and got[-1].endswith("dropped"), what="the number of dropped lines")
    assert len(got) > 50
    assert len(got) - 1 + int(got[-1].split()[1]) == 400


def test_a_line_is_written_before_the_program_goes_on():
    """So it keeps its place among what the program prints itself."""
    shown = []
    pass_on = in_background(lambda _worker, _node, _stderr, lines: shown.extend(lines))
    for number in range(100):
        pass_on(0, "here", False, [f"line {number}"])
        shown.append(number)
    assert shown == [each for number in range(100) for each in (f"line {number}", number)]


@pytest.mark.parametrize("stream", [None, "closed", "raising"])
def test_what_is_reported_and_drawn_never_fails(monkeypatch, stream):
    """Reports of long waits, bars and other words, whatever standard error is."""
    broken = io.StringIO()
    broken.close()
    if stream == "raising":
        broken = object()
    monkeypatch.setattr(sys, "stderr", None if stream is None else broken)
    say("something")
    waits = LongWaits(0.0, lambda: ("all is well", "well", False))
    assert waits.look(waits.look(None)).told
    works = WorkTable()
    for shown in (True, None):
        with works.track("save", "model", 10, shown=shown) as work:
            work.update(10)
            assert works.all()[0].done == 10
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    say("goes on")
    assert "dropped" in shown.getvalue()
    assert shown.getvalue().endswith("goes on\n")


def test_a_bar_that_a_notebook_cannot_draw_stops_no_work(monkeypatch):
    """Whatever the notebook's own bars raise."""

    class Bar:
        def __init__(self, **_):
            pass

        def update(self, _more):
            raise RuntimeError("the kernel is gone")

        close = update

    monkeypatch.setattr("disco_client.notebook._bars", lambda notebook: Bar)
    works = WorkTable()
    with works.track("save", "model", 10, shown=True) as work:
        work.update(10)


def test_a_bar_is_as_wide_as_the_terminal():
    """It is drawn on a file of ours, which asks the present standard error."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal, contextlib.redirect_stderr(terminal):
        assert StandardError().isatty()
        assert StandardError().fileno() == terminal.fileno()
    os.close(ours)


class Failing(logging.Handler):
    """A handler of a program's."""

    def handle(self, record):
        raise RuntimeError("not today")


class Standing(logging.Handler):
    """One that waits."""

    def __init__(self):
        super().__init__()
        self.goes_on, self.got = threading.Event(), []

    def emit(self, record):
        self.goes_on.wait()
        self.got.append((record.getMessage(), record.funcName, record.exc_info))


@pytest.fixture
def handled(request):
    """A logger of ours that has one handler of the program's."""
    logger = logger_of("disco_client.tests")
    handler = request.param()
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, handler
    logger.removeHandler(handler)
    logger.propagate = True


@pytest.mark.parametrize("handled", [Failing], indirect=True)
def test_a_handler_that_raises_is_the_programs_matter(handled):
    """Not that of the thread that logs, which may be a session's reader."""
    handled[0].warning("something")


@pytest.mark.parametrize("handled", [logging.NullHandler], indirect=True)
def test_filters_of_the_program_are_asked(handled):
    """As of any logger."""
    logger, _ = handled
    asked = []
    logger.addFilter(asked.append)
    try:
        logger.warning("something")
    finally:
        logger.removeFilter(asked.append)
    assert [each.getMessage() for each in asked] == ["something"]


@pytest.mark.parametrize("handled", [Standing], indirect=True)
def test_a_handler_that_waits_holds_up_nobody(handled, eventually):
    """It gets the records as they were when it goes on."""
    logger, handler = handled
    try:
        int("a reason")
    except ValueError as error:
        reason = error
        logger.exception("failed %d times", 2)
    logger.warning("again")
    assert handler.got == []
    handler.goes_on.set()
    eventually(lambda: len(handler.got) == 2, what="two records")
    here = "test_a_handler_that_waits_holds_up_nobody"
    assert handler.got[0][:2] == ("failed 2 times", here)
    assert handler.got[0][2][1] is reason
    assert handler.got[1] == ("again", here, None)


def test_a_signal_handler_that_prints_in_the_middle_of_a_print_neither_fails_nor_waits():
    """Python's own streams refuse to be entered again, and their locks would be waited for."""
    got = []

    def write():
        signal.raise_signal(signal.SIGUSR1)
        got.append("outer")

    writer = BackgroundWriter("test", lambda _source, lines: got.append(lines))
    before = signal.signal(signal.SIGUSR1, lambda *_: writer.pass_on(lambda: got.append("inner")))
    try:
        with writer._lock:  # as if the signal came while this thread is inside
            signal.raise_signal(signal.SIGUSR1)
        writer.pass_on(write)
        writer.flush(20.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(got) == ["inner", "inner", "outer"]


PROGRAM = """
import os, sys
import disco_client
import disco_server
@disco_server.register_func("tests.shout")
def shout(text):
    print(text)
session = disco_client.ThreadedSession(2)
for number in range(50):
    session.get_global_func("tests.shout")("z\\u00f6" * 100)
    session.sync_all(timeout=30)
print("done", flush=True)
"""
LAST_WORDS = """
session.get_global_func("tests.shout")("last words")
"""


def run(program, stderr, *, closed=False):
    """Runs a program with this standard error; its exit code and what it printed."""
    command = [sys.executable, "-c", program]
    if closed:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=50, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("kind", ["unread", "broken", "full", "closed"])
def test_a_program_ends_well_whatever_its_standard_error_is(kind):
    """Its session goes on, and the interpreter ends with success, though lines are left."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    try:
        if kind == "full":
            os.close(theirs)
            theirs = os.open("/dev/full", os.O_WRONLY)
        if kind == "broken":
            os.close(ours)
        assert run(PROGRAM, theirs, closed=kind == "closed") == (0, "done\n")
    finally:
        os.close(theirs)
        if kind != "broken":
            os.close(ours)


def test_nothing_is_lost_at_a_normal_end(tmp_path):
    """What workers print last comes, also while the interpreter ends the session."""
    with (tmp_path / "stderr").open("w") as stderr:
        assert run(PROGRAM + LAST_WORDS, stderr) == (0, "done\n")
    text = (tmp_path / "stderr").read_text()
    assert text.count("z\u00f6" * 100) == 100
    assert text.count("last words") == 2


def test_a_forked_child_has_its_own(capfd):
    """The thread that writes is not there, and what its parent had not written is the parent's."""
    goes_on = threading.Event()
    writer = BackgroundWriter("test", lambda *_: None)
    writer.pass_on(goes_on.wait)
    pid = os.fork()
    if not pid:
        writer.pass_on(lambda: os.write(2, b"from the child\n"))
        writer.flush(10.0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    goes_on.set()
    assert capfd.readouterr().err == "from the child\n"


@pytest.mark.parametrize(
    "why", ["can't start new thread", "can't create new thread at interpreter shutdown"]
)
def test_where_no_thread_is_to_be_had_the_caller_writes(monkeypatch, why):
    """As Python 3.12 and later refuse one when the interpreter ends; it was written on return."""

    def refuse(*_arguments):
        raise RuntimeError(why)

    written, writer = [], BackgroundWriter("test", lambda *_: None)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    writer.pass_on(lambda: written.append(threading.get_ident()))
    assert written == [threading.get_ident()]


def test_what_interrupts_the_start_of_the_thread_keeps_nothing_from_being_written(monkeypatch):
    """A handler may raise before the thread is there; the next text takes the former along."""
    written, writer = [], BackgroundWriter("test", lambda *_: None)

    def interrupt(_thread):
        monkeypatch.undo()
        raise TimeoutError("raised by a handler")

    monkeypatch.setattr("disco_client.output.start_thread", interrupt)
    with pytest.raises(TimeoutError):
        writer.pass_on(lambda: written.append(1))
    writer.pass_on(lambda: written.append(2))
    writer.flush(10.0)
    assert written == [1, 2]
