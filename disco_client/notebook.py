"""What notebooks show: small tables of facts, and the progress of waits and copies."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from disco_client.clock import monotonic
from disco_client.output import StandardError, say

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = [
    "StatusLine",
    "TrackedWork",
    "WorkProgress",
    "WorkTable",
    "draw_with",
    "facts_table",
    "html_of",
    "in_notebook",
    "progress",
]

_LEFT = 'style="text-align:left"'
_UPLOAD_S = 0.5
"""A copy shorter than this is not worth a bar."""


_drawn: dict[type, Callable[[Any], str]] = {}


def draw_with(kind: type, draw: Callable[[Any], str]) -> None:
    """Registers what draws the objects of a class, which need not know of it.

    Args:
        kind: The class.
        draw: Makes HTML of one of them.
    """
    _drawn[kind] = draw


def html_of(thing: object) -> str:
    """Draws an object as HTML."""
    return _drawn[type(thing)](thing)


def facts_table(caption: str, facts: Mapping[str, str]) -> str:
    """A table of names and values, without colours, so that it fits every theme.

    Args:
        caption: What it is about; any text.
        facts: The rows; any text.
    """
    rows = "".join(
        f'<tr><th scope="row" {_LEFT}>{escape(name)}</th><td {_LEFT}>{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(caption)}</caption>{rows}</table>"


def in_notebook() -> bool:
    """Whether this program runs in the kernel of a notebook, whose reader is no terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})


def progress(what: str, nbytes: int, shown: bool | None = None, *, late: bool = False) -> tqdm[Any]:
    """A bar for so many bytes: the notebook's own where there is one, else on standard error.

    Args:
        what: What it is called.
        nbytes: How many there are.
        shown: Whether to show it; None shows it on a terminal and in a notebook.
        late: Only in a notebook, and not before half a second has passed.
    """
    notebook = in_notebook()
    hidden = None if shown is None else not shown
    if hidden is None and notebook:
        hidden = False
    if late:
        hidden = not notebook
    drawn: dict[str, Any] = {
        "total": nbytes,
        "desc": what,
        "unit": "B",
        "unit_scale": True,
        "disable": hidden,
        "delay": _UPLOAD_S if late else 0,
    }
    if notebook:
        with contextlib.suppress(Exception):  # one that does not draw it
            return _bars(notebook=True)(**drawn)
    return _bars(notebook=False)(**drawn, file=StandardError(), dynamic_ncols=True)


def _bars(*, notebook: bool) -> Any:
    if not notebook:
        from tqdm import tqdm

        return tqdm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it is drawn as text
        from tqdm.auto import tqdm as bars

    return bars


@dataclass(frozen=True, slots=True)
class WorkProgress:
    """How far a long piece of work of a session is; see `Session.progress`.

    Attributes:
        what: ``load_weights``, ``load``, ``save``, ``checkpoint``, ``assign``,
            ``load_module``, ``upload``, ``download`` or ``commands``.
        name: Of which file or folder; may be empty.
        done, total: How much of it is done, and how much there is.
        unit: What is counted: ``B`` for bytes, or ``commands``.
        seconds: For how long it has been under way; 0 for commands.

    Examples:
        >>> print(disco_client.WorkProgress("save", "model", 250, 1000, "B", 2.0))
        save model: 250 B of 1.0 kB, 25 %, 2 s
    """

    what: str
    name: str
    done: int
    total: int
    unit: str = "B"
    seconds: float = 0.0

    def __str__(self) -> str:
        """As ``load_weights model.gguf: 1.2 GB of 3.4 GB, 35 %, 4 s``."""
        amount = f"{self.done} of {self.total} {self.unit}"
        if self.unit == "B":
            amount = f"{_bytes(self.done)} of {_bytes(self.total)}"
        share = f", {100 * self.done // self.total} %" if self.total else ""
        since = f", {self.seconds:.0f} s" * bool(self.seconds)
        name = f"{self.what} {self.name}".rstrip()
        return f"{name}: {amount}{share}{since}"


_THOUSAND = 1000


def _bytes(count: float) -> str:
    """Bytes as bars write them: ``512 B``, ``1.2 kB``, ``3.4 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < _THOUSAND:
            return f"{count:.{0 if unit == 'B' else 1}f} {unit}"
        count /= _THOUSAND
    return f"{count:.1f} TB"


class TrackedWork:
    """Work under way, in a table and as a bar.

    Args:
        what: As of `WorkProgress`.
        name: The same.
        total: The same.
        bar: What is drawn of it.
    """

    def __init__(self, what: str, name: str, total: int, bar: tqdm[Any]) -> None:
        self._what, self._name, self._total, self._bar = what, name, total, bar
        self._began, self._done = monotonic(), 0

    def update(self, more: int) -> None:
        """Counts so much more as done."""
        self._done += more
        with contextlib.suppress(Exception):  # a notebook that does not draw it
            self._bar.update(more)

    @property
    def progress(self) -> WorkProgress:
        """How far it is."""
        seconds = monotonic() - self._began
        return WorkProgress(self._what, self._name, self._done, self._total, seconds=seconds)


class WorkTable:
    """What is under way in one session; used by any thread.

    Args:
        owner: The session, which this need not know.
    """

    def __init__(self, owner: object = None) -> None:
        del owner
        self._works: dict[int, TrackedWork] = {}

    @contextlib.contextmanager
    def track(
        self, what: str, name: str, total: int, shown: bool | None = None, *, late: bool = False
    ) -> Generator[TrackedWork]:
        """Has work in the table and as a bar meanwhile; yields what counts it.

        Args:
            what: As of `WorkProgress`.
            name: The same.
            total: The same.
            shown: As of `progress`.
            late: The same.
        """
        bar = progress(name or what, total, shown, late=late)
        work = TrackedWork(what, name, total, bar)
        self._works[id(work)] = work
        try:
            yield work
        finally:
            del self._works[id(work)]
            with contextlib.suppress(Exception):
                bar.close()

    def all(self) -> tuple[WorkProgress, ...]:
        """How far each is, the oldest first."""
        return tuple(work.progress for work in tuple(self._works.values()))


class StatusLine:
    """Shows the state of a wait: in a notebook in one place, else a line for each change."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def say(self, text: str) -> None:
        """Shows a text instead of the one before."""
        if not in_notebook():
            say(f"disco: {text}")
            return
        with contextlib.suppress(Exception):  # a notebook that does not draw it
            bar = self._bar
            if bar is None:
                bar = self._bar = _bars(notebook=True)(bar_format="{desc} ({elapsed})", leave=False)
            bar.set_description_str(text)

    def close(self) -> None:
        """Removes it again, where that is possible."""
        if self._bar is not None:
            with contextlib.suppress(Exception):
                self._bar.close()
