"""Interrupts that the program does not call for: Ctrl-C in a call that waits, and an operator's."""

from __future__ import annotations

import contextlib
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, DiscoError
from disco_client.interrupts import Interrupts
from disco_client.output import logger_of
from disco_client.threads import ThreadRefused, start_thread

if TYPE_CHECKING:
    from disco_client.core import SessionCore
    from disco_client.transport.base import AskedInterrupt

__all__ = ["OnInterrupt", "OutsideInterrupts", "check_on_interrupt"]

OnInterrupt: TypeAlias = Literal["wait", "session"]
"""What Ctrl-C in a call that waits ends: the wait, or what the session executes as well."""

_logger = logger_of(__name__)

_TWICE_S = 1.0

_ENDED = "disco: what the session executed was interrupted, too"
_GOES_ON = (
    "disco: this ended the wait alone; session.interrupt() ends what the workers execute, as does"
    f" Ctrl-C once more in a wait within {_TWICE_S:g} s"
)


def check_on_interrupt(value: object) -> None:
    """Makes sure that it is one of the choices.

    Raises:
        ConfigError: It is not.
    """
    if value not in ("wait", "session"):
        msg = f"expected on_interrupt to be 'wait' or 'session', got {value!r}"
        raise ConfigError(msg)


class OutsideInterrupts:
    """Starts them for one session, which it does not keep alive.

    Args:
        core: The session's.
        on_interrupt: Whether Ctrl-C interrupts the session at once, or the second time.
    """

    def __init__(self, core: SessionCore, on_interrupt: OnInterrupt) -> None:
        self._core = weakref.ref(core)
        self._at_once = on_interrupt == "session"
        self._last = -_TWICE_S

    def pressed(self, error: KeyboardInterrupt) -> None:
        """Called in the thread whose wait has ended by Ctrl-C; does not wait.

        Args:
            error: What ended it. Where one wait was inside of another, both tell of it.
        """
        if any(each in (_ENDED, _GOES_ON) for each in getattr(error, "__notes__", ())):
            return
        now, core = monotonic(), self._core()
        if not self._at_once and now - self._last >= _TWICE_S:
            self._last = now
            error.add_note(_GOES_ON)
        elif core is not None:
            # The session is over, or the system starts no thread: the wait has ended all the same.
            with contextlib.suppress(DiscoError):
                core.part(Interrupts).begin()
                error.add_note(_ENDED)

    def asked(self, asked: AskedInterrupt) -> None:
        """Does what somebody has asked the controller for, in a thread of its own.

        Args:
            asked: What is wanted, and who learns when it is done.
        """
        core = self._core()
        if core is not None:
            by = f" of {asked.who}" * bool(asked.who)
            _logger.warning("session %s is interrupted on request%s", core.name, by)
            work = partial(_interrupt, core, asked)
            with contextlib.suppress(ThreadRefused):  # then who asked hears that it was not done
                start_thread(threading.Thread(target=work, name="disco-asked", daemon=True))


def _interrupt(core: SessionCore, asked: AskedInterrupt) -> None:
    # A session that is over is not interrupted, and the controller says so.
    with contextlib.suppress(DiscoError):
        interrupts = core.part(Interrupts)
        asked.answer(interrupts.interrupt(None, asked.grace, force=asked.force))
