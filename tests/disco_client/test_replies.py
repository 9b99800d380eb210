"""Replies: who waits for them, which error is raised where, and what is the cause."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from disco_client import errors
from disco_client.answers import Answers
from disco_client.errors import IssuedAt, RemoteFailure
from disco_client.replies import Inbox
from disco_client.scopes import Scope, current_scope
from disco_client.session_end import SessionEnd
from disco_client.wire.codec import EncodedReply, FailureKind, encode_failure, encode_value

LINE = IssuedAt("program.py", 12, "main")
MINE, THEIRS = Scope(), Scope()


class Log:
    """What an inbox asks of the log: acknowledgements, lines and scopes."""

    def __init__(self, workers):
        self.acks = [0] * workers
        self.scopes = {}
        self.here = MINE
        self.ending = SessionEnd()
        self.answers = Answers(self.ending)

    def acknowledge(self, worker, seq):
        self.acks[worker] = max(self.acks[worker], seq)

    def scope(self):
        return self.here

    @property
    def acked(self):
        return min(self.acks)

    def origin(self, seq):
        return (LINE, self.scopes.get(seq, MINE)) if self.acked < seq else None


@pytest.fixture
def log():
    return Log(4)


@pytest.fixture
def inbox(log):
    return Inbox(log)


def value(seq, content):
    reply = EncodedReply(seq=seq, ack=seq)
    encode_value(reply.value, content)
    return reply


def failure(seq, worker, kind=FailureKind.EXCEPTION, *, answer=None, message="it failed"):
    reply = EncodedReply(seq=seq if answer is None else answer, ack=answer or seq)
    failed = RemoteFailure(
        worker=worker, seq=seq, message=message, node="n", function="f", exception="ValueError"
    )
    encode_failure(reply.failure, failed, kind)
    return reply


def never():
    pytest.fail("waited though everything had come")


def test_an_answer_is_complete_when_all_asked_workers_replied(inbox, log):
    """Each worker's value under its number; acknowledgements go to the log."""
    inbox.answers.expect(3, 2)
    inbox.receive(1, value(3, "b"))
    assert not inbox.answers.expected[3].wait(0)
    inbox.receive(0, value(3, "a"))
    answer = inbox.wait(3, never)
    assert {worker: got.str for worker, got in answer.values.items()} == {0: "a", 1: "b"}
    assert log.acks == [3, 3, 0, 0]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.EXCEPTION, errors.RemoteException),
        (FailureKind.NOT_FOUND, errors.FunctionNotFound),
        (FailureKind.NOT_ALLOWED, errors.NotAllowed),
        (FailureKind.BAD_ARGUMENT, errors.BadArgument),
        (FailureKind.MISMATCH, errors.CollectiveMismatch),
        (FailureKind.ABORTED, errors.CollectiveAborted),
        (FailureKind.CCL, errors.CclError),
        (FailureKind.FILE, errors.BadFile),
    ],
)
def test_each_kind_of_failure_is_an_error_of_its_own(inbox, log, kind, error):
    """With the client's line joined to what the worker said."""
    inbox.receive(2, failure(5, 2, kind))
    log.acks = [5] * 4
    with pytest.raises(error) as raised:
        inbox.raise_pending()
    assert type(raised.value) is error
    assert (raised.value.worker, raised.value.seq, raised.value.function) == (2, 5, "f")
    assert raised.value.issued_at == LINE
    inbox.raise_pending()


def test_the_failure_of_an_answered_command_is_raised_by_who_waits(inbox):
    """And not a second time by the next sync, although it was reported before, too."""
    inbox.receive(1, failure(4, 1))
    inbox.answers.expect(7, 1)
    inbox.receive(1, failure(4, 1, answer=7))
    with pytest.raises(errors.RemoteException) as raised:
        inbox.wait(7, never)
    assert raised.value.seq == 4
    inbox.raise_pending()


def test_workers_that_failed_alike_are_one_error(inbox):
    """In the order of their ranks, whatever the order of arrival."""
    for worker in (3, 0, 2):
        inbox.receive(worker, failure(5, worker))
    with pytest.raises(errors.RemoteException) as raised:
        inbox.raise_pending()
    assert [each.worker for each in raised.value.failures] == [0, 2, 3]


def test_the_first_failed_command_is_raised_and_the_rest_counted(inbox):
    """A program sees the first cause; what failed later may be its consequence."""
    inbox.receive(0, failure(9, 0, message="later"))
    inbox.receive(1, failure(5, 1, message="first"))
    with pytest.raises(errors.RemoteException, match="first") as raised:
        inbox.raise_pending()
    assert "1 later command" in raised.value.__notes__[0]
    inbox.raise_pending()


def test_a_command_is_raised_once_however_many_ranks_report_it(inbox):
    """A rank that reports late a command whose error was raised adds nothing new."""
    inbox.receive(1, failure(5, 1))
    with pytest.raises(errors.RemoteException):
        inbox.raise_pending()
    inbox.receive(0, failure(5, 0, FailureKind.ABORTED))
    inbox.raise_pending()
    inbox.receive(0, failure(6, 0))
    with pytest.raises(errors.RemoteException):
        inbox.raise_pending()


def test_a_failure_that_is_no_commands_own_is_always_raised(inbox):
    """As of a device, found after a command that had failed for another reason."""
    inbox.receive(1, failure(5, 1))
    with pytest.raises(errors.RemoteException, match="it failed"):
        inbox.raise_pending()
    for _ in range(2):
        inbox.receive(1, failure(5, 1, answer=0, message="the device failed"))
        with pytest.raises(errors.RemoteException, match="the device failed"):
            inbox.raise_pending()


def test_the_cause_of_an_aborted_collective_is_waited_for(inbox):
    """Its peers hear of the abort first; the rank that caused it is what the user sees."""
    inbox.receive(0, failure(5, 0, FailureKind.ABORTED, message="worker 2 cannot come"))
    reported = threading.Timer(0.1, lambda: inbox.receive(2, failure(5, 2, message="the cause")))
    reported.start()
    with pytest.raises(errors.RemoteException, match="the cause") as raised:
        inbox.raise_pending()
    reported.join()
    assert [each.worker for each in raised.value.failures] == [2, 0]


def test_an_abort_without_a_cause_is_raised_when_all_have_passed(inbox, log):
    """Once every rank has passed the command, nobody is left to report another cause."""
    inbox.receive(0, failure(5, 0, FailureKind.ABORTED))
    log.acks = [5] * 4
    with pytest.raises(errors.CollectiveAborted):
        inbox.raise_pending()


def test_losing_the_session_ends_every_wait(inbox):
    """That under way, and those that come later; what had come stays."""
    inbox.answers.expect(1, 1)
    inbox.answers.expect(2, 1)
    inbox.receive(0, value(1, 5))
    raised = []

    def wait():
        try:
            inbox.wait(2, lambda: None)
        except errors.SessionError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    lost = errors.ControllerLost("gone")
    inbox.lose(lost)
    inbox.lose(errors.ControllerLost("gone again"))
    waiting.join(60)
    assert raised == [lost]
    assert inbox.ending.told
    assert inbox.wait(1, never).values[0].int == 5
    inbox.answers.expect(3, 4)
    with pytest.raises(errors.ControllerLost, match=r"gone$"):
        inbox.wait(3, never)


def test_who_waits_looks_after_the_line(inbox):
    """A wait without replies asks again and again whether any can still come."""

    def dead():
        raise errors.ControllerLost("silent")

    inbox.answers.expect(1, 1)
    with pytest.raises(errors.ControllerLost, match="silent"):
        inbox.wait(1, dead)


def test_an_error_is_raised_in_one_of_many_waiting_threads(inbox, log):
    """Threads that sync at the same time share the errors; none fails in another way."""
    log.origin = lambda _seq: (LINE, MINE)
    log.acks = [10_000] * 4
    inbox = Inbox(log)
    told, wrong, stop = [], [], threading.Event()

    def sync():
        while not stop.is_set():
            try:
                inbox.raise_pending()
            except errors.RemoteError as error:
                told.append(error)
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seq in range(1, 2000):
        inbox.receive(0, failure(seq, 0, FailureKind.ABORTED))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len({error.seq for error in told}) == len(told)
    assert told


def test_a_second_answer_of_one_worker_changes_nothing(inbox):
    """Replies that come again, or for nobody, are let go."""
    inbox.answers.expect(1, 1)
    inbox.receive(0, value(1, 5))
    inbox.receive(0, value(1, 6))
    inbox.receive(0, value(99, 6))
    assert inbox.wait(1, never).values[0].int == 5


def test_a_failure_in_a_program_is_explained_when_it_arrives(log):
    """By whoever knows the program; its line may be forgotten later."""
    explain = lambda f: replace(f, program_name="p")  # noqa: E731
    inbox = Inbox(log, explain=explain)
    inbox.receive(0, failure(1, 0))
    with pytest.raises(errors.RemoteException) as caught:
        inbox.raise_pending()
    assert caught.value.failures[0].program_name == "p"


def test_what_is_open_is_answered_once_more(inbox):
    """Other workers answer it: parts that came are void, and what can be read may go stale."""
    for seq in (3, 4):
        inbox.answers.expect(seq, 2)
    inbox.receive(0, value(3, "old"))
    for worker in (0, 1):
        inbox.receive(worker, value(4, "old"))
    before = inbox.look(4, never)
    inbox.reopen()
    assert (inbox.is_open(3), inbox.is_open(4), inbox.is_open(5)) == (True, True, False)
    assert before.values[0].str == "old"
    for seq in (3, 4):
        assert not inbox.answers.expected[seq].wait(0)
        for worker in (0, 1):
            inbox.receive(worker, value(seq, "new"))
        assert [got.str for got in inbox.wait(seq, never).values.values()] == ["new", "new"]
        assert not inbox.is_open(seq)


def test_failures_of_a_program_that_has_left_the_session_are_not_raised(log):
    """They may come late; an answer that is waited for tells of them all the same."""
    inbox = Inbox(log, first_seq=5)
    inbox.receive(0, failure(4, 0))
    inbox.raise_pending()
    inbox.answers.expect(6, 1)
    inbox.receive(0, failure(4, 0, answer=6))
    with pytest.raises(errors.RemoteException, match="it failed"):
        inbox.wait(6, never)
    inbox.receive(0, failure(5, 0))
    with pytest.raises(errors.RemoteException, match="it failed"):
        inbox.raise_pending()


# Scopes -----------------------------------------------------------------------------------


def sync(inbox, log, scope):
    """What a sync in a scope raises, if anything."""
    log.here = scope
    try:
        inbox.raise_pending(sync=True)
    except errors.RemoteError as error:
        return error
    return None


def test_a_failure_is_raised_in_its_own_scope_and_in_no_other(inbox, log):
    """Whoever waits first."""
    log.scopes = {5: THEIRS, 6: MINE}
    inbox.receive(0, failure(5, 0, message="theirs"))
    inbox.receive(0, failure(6, 0, message="mine"))
    other = Scope()
    assert sync(inbox, log, other) is None
    error = sync(inbox, log, MINE)
    assert (error.seq, getattr(error, "__notes__", [])) == (6, [])
    assert sync(inbox, log, MINE) is None
    assert sync(inbox, log, THEIRS).seq == 5


def test_a_fetch_raises_the_failure_of_another_scope_and_leaves_it_to_that(inbox, log):
    """What the value depends on, whoever issued it."""
    log.scopes = {4: THEIRS}
    inbox.receive(1, failure(4, 1))
    inbox.answers.expect(7, 1)
    inbox.receive(1, failure(4, 1, answer=7))
    with pytest.raises(errors.RemoteException):
        inbox.wait(7, never)
    assert sync(inbox, log, MINE) is None
    assert sync(inbox, log, THEIRS).seq == 4


def test_a_fetch_raises_what_its_scope_has_not_seen_if_that_is_older(inbox):
    """The first cause is shown, also where a consequence is noticed first."""
    inbox.receive(0, failure(2, 0, message="the cause"))
    inbox.receive(0, failure(4, 0, message="the consequence"))
    inbox.answers.expect(7, 1)
    inbox.receive(0, failure(4, 0, answer=7))
    with pytest.raises(errors.RemoteException, match="the cause") as raised:
        inbox.wait(7, never)
    assert "1 later command" in raised.value.__notes__[0]
    inbox.raise_pending()


def test_what_a_scope_has_left_is_written_down_and_raised_by_leaving(inbox, log):
    """The last 1,000 are kept, and all are counted."""
    block = Scope()
    log.scopes = dict.fromkeys(range(1, 1201), block)
    for seq in range(1, 1201):
        inbox.receive(0, failure(seq, 0))
    block.closed = True
    left = inbox.failures()
    assert (left.total, len(left.last), left.last[0].seq) == (1200, 1000, 1)
    assert sync(inbox, log, MINE) is None
    with pytest.raises(errors.RemoteException) as raised:
        inbox.raise_left()
    assert raised.value.seq == 1


def test_what_a_thread_has_left_that_ended_is_raised_by_the_opener_alone(inbox, log):
    """Once, and by a sync rather than by a fetch."""
    scopes = []
    thread = threading.Thread(target=lambda: scopes.append(current_scope(None)))
    thread.start()
    thread.join()
    log.scopes = {5: scopes[0]}
    inbox.receive(0, failure(5, 0))
    assert sync(inbox, log, THEIRS) is None
    log.here = MINE
    inbox.raise_pending()
    assert sync(inbox, log, MINE).seq == 5
    assert sync(inbox, log, MINE) is None
    assert inbox.failures().total == 1


def test_a_failure_of_which_nobody_is_known_goes_to_the_opener(inbox, log):
    """As of a command that is done again by other workers, and fails only there."""
    log.acks = [9] * 4
    inbox.receive(0, failure(5, 0))
    assert sync(inbox, log, THEIRS) is None
    assert sync(inbox, log, MINE).seq == 5


def test_the_cause_of_an_aborted_collective_may_be_of_another_scope(inbox, log):
    """A rank says for which failure it left the command out; also if that has been seen."""
    log.scopes = {5: THEIRS, 8: MINE}
    inbox.receive(2, failure(5, 2, message="the cause"))
    inbox.receive(2, failure(6, 2, message="has nothing to do with it"))
    assert sync(inbox, log, THEIRS).seq == 5
    inbox.receive(2, failure(5, 2, answer=8, message=""))
    inbox.receive(0, failure(8, 0, FailureKind.ABORTED, message="worker 2 cannot come"))
    log.scopes[6] = MINE
    log.here = MINE
    error = sync(inbox, log, MINE)
    assert error.seq == 6  # its own, and older
    inbox.receive(0, failure(9, 0, FailureKind.ABORTED, message="worker 2 cannot come"))
    inbox.receive(2, failure(5, 2, answer=9, message=""))
    error = sync(inbox, log, MINE)
    assert type(error) is errors.RemoteException
    assert ([each.worker for each in error.failures], error.seq) == ([2, 0], 5)
    assert "command #9 could not be executed for it" in error.__notes__[0]


def test_an_answer_is_read_at_once_unless_a_cause_must_be_awaited(inbox, log):
    """A value or an error; not where an aborted collective comes first."""
    log.scopes = {7: THEIRS, 8: THEIRS}
    for seq in (2, 4, 6, 8):
        inbox.answers.expect(seq, 1)
    inbox.receive(0, value(2, 5))
    assert inbox.is_plain(2, MINE)
    inbox.receive(1, failure(3, 1))
    inbox.receive(0, failure(3, 0, answer=4))
    assert inbox.is_plain(4, MINE)
    inbox.receive(2, failure(5, 2, FailureKind.ABORTED))
    inbox.receive(0, value(6, 5))
    assert not inbox.is_plain(6, MINE)
    inbox.receive(0, value(8, 5))
    assert inbox.is_plain(8, THEIRS), "whose own commands have not failed"
    inbox.receive(1, failure(7, 1, FailureKind.ABORTED))
    assert not inbox.is_plain(8, THEIRS)


def test_the_opener_s_answers_may_wait_for_causes_of_others(inbox, log):
    """Since its sync raises what ended scopes have left."""
    log.scopes = {3: THEIRS}
    inbox.answers.expect(4, 1)
    inbox.receive(0, value(4, 5))
    assert inbox.is_plain(4, MINE)
    inbox.receive(1, failure(3, 1, FailureKind.ABORTED))
    assert not inbox.is_plain(4, MINE)
