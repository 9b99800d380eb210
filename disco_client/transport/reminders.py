"""What nodes are told beside the log, over each connection, until workers are past some command."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from disco_client.locks import make_lock
from disco_client.pb import controller_pb2

__all__ = ["Reminders"]

_MAX_WHY = 500


class Reminders:
    """Uploads that will not arrive, and commands that are interrupted or cancelled.

    Any thread may add some. They are sent over the session's stream, with what else is sent there,
    so no descriptor or thread is needed for them.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        # Each with the last command that it concerns.
        self._uploads: dict[tuple[int, int], tuple[int, controller_pb2.Transfer]] = {}
        self._cancelled: dict[tuple[int, int], tuple[int, controller_pb2.CommandRun]] = {}
        self._interrupt = controller_pb2.Received()

    def __bool__(self) -> bool:
        return bool(self._uploads or self._cancelled or self._interrupt.interrupted)

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str, issued: int) -> None:
        """Adds arrays that will not arrive.

        Args:
            uploads: The ticket and the worker of each.
            why: The reason for the workers; may be empty.
            issued: The newest command, up to which one may wait for them.
        """
        error = f"the upload was broken off: {why}" if why else "the upload was broken off"
        transfer = partial(controller_pb2.Transfer, error=error[:_MAX_WHY])
        with self._lock:
            self._uploads |= {
                each: (issued, transfer(ticket=each[0], worker=each[1])) for each in uploads
            }

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Adds commands that are cancelled.

        Args:
            commands: The first and the last of each run of them.
        """
        run = controller_pb2.CommandRun
        with self._lock:
            self._cancelled |= {
                each: (each[1], run(first=each[0], last=each[1])) for each in commands
            }

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool) -> None:
        """Sets what is interrupted; see `SessionStream.interrupt`."""
        self._interrupt = controller_pb2.Received(
            interrupted=until, interrupted_workers=workers, interrupted_by_force=force
        )

    def still(self, acked: int) -> controller_pb2.Received:
        """What workers may not know yet, and may have to know.

        Args:
            acked: The newest command that every worker has executed: a report is acknowledged
                with the commands that it concerns.
        """
        interrupt = self._interrupt
        if not (self._uploads or self._cancelled or interrupt.interrupted > acked):
            return controller_pb2.Received()
        with self._lock:
            self._uploads = {key: each for key, each in self._uploads.items() if each[0] > acked}
            self._cancelled = {
                key: each for key, each in self._cancelled.items() if each[0] > acked
            }
            told = controller_pb2.Received(
                given_up=[transfer for _, transfer in self._uploads.values()],
                cancelled=[run for _, run in self._cancelled.values()],
            )
        if interrupt.interrupted > acked:
            told.MergeFrom(interrupt)
        return told
