"""Wording of messages for people, and safe output of untrusted texts to a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

__all__ = [
    "LEAST_ID",
    "beginning_with",
    "dropped",
    "for_terminal",
    "harmless",
    "hidden_in",
    "ids_beginning_with",
    "is_terminal",
    "many",
    "name_workers",
    "natural",
    "short_ids",
    "some",
]

_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode's categories of invisible or moving characters: controls, formats, separators."""

_ACTING: Final = re.compile(
    r"(\x1b\[[0-9;:]*m)"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Characters that act on a terminal; the group matches sequences that choose colours."""

_PLAIN: Final = "\x1b[0m"

_NUMBER: Final = re.compile("([0-9]+)")


def many(number: int, what: str, several: str = "") -> str:
    """A number of things: ``1 node``, ``2 nodes``.

    Args:
        number: How many.
        what: What one of them is called.
        several: What several are called, where that is not with an s.
    """
    return f"{number} {what if number == 1 else several or f'{what}s'}"


def name_workers(workers: Iterable[int]) -> str:
    """Lists workers in plain English: "worker 2", "workers 0, 1 and 3"."""
    names = [str(worker) for worker in sorted(workers)]
    if len(names) == 1:
        return f"worker {names[0]}"
    return f"workers {', '.join(names[:-1])} and {names[-1]}"


def dropped(count: int) -> str:
    """The line that stands for lines which are missing."""
    return f"... {count:,} line{'s' * (count != 1)} dropped"


_SHOWN: Final = 8


def some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are: ``a, b and 7 more``."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def beginning_with(names: Iterable[str], given: str) -> list[str]:
    """Those of some names that begin with a text; none where that is empty."""
    return [name for name in names if given and name.startswith(given)]


LEAST_ID: Final = 4
"""With how many of its digits an id may be named, so that hardly a name is taken for one."""

_ID: Final = re.compile("[0-9a-f]{4,16}")


def ids_beginning_with(ids: Iterable[int], given: str) -> list[int]:
    """Those of some sessions' ids that begin, in hexadecimal, with what was given.

    Args:
        ids: The ids.
        given: At least four digits; with fewer, or with something else, there are none.
    """
    text = given.lower()
    return [each for each in ids if f"{each:016x}".startswith(text)] if _ID.fullmatch(text) else []


def short_ids(ids: Iterable[int]) -> dict[int, str]:
    """The beginning of each session's id that no other one has, all of one length."""
    whole = {each: f"{each:016x}" for each in ids}
    digits = LEAST_ID
    while len({text[:digits] for text in whole.values()}) < len(whole):
        digits += 1
    return {each: text[:digits] for each, text in whole.items()}


def hidden_in(text: str, what: str) -> str | None:
    """Describes an invisible character of a name; None where there is none.

    Controls, escape sequences, line separators, zero-width characters and what changes the
    direction of writing could make a name look like another one, or act on a terminal.

    Args:
        text: The name.
        what: What it is the name of, for the message.
    """
    for place, character in enumerate(text):
        if unicodedata.category(character) in _HIDDEN:
            called = unicodedata.name(character, "a control character")
            return (
                f"expected {what} of characters that can be seen, got U+{ord(character):04X} "
                f"({called}) at position {place} of {text[:200]!a}"
            )
    return None


def harmless(text: str, *, colours: bool = False) -> str:
    r"""A line in which what would act on a terminal is written out, as in ``\x1b``.

    Args:
        text: The line; a line break inside it is written out too.
        colours: Whether escape sequences that choose colours stay; they end with the line.
    """
    shown = _ACTING.sub(lambda m: (colours and m[1]) or ascii(m[0])[1:-1], text)
    return shown + _PLAIN if "\x1b" in shown else shown


def is_terminal(stream: object) -> bool:
    """Whether a stream is a terminal; one that does not say so is none."""
    return bool(getattr(stream, "isatty", bool)())


def for_terminal(text: str, stream: TextIO) -> str:
    """A text as it may be written to a stream: harmless line by line if that is a terminal.

    Pipes and files get it as it is.
    """
    if not is_terminal(stream):
        return text
    return "\n".join(harmless(line, colours=True) for line in text.split("\n"))


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """The key by which names are sorted as people count: ``node-2`` before ``node-10``."""
    parts = _NUMBER.split(name)
    texts, numbers = parts[::2], [*map(int, parts[1::2]), -1]
    return tuple(zip(texts, numbers, strict=True))
