"""A TCP proxy that is a bad network: slow, silent in one direction or both, or cut."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Self, TypeVar

__all__ = ["ELSEWHERE", "Proxy"]

ELSEWHERE = tuple(f"127.0.0.{number}" for number in range(2, 6))
"""Addresses of this machine at which nothing else listens."""

_Result = TypeVar("_Result")
_CHUNK = 16 * 1024


class _Way:
    """One direction of all connections.

    Attributes:
        delay: Seconds that each byte is on its way; a new connection, too, takes a round
            trip before anything can be said over it.
        rate: Bytes a second that pass; 0 for as many as come.
        stalls: Seconds for which nothing passes, each time this many bytes have:
            what lost packets look like to those who use TCP.
        dropped: Nothing passes, and nobody is told.
        passed: How many bytes have.
    """

    def __init__(self) -> None:
        self.delay = 0.0
        self.rate = 0.0
        self.stalls = (0.0, 0)
        self.dropped = False
        self.passed = 0
        self._hold_at: int | None = None
        self._held = threading.Event()

    @contextlib.contextmanager
    def after(self, nbytes: int, act: Callable[[], object]) -> Iterator[None]:
        """Does something once while the block runs, when so many bytes more have passed.

        Nothing passes until it is done, so that it meets what is on its way there.
        """
        over = threading.Event()
        self._held.clear()

        def watch() -> None:
            while not self._held.wait(0.01):
                if over.is_set():
                    return
            try:
                act()
            finally:
                self._hold_at = None

        watching = threading.Thread(target=watch)
        self._hold_at = self.passed + nbytes
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()
            self._hold_at = None
        if not self._held.is_set():
            msg = f"fewer than {nbytes} bytes have passed, so nothing was done"
            raise AssertionError(msg)

    async def pass_through(self) -> None:
        """Waits until something may pass."""
        while self._hold_at is not None and self.passed >= self._hold_at:
            self._held.set()
            await asyncio.sleep(0.005)


class Proxy:
    """Leads connections at a port of its own to another address; a context manager.

    It runs in a thread. Its attributes may be changed while connections live.

    Args:
        address: Where it leads, ``HOST:PORT``.
        frames: The port for frames of the controller there; it leads there from the same
            port, because a controller tells its peers which that is.
        host: On which address of this machine it listens, unless the port for frames decides.
        port: At which port it listens; 0 for any.

    Attributes:
        there: The direction to that address.
        back: The direction from it.
        address: Where it listens.
    """

    def __init__(
        self, address: str, frames: int = 0, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._to, _, leads_to = address.rpartition(":")
        self._port, self._frames, self._host = int(leads_to), frames, host
        self._own_port = port
        self.there, self.back = _Way(), _Way()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._open = True
        self._connections: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        async def run() -> _Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    # Faults ---------------------------------------------------------------------------

    @property
    def ways(self) -> tuple[_Way, _Way]:
        """Both directions."""
        return self.there, self.back

    @contextlib.contextmanager
    def black_hole(self, *ways: _Way) -> Iterator[None]:
        """Swallows what comes, in both directions unless some are named; nobody is told."""
        ways = ways or self.ways
        for way in ways:
            way.dropped = True
        try:
            yield
        finally:
            for way in ways:
                way.dropped = False

    def cut(self) -> None:
        """Breaks every connection, and takes no new ones until :meth:`heal`."""
        self._open = False
        self._do(self._break)

    def heal(self) -> None:
        """Takes connections again."""
        self._open = True

    # Connections ----------------------------------------------------------------------

    async def _listen(self) -> None:
        host = self._host
        if self._frames:
            host, server = await self._listen_for_frames()
            self._servers.append(server)
        server = await asyncio.start_server(self._leading_to(self._port), host, self._own_port)
        self._servers.append(server)
        self.address = f"{host}:{server.sockets[0].getsockname()[1]}"

    async def _listen_for_frames(self) -> tuple[str, asyncio.Server]:
        """Takes the controller's port on another address of this machine."""
        accept = self._leading_to(self._frames)
        for host in ELSEWHERE:
            with contextlib.suppress(OSError):  # of another proxy
                return host, await asyncio.start_server(accept, host, self._frames)
        raise AssertionError(f"expected port {self._frames} of one of {ELSEWHERE} to be free")

    def _leading_to(
        self, port: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        return lambda reader, writer: self._accept(reader, writer, port)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._break()

    async def _break(self) -> None:
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        task = asyncio.current_task()
        if task is None or not self._open:
            writer.transport.abort()
            return
        self._connections.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            # The system takes the connection at once; TCP's handshake would have crossed the link.
            await asyncio.sleep(self.there.delay + self.back.delay)
            far_reader, far = await asyncio.open_connection(self._to, port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far, self.there))
                group.create_task(self._pump(far_reader, writer, self.back))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way
    ) -> None:
        """Passes bytes on; reading goes on while earlier ones are still delayed."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)

        async def deliver() -> None:
            since = 0
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if way.rate:
                    await asyncio.sleep(len(data) / way.rate)
                since += len(data)
                if way.stalls[1] and since >= way.stalls[1]:
                    since = 0
                    await asyncio.sleep(way.stalls[0])
                if not data:
                    raise ConnectionResetError
                await way.pass_through()
                if not way.dropped:
                    way.passed += len(data)
                    writer.write(data)
                    await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            while True:
                data = await reader.read(_CHUNK)
                await under_way.put((time.monotonic() + way.delay, data))
                if not data:
                    return
