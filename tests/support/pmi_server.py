"""Serves the MPI libraries of ranks that a test has started itself, in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from disco_server.core.pmi import (
    MAX_LINE,
    ClosePmi,
    MeetNodes,
    NotePmi,
    PmiEffect,
    PmiExchange,
    SendPmi,
)

Fence = Callable[[str, Mapping[str, bytes]], Awaitable[Mapping[str, bytes]]]


class PmiServer:
    """Carries out what a :class:`PmiExchange` decides.

    Args:
        ranks: The ranks, each with this end of its socket, which is closed here.
        nodes, kvsname: As of the exchange.
        fence: Gives this node's puts to the others, and returns those of all.
        on_abort: Called with a rank and why, where one aborts, errs or leaves too early.
    """

    def __init__(
        self,
        *,
        ranks: Mapping[int, socket.socket],
        nodes: Sequence[Sequence[int]],
        kvsname: str,
        fence: Fence,
        on_abort: Callable[[int, str], None],
    ) -> None:
        self._ranks = dict(ranks)
        self._fence, self._on_abort = fence, on_abort
        self._exchange = PmiExchange(ranks=self._ranks, nodes=nodes, kvsname=kvsname)
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Answers until every rank has finalized or gone, or ``close`` is called."""
        self._tasks = [asyncio.ensure_future(self._serve(rank)) for rank in self._ranks]
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    async def _serve(self, rank: int) -> None:
        loop, sock = asyncio.get_running_loop(), self._ranks[rank]
        sock.setblocking(False)
        while sock.fileno() >= 0:
            data = b""
            with contextlib.suppress(OSError):
                data = await loop.sock_recv(sock, MAX_LINE)
            await self._do(self._exchange.receive(rank, data))
            if not data:
                return

    async def _do(self, effects: Iterable[PmiEffect]) -> None:
        for effect in effects:
            match effect:
                case SendPmi(rank, data):
                    with contextlib.suppress(OSError):
                        self._ranks[rank].send(data)
                case ClosePmi(rank):
                    self._ranks[rank].close()
                case NotePmi(rank, why):
                    self._on_abort(rank, why)
                case MeetNodes(name, puts):
                    try:
                        met = self._exchange.met(await self._fence(name, puts))
                    except Exception as error:  # noqa: BLE001  (whatever a test raises)
                        met = self._exchange.not_met(name, error)
                    await self._do(met)

    async def close(self) -> None:
        """Ends all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sock in self._ranks.values():
            sock.close()
