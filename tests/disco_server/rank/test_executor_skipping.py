"""Batches with commands left out, as a session sends them that goes on with other workers."""

from __future__ import annotations

import pytest

from disco_client.errors import EncodingError
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedCommand,
)
from disco_server.rank.executor import Executor
from disco_server.rank.worker import Worker
from fakes import Replies


def test_numbers_of_commands_that_are_left_out_are_skipped():
    """Commands keep the numbers that they had; those that come twice run once."""
    out = Replies()
    executor = Executor(Worker(0, 1, 1, open_communicator=None), out)
    sync = EncodedCommand(action=Action.SYNC_WORKER)
    batch = EncodedBatch(commands=[sync, sync], skipped=40)
    for _ in range(2):
        executor.run_batch(1, batch.SerializeToString())
    assert [(reply.seq, reply.ack) for reply in out.take()] == [(41, 41), (42, 42)]
    executor.run_batch(43, EncodedBatch(skipped=7).SerializeToString())
    executor.run_batch(50, EncodedBatch(commands=[sync]).SerializeToString())
    assert [(reply.seq, reply.ack) for reply in out.take()] == [(50, 50)]
    with pytest.raises(EncodingError, match="expected command #51 next"):
        executor.run_batch(52, batch.SerializeToString())
