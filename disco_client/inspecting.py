"""The part of a session that says what its ranks do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from disco_client.command_log import CommandLog
from disco_client.diagnosis import Diagnosis
from disco_client.flight import Flight
from disco_client.transport.base import Transport

if TYPE_CHECKING:
    from disco_client.session import Session
    from disco_client.tracing import Trace

__all__ = ["Inspecting", "diagnose"]


def diagnose(transport: Transport, log: CommandLog) -> Diagnosis:
    """Finds out what a session does.

    Raises:
        SessionError: Nobody could be asked.
    """
    found = transport.inspect(stacks=True, flights=False)
    return Diagnosis.of(found, log.last_seq)


class Inspecting:
    """What sessions say of themselves."""

    _transport: Transport
    _log: CommandLog
    _tracing: Trace | None = None

    @property
    def _carrier(self) -> Transport:
        """What carries large arrays; while the session is traced, with notes of it."""
        return self._transport if self._tracing is None else self._tracing.carrier

    def diagnose(self) -> Diagnosis:
        """Finds out what every rank does, and what the session waits for.

        Nothing is asked of the ranks, so this works while they hang, from any thread,
        and within seconds. A rank's stack is written by a signal handler, which may
        end a sleep in C code of a library early, as every signal does.

        Returns:
            A table of the ranks with their stacks, and a verdict; print it.

        Raises:
            SessionError: The controller does not answer.
        """
        return diagnose(self._transport, self._log)

    def flight(self) -> Flight:
        """Fetches the last commands and collectives of every rank, with their times.

        Also of ranks that were killed: the records are in memory that outlives them,
        and over a controller they are kept for ten minutes after the session.

        Raises:
            SessionError: The controller does not answer, or has nothing any more.
            ValueError: A rank's records are damaged.
        """
        return Flight.of(self._transport.inspect(stacks=False, flights=True))

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Writes what the ranks and the program do during a ``with`` block, as a picture of time.

        The file is in Chrome's trace format; open it at https://ui.perfetto.dev. It has a
        process for each rank, with rows for its commands, its collectives (bytes, dtype,
        workers), its waits for other ranks and its copies; and one for the program: when
        commands left and which lines issued them, with arrows to where ranks began them,
        and what its threads waited for. Clocks of different machines are corrected;
        ``otherData`` in the file says by how much, how well that is known, and whether
        anything is missing, as where the ranks were faster than their records could be
        fetched.

        A block that ends without an error waits until all ranks have executed what was
        issued inside. A session can have one trace at a time::

            with session.trace("step.json"):
                step()

        Args:
            path: The file; one that exists is overwritten.

        Returns:
            A context manager.

        Raises:
            ConfigError: On entering: the session is traced already.
            OSError: On entering, the file cannot be written.
            SessionError: On entering: the session is closed or lost.
        """
        from disco_client.tracing import Trace

        return Trace(cast("Session", self), path)
