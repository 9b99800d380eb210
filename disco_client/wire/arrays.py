"""Host arrays in chunks, as they travel beside the log; no I/O here.

A stream of ``ArrayChunk`` messages: the first names the transfer, the others
carry the bytes of a C-contiguous array in order. Data chunks are written and
read by hand, because that spares a copy of every byte; what is written is the
protobuf encoding of the message, byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from google.protobuf.message import DecodeError

from disco_client.errors import EncodingError
from disco_client.pb import controller_pb2

__all__ = [
    "ALIGNMENT",
    "CHUNK_BYTES",
    "PIECE_BYTES",
    "TICKETS_SHIFT",
    "TRANSFER_HEADER",
    "byte_view",
    "chunk_data",
    "empty_array",
    "encode_chunk",
    "encode_end",
    "encode_head",
    "encode_stream",
    "in_pieces",
]

CHUNK_BYTES = 1 << 20
"""Bytes in a chunk: the size at which gRPC streams were measured fastest."""

PIECE_BYTES = 4 << 20
"""How much of an array one process copies before the next one can start on that piece."""

TICKETS_SHIFT = 20
"""A program's tickets start from the number of the command before its first one, shifted left
by this: so programs that use a session one after the other have different tickets."""

TRANSFER_HEADER = "disco-transfer-bin"
"""The metadata of a call that has its encoded ``Transfer``: known before a message is read."""

ALIGNMENT = 64
"""Where a worker's own arrays begin: at a multiple of this many bytes, as compilers want it."""

_DATA_TAG = (2 << 3) | 2
_MORE = 0x80
"""Set in every byte of a varint but the last."""

_MAX_SHIFT = 35


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _MORE:
        out.append((value % _MORE) | _MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def empty_array(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array in C order that begins at a multiple of ALIGNMENT bytes."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def byte_view(array: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a C-contiguous array, not copied.

    Raises:
        EncodingError: The array is not C-contiguous.
    """
    if not array.flags.c_contiguous:
        msg = "expected a C-contiguous array; numpy.ascontiguousarray makes one"
        raise EncodingError(msg)
    return memoryview(cast("Any", array.reshape(-1).view(np.uint8)))


def in_pieces(data: memoryview) -> Iterator[memoryview]:
    """Cuts the bytes of an array into pieces of at most PIECE_BYTES."""
    return (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))


def encode_head(
    session: int, transfer_key: bytes, ticket: int, nbytes: int, worker: int = 0
) -> controller_pb2.Transfer:
    """Names one transfer."""
    return controller_pb2.Transfer(
        session=session, transfer_key=transfer_key, ticket=ticket, nbytes=nbytes, worker=worker
    )


def encode_chunk(data: memoryview) -> bytes:
    """Encodes one data chunk with a single copy."""
    return b"".join((bytes((_DATA_TAG,)), _varint(len(data)), data))


def encode_end(error: str) -> bytes:
    """Encodes the end of a stream whose array will not arrive, or not completely."""
    return controller_pb2.ArrayChunk(
        transfer=controller_pb2.Transfer(error=error)
    ).SerializeToString()


def encode_stream(head: controller_pb2.Transfer, data: memoryview) -> Iterator[bytes]:
    """Yields the encoded messages of one transfer."""
    yield controller_pb2.ArrayChunk(transfer=head).SerializeToString()
    for start in range(0, len(data), CHUNK_BYTES):
        yield encode_chunk(data[start : start + CHUNK_BYTES])


def chunk_data(raw: bytes) -> memoryview:
    """Returns the data inside an encoded chunk, not copied where it is alone.

    Raises:
        EncodingError: The bytes are no ``ArrayChunk``.
        OSError: It says why no more will follow.
    """
    view = memoryview(raw)
    if view and view[0] == _DATA_TAG:
        length, shift, at = 0, 0, 1
        while at < len(view) and shift < _MAX_SHIFT:
            byte = view[at]
            length |= (byte % _MORE) << shift
            shift += 7
            at += 1
            if byte < _MORE:
                if at + length == len(view):
                    return view[at:]
                break
    try:
        chunk = controller_pb2.ArrayChunk.FromString(raw)
    except DecodeError as error:
        msg = f"expected an array chunk, got {len(raw)} other bytes"
        raise EncodingError(msg) from error
    if chunk.transfer.error:
        raise OSError(chunk.transfer.error)
    return memoryview(chunk.data)
