"""How a rank whose communicator is lost ends, whichever the library.

A collective that fails in its library cannot be taken back: peers may be in it for
ever. And what failed is often the consequence of another rank's death. So no command
fails of it where the process can be ended instead, and the parent that watches the process
waits for the cause before it reports the end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from disco_server.collectives.types import CommunicatorLost
from disco_server.observe.rank_memory import RankMemory, read_record

__all__ = ["LOST", "Guarded", "Loss", "may_follow_another"]


def _nothing(_text: str) -> None:
    """The hook where the rank cannot be ended."""


class Loss:
    """Whether one rank's communicator is lost.

    Args:
        worker_id: The rank.
        tell: Called once with what failed, on the thread that detected it. Where it ends
            the process it does not return.
    """

    def __init__(self, worker_id: int, tell: Callable[[str], None] = _nothing) -> None:
        self._worker_id = worker_id
        self._tell = tell
        self._telling = threading.Lock()
        self._text = ""

    def lose(self, operation: str, library: str, why: str) -> None:
        """Notes what failed first and calls `tell`; nothing works from then on.

        Args:
            operation: What was to be done, such as "allgather of command #7".
            library: The library's name and version.
            why: The library's error.
        """
        text = f"worker {self._worker_id}: {operation} failed in {library}: {why}"
        with self._telling:
            if self._text:
                return
            self._text = text
            self._tell(text)

    def check(self) -> None:
        """Raises if the communicator is lost.

        A thread that finds it lost waits until `tell` was called: where that ends the process,
        no command of it fails by itself.

        Raises:
            CommunicatorLost: It is lost, so received data is invalid.
        """
        if self._text:
            with self._telling:
                raise CommunicatorLost(self._text)


class Guarded:
    """A part of a communicator that uses a library, whose errors lose the communicator.

    What user functions call in the same library is not guarded, so its errors are raised
    in the user function.

    Args:
        part: What moves data, or headers.
        error: What the library raises.
        lose: Called with the name of the operation, and what was raised.
    """

    def __init__(
        self, part: object, error: type[Exception], lose: Callable[[str, Exception], NoReturn]
    ) -> None:
        self._part, self._error, self._lose = part, error, lose

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if callable(found):
            found = self._guard(name, found)
        setattr(self, name, found)  # the next look finds it at once
        return found

    def _guard(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        error, lose = self._error, self._lose

        def run(*given: Any) -> Any:
            try:
                return operation(*given)
            except error as raised:
                lose(name, raised)

        return run


# Which ends of ranks may follow from another rank's end, which must be reported first.
#
# A killed process closes its connections before its parent can know of its end, and a
# dead daemon is given two seconds to come back. What a collective library fails of may be
# either: then its rank ends by itself (:data:`LOST`), or the library ends it, by `exit` or
# `abort`, in the middle of a collective. The parent of such a rank waits for the cause.


LOST = 74
"""The exit status where a collective library is lost: EX_IOERR of sysexits.h."""


def may_follow_another(status: int, memory: RankMemory) -> bool:
    """Whether a rank may have ended because another one did.

    Args:
        status: A code, or a negative signal number.
        memory: Where the rank recorded what it did.
    """
    if status == LOST:
        return True
    if status <= 0 and status != -signal.SIGABRT:
        return False
    return read_record(*memory.read()).collective is not None
