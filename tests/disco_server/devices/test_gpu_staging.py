"""Copies through pinned memory, piece by piece, with the stand-in's memory and streams."""

from __future__ import annotations

import numpy as np
import pytest

from disco_server.devices.gpu import PIECE_BYTES, Staging

SIZES = [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5]


@pytest.fixture
def staging(gpu, standin):
    """Buffers on the stream on which functions run."""
    return Staging(standin, gpu.compute)


@pytest.fixture
def copies(standin, monkeypatch):
    """The sizes of the copies that were asked for so far."""
    runtime, seen = standin.cuda.runtime, []
    real = runtime.memcpyAsync

    def note(to, source, size, kind, stream):
        seen.append(size)
        real(to, source, size, kind, stream)

    monkeypatch.setattr(runtime, "memcpyAsync", note)
    return seen


def content(size, salt=0):
    return np.random.default_rng(size + salt).integers(0, 256, size, np.uint8)


def whole(pieces):
    return b"".join(bytes(piece) for piece in pieces)  # each is gone when the next one comes


def cut(host):
    flat = memoryview(host)
    return (flat[at : at + PIECE_BYTES] for at in range(0, len(flat), PIECE_BYTES))


@pytest.mark.parametrize("size", SIZES)
def test_what_was_written_to_the_standin_is_read_back(staging, standin, size):
    """Pieces are full but for the last one."""
    host = content(size)
    there = standin.empty(size, np.uint8)
    staging.write(there.data.ptr, cut(host))
    pieces = [bytes(piece) for piece in staging.read(there.data.ptr, size)]

    assert b"".join(pieces) == host.tobytes()
    assert all(len(piece) == PIECE_BYTES for piece in pieces[:-1])


def test_nothing_is_nothing(staging, copies):
    """No buffer is touched for it."""
    staging.write(0, iter(()))

    assert list(staging.read(0, 0)) == []
    assert copies == []


def test_pieces_may_change_when_writing_to_the_standin_returns(staging, standin):
    """Even of the piece that is still under way."""
    host = content(2 * PIECE_BYTES + 9)
    want = host.copy()
    there = standin.empty(host.size, np.uint8)
    staging.write(there.data.ptr, cut(host))
    host[:] = 0

    assert whole(staging.read(there.data.ptr, host.size)) == want.tobytes()


def test_the_next_piece_of_the_standin_is_under_way(staging, standin, copies):
    """While one is looked at, and no more than that one."""
    host = content(3 * PIECE_BYTES + 5)
    there = standin.asarray(host)
    copies.clear()
    reading = staging.read(there.data.ptr, host.size)

    assert [len(copies) for _ in reading] == [2, 3, 4, 4]


def test_a_reading_of_the_standin_may_be_broken_off(staging, standin):
    """What is under way then does not reach into what is read next."""
    first, second = content(3 * PIECE_BYTES), content(2 * PIECE_BYTES, salt=1)
    one, two = standin.asarray(first), standin.empty(second.size, np.uint8)
    broken = staging.read(one.data.ptr, first.size)
    next(broken)
    broken.close()
    staging.write(two.data.ptr, cut(second))

    assert whole(staging.read(two.data.ptr, second.size)) == second.tobytes()
    assert whole(staging.read(one.data.ptr, first.size)) == first.tobytes()


def test_copies_of_the_standin_keep_the_order_of_their_stream(staging, gpu, standin):
    """What is computed before a reading is read, what is computed after a writing finds it."""
    host = content(PIECE_BYTES + 3)
    there = standin.empty(host.size, np.uint8)
    staging.write(there.data.ptr, cut(host))
    doubled = there * 2
    staging.write(there.data.ptr, cut(np.zeros_like(host)))

    assert whole(staging.read(doubled.data.ptr, host.size)) == (host * 2).tobytes()
    assert not any(whole(staging.read(there.data.ptr, host.size)))


def test_writing_much_to_the_standin_takes_few_buffers(staging, standin, monkeypatch):
    """As many as may be under way; then the oldest is waited for, and all arrives in order."""
    made = []
    real = standin.cuda.alloc_pinned_memory
    monkeypatch.setattr(
        standin.cuda, "alloc_pinned_memory", lambda size: made.append(size) or real(size)
    )
    host = content(40 * 1000)
    there = standin.empty(host.size, np.uint8)
    staging.write(
        there.data.ptr, (memoryview(host)[at : at + 1000] for at in range(0, 40_000, 1000))
    )

    assert 1 <= len(made) <= 16
    assert whole(staging.read(there.data.ptr, host.size)) == host.tobytes()
