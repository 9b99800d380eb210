"""The log: order, batches, register ids, the window, and what it forgets."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from reentry import in_thread

from disco_client import EncodingError, Reentered, SessionClosed, batches, command_log
from disco_client.command_log import CommandLog
from disco_client.scopes import current_scope
from disco_client.wire.batch import plain_call, read_batch
from disco_client.wire.codec import Action, EncodedBatch, EncodedEnvelope

SESSION = 0xD15C0


def read(raw):
    """An encoded batch: its envelope and its commands."""
    read = EncodedEnvelope.FromString(raw)
    assert read.session == SESSION
    return read, EncodedBatch.FromString(read.payload).commands


def call(log, *, reg=int, **options):
    return log.issue(Action.CALL_PACKED, func=1, reg=reg, **options)


def take(log):
    """Waits for commands and encodes them, as a transport does; None when there are no more."""
    while (batch := log.take_batch()) is None:
        if not log.sender.wait():
            return None
    log.left(batch.last_seq)
    return batch.encode().envelope(SESSION)


def take_now(log, kills=True):
    """Takes what there is, as a transport does that got it on its way; None for nothing."""
    batch = log.take_batch(kills)
    if batch is not None:
        log.left(batch.last_seq)
    return batch


class LogMachine(RuleBasedStateMachine):
    """Issues, drops, takes and acknowledges in any order, against a model."""

    def __init__(self):
        super().__init__()
        self.log = CommandLog(2)
        self.live, self.dead, self.free = [], [], []
        self.issued, self.taken, self.most = 0, 0, 0
        self.acks = [0, 0]
        self.expected = []

    @rule()
    def issue(self):
        for register in self.dead:
            self.free.append(register)
        released, self.dead = self.dead, []
        seq, register = call(self.log)
        self.issued += 1
        assert seq == self.issued
        assert register == (self.free.pop() if self.free else self.most + 1)
        assert register not in self.live
        self.most = max(self.most, register)
        self.live.append(register)
        self.expected.append((Action.CALL_PACKED, register, released))

    @rule()
    def refuse(self):
        def fill(_command):
            raise EncodingError

        with pytest.raises(EncodingError):
            call(self.log, fill=fill)

    @precondition(lambda self: self.live)
    @rule(choice=st.integers(0, 1000))
    def drop(self, choice):
        register = self.live.pop(choice % len(self.live))
        self.log.release(register)
        self.dead.append(register)

    @precondition(lambda self: self.taken < self.issued or self.dead)
    @rule()
    def take(self):
        if self.taken == self.issued:  # nothing but dead references: they get a command
            self.issued += 1
            self.expected.append((Action.KILL_REG, 0, self.dead))
            self.free += self.dead
            self.dead = []
        envelope, commands = read(take(self.log))
        assert envelope.first_seq == self.taken + 1
        assert len(commands) == envelope.last_seq - envelope.first_seq + 1
        got = [(c.action, c.reg, list(c.released)) for c in commands]
        assert got == self.expected[: len(got)]
        del self.expected[: len(got)]
        self.taken = envelope.last_seq

    @rule(worker=st.integers(0, 1), by=st.integers(0, 5))
    def acknowledge(self, worker, by):
        self.acks[worker] = min(self.taken, self.acks[worker] + by)
        self.log.acknowledge(worker, self.acks[worker])

    @invariant()
    def counts_agree(self):
        counts = self.log.statistics()
        assert counts["issued"] == self.log.last_seq == self.issued
        assert counts["acks"] == self.acks
        assert counts["acked"] == self.log.acked == min(self.acks)
        assert counts["registers"] == self.most

    @invariant()
    def lines_are_known_until_executed(self):
        if self.issued:
            assert (self.log.origin(self.issued) is None) == (self.log.acked == self.issued)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def log():
    return CommandLog(1)


def test_a_command_says_what_it_was_issued_with(log):
    """Action, registers, worker and arguments; worker 0 is not "all"."""

    def fill(command):
        command.args.add().int = 5
        return 0

    log.issue(Action.DEBUG_SET_REGISTER, fill, reg=7, workers=(0,))
    call(log)
    _, (first, second) = read(take(log))
    assert (first.action, first.reg, list(first.workers)) == (8, 7, [0])
    assert first.args[0].int == 5
    assert (second.action, second.func, second.reg, list(second.workers)) == (3, 1, 1, [])


def test_a_burst_leaves_in_batches_of_bounded_size(log, monkeypatch):
    """By number and by bytes, in order and without a gap."""
    monkeypatch.setattr(batches, "MAX_BATCH_COMMANDS", 10)
    monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 100)
    for _ in range(25):
        call(log)
    for _ in range(3):
        call(log, fill=lambda _: 60)
    ranges = []
    while not ranges or ranges[-1][1] < 28:
        envelope, _ = read(take(log))
        ranges.append((envelope.first_seq, envelope.last_seq))
    assert ranges == [(1, 10), (11, 20), (21, 27), (28, 28)]


def test_a_line_is_the_callers_own(log):
    """The file, line and function outside this package, until all have executed it."""
    seq, _ = log.issue(Action.CALL_PACKED, func=1, reg=int)
    line, scope = log.origin(seq)
    assert line.filename == __file__
    assert line.function == test_a_line_is_the_callers_own.__name__
    assert line.line == test_a_line_is_the_callers_own.__code__.co_firstlineno + 2
    take(log)
    assert log.origin(seq) == (line, scope)
    log.acknowledge(0, seq)
    assert log.origin(seq) is None
    assert log.origin(seq + 1) is None


def test_whoever_will_be_answered_is_announced_first(log):
    """Before the command can leave, and only where an answer will come."""
    call(log)
    log.issue(Action.SYNC_WORKER, reg=0, answers=4)
    assert {seq: answer.asked for seq, answer in log.answers.expected.items()} == {2: 4}


@pytest.mark.parametrize("limit", ["commands", "bytes"])
def test_a_full_window_holds_the_next_call_until_workers_catch_up(log, limit, eventually):
    """No relay on the way ever holds more than the window."""
    log.window.commands = 8 if limit == "commands" else 1000
    log.window.nbytes = 100
    if limit == "commands":
        for _ in range(8):
            call(log)
    else:
        call(log, fill=lambda _: 101)
    while not log.statistics()["bytes_under_way"] and limit == "bytes":
        take(log)
    last = log.last_seq
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (call(log), done.set()))
    waiting.start()
    assert not done.wait(0.1)
    assert log.last_seq == last
    if limit == "commands":
        take(log)
    log.acknowledge(0, last)
    eventually(done.is_set)
    waiting.join()
    assert log.last_seq == last + 1


def test_a_closed_log_lets_the_last_commands_leave(log):
    """What was issued before is taken; what comes after is refused with the reason."""
    call(log)
    log.close(SessionClosed("over"), drop=False)
    with pytest.raises(SessionClosed, match="over"):
        call(log)
    assert log.ending.told
    assert read(take(log))[0].last_seq == 1
    assert take(log) is None
    log.close(SessionClosed("again"), drop=False)
    assert str(log.closed) == "over"


def test_a_lost_log_drops_what_was_not_taken(log):
    """Nobody is left to execute it."""
    call(log)
    log.close(SessionClosed("lost"), drop=True)
    assert take(log) is None


def test_closing_wakes_who_waits_for_room(log, eventually):
    """With the reason, not with a place in the log."""
    log.window.commands = 1
    call(log)
    raised = []

    def wait():
        try:
            call(log)
        except SessionClosed as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    log.close(SessionClosed("over"), drop=True)
    eventually(lambda: raised)
    waiting.join()


def test_registers_for_several_results_are_like_any_other(log):
    """No command has them before, and they are free again when their references died."""
    first = log.allocate(3)
    assert first == [1, 2, 3]
    assert call(log)[1] == 4
    log.release(2)
    assert call(log)[1] == 2


@pytest.mark.parametrize("way", ["issue", "issue_call", "own register"])
def test_each_command_tells_which_registers_are_free(log, way):
    """Its own as well: a worker that it does not concern would keep what was in there."""
    for _ in range(2):
        call(log)
    take(log)
    log.release(1)
    log.release(2)
    if way == "issue":
        assert call(log, workers=(0,))[1] == 2
    elif way == "issue_call":
        assert log.issue_call(1, [], int) == 2
    else:
        call(log, reg=7)
    batch = take_now(log)
    released = batch.calls[1:3] if way == "issue_call" else batch.commands[0].released
    assert list(released) == [1, 2]


def test_registers_for_several_results_are_none_of_which_workers_must_be_told(log):
    """The next command tells them of all that are free."""
    call(log)
    log.release(1)
    assert log.allocate(2) == [2, 3]
    call(log)
    assert list(take_now(log).commands[1].released) == [1]


def test_a_reference_may_die_while_a_command_is_written(log):
    """The collector may run anywhere; it takes no lock that the caller holds."""
    _, register = call(log)

    def fill(_command):
        log.release(register)
        return 0

    assert call(log, fill=fill)[1] == register
    _, commands = read(take(log))
    assert list(commands[1].released) == [register]


def test_a_command_too_large_for_the_relays_is_refused(log):
    """It says what to do instead, and takes neither a number nor a register."""
    with pytest.raises(EncodingError, match="arrays"):
        call(log, fill=lambda _: command_log.MAX_COMMAND_BYTES + 1)
    assert call(log) == (1, 1)
    assert len(read(take(log))[1]) == 1


def test_many_threads_keep_one_order(log):
    """Every command gets a number of its own, and the batches hold all of them."""
    got, lock = [], threading.Lock()

    def issue():
        mine = [call(log) for _ in range(500)]
        with lock:
            got.extend(mine)

    threads = [threading.Thread(target=issue) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = 0
    while taken < 2000:
        envelope, commands = read(take(log))
        assert envelope.first_seq == taken + 1
        taken += len(commands)
    for thread in threads:
        thread.join()
    assert sorted(got) == [(n, n) for n in range(1, 2001)]


def test_arrays_beside_the_log_are_bounded_too(log):
    """Their bytes count until their command is executed, and a mark asks how far workers are."""
    log.window.beside = 100
    for _ in range(3):
        log.issue(Action.CALL_PACKED, reg=int, beside=lambda: 40)
    assert log.statistics()["array_bytes_under_way"] == 120
    _, commands = read(take(log))
    marks = [each for each in commands if each.action == Action.SYNC_WORKER]
    assert len(marks) == 3
    done = threading.Event()

    def issue():
        call(log)
        done.set()

    waiting = threading.Thread(target=issue)
    waiting.start()
    assert not done.wait(0.05)
    for worker in range(len(log.statistics()["acks"])):
        log.acknowledge(worker, log.last_seq)
    assert done.wait(20)
    waiting.join()
    assert log.statistics()["array_bytes_under_way"] == 0


def test_releases_alone_need_not_leave(log):
    """Who waits for an answer may leave them to the next command, which takes them along."""
    _, register = call(log)
    assert take_now(log, kills=False).last_seq == 1
    log.release(register)
    assert take_now(log, kills=False) is None
    call(log)
    (command,) = take_now(log, kills=False).commands
    assert list(command.released) == [register]
    log.release(register)
    assert take_now(log).commands[0].action == Action.KILL_REG


def test_a_batch_is_the_next_one_until_it_has_left(log):
    """A sender that is interrupted in between takes it again; what came meanwhile follows."""
    call(log)
    first = log.take_batch()
    call(log)
    again = log.take_batch()
    assert (again.first_seq, again.last_seq) == (first.first_seq, first.last_seq) == (1, 1)
    assert again.encode() == first.encode()
    log.left(1)
    second = log.take_batch()
    assert (second.first_seq, second.last_seq) == (2, 2)
    log.left(1)  # a second time
    assert log.take_batch() is second
    log.left(2)
    assert log.take_batch() is None


class Interruption(Exception):
    """What comes out of a call in its middle."""


def interrupt(work, place):
    """Raises in a call where Python may enter it: as a function begins, or after a call.

    Args:
        work: What is called.
        place: The number of the place, from 0.

    Returns:
        Whether there is such a place.
    """
    left = place + 1

    def enter(_frame, event, _arg):
        nonlocal left
        if event != "c_call":
            left -= 1
            if left == 0:
                raise Interruption

    former = sys.getprofile()
    sys.setprofile(enter)
    try:
        work()
    except Interruption:
        return True
    finally:
        sys.setprofile(former)
    return False


def test_an_interrupted_acknowledgement_is_completed_by_the_next():
    """Wherever it was interrupted: what is done is forgotten, and who waits for room learns."""
    places, interrupted = 0, True
    while interrupted:
        log, told = CommandLog(2, window=4), []
        for _ in range(4):
            call(log)
        take(log)
        log.acknowledge(0, 4)
        log.window.call_when_room(lambda told=told: told.append(True))
        assert log.is_full()
        interrupted = interrupt(lambda log=log: log.acknowledge(1, 4), places)
        log.acknowledge(1, 4)
        assert log.acked == 4, places
        assert log.origin(4) is None, places
        assert told, places
        assert not log.is_full(), places
        places += 1
    assert told == [True]
    assert places > 5


def test_a_plain_call_stands_in_the_column_as_whoever_reads_it_expects(log):
    """The log writes the row itself, for speed: what it releases, function, result, arguments."""
    for _ in range(3):
        log.issue_call(1, [], int)
    for register in (1, 2):
        log.release(register)
    register = log.issue_call(7, [2 * 5 + 1, 2 * -3], int)
    (*_, (seq, row)) = read_batch(1, EncodedBatch.FromString(log.take_batch().encode().payload))
    assert (seq, row) == (4, plain_call((1, 2), 7, register, (11, -6)))


@pytest.mark.parametrize("way", ["signal", "finalizer"])
@pytest.mark.parametrize("outer", ["issue", "issue_call"])
def test_what_is_issued_in_the_middle_of_another_command_follows_it(log, way, outer):
    """With a register of its own; what this thread would have to wait for is refused."""
    inner = []

    def enter(*_):
        _, register = call(log)
        inner.append(register)
        inner.append(log.issue_call(5, [2 * 7], int))
        with pytest.raises(Reentered):
            call(log, answers=1)

    class Dying:
        def __del__(self):
            enter()

    def make(register):
        if way == "finalizer":
            Dying()
        else:
            signal.raise_signal(signal.SIGUSR1)
        return register

    _, former = call(log)
    log.release(former)
    before = signal.signal(signal.SIGUSR1, enter)
    try:
        if outer == "issue":
            _, register = call(log, reg=make)
        else:
            register = log.issue_call(1, [2 * 3], make)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert call(log)[0] == 5
    assert (register, inner) == (former, [2, 3])
    batch = take_now(log)
    assert (batch.first_seq, batch.last_seq) == (1, 5)
    calls = EncodedBatch.FromString(batch.encode().payload)
    outers = [-1] if outer == "issue" else [1, former, 1, register, 1, 6]
    assert list(calls.calls) == [-1, *outers, -1, 0, 5, 3, 1, 14, -1]
    own = [command.reg for command in calls.commands]
    assert own == ([1, register, 2, 4] if outer == "issue" else [1, 2, 4])


def test_while_one_thread_is_alone_the_others_wait(log):
    """Registers of references are those that nobody has let go of."""
    done = threading.Event()

    def issue():
        call(log)
        done.set()

    with log.alone():
        waiting = threading.Thread(target=issue)
        waiting.start()
        _, register = call(log)
        assert log.live_registers() == {register}
        assert not done.wait(0.05)
        assert log.last_seq == 1
    assert done.wait(20)
    waiting.join()
    log.release(register)
    assert register not in log.live_registers()


def test_while_one_thread_interrupts_the_others_wait():
    """It needs no room itself; whoever was alone before is alone again, unless that is over."""
    log = CommandLog(2, window=2)
    alone, interrupted, lift = threading.Event(), threading.Event(), threading.Event()

    def be_alone():
        with log.alone():
            alone.set()
            lift.wait()

    call(log)
    call(log)
    for worker in range(2):
        log.acknowledge(worker, 1)
    first = in_thread(be_alone)
    alone.wait()
    under_way, bar = log.begin_interrupt()
    assert (under_way.after, under_way.until, len(under_way.sites)) == (1, 2, 1)
    assert under_way.site(1) is under_way.site(3) is None
    for _ in range(3):
        call(log)
    waiting = in_thread(lambda: (call(log), interrupted.set()))
    log.lift(bar)
    assert not interrupted.wait(0.1)
    lift.set()
    first.join()
    for worker in range(2):
        log.acknowledge(worker, 5)
    waiting.join()
    assert log.last_seq == 6


def test_a_restart_forgets_what_was_issued_and_keeps_registers_and_numbers(log):
    """Calls that waited for room ask then whether they have to wait, and may learn why."""
    log.window.commands = 3
    learned = []

    class Replaced(Exception):
        pass

    def barred():
        raise Replaced

    barred.exclusive, barred.over = True, False

    def issue():
        try:
            call(log)
        except Replaced as error:
            learned.append(error)

    _, sent = call(log)
    assert take_now(log).last_seq == 1
    _, dead = call(log)
    call(log, beside=lambda: 1000)
    log.release(dead)
    waiting = threading.Thread(target=issue)
    waiting.start()
    abandoned = log.restart(barred, 3)
    waiting.join(20)
    assert len(learned) == 1
    here = current_scope(log)
    assert (abandoned.last, abandoned.live) == (3, {sent, sent + 2})
    assert abandoned.issuers == abandoned.makers == {here}
    assert log.take_batch() is None
    assert log.statistics()["acks"] == [3, 3, 3], "other workers, and as many as there are now"
    assert log.statistics()["array_bytes_under_way"] == 0
    log.window.bar = None
    log.window.wake_callers()
    assert call(log) == (4, dead)
    assert log.take_batch().first_seq == 4


def test_a_mark_waits_for_nobody(log):
    """Whoever recovers a session must not wait for room that workers are to make."""
    log.window.commands = 1
    call(log)
    log.mark()
    _, commands = read(take(log))
    assert [each.action for each in commands] == [Action.CALL_PACKED, Action.SYNC_WORKER]
    log.close(SessionClosed("over"), drop=False)
    log.mark()
    assert log.last_seq == 2
