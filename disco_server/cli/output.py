"""Output of the commands: tables, figures, and displays that are refreshed."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from disco_client.clock import monotonic
from disco_client.errors import AccessDenied, ConnectionFailed
from disco_client.text import harmless, short_ids

__all__ = [
    "Column",
    "FittedTable",
    "console",
    "count",
    "duration",
    "rate",
    "repeat",
    "show_live",
    "shown_ids",
    "size",
]


_ENOUGH = frozenset(b"qQ\x03\x1b")
_UNBOUNDED = 10_000
"""The width of unlimited output; a table takes what its longest row needs."""


class _Harmless(Console):
    """Escapes others' texts so that they cannot control a terminal; pipes get them as they are."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and self.is_terminal:
                text = "\n".join(map(harmless, segment.text.split("\n")))
                yield Segment(text, segment.style)
            else:
                yield segment


def console(*, markup: bool = True, quiet: bool = False) -> Console:
    """The console for tables; off a terminal nothing is wrapped or cut, so that grep finds it."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return _Harmless(width=width, highlight=False, markup=markup, quiet=quiet)


def shown_ids(ids: Iterable[int]) -> dict[int, str]:
    """How tables name sessions: so short that commands still know which; off a terminal whole."""
    if sys.stdout.isatty():
        return short_ids(ids)
    return {each: f"{each:016x}" for each in ids}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table that fits the screen.

    Attributes:
        name: Its heading.
        weight: How important it is; if there is no room, the least important is left out.
        right: Whether it is aligned to the right, as numbers are.
        least: To how many characters it may be shortened before it is left out; 0 for none.
        folded: Whether it is wrapped rather than shortened.
    """

    name: str
    weight: int
    right: bool = False
    least: int = 0
    folded: bool = False


class FittedTable:
    """A table that is as wide as the screen at most; it says what it has left out.

    Args:
        title: Its title; may be empty.
        columns: From left to right.
        rows: A text for each column.
        framed: Whether it has lines around its cells.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        *,
        framed: bool = True,
    ) -> None:
        self._title = title
        self._columns = columns
        self._rows = rows
        self._gap, self._edge = (3, 1) if framed else (2, -2)
        self._framed = framed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws it; see rich's ``ConsoleRenderable``."""
        del console  # its width is among the options
        widths = self._fit(options.max_width)
        table = Table(title=self._title or None, title_justify="left")
        if not self._framed:
            table = Table(box=None, pad_edge=False, header_style="dim")
        for index, width in widths.items():
            column = self._columns[index]
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                width=width,
                no_wrap=not column.folded,
                overflow="fold" if column.folded else "ellipsis",
            )
        for row in self._rows:
            table.add_row(*(Text(row[index]) for index in widths))
        yield table
        left_out = [c.name for i, c in enumerate(self._columns) if i not in widths]
        if left_out:
            yield Text(f"not shown for want of room: {', '.join(left_out)}", style="dim")

    def _fit(self, room: int) -> dict[int, int]:
        """The width of each column that is shown."""
        texts = [[column.name, *(row[i] for row in self._rows)] for i, column in self._numbered()]
        widths = {i: max(map(cell_len, column)) for i, column in enumerate(texts)}
        by_weight = sorted(widths, key=lambda index: self._columns[index].weight)
        # The most important one is kept; if it is too wide alone, it is wrapped or shortened.
        for leave in range(len(by_weight)):
            kept = {i: widths[i] for i in widths if i not in by_weight[:leave]}
            excess = sum(kept.values()) + self._gap * len(kept) + self._edge - room
            # Wrapped text is still complete.
            for index in sorted(by_weight[leave:], key=lambda i: not self._columns[i].folded):
                least = self._columns[index].least or widths[index]
                least = max(least, cell_len(self._columns[index].name))
                spare = min(max(kept[index] - least, 0), max(excess, 0))
                kept[index], excess = kept[index] - spare, excess - spare
            if excess <= 0:
                return kept
        index = by_weight[-1]
        return {index: max(min(widths[index], room - self._gap - self._edge), 1)}

    def _numbered(self) -> enumerate[Column]:
        return enumerate(self._columns)


def repeat(act: Callable[[], None], interval: float, *, once: bool = False) -> None:
    """Repeats an action until Ctrl-C.

    Args:
        act: The action.
        interval: Seconds from one call to the next.
        once: Whether to call it only once.
    """
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            started = monotonic()
            act()
            if once:
                return
            time.sleep(max(started + interval - monotonic(), 0.0))


def show_live(draw: Callable[[], RenderableType], interval: float, *, once: bool = False) -> None:
    """Shows something that changes, until q or Ctrl-C.

    On a terminal it uses the whole screen; elsewhere each state is printed below the former.
    If the controller goes away later on, this waits for it.

    Args:
        draw: Makes what is shown.
        interval: Seconds between two states.
        once: Whether to show only one.

    Raises:
        ConnectionFailed: No controller answers the first time.
    """
    out = console()
    first = draw()
    if once or not sys.stdout.isatty():
        out.print(first)
        if not once:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(interval)
                repeat(lambda: out.print(_redraw(draw)), interval)
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        _single_keys() as keys,
        Live(first, console=out, screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        while not _enough(keys, interval):
            live.update(_redraw(draw), refresh=True)


def _redraw(draw: Callable[[], RenderableType]) -> RenderableType:
    try:
        return draw()
    except AccessDenied:
        raise
    except ConnectionFailed as error:
        return Text(str(error), style="red")


def _enough(keys: int | None, seconds: float) -> bool:
    """Waits some seconds; returns whether a key was pressed that ends it."""
    if keys is None:
        time.sleep(seconds)
        return False
    pressing = select.poll()
    pressing.register(keys, select.POLLIN)
    deadline = monotonic() + seconds
    while (left := deadline - monotonic()) > 0:
        if pressing.poll(left * 1000):
            pressed = os.read(keys, 64)
            if not pressed or _ENOUGH & frozenset(pressed[:1]):
                return True
    return False


@contextlib.contextmanager
def _single_keys() -> Generator[int | None]:
    """Lets keys be read one by one; yields None if there is no keyboard."""
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


# How the commands write figures for people.


_STEP = 1024.0
_THOUSAND = 1000.0
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TEN = 10


def size(nbytes: float) -> str:
    """Bytes: ``0``, ``512 B``, ``1.5 MiB``; rates in bytes a second are written like this too."""
    if nbytes < 1:
        return "0"
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < _STEP or unit == "TiB":
            break
        nbytes /= _STEP
    whole = unit == "B" or nbytes >= _TEN * _TEN or nbytes == int(nbytes)
    digits = 0 if whole else 1
    return f"{nbytes:.{digits}f} {unit}"


def count(value: float) -> str:
    """How many: ``17``, ``12.3k``, ``4.5M``."""
    for unit, below in (("", _THOUSAND), ("k", _THOUSAND**2), ("M", _THOUSAND**3)):
        if value < below:
            scaled = value / (below / _THOUSAND)
            return f"{scaled:.0f}{unit}" if not unit or scaled >= _TEN**2 else f"{scaled:.1f}{unit}"
    return f"{value / _THOUSAND**3:.1f}G"


def rate(value: float | None, unit: str = "") -> str:
    """How many, or how many bytes, in a second; a dash where it is not known."""
    if value is None:
        return "-"
    return f"{size(value)}/s" if unit == "B" else f"{count(value)}/s"


def duration(seconds: float) -> str:
    """Seconds: ``45 us``, ``1.2 ms``, ``3.4 s``, ``2m05s``, ``3h12m``, ``4d06h``."""
    if seconds >= _DAY:
        return f"{seconds // _DAY:.0f}d{seconds % _DAY // _HOUR:02.0f}h"
    if seconds >= _HOUR:
        return f"{seconds // _HOUR:.0f}h{seconds % _HOUR // _MINUTE:02.0f}m"
    if seconds >= _MINUTE:
        return f"{seconds // _MINUTE:.0f}m{seconds % _MINUTE // 1:02.0f}s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            value = seconds / scale
            return f"{value:.{0 if value >= _TEN else 1}f} {unit}"
    return f"{seconds * 1e6:.0f} us" if seconds > 0 else "0 s"
