"""What is shown again and again: how often, on what, and until when."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import sys
import threading

import pytest
from rich.table import Table

from disco_client.errors import AccessDenied, ConnectionFailed
from disco_server.cli import output
from disco_server.cli.output import repeat, show_live

PROGRAM = """
from disco_server.cli.output import show_live
count = 0
def draw():
    global count
    count += 1
    return f"picture {count}"
show_live(draw, 0.02)
print("left in order")
"""


def interrupting(after):
    """Counts its calls, and presses Ctrl-C at one of them."""
    calls = []

    def act():
        calls.append(len(calls))
        if len(calls) == after:
            signal.raise_signal(signal.SIGINT)
        return f"picture {len(calls)}"

    return calls, act


def test_it_goes_on_until_ctrl_c():
    """Which is how it is left, and no error; or once, if that is what is wanted."""
    calls, act = interrupting(after=3)
    repeat(act, 0.001)
    assert len(calls) == 3
    calls, act = interrupting(after=9)
    repeat(act, 1000.0, once=True)
    assert len(calls) == 1


def test_without_a_terminal_pictures_follow_each_other(capsys):
    """One, or one below the other."""
    _, act = interrupting(after=3)
    show_live(act, 0.001)
    assert capsys.readouterr().out == "picture 1\npicture 2\n"
    _, act = interrupting(after=9)
    show_live(act, 1000.0, once=True)
    assert capsys.readouterr().out == "picture 1\n"


def test_a_controller_that_goes_away_later_is_waited_for(capsys):
    """At the first picture it is an error, and who is not let in need not wait."""
    errors = [ConnectionFailed("nobody there")]
    calls, act = interrupting(after=3)

    def draw():
        if len(calls) == 1 and errors:
            raise errors.pop()
        return act()

    show_live(draw, 0.001)
    assert capsys.readouterr().out == "picture 1\nnobody there\npicture 2\n"

    def fail(error):
        raise error

    with pytest.raises(ConnectionFailed):
        show_live(lambda: fail(ConnectionFailed("nobody")), 0.001)
    with pytest.raises(AccessDenied):
        output._redraw(lambda: fail(AccessDenied("no")))


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_on_a_terminal_a_key_ends_it_and_leaves_the_terminal_as_it_was(key):
    """The picture has a screen of its own, which goes away."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])
    watchdog = threading.Timer(50, os.kill, (pid, signal.SIGKILL))
    watchdog.start()
    shown = b""
    try:
        while b"picture 3" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, key)
        with contextlib.suppress(OSError):  # EIO: it has let go of the terminal
            while more := os.read(terminal, 4096):
                shown += more
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
        watchdog.cancel()
    assert b"\x1b[?1049h" in shown  # to another screen
    assert shown.rindex(b"\x1b[?1049l") < shown.index(b"left in order")  # and back
    assert status == 0


def test_what_is_no_terminal_has_no_edge(capsys):
    """However long a name, it is in one piece for a program that looks for it."""
    table = Table("session", "does")
    table.add_column("node", no_wrap=True, overflow="ellipsis")
    table.add_row("a long name " * 20, "waits " * 20, "n" * 300)
    show_live(lambda: table, 1.0, once=True)
    row = capsys.readouterr().out.splitlines()[3]
    assert "a long name " * 20 in row
    assert "waits " * 20 in row
    assert "n" * 300 in row
