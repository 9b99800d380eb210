"""Failures that tests ask for by `STANDIN_NCCL_FAIL`.

The value is a comma-separated list, or `@` and the path of a file that has such a list and
may come and go while processes run. Entries:

- `init:R`: the construction fails on rank R; its connection closes, so it fails on all.
- `absent:R`: the construction fails on rank R before anybody knows of it; the others wait.
- `async:R:N`: of rank R's N-th operation on a communicator nothing is ever done, and from
  then on it has an asynchronous error.
- `hang:R:N`: nothing is ever done of it, and there is no error.
- `kill:R:N`: the process of rank R is killed instead.
- `fade:R:N`: its connection closes, and a second later its process is killed.

A size after a slash (`hang:1/4:3`) limits an entry to communicators of that many ranks.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["planned"]


def planned(rank: int, size: int, number: int = 0) -> str:
    """What shall happen to a rank at its operation of this number, 0 for the construction."""
    text = os.environ.get("STANDIN_NCCL_FAIL", "")
    if text.startswith("@"):
        file = Path(text[1:])
        text = file.read_text() if file.exists() else ""
    for entry in filter(None, (part.strip() for part in text.split(","))):
        what, who, *when = entry.split(":")
        whose, _, of = who.partition("/")
        matches = int(whose) == rank and (not of or int(of) == size)
        if matches and [number] == ([int(when[0])] if when else [0]):
            return what
    return ""
