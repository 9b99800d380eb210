"""The same faults on purpose as the client's, for streams of asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from disco_client.transport.faults import Passage, passage

__all__ = ["arriving", "leaving", "reading"]


def arriving(point: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Leads the messages that a stream brings past a point.

    Raises:
        ConfigError: ``DISCO_TEST_FAULTS`` is malformed.
    """
    way = passage(point)
    return messages if way is None else _led(way, messages)


async def _led(way: Passage, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for raw in messages:
        for passed in await _pass(way, raw):
            yield passed


def reading(point: str, read: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Leads what a function reads past a point; what is no message, such as the end, passes.

    Raises:
        ConfigError: ``DISCO_TEST_FAULTS`` is malformed.
    """
    way = passage(point)
    if way is None:
        return read
    ready: deque[bytes] = deque()

    async def read_passed() -> Any:
        while not ready:
            raw = await read()
            if not isinstance(raw, bytes):
                return raw
            ready.extend(await _pass(way, raw))
        return ready.popleft()

    return read_passed


def leaving(
    point: str, write: Callable[[bytes], Awaitable[None]]
) -> Callable[[bytes], Awaitable[None]]:
    """Leads what is written to a stream past a point.

    Raises:
        ConfigError: ``DISCO_TEST_FAULTS`` is malformed.
    """
    way = passage(point)
    if way is None:
        return write

    async def write_passed(raw: bytes) -> None:
        for passed in await _pass(way, raw):
            await write(passed)

    return write_passed


async def _pass(way: Passage, raw: bytes) -> list[bytes]:
    passed, pause = way.meet(raw)
    if pause:
        await asyncio.sleep(pause)
    return passed
