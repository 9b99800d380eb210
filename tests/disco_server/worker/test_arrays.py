"""Host arrays between streams of chunks and shared memory."""

from __future__ import annotations

import asyncio
import os

import psutil
import pytest

from disco_client.transport.shared import allocate, map_shared, write_shared
from disco_client.wire.arrays import CHUNK_BYTES, chunk_data, encode_chunk
from disco_server.worker.arrays import Offers, receive_array, send_array


async def stream(*pieces):
    for piece in pieces:
        yield encode_chunk(memoryview(piece))


def shared(data):
    fd = allocate(len(data))
    write_shared(fd, memoryview(data))
    return fd


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


async def collect(fd, nbytes):
    return [bytes(chunk_data(raw)) async for raw in send_array(fd, nbytes)]


@pytest.mark.parametrize("sizes", [[1], [5, 3], [CHUNK_BYTES, CHUNK_BYTES, 17], [0, 4]], ids=str)
def test_what_comes_in_chunks_lies_whole_in_shared_memory(sizes):
    """The bytes are in order, however they were cut."""
    pieces = [os.urandom(size) for size in sizes]
    fd = asyncio.run(receive_array(stream(*pieces), sum(sizes)))
    with map_shared(fd, sum(sizes)) as found:
        assert found[:] == b"".join(pieces)
    os.close(fd)


@pytest.mark.parametrize("sizes", [[4], [4, 4, 4], []], ids=["short", "long", "nothing"])
def test_an_array_of_another_size_is_refused(sizes):
    """Fewer or more bytes than announced are an error that has both numbers."""
    pieces = [bytes(size) for size in sizes]
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match=f"expected an array of 8 bytes, got {sum(sizes)}"):
        asyncio.run(receive_array(stream(*pieces), 8))
    assert psutil.Process().num_fds() == before


def test_more_than_announced_is_refused_before_it_is_written():
    """A sender that goes on is stopped at the first chunk too many."""
    taken = []

    async def endless():
        while True:
            taken.append(1)
            yield encode_chunk(memoryview(bytes(4)))

    with pytest.raises(OSError, match="got 12 or more"):
        asyncio.run(receive_array(endless(), 8))
    assert len(taken) == 3


@pytest.mark.parametrize("nbytes", [1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5])
def test_an_array_leaves_in_chunks_of_one_size(nbytes):
    """All chunks but the last are full, and the descriptor is closed."""
    data = os.urandom(nbytes)
    fd = shared(data)
    chunks = asyncio.run(collect(fd, nbytes))
    assert b"".join(chunks) == data
    assert all(len(chunk) == CHUNK_BYTES for chunk in chunks[:-1])
    assert not is_open(fd)


def test_an_array_that_is_not_there_whole_is_an_error():
    """A worker that offers more than its memory holds does not keep the sender waiting."""
    fd = shared(bytes(CHUNK_BYTES))
    with pytest.raises(OSError, match=f"expected 5 bytes of shared memory at {CHUNK_BYTES}"):
        asyncio.run(collect(fd, CHUNK_BYTES + 5))
    assert not is_open(fd)


def test_an_empty_array_is_a_stream_of_nothing():
    """No chunk at all is a sound array of no bytes."""
    fd = asyncio.run(receive_array(stream(), 0))
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_an_offer_is_taken_once():
    """Whoever asks first gets it; afterwards, and under other names, there is none."""
    offers = Offers()
    fd = shared(b"data")
    offers.add(1, 7, fd, 4)
    for wrong in ((0, 7), (1, 8)):
        with pytest.raises(KeyError):
            offers.take(*wrong)
    assert offers.take(1, 7) == (fd, 4)
    with pytest.raises(KeyError):
        offers.take(1, 7)
    os.close(fd)


def test_offers_nobody_took_are_let_go():
    """Their memory goes back when the session ends; ending twice is no error."""
    offers = Offers()
    fds = [shared(b"data"), shared(b"more")]
    for ticket, fd in enumerate(fds):
        offers.add(0, ticket, fd, 4)
    offers.close()
    offers.close()
    assert not any(is_open(fd) for fd in fds)
