"""Doors through which host arrays reach a worker: what each kind does, and how it fails."""

from __future__ import annotations

from typing import Protocol

from disco_client.pb import controller_pb2

__all__ = ["Door", "DoorShut", "TransferFailed"]


class TransferFailed(Exception):
    """An array could not be carried; the text says why."""


class DoorShut(TransferFailed):
    """Nobody answers at this door, or not any more; the array may be carried anew."""


class Door(Protocol):
    """One way to worker daemons; may be used from several threads."""

    def upload(self, transfer: controller_pb2.Transfer, data: memoryview) -> None:
        """Brings an array's bytes to a worker; returns when they may be changed.

        A transfer with an error says that the array will not come.

        Raises:
            TransferFailed: The worker does not get them.
        """
        ...

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered.

        Returns:
            The array's size in bytes; where it is not the buffer's, the buffer holds
            no array.

        Raises:
            TransferFailed: It cannot be had.
        """
        ...

    def close(self) -> None:
        """Shuts the door; what is on its way through it fails."""
        ...
