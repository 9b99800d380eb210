"""A library of arrays as the section ``arrays`` asks for it; run, it is numpy.

It takes the number of rows, and then answers lines of standard input: ``check NAME`` by ``ok``
where the result of a case is numpy's, ``many NAME COUNT`` by the seconds of one of so many.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

import numpy as np

from disco_bench.array_cases import Data, action_of, make_data, numpy_kit, refuse_unequal

__all__ = ["ArrayPeer", "answer", "own_output", "serve"]


class ArrayPeer(Protocol):
    """A library with its arrays."""

    data: Data

    def action(self, name: str) -> Callable[[], Any]:
        """A function that does a case once."""
        ...

    def fetch(self, result: Any) -> np.ndarray[Any, Any]:
        """The whole of a result."""
        ...

    def seconds(self, action: Callable[[], Any], count: int) -> float:
        """How long so many take until all of the last is there."""
        ...


def answer(peer: ArrayPeer, line: str) -> str:
    """Does what a line says."""
    verb, name, *count = line.split()
    action = peer.action(name)
    if verb == "check":
        refuse_unequal(name, peer.fetch(action()), peer.data)
        return "ok"
    assert verb == "many", verb
    return str(peer.seconds(action, int(count[0])) / int(count[0]))


def own_output() -> TextIO:
    """Standard output for answers alone; what else is printed goes to standard error."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def serve(peer: ArrayPeer, out: TextIO) -> None:
    """Answers until standard input ends."""
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(answer(peer, line), file=out, flush=True)


class _NumpyPeer:
    """See `ArrayPeer`."""

    def __init__(self, rows: int) -> None:
        self.data = make_data(rows)
        self._kit = numpy_kit(self.data)

    def action(self, name: str) -> Callable[[], Any]:
        return action_of(name, self._kit)

    def fetch(self, result: Any) -> np.ndarray[Any, Any]:
        return np.asarray(result)

    def seconds(self, action: Callable[[], Any], count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            _result = action()
        return time.perf_counter() - started


if __name__ == "__main__":
    serve(_NumpyPeer(int(sys.argv[1])), own_output())
