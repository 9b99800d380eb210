"""The rendezvous of every session, with waiting added: futures around pure state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from disco_client.pb import node_pb2
from disco_server.core.rendezvous import Rendezvous, RendezvousError, Wake

__all__ = ["Exchanges"]

_MAX_WAIT_S = 600.0


class Exchanges:
    """One key-value exchange a session; used from the event loop only."""

    def __init__(self) -> None:
        self._open: dict[int, Rendezvous] = {}

    def open(self, session: int) -> None:
        """Begins the exchange of a session, unless it has begun."""
        if session not in self._open:
            self._open[session] = Rendezvous()

    def close(self, session: int, why: str) -> None:
        """Ends the exchange of a session; everyone who waits in it is told why."""
        rendezvous = self._open.pop(session, None)
        if rendezvous is not None:
            _wake(rendezvous.fail(why))

    def put(self, session: int, items: Mapping[str, bytes]) -> None:
        """Writes keys.

        Raises:
            ConnectionError: The session is over, or a key has another value.
        """
        rendezvous = self._of(session)
        try:
            for key, value in items.items():
                _wake(rendezvous.put(key, value))
        except RendezvousError as error:
            raise ConnectionError(str(error)) from None

    async def get(self, session: int, key: str, limit: float) -> bytes:
        """Waits for a key and returns its value.

        Raises:
            ConnectionError: The session is over, or nobody wrote the key in time.
        """
        rendezvous = self._of(session)
        waiter: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        try:
            _wake(rendezvous.get(key, waiter))
            wake = await asyncio.wait_for(waiter, min(limit, _MAX_WAIT_S))
        except RendezvousError as error:
            raise ConnectionError(str(error)) from None
        except TimeoutError:
            msg = f"nobody wrote {key!r} within {limit:g} s"
            raise ConnectionError(msg) from None
        finally:
            rendezvous.withdraw(waiter)
        if wake.value is None:
            raise ConnectionError(wake.error)
        return wake.value

    async def fence(self, request: node_pb2.FenceRequest) -> Mapping[str, bytes]:
        """Waits for every participant; returns what all of them brought.

        Raises:
            ConnectionError: The session is over, somebody did not come in time, or
                the participants contradict each other.
        """
        rendezvous = self._of(request.session)
        waiter: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        try:
            _wake(
                rendezvous.fence(
                    request.name,
                    request.participant,
                    request.participants,
                    dict(request.items),
                    waiter,
                )
            )
            limit = min(request.timeout_s, _MAX_WAIT_S) or None
            wake = await asyncio.wait_for(waiter, limit)
        except RendezvousError as error:
            raise ConnectionError(str(error)) from None
        except TimeoutError:
            why = f"not every node came to {request.name!r} within {request.timeout_s:g} s"
            # Its participant was counted, so the exchange cannot go on without it.
            _wake(rendezvous.fail(why))
            raise ConnectionError(why) from None
        if wake.items is None:
            raise ConnectionError(wake.error)
        return wake.items

    def _of(self, session: int) -> Rendezvous:
        rendezvous = self._open.get(session)
        if rendezvous is None:
            msg = "the session is over"
            raise ConnectionError(msg)
        return rendezvous


def _wake(wakes: list[Wake]) -> None:
    for wake in wakes:
        waiter = wake.waiter
        if isinstance(waiter, asyncio.Future) and not waiter.done():  # pyright: ignore[reportUnknownMemberType]
            waiter.set_result(wake)  # pyright: ignore[reportUnknownMemberType]
