"""The part of a session that says what its ranks do."""

from __future__ import annotations

from disco_client.command_log import CommandLog
from disco_client.diagnosis import Diagnosis
from disco_client.flight import Flight
from disco_client.transport.base import Transport

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
