"""What a session keeps of itself: commands, arrays, how much of both, and in which pieces."""

from __future__ import annotations

import pytest

from disco_client.command_log import CommandLog
from disco_client.transport.journal import Journal, cut_in_pieces
from disco_client.wire.codec import Action, EncodedBatch, EncodedEnvelope

LARGE = 1 << 20


@pytest.fixture
def log():
    return CommandLog(7, 2)


@pytest.fixture
def journal():
    return Journal(4 * LARGE)


def array(ticket):
    """Fills a command with an array that travels beside it."""

    def fill(command):
        command.args.add().array.ticket = ticket
        command.args.add().bool = True
        return 0

    return fill


def keep(journal, log):
    """What the transport does with what is there."""
    return journal.append(log.take_batch(), 9)


def pieces(journal, *waiting):
    return [
        piece
        for segment in journal.segments
        for piece in cut_in_pieces(segment, lambda seq: seq in waiting)
    ]


def test_a_batch_leaves_as_it_is_written_down(journal, log):
    """It is encoded once, for the session that there is now."""
    log.issue_call(1, [2, 4])
    log.issue(Action.CALL_PACKED, func=1, reg=3)
    leaving = keep(journal, log)
    envelope = EncodedEnvelope.FromString(leaving.envelope())
    assert (envelope.session, envelope.first_seq, envelope.last_seq) == (9, 1, 2)
    assert envelope.payload == journal.segments[0].payload
    assert list(EncodedBatch.FromString(envelope.payload).calls) == [0, 1, 1, 2, 2, 4, -1]


def test_small_batches_become_large_ones(journal, log):
    """A program that waits for each command costs little more than its commands."""
    for _ in range(100):
        log.issue_call(1, [2])
        keep(journal, log)
    assert [(each.first, each.last) for each in journal.segments] == [(1, 100)]
    assert journal.commands == 100
    assert journal.nbytes < 2000
    assert len(EncodedBatch.FromString(bytes(journal.segments[0].payload)).calls) == 500


def test_batches_with_and_without_a_column_stay_apart(journal, log):
    """A column describes every command of its batch."""
    for issue in (lambda: log.issue_call(1, []), lambda: log.issue(Action.CALL_PACKED, func=1)):
        issue()
        keep(journal, log)
    assert [each.in_column for each in journal.segments] == [True, False]
    assert [(piece.first, piece.last) for piece in pieces(journal)] == [(1, 1), (2, 2)]


def test_an_array_for_several_workers_is_kept_once(journal):
    """And it may be changed afterwards."""
    data = bytearray(LARGE)
    uploads = [journal.add_upload(5, worker, memoryview(data), 0) for worker in range(8)]
    data[0] = 1
    assert journal.nbytes == LARGE
    assert [each.worker for each in uploads] == list(range(8))
    assert uploads[7].data[0] == 0


def test_beyond_the_limit_arrays_go_first(journal, log):
    """So that how functions were made stays known; then the commands go."""
    log.issue(Action.CALL_PACKED, func=1)
    keep(journal, log)
    for ticket in range(4):
        journal.add_upload(ticket, 0, memoryview(bytes(LARGE)), 0)
    assert not journal.whole
    assert (journal.uploads, journal.commands, journal.dropped) == ({}, 1, False)
    assert journal.nbytes < LARGE
    assert journal.add_upload(9, 0, memoryview(b"x"), 0) is None
    journal.limit = 10
    log.issue(Action.CALL_PACKED, func=1)
    left = keep(journal, log)
    assert (journal.dropped, journal.commands) == (True, 0)
    log.issue(Action.CALL_PACKED, func=1)
    assert keep(journal, log).session == left.session == 9


def test_questions_are_not_asked_again(journal, log):
    """Unless somebody waits for the answer; in their place workers say that they are there."""
    for _ in range(2):
        log.issue(Action.DEBUG_GET_FROM_REMOTE, reg=4, worker=1, answers=1)
    log.issue_call(1, [2])
    keep(journal, log)
    first, second = pieces(journal, 2)
    assert (first.first, first.last, first.awaited, first.by) == (1, 1, True, 1)
    assert first.batch.commands[0].action == Action.SYNC_WORKER
    assert (second.first, second.last, second.awaited) == (2, 3, False)
    assert second.batch.commands[0].action == Action.DEBUG_GET_FROM_REMOTE
    assert list(second.batch.calls) == [-1, 0, 1, 1, 1, 2]


def test_what_a_question_released_is_released(journal, log):
    """The registers whose references had died travel with whatever command comes next."""
    _, reg = log.issue(Action.CALL_PACKED, func=1)
    log.release(reg)
    log.issue(Action.COPY_FROM_WORKER0, reg=9, worker=0, answers=1)
    keep(journal, log)
    (piece,) = pieces(journal)
    assert list(piece.batch.commands[1].released) == [reg]


def test_pieces_end_where_the_program_waited(journal, log):
    """And know which arrays travel beside them."""
    log.issue(Action.COPY_TO_WORKER0, array(11))
    log.issue(Action.SYNC_WORKER, reg=0, answers=2)
    log.issue_call(1, [2])
    log.issue(Action.COPY_TO_WORKER0, array(12))
    keep(journal, log)
    found = [
        (each.first, each.last, each.tickets, each.awaited, each.by) for each in pieces(journal)
    ]
    assert found == [(1, 2, [11], True, None), (3, 4, [12], False, None)]


def test_a_checkpoint_leaves_what_came_after_it(journal, log):
    """And the arrays of that, and of what brings back the rest."""
    for ticket in (1, 2, 3):
        log.issue(Action.COPY_TO_WORKER0, array(ticket))
        journal.append(log.take_batch(), 9)
        journal.add_upload(ticket, 0, memoryview(bytes(1000)), 0)
        log.issue_call(1, [])
        journal.append(log.take_batch(), 9)
    journal.begin_again([], {1}, 4)
    assert [(each.first, each.last) for each in journal.segments] == [(5, 5), (6, 6)]
    assert set(journal.uploads) == {1, 3}
    assert 2000 < journal.nbytes < 3000


def test_what_came_after_a_checkpoint_may_be_in_one_batch_with_what_came_before(journal, log):
    """It keeps its numbers."""
    for _ in range(3):
        log.issue_call(1, [2])
    log.issue(Action.CALL_PACKED, func=1)
    keep(journal, log)
    journal.begin_again([], set(), 2)
    (segment,) = journal.segments
    assert (segment.first, segment.last) == (3, 4)
    assert list(EncodedBatch.FromString(bytes(segment.payload)).calls) == [0, 1, 3, 1, 2, -1]
    assert [seq for seq, _, _ in segment.entries()] == [3, 4]
