"""What a session keeps of itself: commands, arrays, how much of both, and in which pieces."""

from __future__ import annotations

import pytest

from disco_client.command_log import CommandLog
from disco_client.recovery.journal import Journal, split_at_waits
from disco_client.transport.sent_log import SentLog
from disco_client.wire.codec import Action, EncodedBatch, EncodedEnvelope, InterruptedAt

LARGE = 1 << 20


@pytest.fixture
def log():
    return CommandLog(2)


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
    """What happens to what is there when workers have executed it."""
    taken = log.take_batch()
    batch = taken.encode()
    log.left(taken.last_seq)
    journal.append(batch)
    return batch


def send(sent):
    """Sends what comes next, as a connection does; returns it."""
    raw = sent.send()
    sent.sent()
    return raw


def pieces(journal, *waiting):
    return [
        piece
        for segment in journal.segments
        for piece in split_at_waits(segment, lambda seq: seq in waiting, executed=0)
    ]


def test_a_batch_leaves_as_it_is_written_down(journal, log):
    """It is encoded once, for the session that there is now, and kept once it is executed."""
    sent = SentLog(9, log.take_batch, log.left, lambda: log.acked, journal.append)
    log.issue_call(1, [2, 4], int)
    log.issue(Action.CALL_PACKED, func=1, reg=3)
    envelope = EncodedEnvelope.FromString(send(sent))
    assert (envelope.session, envelope.first_seq, envelope.last_seq) == (9, 1, 2)
    assert list(EncodedBatch.FromString(envelope.payload).calls) == [0, 1, 1, 2, 2, 4, -1]
    sent.settle()
    assert journal.segments == []
    for worker in range(2):
        log.acknowledge(worker, 2)
    sent.settle()
    assert envelope.payload == journal.segments[0].payload


def test_an_envelope_is_the_next_one_until_it_was_sent(journal, log):
    """A sender that is interrupted in between gets it again; it is written down once."""
    sent = SentLog(9, log.take_batch, log.left, lambda: log.acked, journal.append)
    log.issue_call(1, [2], int)
    first = sent.send()
    log.issue_call(1, [4], int)
    assert sent.send() == first
    sent.sent()
    sent.sent()
    second = send(sent)
    assert [EncodedEnvelope.FromString(raw).last_seq for raw in (first, second)] == [1, 2]
    sent.retain_all()
    assert journal.commands == 2


def test_what_is_written_down_twice_is_there_once(journal, log):
    """As what was under way when workers were lost, or a checkpoint made."""
    sent = SentLog(9, log.take_batch, log.left, lambda: log.acked, journal.append)
    for _ in range(2):
        log.issue_call(1, [2], int)
        send(sent)
    for _ in range(2):
        sent.retain_all()
    for worker in range(2):
        log.acknowledge(worker, 2)
    sent.settle()
    assert journal.commands == 2
    assert len(EncodedBatch.FromString(bytes(journal.segments[0].payload)).calls) == 10


def test_what_workers_are_given_again_leaves_before_the_rest(journal, log):
    """And once more where the connection lost it, but is not written down again."""
    log.issue_call(1, [2], int)
    (again,) = (keep(journal, log),)
    sent = SentLog(10, log.take_batch, log.left, lambda: log.acked, journal.append)
    sent.add(again)
    log.issue_call(1, [4], int)
    assert sent.num_unsent == 1
    left = [send(sent) for _ in range(3)]
    assert left[2] is None
    sent.rewind(0)
    assert [send(sent) for _ in range(2)] == left[:2]
    assert [EncodedEnvelope.FromString(raw).last_seq for raw in left[:2]] == [1, 2]
    sent.retain_all()
    assert journal.commands == 2


def test_small_batches_become_large_ones(journal, log):
    """A program that waits for each command costs little more than its commands."""
    for _ in range(100):
        log.issue_call(1, [2], int)
        keep(journal, log)
    assert [(each.first, each.last) for each in journal.segments] == [(1, 100)]
    assert journal.commands == 100
    assert journal.nbytes < 2000
    assert len(EncodedBatch.FromString(bytes(journal.segments[0].payload)).calls) == 500


def test_batches_with_and_without_a_column_stay_apart(journal, log):
    """A column describes every command of its batch."""
    for issue in (
        lambda: log.issue_call(1, [], int),
        lambda: log.issue(Action.CALL_PACKED, func=1, reg=int),
    ):
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
    log.issue(Action.CALL_PACKED, func=1, reg=int)
    keep(journal, log)
    for ticket in range(4):
        journal.add_upload(ticket, 0, memoryview(bytes(LARGE)), 0)
    assert not journal.whole
    assert (journal.uploads, journal.commands, journal.dropped) == ({}, 1, False)
    assert journal.nbytes < LARGE
    assert journal.add_upload(9, 0, memoryview(b"x"), 0) is None
    journal.limit = 10
    log.issue(Action.CALL_PACKED, func=1, reg=int)
    keep(journal, log)
    assert (journal.dropped, journal.commands) == (True, 0)
    log.issue(Action.CALL_PACKED, func=1, reg=int)
    keep(journal, log)
    assert journal.commands == 0


def test_questions_are_not_asked_again(journal, log):
    """Unless somebody waits for the answer; in their place workers say that they are there."""
    for _ in range(2):
        log.issue(Action.DEBUG_GET_FROM_REMOTE, reg=4, workers=(1,), answers=1)
    log.issue_call(1, [2], int)
    keep(journal, log)
    first, second = pieces(journal, 2)
    assert (first.first, first.last, first.awaited, first.by) == (1, 1, True, 1)
    assert first.batch.commands[0].action == Action.SYNC_WORKER
    assert (second.first, second.last, second.awaited) == (2, 3, False)
    assert second.batch.commands[0].action == Action.DEBUG_GET_FROM_REMOTE
    assert list(second.batch.calls) == [-1, 0, 1, 1, 1, 2]


def test_what_a_question_released_is_released(journal, log):
    """The registers whose references had died travel with whatever command comes next."""
    _, reg = log.issue(Action.CALL_PACKED, func=1, reg=int)
    log.release(reg)
    log.issue(Action.COPY_FROM_WORKER0, reg=9, workers=(0,), answers=1)
    keep(journal, log)
    (piece,) = pieces(journal)
    assert list(piece.batch.commands[1].released) == [reg]


def test_pieces_end_where_the_program_waited(journal, log):
    """And know which arrays travel beside them."""
    log.issue(Action.COPY_TO_WORKER0, array(11), reg=int)
    log.issue(Action.SYNC_WORKER, reg=0, answers=2)
    log.issue_call(1, [2], int)
    log.issue(Action.COPY_TO_WORKER0, array(12), reg=int)
    keep(journal, log)
    found = [
        (each.first, each.last, each.tickets, each.awaited, each.by) for each in pieces(journal)
    ]
    assert found == [(1, 2, {11: 1}, True, None), (3, 4, {12: 4}, False, None)]


def test_a_checkpoint_leaves_what_came_after_it(journal, log):
    """And the arrays of that, and of what brings back the rest."""
    for ticket in (1, 2, 3):
        log.issue(Action.COPY_TO_WORKER0, array(ticket), reg=int)
        keep(journal, log)
        journal.add_upload(ticket, 0, memoryview(bytes(1000)), 0)
        log.issue_call(1, [], int)
        keep(journal, log)
    journal.prune([], {1}, 4)
    assert [(each.first, each.last) for each in journal.segments] == [(5, 5), (6, 6)]
    assert set(journal.uploads) == {1, 3}
    assert 2000 < journal.nbytes < 3000


def test_what_came_after_a_checkpoint_may_be_in_one_batch_with_what_came_before(journal, log):
    """It keeps its numbers."""
    for _ in range(3):
        log.issue_call(1, [2], int)
    log.issue(Action.CALL_PACKED, func=1, reg=int)
    keep(journal, log)
    journal.prune([], set(), 2)
    (segment,) = journal.segments
    assert (segment.first, segment.last) == (3, 4)
    assert list(EncodedBatch.FromString(bytes(segment.payload)).calls) == [0, 1, 3, 1, 2, -1]
    assert [seq for seq, _ in segment.entries()] == [3, 4]


def test_an_array_that_was_given_up_is_kept(journal):
    """Its worker may have had all of it; without bytes, where it was given up before the copy."""
    given_up = journal.give_up(7, 0, "why", 3)
    assert (given_up.data, given_up.given_up, given_up.incarnation) == (None, "why", 3)
    assert journal.nbytes == 0
    upload = journal.add_upload(8, 0, bytes(100), 1)
    assert journal.give_up(8, 0, "why", 3) is upload
    assert (upload.data, upload.given_up, upload.incarnation) == (bytes(100), "why", 1)
    assert journal.give_up(8, 1, "why", 3).data is upload.data
    assert journal.nbytes == 100
    assert journal.copy_of(7, memoryview(bytes(5))) == bytes(5)


def test_interrupted_commands_are_marked_wherever_they_stand(journal, log):
    """In a column of plain calls too; the others, and their arrays, are as they were."""
    log.issue(Action.GET_GLOBAL_FUNC, reg=1)
    log.issue_call(1, [2, 4], int)
    log.issue_call(1, [6], int)
    log.issue(Action.COPY_TO_WORKER0, array(7), reg=9, workers=(0,))
    keep(journal, log)
    log.issue(Action.CALL_PACKED, func=1, reg=3)
    keep(journal, log)
    before = [entry for segment in journal.segments for entry in segment.entries()]
    assert journal.interruptible(range(1, 6)) == [2, 3, 4, 5]
    assert journal.interruptible((3, 4)) == [3, 4]
    assert journal.interruptible(()) == []
    journal.leave_out({3: InterruptedAt.BEFORE, 4: InterruptedAt.WITHIN})
    after = dict(entry for segment in journal.segments for entry in segment.entries())
    marks = {
        seq: entry.interrupted
        for seq, entry in after.items()
        if not isinstance(entry, tuple) and entry.interrupted
    }
    assert marks == {3: InterruptedAt.BEFORE, 4: InterruptedAt.WITHIN}
    assert [arg.int for arg in after[3].args] == [3]
    assert [each for each in before if each[0] in (1, 2, 5)] == [
        (seq, after[seq]) for seq in (1, 2, 5)
    ]
    assert sorted(ticket for piece in pieces(journal) for ticket in piece.tickets) == [7]
    assert journal.nbytes == sum(300 + len(segment.payload) for segment in journal.segments)
