"""What a session has sent keeps to the window, whoever issued it."""

from __future__ import annotations

import pytest

from disco_client.transport.sent_log import SentLog
from disco_client.wire.batch import SentBatch
from disco_client.wire.codec import EncodedEnvelope
from disco_client.wire.limits import WINDOW_BYTES

MIB = 1 << 20


class Sender:
    """A log of batches that do not come from a program, and workers that say how far they are."""

    def __init__(self, window):
        self.acked = 0
        self.acked_meanwhile = self.looks = 0
        self.log = SentLog(
            7,
            lambda _kills: None,
            lambda _seq: None,
            lambda: self.acked,
            window=window,
            on_held=self.look,
        )

    def look(self):
        self.looks += 1
        self.acked = max(self.acked, self.acked_meanwhile)

    def add(self, first, last, nbytes):
        self.log.add(SentBatch(first, last, bytes(nbytes)))

    def send_all(self):
        """The last commands of the batches that leave now."""
        left = []
        while (raw := self.log.send()) is not None:
            self.log.sent()
            left.append(EncodedEnvelope.FromString(raw).last_seq)
        return left


@pytest.fixture
def sender():
    return Sender(4096)


def test_batches_wait_for_a_window_of_commands(sender):
    """As a replay is longer than one; they leave when workers have executed those before."""
    for first in range(1, 8193, 1024):
        sender.add(first, first + 1023, 5000)
    assert sender.send_all() == [1024, 2048, 3072, 4096]
    assert sender.log.holds
    assert sender.looks == 1
    sender.acked = 1500
    assert sender.send_all() == [5120]
    sender.acked = 8192
    assert sender.send_all() == [6144, 7168, 8192]
    assert not sender.log.holds


def test_a_batch_as_large_as_the_window_leaves_behind_a_quarter_of_it(sender):
    """Workers do not acknowledge the last mebibyte by themselves, so nothing waits for ever."""
    sender.add(1, 1, WINDOW_BYTES // 4)
    sender.add(2, 2, WINDOW_BYTES)
    sender.add(3, 3, 10)
    assert sender.send_all() == [1, 2]
    sender.acked = 1
    assert sender.send_all() == []
    sender.acked = 2
    assert sender.send_all() == [3]


def test_what_is_sent_again_keeps_to_the_window_too(sender):
    """After a lost connection everything is that a node has not."""
    for seq in range(1, 9):
        sender.add(seq, seq, 8 * MIB)
    assert sender.send_all() == [1, 2, 3, 4]
    sender.log.rewind(0)
    assert sender.send_all() == [1, 2, 3, 4]
    sender.acked = 8
    assert sender.send_all() == [5, 6, 7, 8]


def test_what_workers_execute_while_a_batch_is_being_held_back_is_not_missed(sender):
    """The sender would sleep until the next acknowledgement, and there may be none."""
    sender.add(1, 1, WINDOW_BYTES)
    sender.add(2, 2, WINDOW_BYTES)
    assert sender.send_all() == [1]
    sender.acked_meanwhile = 1
    assert sender.send_all() == [2]
    assert not sender.log.is_held()
