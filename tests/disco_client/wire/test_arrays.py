"""Host arrays in chunks: written by hand, read by anybody's protobuf, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.errors import EncodingError
from disco_client.pb import controller_pb2
from disco_client.wire.arrays import (
    ALIGNMENT,
    CHUNK_BYTES,
    byte_view,
    chunk_data,
    empty_array,
    encode_chunk,
    encode_head,
    encode_stream,
)


@given(st.binary(max_size=300))
def test_a_chunk_is_what_protobuf_would_write(data):
    """Byte for byte, and it reads back without its frame."""
    raw = encode_chunk(memoryview(data))
    assert controller_pb2.ArrayChunk.FromString(raw).data == data
    if data:
        assert raw == controller_pb2.ArrayChunk(data=data).SerializeToString()
    assert bytes(chunk_data(raw)) == data


@pytest.mark.parametrize("nbytes", [127, 128, 16_383, 16_384, CHUNK_BYTES])
def test_lengths_of_every_width_are_written_right(nbytes):
    """Where the length needs another byte, too."""
    data = bytes(nbytes)
    assert (
        encode_chunk(memoryview(data)) == controller_pb2.ArrayChunk(data=data).SerializeToString()
    )
    assert len(chunk_data(encode_chunk(memoryview(data)))) == nbytes


@pytest.mark.parametrize("nbytes", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_stream_names_its_transfer_and_then_brings_all_bytes(nbytes):
    """No chunk is larger than the chosen size, and none is empty."""
    data = np.random.default_rng(0).integers(0, 256, nbytes, "u1")
    first, *rest = encode_stream(encode_head(5, b"key", 7, nbytes, 3), byte_view(data))
    head = controller_pb2.ArrayChunk.FromString(first).transfer
    assert (head.session, head.transfer_key, head.ticket) == (5, b"key", 7)
    assert (head.nbytes, head.worker) == (nbytes, 3)
    pieces = [chunk_data(raw) for raw in rest]
    assert all(0 < len(piece) <= CHUNK_BYTES for piece in pieces)
    assert b"".join(pieces) == data.tobytes()


def test_a_chunk_in_another_order_of_fields_is_read_too():
    """What is not in the one expected form goes through protobuf."""
    message = controller_pb2.ArrayChunk(data=b"abc", transfer=encode_head(1, b"", 1, 3))
    assert bytes(chunk_data(message.SerializeToString())) == b"abc"


@given(st.binary(min_size=1, max_size=100))
def test_other_bytes_are_refused_or_read_as_protobuf_reads_them(raw):
    """Never with another error, and never with bytes that protobuf would not find."""
    from google.protobuf.message import DecodeError

    try:
        expected = controller_pb2.ArrayChunk.FromString(raw).data
    except DecodeError:
        expected = None
    try:
        assert bytes(chunk_data(raw)) == expected
    except EncodingError:
        assert expected is None


def test_the_bytes_of_an_array_are_seen_and_not_copied():
    """Whatever its dtype and shape, as long as it is contiguous."""
    array = np.zeros((2, 3), "f4")
    view = byte_view(array)
    array[0, 0] = 1
    assert bytes(view[:4]) == np.float32(1).tobytes()
    assert len(byte_view(np.zeros((), "f8"))) == 8
    assert len(byte_view(np.zeros((0, 3), "f8"))) == 0
    with pytest.raises(EncodingError, match="ascontiguousarray"):
        byte_view(array.T)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 5), (1000, 1000)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "complex128"])
def test_a_workers_own_array_begins_where_compilers_want_it(shape, dtype):
    """Whatever its shape; it can be written, and is as large as any other."""
    array = empty_array(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert not array.size or array.ctypes.data % ALIGNMENT == 0
    assert array.flags.c_contiguous
    array[...] = 1
    assert array.sum() == array.size
