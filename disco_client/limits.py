"""Limits that a program sets on how long its commands may take."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from disco_client.copies import Handle
from disco_client.errors import ConfigError
from disco_client.uncollected import reset_variable, set_variable

if TYPE_CHECKING:
    from disco_client.command_log import CommandLog

__all__ = ["LimitBlock"]


class _Core(Protocol):
    """A session's, or what records for it."""

    @property
    def log(self) -> CommandLog: ...

    def here(self) -> _Core: ...

    def check_executes(self, why: str) -> None: ...


class LimitBlock(Handle):
    """Limits how long each command may take that is issued inside of a ``with`` block.

    Args:
        core: The session's.
        seconds: The limit.

    Raises:
        ConfigError: That is no number of seconds.
        CaptureError: The caller captures a program, whose steps have no limits of their own.
    """

    _instead: ClassVar[str] = "session.limit(seconds) makes another block"

    def __init__(self, core: _Core, seconds: float) -> None:
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds < math.inf:
            msg = f"expected a limit of more than 0 seconds, got {seconds!r}"
            raise ConfigError(msg)
        why = "steps have no limits of their own; a run has: with session.limit(5): program()"
        core.here().check_executes(why)
        self.log: object = core.log
        self.seconds: float = float(seconds)
        self.entered: bool = False
        self._leave: Callable[[], object] | None = None
        core.log.time_limit = partial(_current, weakref.ref(core.log))

    def __enter__(self) -> Self:
        if self._leave is not None:
            raise RuntimeError("a limit can be entered once; session.limit() makes another one")
        me: weakref.ref[LimitBlock] = weakref.ref(self)
        inside = (me, *_blocks.get())
        self._leave = partial(reset_variable, _blocks, set_variable(_blocks, inside))
        self.entered = True  # last, as an exception may come before
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False  # first, and without a call
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


_blocks: ContextVar[tuple[weakref.ref[LimitBlock], ...]] = ContextVar("disco_limits", default=())
"""Those that the caller is in. Tasks that were started in one may outlive it."""


def _current(log: Callable[[], object]) -> float:
    """The caller's limit for commands of a log, in seconds; 0 for none."""
    blocks = [block for each in _blocks.get() if (block := each()) is not None and block.entered]
    return min((block.seconds for block in blocks if block.log is log()), default=0.0)
