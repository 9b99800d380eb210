"""Host arrays between streams of chunks and shared memory."""

from __future__ import annotations

import asyncio
import os
import tempfile
from types import SimpleNamespace

import psutil
import pytest

from disco_client.arrays.shared_memory import allocate, map_shared, write_shared
from disco_client.wire.arrays import CHUNK_BYTES, chunk_data, encode_chunk
from disco_server.ipc.arrays import IncomingArray
from disco_server.worker.array_streams import receive_array, send_array


async def stream(*pieces):
    for piece in pieces:
        yield encode_chunk(memoryview(piece))


def shared(data):
    fd = allocate(len(data))
    write_shared(fd.fileno(), memoryview(data))
    return fd


async def collect(array):
    return [bytes(chunk_data(raw)) async for raw in send_array(array)]


def received(chunks, nbytes):
    """Collects a stream in fresh memory; returns it, and what was told on the way."""
    told = []
    fd = allocate(nbytes)
    try:
        into = SimpleNamespace(fd=fd, nbytes=nbytes, grow=told.append)
        asyncio.run(receive_array(chunks, into))
    except BaseException:
        fd.close()
        raise
    return fd, told


@pytest.mark.parametrize("sizes", [[1], [5, 3], [CHUNK_BYTES, CHUNK_BYTES, 17], [0, 4]], ids=str)
def test_what_comes_in_chunks_lies_whole_in_shared_memory(sizes):
    """The bytes are in order, however they were cut."""
    pieces = [os.urandom(size) for size in sizes]
    fd, told = received(stream(*pieces), sum(sizes))
    assert told == [sum(sizes[: end + 1]) for end in range(len(sizes))]
    with map_shared(fd.fileno(), sum(sizes)) as found:
        assert found[:] == b"".join(pieces)
    fd.close()


@pytest.mark.parametrize("sizes", [[4], [4, 4, 4], []], ids=["short", "long", "nothing"])
def test_an_array_of_another_size_is_refused(sizes):
    """Fewer or more bytes than announced are an error that has both numbers."""
    pieces = [bytes(size) for size in sizes]
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match=f"expected an array of 8 bytes, got {sum(sizes)}"):
        received(stream(*pieces), 8)
    assert psutil.Process().num_fds() <= before


def test_more_than_announced_is_refused_before_it_is_written():
    """A sender that goes on is stopped at the first chunk too many."""
    taken = []

    async def endless():
        while True:
            taken.append(1)
            yield encode_chunk(memoryview(bytes(4)))

    with pytest.raises(OSError, match="got 12 or more"):
        received(endless(), 8)
    assert len(taken) == 3


def test_it_is_all_there_only_when_the_stream_ends_there():
    """Who reads it meanwhile is not told of an end behind which more comes."""
    told = []
    with tempfile.TemporaryFile() as memory:
        into = SimpleNamespace(fd=memory, nbytes=8, grow=told.append)
        receiving = receive_array(stream(b"12", b"345678", b"9"), into)
        with pytest.raises(OSError, match="got 9 or more"):
            asyncio.run(receiving)
    assert told == [2]


@pytest.mark.parametrize("nbytes", [1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_an_array_leaves_in_chunks_of_one_size(nbytes):
    """All chunks but the last are full."""
    data = os.urandom(nbytes)
    fd = shared(data)
    chunks = asyncio.run(collect(IncomingArray(fd, nbytes, nbytes)))
    assert b"".join(chunks) == data
    assert all(len(chunk) == CHUNK_BYTES for chunk in chunks[:-1])
    fd.close()


def test_an_array_leaves_as_it_grows():
    """A chunk that is there whole is sent although the rest is not; a part of one is not."""
    data = os.urandom(3 * CHUNK_BYTES)
    fd = allocate(len(data))
    array = IncomingArray(fd, len(data))

    async def run():
        chunks = send_array(array)
        for end in range(CHUNK_BYTES, len(data) + 1, CHUNK_BYTES):
            coming = asyncio.ensure_future(anext(chunks))
            for there in (end - 1, end):
                await asyncio.sleep(0.01)
                assert not coming.done()
                write_shared(fd.fileno(), memoryview(data)[:there])
                array.grow(there)
            assert chunk_data(await coming) == data[end - CHUNK_BYTES : end]
        assert await anext(chunks, None) is None

    asyncio.run(run())
    fd.close()


def test_a_stream_that_breaks_off_says_why():
    """Whether the rank cannot copy the rest, or its memory holds less than it says."""
    fd = shared(bytes(CHUNK_BYTES))
    array = IncomingArray(fd, CHUNK_BYTES + 5, CHUNK_BYTES + 5)
    with pytest.raises(OSError, match=f"expected 5 bytes of shared memory at {CHUNK_BYTES}"):
        asyncio.run(collect(array))
    array = IncomingArray(fd, CHUNK_BYTES + 5, CHUNK_BYTES)

    async def fail():
        asyncio.get_running_loop().call_later(0.01, array.grow, 0, "the GPU is lost")
        return await collect(array)

    with pytest.raises(OSError, match="the GPU is lost"):
        asyncio.run(fail())
    fd.close()


def test_an_empty_array_is_a_stream_of_nothing():
    """No chunk at all is a sound array of no bytes."""
    fd, told = received(stream(), 0)
    assert told == [0]
    assert asyncio.run(collect(IncomingArray(fd, 0))) == []
    assert os.fstat(fd.fileno()).st_size == 0
    fd.close()
