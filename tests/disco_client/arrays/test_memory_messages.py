"""How messages at a memory endpoint are framed."""

from __future__ import annotations

import pytest

from disco_client.arrays.memory_messages import MAX_MESSAGE_BYTES, READ_BYTES, pack, unpack
from disco_client.pb import memory_pb2


@pytest.mark.parametrize("text", ["", "x", "x" * 300], ids=len)
def test_a_message_is_read_once_it_is_whole(text):
    """However it is cut on its way; before that there is nothing to read."""
    message = memory_pb2.MemoryReply(refused=text)
    data = pack(message)
    assert all(unpack(data[:size]) is None for size in range(len(data)))
    assert memory_pb2.MemoryReply.FromString(unpack(data)) == message
    assert len(data) <= READ_BYTES


def test_what_is_too_long_is_refused_at_its_length():
    """Nobody has to read and keep what a stranger announces."""
    with pytest.raises(ValueError, match=f"at most {MAX_MESSAGE_BYTES} bytes, got 4097"):
        unpack((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))


def test_there_is_nothing_behind_a_message():
    """The other side waits for its turn."""
    with pytest.raises(ValueError, match="got 1 bytes behind it"):
        unpack(pack(memory_pb2.MemoryRequest(done=True)) + b"x")
