"""What a session may have under way, as its controller counts it."""

from __future__ import annotations

import pytest

from disco_client.wire.limits import WINDOW_BYTES
from disco_server.core.window import CommandWindow

MIB = 1 << 20


def send(window, count, nbytes=1000, batch=100):
    """Sends so many commands that follow; returns what the window says of each batch."""
    first = window._newest + 1
    return [
        window.receive(seq, seq + batch - 1, nbytes) for seq in range(first, first + count, batch)
    ]


def test_one_and_a_half_windows_of_commands_are_under_way_and_no_more():
    """What all ranks have done is not counted any more."""
    window = CommandWindow(2, 1000)
    assert all(send(window, 1500))
    assert not any(send(window, 100))
    window.acknowledge(0, 1600)
    assert window.commands == 1600
    window.acknowledge(1, 250)
    assert window.commands == 1400
    assert send(window, 100) == [True]
    window.acknowledge(1, 1700)
    window.acknowledge(0, 1700)
    assert (window.commands, window.nbytes) == (0, 0)


def test_one_and_a_half_windows_of_bytes_are_under_way_and_no_more():
    """Or a single batch, however large a message may be."""
    window = CommandWindow(1, 1000)
    assert all(send(window, 3, WINDOW_BYTES // 2, batch=1))
    assert not all(send(window, 1, 1, batch=1))
    window.acknowledge(0, 4)
    assert all(send(window, 1, 60 * MIB, batch=1))
    assert not all(send(window, 1, 1, batch=1))


def test_a_batch_that_is_sent_again_counts_once():
    """Whole, or with more behind it."""
    window = CommandWindow(1, 100)
    for _ in range(100):
        assert window.receive(1, 100, 10 * MIB)
    assert (window.commands, window.nbytes) == (100, 10 * MIB)
    assert window.receive(51, 150, 1000)
    assert window.commands == 150


def test_numbers_that_a_replay_leaves_out_count_for_their_bytes():
    """They are a few bytes, however many they are."""
    window = CommandWindow(1, 100)
    assert window.receive(1, 10_000_000, 40)
    assert window.commands == 40
    assert window.receive(10_000_001, 10_000_100, 1000)


@pytest.mark.parametrize("worker", [-1, 2, 1 << 40])
def test_a_rank_that_does_not_exist_acknowledges_nothing(worker):
    """A node may say anything."""
    window = CommandWindow(2, 100)
    send(window, 100)
    window.acknowledge(worker, 100)
    assert window.commands == 100


def test_another_program_begins_with_a_window_of_its_own_once():
    """Until the ranks have done what the one before left, further ones share it."""
    window = CommandWindow(1, 100)
    assert all(send(window, 100))
    window.forgive()
    assert all(send(window, 100))
    window.forgive()
    assert not all(send(window, 100))
    window.acknowledge(0, 100)
    window.forgive()
    assert all(send(window, 100))
