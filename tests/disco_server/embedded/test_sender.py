"""Commands leave in order, from whichever thread flushes."""

from __future__ import annotations

import threading

from conversing import converse
from disco_client import SessionClosed
from disco_client.wire.codec import Action
from disco_client.wire.limits import WINDOW_COMMANDS
from disco_server.embedded.sender import Sender


class Flushing:
    """As much of a transport as issuing needs."""

    sends_lone = True
    entered = False

    def __init__(self, sender):
        self.flush = sender.flush


def test_commands_leave_in_order_whoever_sends_them():
    """Several threads flush while others issue, and the sender's own thread works too."""
    client = converse()
    log = client.log
    left = []
    sender = Sender(client, lambda batch, _first: left.append((batch.first_seq, batch.last_seq)))

    def issue():
        for step in range(500):
            log.issue(Action.CALL_PACKED, func=1, reg=int)
            if step % 7 == 0:
                sender.flush()

    issuers = [threading.Thread(target=issue) for _ in range(4)]
    for issuer in issuers:
        issuer.start()
    for issuer in issuers:
        issuer.join()
    log.close(SessionClosed("over"), drop=False)
    sender.join(10)
    starts = [1, *(last + 1 for _, last in left)]
    assert [first for first, _ in left] == starts[:-1]
    assert left[-1][1] == 2000


def test_what_nobody_waits_for_leaves_by_itself(eventually):
    """A command at once or soon after others, and the release of a register without any."""
    client = converse()
    log = client.log
    left = []
    sender = Sender(client, lambda batch, first: left.append((batch.last_seq, first)))
    log.sender.pump = Flushing(sender)
    for turn in range(3):
        _, register = log.issue(Action.CALL_PACKED, func=1, reg=int)
        eventually(lambda seq=2 * turn + 1: left and left[-1][0] == seq, what="the command")
        log.release(register)
        eventually(lambda seq=2 * turn + 2: left[-1][0] == seq, what="the release")
    log.close(SessionClosed("over"), drop=False)
    sender.join(10)
    assert len(left) == 6


def test_a_thread_that_waits_learns_up_to_which_command_it_has_asked():
    """So that it need not ask again; a thread that found nothing to deliver has asked nothing."""
    client, left = converse(), []
    sender = Sender(client, lambda batch, asked: left.append((batch.last_seq, asked)))
    with client.log.sender.batch():  # so that the sender's thread delivers nothing
        for _ in range(3):
            client.log.issue(Action.CALL_PACKED, func=1, reg=int)
        assert sender.flush(1) == 3
        assert sender.flush(1) == 0
    client.log.close(SessionClosed("over"), drop=False)
    sender.join(10)
    assert left == [(3, 1)]


def started():
    """A log whose lone commands leave in the thread that issues them, and what has left."""
    client, left = converse(), []
    log = client.log
    sender = Sender(client, lambda batch, _first: left.append((batch.first_seq, batch.last_seq)))
    log.sender.pump = Flushing(sender)
    return log, sender, left


def test_a_batch_leaves_together_at_its_end():
    """Nothing of it before; a block within it changes nothing, and other threads wait for none."""
    log, sender, left = started()
    with log.sender.batch():
        log.issue(Action.CALL_PACKED, func=1, reg=int)
        with log.sender.batch():
            log.issue(Action.CALL_PACKED, func=1, reg=int)
        log.issue(Action.CALL_PACKED, func=1, reg=int)
        assert left == []
    log.close(SessionClosed("over"), drop=False)
    sender.join(10)
    assert left == [(1, 3)]


def test_a_thread_beside_a_batch_sends_what_it_issues(eventually):
    """With all that was issued before."""
    log, sender, left = started()
    with log.sender.batch():
        log.issue(Action.CALL_PACKED, func=1, reg=int)
        other = threading.Thread(target=lambda: log.issue(Action.CALL_PACKED, func=1, reg=int))
        other.start()
        other.join()
        eventually(lambda: left == [(1, 2)], what="both commands")
    log.close(SessionClosed("over"), drop=False)
    sender.join(10)
    assert left == [(1, 2)]


def test_a_batch_of_more_than_may_be_under_way_goes_on():
    """What the caller waits for has left."""
    client, done = converse(), []
    log = client.log

    def execute(batch, _first):
        done.append(batch.last_seq)
        log.acknowledge(0, batch.last_seq)

    sender = Sender(client, execute)
    with log.sender.batch():
        for _ in range(WINDOW_COMMANDS + 10):
            log.issue(Action.CALL_PACKED, func=1, reg=int)
    log.close(SessionClosed("over"), drop=False)
    sender.join(10)
    assert done[-1] == WINDOW_COMMANDS + 10
