"""What is shown again and again, until somebody has seen enough."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from disco_client.errors import AccessDenied, ConnectionFailed

__all__ = ["console", "repeat", "show_live"]

_ENOUGH = frozenset(b"qQ\x03\x1b")
_UNBOUNDED = 10_000
"""Columns of what has no edge; a table takes what its longest row needs."""


def console(*, markup: bool = True, quiet: bool = False) -> Console:
    """Where tables go; where that is no terminal nothing is folded or cut, for grep to find it."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(width=width, highlight=False, markup=markup, quiet=quiet)


def repeat(act: Callable[[], None], interval: float, *, once: bool = False) -> None:
    """Does something again and again until Ctrl-C.

    Args:
        act: What.
        interval: Seconds from one time to the next.
        once: Whether one time will do.
    """
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            started = time.monotonic()
            act()
            if once:
                return
            time.sleep(max(started + interval - time.monotonic(), 0.0))


def show_live(draw: Callable[[], RenderableType], interval: float, *, once: bool = False) -> None:
    """Shows something that changes, until q or Ctrl-C.

    On a terminal it has the screen to itself; elsewhere one is printed below the other. A
    controller that goes away later on is waited for.

    Args:
        draw: Makes what is to be shown.
        interval: Seconds between two of them.
        once: Whether one will do.

    Raises:
        ConnectionFailed: No controller answers at the first time.
    """
    out = console()
    first = draw()
    if once or not sys.stdout.isatty():
        out.print(first)
        if not once:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(interval)
                repeat(lambda: out.print(_draw_again(draw)), interval)
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        _single_keys() as keys,
        Live(first, console=out, screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        while not _enough(keys, interval):
            live.update(_draw_again(draw), refresh=True)


def _draw_again(draw: Callable[[], RenderableType]) -> RenderableType:
    try:
        return draw()
    except AccessDenied:
        raise
    except ConnectionFailed as error:
        return Text(str(error), style="red")


def _enough(keys: int | None, seconds: float) -> bool:
    """Waits some seconds; whether a key was pressed that ends it."""
    if keys is None:
        time.sleep(seconds)
        return False
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select((keys,), (), (), left)[0]:
            pressed = os.read(keys, 64)
            if not pressed or _ENOUGH & frozenset(pressed[:1]):
                return True
    return False


@contextlib.contextmanager
def _single_keys() -> Generator[int | None]:
    """Lets keys be read one by one; gives None where there is no keyboard."""
    if not sys.stdin.isatty():
        yield None
        return
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
