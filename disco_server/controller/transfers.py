"""Host arrays on their way through the controller: two streams meet by ticket.

A client that uploads meets the daemon that fetches, and a daemon that pushes
meets the client that downloads. The one who writes pulls from the one who reads,
chunk by chunk, so gRPC's own flow control reaches from end to end and the
controller holds no more than a chunk or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Meeting", "TransferKey", "Transfers"]

TransferKey: TypeAlias = tuple[int, str, int, int]
"""Session, direction ("up" or "down"), worker, ticket."""


@dataclass(slots=True)
class Meeting:
    """Where two streams of one transfer meet.

    Attributes:
        source: The stream of encoded chunks, once its side has come.
        done: Set when every chunk was passed on.
    """

    source: asyncio.Future[AsyncIterator[bytes]]
    done: asyncio.Future[None]


class Transfers:
    """The transfers under way; used from the event loop only."""

    def __init__(self) -> None:
        self._meetings: dict[TransferKey, Meeting] = {}

    def meet(self, key: TransferKey) -> Meeting:
        """Returns the meeting of a transfer; whoever comes first opens it."""
        meeting = self._meetings.get(key)
        if meeting is None:
            loop = asyncio.get_running_loop()
            meeting = Meeting(loop.create_future(), loop.create_future())
            self._meetings[key] = meeting
        return meeting

    async def bring(self, key: TransferKey, source: AsyncIterator[bytes]) -> None:
        """Offers a stream, and waits until the other side has taken it all.

        Raises:
            ConnectionError: The session ended, or the other side went away.
            ValueError: Somebody brought this transfer already.
        """
        meeting = self.meet(key)
        if meeting.source.done():
            msg = f"expected ticket {key[3]} to be used once, it is under way already"
            raise ValueError(msg)
        meeting.source.set_result(source)
        try:
            await meeting.done
        finally:
            self._meetings.pop(key, None)

    async def take(self, key: TransferKey) -> AsyncIterator[bytes]:
        """Waits for the stream of a transfer and yields its chunks.

        Raises:
            ConnectionError: The session ended, or the other side went away.
        """
        meeting = self.meet(key)
        try:
            source = await meeting.source
            async for chunk in source:
                yield chunk
            if not meeting.done.done():
                meeting.done.set_result(None)
        finally:
            self._meetings.pop(key, None)
            if not meeting.done.done():
                _fail(meeting.done, "the receiver went away")

    def end_session(self, session: int) -> None:
        """Fails every transfer of a session."""
        for key in [key for key in self._meetings if key[0] == session]:
            meeting = self._meetings.pop(key)
            _fail(meeting.source, "the session ended")
            _fail(meeting.done, "the session ended")


def _fail(future: asyncio.Future[AsyncIterator[bytes]] | asyncio.Future[None], why: str) -> None:
    if not future.done():
        future.set_exception(ConnectionError(why))
        future.exception()  # nobody may be waiting; that is no error of its own
