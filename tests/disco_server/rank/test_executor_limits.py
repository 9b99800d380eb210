"""A rank's commands beyond its limits."""

from __future__ import annotations

import pytest

from disco_client.wire.codec import Action, EncodedBatch, FailureKind
from disco_server.rank.executor import Executor
from disco_server.rank.worker import Worker
from fakes import Replies

SYNC = int(Action.SYNC_WORKER)
FAR = 1 << 30


def batch(**command):
    made = EncodedBatch()
    made.commands.add(**command)
    made.commands.add(action=SYNC)
    return made


@pytest.mark.parametrize(
    "commands",
    [
        EncodedBatch(calls=[0, 1, FAR, 0, 0, 1, 5, 0]),
        batch(action=SYNC, reg=FAR),
        batch(action=int(Action.RUN_PROGRAM), results=[1, FAR]),
    ],
    ids=["column", "command", "results"],
)
def test_a_register_beyond_the_limit_is_an_error_of_its_command(commands):
    """It names the setting, nothing grows, and the next command runs."""
    outlet = Replies()
    executor = Executor(Worker(0, 1, 1, open_groups=None, node="n"), outlet)
    executor.run_batch(1, commands.SerializeToString())
    failure = outlet.take()[0].failure
    assert (failure.seq, failure.kind) == (1, FailureKind.BAD_ARGUMENT)
    assert "--max-registers" in failure.message
    assert executor.seq == 2
    assert executor.registers.statistics()[0] == 64
