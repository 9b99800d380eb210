"""Lets the ranks of a session form an MPI world without a launcher.

This is the worker daemon's side of the protocol in `disco_server.collectives.pmi`: `PmiNode`
serves the ranks of one session on one node, and exchanges what they put with the other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from disco_server.collectives.pmi import MAX_LINE, Barrier, OnAbort, PmiExchange

if TYPE_CHECKING:
    import socket

__all__ = ["PmiNode"]


Fence = Callable[[str, Mapping[str, bytes]], Awaitable[Mapping[str, bytes]]]


class PmiNode:
    """Answers the MPI libraries of one session's ranks on one node.

    Args:
        ranks: The ranks of this node, each with the daemon's end of its socket,
            which belongs to this object from now on.
        nodes: The ranks of each machine of the session, the same for all daemons;
            several daemons may share one.
        kvsname: The key-value space, from the function of that name; the same on
            all nodes.
        fence: Gives this node's puts to the other nodes and returns those of all
            nodes. It is called with the same names in the same order on each node,
            and may raise.
        on_abort: Called with a rank, or -1 if none is to blame, and a reason when a
            rank aborts, violates the protocol or disconnects before it finalized, or
            a fence fails.

    Raises:
        ConfigError: The nodes do not hold each rank once, the ranks are not those
            of one node, or the name is too long.
    """

    def __init__(
        self,
        *,
        ranks: Mapping[int, socket.socket],
        nodes: Sequence[Sequence[int]],
        kvsname: str,
        fence: Fence,
        on_abort: OnAbort,
    ) -> None:
        self._ranks = dict(ranks)
        self._fence = fence
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._exchange = PmiExchange(
            ranks=self._ranks, nodes=nodes, kvsname=kvsname, send=self._send, on_abort=on_abort
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that wait for other ranks, here or on other nodes."""
        return self._exchange.waiting

    async def serve(self) -> None:
        """Answers until every rank has finalized or gone, or `close` is called."""
        async with asyncio.TaskGroup() as group:
            self._tasks = [
                group.create_task(self._serve(rank, ours), name=f"pmi-{rank}")
                for rank, ours in self._ranks.items()
            ]

    async def close(self) -> None:
        """Ends all connections; ranks that still need an answer find theirs closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ours in self._ranks.values():
            ours.close()

    def _send(self, rank: int, data: bytes) -> None:
        writer = self._writers.get(rank)
        if writer is not None:
            writer.write(data)

    async def _serve(self, rank: int, ours: socket.socket) -> None:
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._writers[rank] = writer
        try:
            with suppress(OSError):
                await self._answer_all(rank, reader, writer)
            self._exchange.left(rank)
        finally:
            del self._writers[rank]
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer_all(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while not self._exchange.is_done(rank) and (data := await reader.read(MAX_LINE)):
            for barrier in self._exchange.receive(rank, data):
                # The rank that arrived last does the exchange in its own connection: the
                # others send nothing while they wait.
                await self._meet(barrier)
            await writer.drain()

    async def _meet(self, barrier: Barrier) -> None:
        try:
            merged = await self._fence(barrier.name, barrier.puts)
            self._exchange.met(merged)
        except Exception as error:  # noqa: BLE001 - whatever it was, the ranks must not hang
            self._exchange.not_met(barrier.name, error)
