"""Which door a daemon opens for host arrays: where its clients are decides."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Protocol

from disco_client.errors import ConfigError
from disco_client.transport.credentials import is_local
from disco_server.guarding import Guard
from disco_server.settings import Address
from disco_server.worker.array_desk import ArrayDesk
from disco_server.worker.array_service import ArrayService
from disco_server.worker.memory_service import MemoryService

__all__ = ["ArrayDoor", "choose_address", "make_door"]

_logger = logging.getLogger("disco.worker")
_OPEN = Guard()


class ArrayDoor(Protocol):
    """Where clients that can reach this daemon bring and fetch arrays.

    Attributes:
        address: What they are told, once it is started.
    """

    address: str

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: It cannot be listened there.
        """
        ...

    async def stop(self) -> None:
        """Ends; transfers under way are cut."""
        ...


def make_door(
    listen: Address | None,
    controller: Address,
    desk: Callable[[], ArrayDesk | None],
    *,
    guard: Guard = _OPEN,
) -> ArrayDoor:
    """Makes the door that fits, not yet started.

    Args:
        listen: Where a person wants it; None leaves it to this.
        controller: Where the controller is.
        desk: The desk of any moment; None while there is no controller.
        guard: How a door is guarded that other machines can reach. Where it cannot be
            encrypted, and nobody takes the risk, it stays shut, and arrays go through the
            controller.
    """
    where = listen or choose_address(controller)
    if where is None:
        return MemoryService(desk)
    try:
        guard.check_door(where, "array_listen")
    except ConfigError as error:
        _logger.info("clients bring and fetch arrays through the controller: %s", error)
        return _NoDoor()
    return ArrayService(where, desk, guard)


class _NoDoor:
    """A door that stays shut."""

    address = ""

    async def start(self) -> None:
        """Does nothing."""

    async def stop(self) -> None:
        """Does nothing."""


def choose_address(controller: Address) -> Address | None:
    """Where to serve arrays when nobody said: as far as the controller is away.

    A controller on a Unix socket or on loopback has its clients on this machine,
    where memory is shared and no address is needed: None. Of another controller,
    this machine's address on the way there is taken.
    """
    if is_local(str(controller)):
        return None
    try:
        found = socket.getaddrinfo(controller.host, controller.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # sends nothing; the kernel only picks a route
            return Address(probe.getsockname()[0], 0)
    except OSError:
        return None
