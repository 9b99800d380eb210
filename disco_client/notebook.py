"""What notebooks show: small tables of facts, and the progress of waits and copies."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from disco_client.text import for_terminal

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = ["StatusLine", "draw_with", "facts_table", "html_of", "in_notebook", "progress"]

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
    return _bars(notebook=notebook)(
        total=nbytes,
        desc=what,
        unit="B",
        unit_scale=True,
        disable=hidden,
        delay=_UPLOAD_S if late else 0,
    )


def _bars(*, notebook: bool) -> Any:
    if not notebook:
        from tqdm import tqdm

        return tqdm
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it is drawn as text
        from tqdm.auto import tqdm as bars

    return bars


class StatusLine:
    """Shows the state of a wait: in a notebook in one place, else a line for each change."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def say(self, text: str) -> None:
        """Shows a text instead of the one before."""
        if not in_notebook():
            said = for_terminal(f"disco: {text}", sys.stderr)
            print(said, file=sys.stderr, flush=True)  # noqa: T201  (for the user who waits)
            return
        bar = self._bar
        if bar is None:
            bar = self._bar = _bars(notebook=True)(bar_format="{desc} ({elapsed})", leave=False)
        bar.set_description_str(text)

    def close(self) -> None:
        """Removes it again, where that is possible."""
        if self._bar is not None:
            self._bar.close()
