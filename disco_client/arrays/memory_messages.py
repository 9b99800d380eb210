"""Messages at a memory endpoint: a length in four bytes, little-endian, and the message.

Client and daemon take turns, so a message is all there is to read until the other
side has answered it. No I/O here.
"""

from __future__ import annotations

import struct

from google.protobuf.message import Message

__all__ = ["MAX_MESSAGE_BYTES", "MEMORY_SCHEME", "READ_BYTES", "pack", "unpack"]


MEMORY_SCHEME = "memory:"
"""How the address of a memory endpoint begins; the path of its socket follows."""

MAX_MESSAGE_BYTES = 4096
"""No message is longer: each is a few numbers, or a line that says what is wrong."""

_HEADER = struct.Struct("<I")

READ_BYTES = _HEADER.size + MAX_MESSAGE_BYTES
"""How much to read at once."""


def pack(message: Message) -> bytes:
    """Encodes a message as it is sent."""
    raw = message.SerializeToString()
    return _HEADER.pack(len(raw)) + raw


def unpack(data: bytes) -> bytes | None:
    """Returns the encoded message in what was read so far; None if it is not whole yet.

    Raises:
        ValueError: It is too long, or something follows it.
    """
    if len(data) < _HEADER.size:
        return None
    (length,) = _HEADER.unpack_from(data)
    if length > MAX_MESSAGE_BYTES:
        msg = f"expected a message of at most {MAX_MESSAGE_BYTES} bytes, got {length}"
        raise ValueError(msg)
    extra = len(data) - _HEADER.size - length
    if extra > 0:
        msg = f"expected one message, got {extra} bytes behind it"
        raise ValueError(msg)
    return data[_HEADER.size :] if not extra else None
