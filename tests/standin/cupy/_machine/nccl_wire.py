"""How ranks and the hub talk: pickled messages over Unix sockets."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import threading
import weakref
from typing import Any

__all__ = ["ID_BYTES", "Line", "decode_id", "encode_id"]

ID_BYTES = 128
_MAGIC = b"standin-nccl"
_LENGTH = struct.Struct("<Q")
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def encode_id(address: str, key: str) -> bytes:
    """The unique id that tells where a hub listens, and for which communicator."""
    made = b"\n".join((_MAGIC, address.encode(), key.encode()))
    if len(made) > ID_BYTES:
        raise ValueError(f"the folder for sockets has too long a name: {address}")
    return made.ljust(ID_BYTES, b"\n")


def decode_id(unique_id: bytes) -> tuple[str, str]:
    """The address and the key in a unique id.

    Raises:
        ValueError: It is none.
    """
    magic, address, key = unique_id.split(b"\n")[:3]
    if magic != _MAGIC:
        raise ValueError("no unique id of the stand-in")
    return address.decode(), key.decode()


def socket_name(address: str) -> str:
    """What the system calls an address: `@` stands for the namespace without files."""
    return "\0" + address[1:] if address.startswith("@") else address


class Line:
    """A connection.

    Args:
        connection: The socket, which is the line's from now on.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)  # whatever socket.setdefaulttimeout says
        self._socket = connection
        self._sending = threading.Lock()
        _open.add(self)

    def send(self, *message: Any) -> bool:
        """Sends a message; false if there is nobody at the other end any more."""
        content = pickle.dumps(message, protocol=5)
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(content)))
                self._socket.sendall(content)
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """The next message; none when the other end is gone."""
        head = self._exactly(_LENGTH.size)
        content = self._exactly(_LENGTH.unpack(head)[0]) if head else None
        return pickle.loads(content) if content else None

    def _exactly(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._socket.recv(min(size - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Ends it, also for who waits for a message."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """Closes this process's end and lets the others go on, after a fork."""
        self._socket.close()


def _forget_all() -> None:
    for line in list(_open):
        line.forget()


os.register_at_fork(after_in_child=_forget_all)
