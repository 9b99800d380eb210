"""Batches with commands left out, as a session sends them that goes on with other workers."""

from __future__ import annotations

import pytest

from disco_client.errors import EncodingError
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedCommand,
    FailureKind,
)
from disco_server.rank.executor import Executor
from disco_server.rank.functions import resolve
from disco_server.rank.worker import Worker, set_current_worker
from fakes import Replies


def test_numbers_of_commands_that_are_left_out_are_skipped():
    """Commands keep the numbers that they had; those that come twice run once."""
    out = Replies()
    executor = Executor(Worker(0, 1, 1, open_groups=None), out)
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


def test_what_other_workers_held_fails_each_command_that_reads_it():
    """As a failure of its own, which poisons its result; a register that is released is free."""
    out = Replies()
    worker = Worker(0, 1, 1, open_groups=None)
    executor = Executor(worker, out)
    set_current_worker(worker)
    try:
        resolve("runtime.disco._poison_registers", ())([5, 6], "worker 7 died", True)
    finally:
        set_current_worker(None)
    find = EncodedCommand(action=Action.GET_GLOBAL_FUNC, reg=3)
    find.args.add().str = "runtime.disco.get_item"
    executor.run_batch(1, EncodedBatch(commands=[find]).SerializeToString())
    calls = [0, 3, 4, 2, 11, 0]  # get_item(register 5, 0), as a plain call
    executor.run_batch(2, EncodedBatch(calls=calls).SerializeToString())
    ask = [EncodedCommand(action=Action.DEBUG_GET_FROM_REMOTE, reg=reg) for reg in (6, 4)]
    ask.append(EncodedCommand(action=Action.SYNC_WORKER, released=[5, 6]))
    ask.append(EncodedCommand(action=Action.DEBUG_GET_FROM_REMOTE, reg=5))
    executor.run_batch(3, EncodedBatch(commands=ask).SerializeToString())
    replies = out.take()
    failures = [(each.seq, each.failure.seq, each.failure.kind) for each in replies[:3]]
    stale = FailureKind.STALE
    assert failures == [(2, 2, stale), (3, 3, stale), (4, 2, stale)]
    assert {each.failure.message for each in replies[:3]} == {"worker 7 died"}
    assert [each.WhichOneof("outcome") for each in replies[3:]] == [None, "value"]
