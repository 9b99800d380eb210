"""How ranks agree to begin, over a network that exists only in this file."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from disco_server.collectives.preflight import (
    Channel,
    Decision,
    Outcome,
    Preflight,
    RoundHeader,
    decide,
)
from disco_server.collectives.validation import CollectiveSignature

CALL = RoundHeader(1, 5, 0, 1, 2, 3, 0, 0)
RANKS = 4
CHANNELS = [(0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3), (0, 3), (1, 2)]
# The pairs (0, 1) and (2, 3) are channels apart from the groups of the same ranks.
CHANNELS += [(0, 1), (2, 3)]
# Channels that begin when a command makes them, in orders of their own.
LATER = dict(enumerate([(2, 0), (1, 3), (3, 1, 0), (0, 1, 2, 3)], start=len(CHANNELS)))
MAKES = 100
"""Added to the number of a channel: the collective of all that makes it."""


def token(seq: int, blame: tuple[int, int] = (-2, -1)) -> RoundHeader:
    return RoundHeader(0, seq, 0, 0, 0, 0, *blame)


def test_equal_calls_run():
    """Calls that agree in everything run."""
    assert decide([(0, CALL), (1, CALL)], CALL).kind is Outcome.RUN


def test_odd_calls_are_named():
    """The ranks outside the largest party are the odd ones."""
    other = CALL._replace(elements=4)
    headers = [(0, other), (1, CALL), (2, CALL)]
    assert decide(headers, CALL) == Decision(Outcome.MISMATCH, (0,))
    assert decide([(0, CALL), (1, other)], CALL) == Decision(Outcome.MISMATCH, (1,))


def test_tags_are_compared():
    """Another tag is as odd as another count; whoever has none is told that others have one."""
    tagged = CALL._replace(call=7)
    assert decide([(0, tagged), (1, tagged)], tagged).kind is Outcome.RUN
    headers = [(0, tagged), (1, CALL), (2, tagged)]
    odd = Decision(Outcome.MISMATCH, (1,), tagged=True)
    assert decide(headers, tagged) == decide(headers, CALL) == odd
    wrong = [(0, CALL), (1, CALL._replace(wrong=1))]
    assert not decide(wrong, CALL).tagged


def test_wrong_calls_are_named():
    """A rank whose own check failed is the odd one, whatever the others brought."""
    wrong = CALL._replace(wrong=1)
    assert decide([(0, wrong), (1, wrong), (2, CALL)], CALL).workers == (0, 1)
    assert decide([(0, wrong), (1, wrong)], wrong).kind is Outcome.MISMATCH


def test_calls_of_different_commands_differ():
    """Two calls of one kind in two commands must not meet."""
    assert decide([(0, CALL), (1, CALL._replace(seq=7))], CALL).kind is Outcome.MISMATCH


def test_old_tokens_repeat():
    """A token from before the command says that its rank may still come."""
    assert decide([(0, CALL), (1, token(4))], CALL).kind is Outcome.REPEAT


def test_tokens_abort():
    """A token of the command or a later one aborts and names its rank."""
    headers = [(0, CALL), (1, token(5)), (2, token(3)), (3, token(9))]
    assert decide(headers, CALL) == Decision(Outcome.ABORTED, (1, 3))


def test_blame_goes_to_the_first_cause():
    """A rank that was itself aborted in the command names who was to blame."""
    headers = [(0, CALL), (1, token(5, (5, 3))), (2, token(6, (6, 0))), (3, token(5))]
    assert decide(headers, CALL).workers == (2, 3)


@dataclass
class Network:
    """Keeps what each member of a channel posted, round by round."""

    members: tuple[int, ...]
    posts: dict[int, list[bytes]] = field(default_factory=dict)


class Wire:
    """One rank's end of a channel."""

    def __init__(self, network: Network, rank: int) -> None:
        self._network = network
        self._rank = rank
        self._mine = network.posts.setdefault(rank, [])
        self._others = [member for member in network.members if member != rank]
        self._headers = b""
        self.replayed = False

    def start(self, header: bytes) -> None:
        if not self.replayed:
            assert self.test(), "a rank posted before its last round was complete"
            self._mine.append(bytes(header))

    def test(self) -> bool:
        count = len(self._mine)
        if any(len(self._network.posts.get(other, ())) < count for other in self._others):
            return False
        if count:
            posts = self._network.posts
            self._headers = b"".join(posts[rank][count - 1] for rank in self._network.members)
        return True

    def headers(self) -> bytes:
        return self._headers

    def meet(self, header: bytes, gives_way: Callable[[], bool]) -> bytes:
        self.start(header)
        if not self.test():
            assert gives_way()
            return b""
        return self.headers()


@dataclass
class Progress:
    """How far a rank is, and up to which command the program has interrupted it."""

    position: int = -1
    until: int = -1

    @property
    def interrupted(self) -> bool:
        return self.position <= self.until


@dataclass
class Rank:
    """One rank that executes a log; its generator yields wherever a real one waits."""

    rank: int
    preflight: Preflight
    channels: dict[int, Channel]
    networks: dict[int, Network]
    made: set[int] = field(default_factory=set)
    lacked: set[int] = field(default_factory=set)
    ran: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    decisions: dict[tuple[int, int], Decision] = field(default_factory=dict)

    def enter(self, channel: Channel, problem: str = "") -> Generator[None, None, Decision]:
        header = self.preflight.next_header(channel, CollectiveSignature(1, 2, 3, problem))
        wire = channel.exchange
        assert isinstance(wire, Wire)
        short = not (
            self.preflight.busy
            or channel.pending
            or problem
            or self.preflight.cannot_come
            or self.preflight.participants
        )
        if short:
            wire.start(header)
            progress, preflight = self.preflight.progress, self.preflight
            while not wire.test() and not (
                progress.interrupted and progress.position > preflight.failed
            ):
                yield
            # The round is complete, or it gives way, so the real code can run without blocking.
            wire.replayed = True
            agreed = self.preflight.enter_now(channel, header, b"")
            wire.replayed = False
            if agreed:
                return Decision(Outcome.RUN)
        return (yield from self.preflight.negotiate(channel, header, posted=short))

    def make(self, number: int, problem: str) -> Generator[None, None, Decision]:
        """Makes a channel as `teams` does; with a problem, this rank cannot build its end."""
        decision = yield from self.enter(self.channels[0])
        if decision.kind is Outcome.RUN and number not in self.made:
            decision = yield from self.enter(self.channels[0], problem)
            if decision.kind is Outcome.RUN:
                self.made.add(number)
                if self.rank in LATER[number]:
                    wire = Wire(self.networks[number], self.rank)
                    self.channels[number] = self.preflight.add_channel(LATER[number], wire)
        return decision

    def execute(self, log: Log) -> Generator[None, None, None]:
        for seq, command in enumerate(log.commands, start=1):
            self.preflight.position = seq
            self.preflight.participants = log.chosen.get(seq)
            if self.rank in log.chosen.get(seq, (self.rank,)):
                yield from self.run_command(seq, command, log)

    def run_command(self, seq: int, command: list[int], log: Log) -> Generator[None, None, None]:
        failed = False
        fate = log.fates.get((seq, self.rank))
        for index, number in enumerate(command):
            if fate == index:
                failed = True
                break
            if self.rank in LATER.get(number, ()) and number not in self.made:
                # What the team would be used by has nothing to use.
                self.lacked.add(seq)
                failed = True
                break
            if number >= MAKES:
                problem = "broken" if (seq, self.rank) in log.broken else ""
                decision = yield from self.make(number - MAKES, problem)
            elif number in self.channels:
                decision = yield from self.enter(self.channels[number])
            else:
                continue
            self.decisions[seq, index] = decision
            if decision.kind is Outcome.RUN:
                self.ran.setdefault(number, []).append((seq, index))
            else:
                failed = True
                if not log.catches:
                    break
        if failed or fate is not None:
            self.preflight.cannot_enter(seq)
        for _ in range(log.idle):
            self.preflight.poll()
            yield


@dataclass(frozen=True)
class Log:
    """What the session executes: channels of each command, and who fails before which.

    Who is in `broken` cannot build its end of the channels that the command makes. Commands
    in `chosen` are executed by these ranks alone.
    """

    commands: list[list[int]]
    fates: dict[tuple[int, int], int]
    idle: int
    catches: bool
    seed: int
    broken: frozenset[tuple[int, int]] = frozenset()
    chosen: dict[int, frozenset[int]] = field(default_factory=dict)


def make_ranks() -> list[Rank]:
    networks = {number: Network(members) for number, members in enumerate(CHANNELS)}
    later = {number: Network(members) for number, members in LATER.items()}
    ranks: list[Rank] = []
    for rank in range(RANKS):
        preflight = Preflight(rank)
        channels = {
            number: preflight.add_channel(network.members, Wire(network, rank))
            for number, network in networks.items()
            if rank in network.members
        }
        ranks.append(Rank(rank, preflight, channels, later))
    return ranks


def run_all(steps: dict[int, Generator[None, None, None]], ranks: list[Rank], seed: int) -> None:
    """Steps the ranks in random order until all are done; those that are done idle."""
    chance = random.Random(seed)
    done: set[int] = set()
    for _ in range(60_000):
        if len(done) == len(steps):
            return
        rank = chance.randrange(RANKS)
        # Bursts, because a rank alone may run far ahead.
        for _ in range(chance.choice((1, 1, 2, 30))):
            if rank in done:
                ranks[rank].preflight.poll()
            elif next(steps[rank], StopIteration) is StopIteration:
                done.add(rank)
    stuck = {
        each.rank: (each.preflight.position, each.preflight.failed)
        for each in ranks
        if each.rank not in done
    }
    raise AssertionError(f"these ranks wait for ever: {stuck}")


CHANNEL = st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
LATE_CHANNEL = st.sampled_from([*LATER])
ANY_CHANNEL = st.one_of(CHANNEL, LATE_CHANNEL, LATE_CHANNEL.map(lambda number: MAKES + number))


@st.composite
def logs(draw: st.DrawFn, channel: st.SearchStrategy[int], catches: st.SearchStrategy[bool]) -> Log:
    commands = draw(st.lists(st.lists(channel, max_size=3), min_size=1, max_size=8))
    fates = {
        (seq, rank): draw(st.integers(0, len(command)))
        for seq, command in enumerate(commands, start=1)
        for rank in draw(st.sets(st.integers(0, RANKS - 1), max_size=RANKS))
        if draw(st.booleans())
    }
    makers = [seq for seq, command in enumerate(commands, 1) if max(command, default=0) >= MAKES]
    broken = frozenset((seq, draw(st.integers(0, 3))) for seq in makers if draw(st.booleans()))
    idle, seed = draw(st.integers(0, 3)), draw(st.integers(0, 2**32))
    return Log(commands, fates, idle, draw(catches), seed, broken)


# A function that catches an aborted collective's error and enters another channel.
CAUGHT = Log(
    [[], [0], [8], [0, 2, 0]],
    {(1, 0): 0, (1, 2): 0, (2, 1): 0, (2, 2): 1, (3, 0): 1, (3, 1): 0, (3, 3): 1, (4, 0): 0},
    idle=0,
    catches=True,
    seed=2,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@example(CAUGHT)
@given(logs(CHANNEL, st.booleans()))
def test_every_collective_of_every_log_ends(log: Log):
    """Whoever fails whichever command, no rank waits for ever, and only equals meet.

    On all members of a channel the same collectives run in the same order; a command
    that no rank failed runs everywhere; whoever is named in an error did fail.
    """
    execute(log)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(logs(ANY_CHANNEL, st.just(False)))
def test_every_log_ends_in_which_channels_begin(log: Log):
    """The same where commands make channels, whoever fails them or cannot build its end.

    Such a channel is there on all its members or on none.
    """
    execute(log)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    logs(CHANNEL, st.booleans()),
    st.dictionaries(st.integers(1, 8), st.frozensets(st.integers(0, RANKS - 1), min_size=1)),
)
def test_every_log_ends_of_which_some_commands_are_for_chosen_ranks(
    log: Log, chosen: dict[int, frozenset[int]]
):
    """The same where ranks skip commands: a call that needs one of them is left out, at once.

    Which ranks it needs is all of them, and one that needs none of them runs.
    """
    fates = {
        (seq, rank): fate
        for (seq, rank), fate in log.fates.items()
        if rank in chosen.get(seq, (rank,))
    }
    execute(replace(log, fates=fates, chosen=chosen))


def execute(log: Log) -> None:
    ranks = make_ranks()
    run_all({rank.rank: rank.execute(log) for rank in ranks}, ranks, log.seed)
    assert all(rank.made == ranks[0].made for rank in ranks)
    for number, members in [*enumerate(CHANNELS), *LATER.items()]:
        runs = [ranks[member].ran.get(number, []) for member in members]
        assert all(run == runs[0] for run in runs), f"channel {number}: {runs}"
    for rank in ranks:
        for (seq, index), decision in rank.decisions.items():
            if seq in log.chosen:
                missing = set(CHANNELS[log.commands[seq - 1][index]]) - log.chosen[seq]
                assert (decision.kind is Outcome.LEFT_OUT) == bool(missing)
                if missing:
                    assert set(decision.workers) == missing
                    continue
                if any(each.kind is Outcome.LEFT_OUT for each in decisions_in(ranks, seq)):
                    continue  # which fails the command on that rank
            broken = {other for other in range(RANKS) if (seq, other) in log.broken}
            lacking = {other.rank for other in ranks if seq in other.lacked}
            failed = {other for other in range(RANKS) if (seq, other) in log.fates} | lacking
            if not failed | broken:
                assert decision.kind is Outcome.RUN, f"{decision} in sound command {seq}"
            elif not log.catches:
                odd = decision.kind is Outcome.MISMATCH
                assert set(decision.workers) <= (broken if odd else failed)
    run_all({rank.rank: rank.preflight.leave() for rank in ranks}, ranks, log.seed)
    assert not any(channel.pending for rank in ranks for channel in rank.channels.values())


def decisions_in(ranks: list[Rank], seq: int) -> list[Decision]:
    """What became of all calls of a command."""
    return [
        decision
        for rank in ranks
        for (command, _), decision in rank.decisions.items()
        if command == seq
    ]


def test_a_channel_that_begins_late_knows_no_failures_of_before():
    """A rank that failed a command has no token in it, and needs none."""
    log = Log([[], [0], [MAKES + 9], [9], [9]], {(1, 2): 0, (4, 2): 0}, 0, catches=False, seed=2)
    ranks = make_ranks()
    run_all({rank.rank: rank.execute(log) for rank in ranks}, ranks, 2)
    assert [rank.ran.get(9) for rank in ranks] == [[(5, 0)], None, [(5, 0)], None]
    assert ranks[0].decisions[4, 0] == Decision(Outcome.ABORTED, (2,))


def test_a_rank_may_be_far_ahead_in_a_channel_that_others_have_not_begun():
    """It enters and fails there while a peer has seen the agreement, but not yet returned."""
    log = Log([[MAKES + 9], [9], []], {(2, 0): 1, (3, 0): 0}, 0, catches=False, seed=3)
    ranks = make_ranks()
    steps = {rank.rank: rank.execute(log) for rank in ranks}
    for _ in range(2):
        for rank in (1, 2, 3, 0):
            next(steps[rank], None)
    while ranks[0].preflight.position < 2:
        next(steps[0])
        for rank in (1, 3):
            next(steps[rank], None)
    assert 9 in ranks[0].channels
    run_all(steps, ranks, 3)
    assert [rank.ran.get(9) for rank in ranks] == [[(2, 0)], None, [(2, 0)], None]


def test_tokens_are_quiet_once_all_are_past_them():
    """After one failure of one rank, the next collective of all ends the polling."""
    log = Log([[], [0], [0]], {(1, 2): 0}, 1, catches=False, seed=1)
    ranks = make_ranks()
    steps = {rank.rank: rank.execute(log) for rank in ranks}
    for rank in ranks:
        next(steps[rank.rank])
    assert [rank.preflight.busy for rank in ranks] == [False, False, True, False]
    run_all(steps, ranks, 1)
    assert not any(rank.preflight.busy for rank in ranks)
    assert [rank.ran[0] for rank in ranks] == [[(2, 0), (3, 0)]] * RANKS


def test_a_rank_that_went_past_without_failing_is_noticed():
    """A token of an earlier failure tells its rank of a call that it passed."""
    ranks = make_ranks()
    ranks[3].preflight.position = 1
    ranks[3].preflight.cannot_enter(1)
    ranks[3].preflight.position = 4
    for rank in ranks[:3]:
        rank.preflight.position = 4
    waits = [rank.enter(rank.channels[0]) for rank in ranks[:3]]
    ended: list[Decision] = []
    for _ in range(10):
        for steps in list(waits):
            try:
                next(steps)
            except StopIteration as stop:
                ended.append(stop.value)
                waits.remove(steps)
        ranks[3].preflight.poll()
    assert ended == [Decision(Outcome.ABORTED, (3,))] * 3


PLAN = st.lists(st.lists(CHANNEL, max_size=3), min_size=1, max_size=4)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.tuples(PLAN, PLAN, PLAN, PLAN), st.integers(0, 60), st.booleans(), st.integers(0, 2**32))
def test_interrupted_ranks_release_each_other(plans, when: int, catches: bool, seed: int):
    """Whatever the ranks wait for, an interrupt ends it, and the next collective runs on all.

    Each rank has its own plan of collectives, so that they may wait for each other for ever.
    """
    ranks = make_ranks()
    last = max(map(len, plans))
    for rank in ranks:
        rank.preflight.progress = Progress()
    steps = {
        rank.rank: interrupted(rank, plan, last, when, catches)
        for rank, plan in zip(ranks, plans, strict=True)
    }
    run_all(steps, ranks, seed)
    assert all(rank.decisions[last + 1, 0].kind is Outcome.RUN for rank in ranks)
    for number, members in enumerate(CHANNELS):
        ran = [[seq for seq, _ in ranks[member].ran.get(number, ())] for member in members]
        assert ran == ran[:1] * len(members)


def interrupted(
    rank: Rank, plan: list[list[int]], last: int, when: int, catches: bool
) -> Generator[None, None, None]:
    """Runs a plan until the rank is interrupted, which it notices after so many steps."""
    progress, taken = rank.preflight.progress, 0
    assert isinstance(progress, Progress)

    def step() -> None:
        nonlocal taken
        taken += 1
        if taken >= when:
            progress.until = last

    for seq in range(1, last + 1):
        progress.position = seq
        if progress.interrupted:
            rank.preflight.cannot_enter(last)
        elif seq <= len(plan):
            for _ in run_interrupted(rank, plan[seq - 1], last, catches):
                step()
                yield
    while progress.until < last:  # it has nothing to do, and is told later
        rank.preflight.poll()
        step()
        yield
    progress.position = last + 1
    rank.preflight.cannot_enter(last)
    rank.decisions[last + 1, 0] = yield from rank.enter(rank.channels[0])


TIMES = st.tuples(*[st.lists(st.integers(0, 12), min_size=4, max_size=4) for _ in range(RANKS)])


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.tuples(PLAN, PLAN, PLAN, PLAN), TIMES, st.integers(1, 15), st.integers(0, 2**32))
def test_ranks_whose_limits_pass_release_each_other(plans, late, limit: int, seed: int):
    """Each rank ends each command for itself, and looks at no channel when it is not busy."""
    ranks = make_ranks()
    last = max(map(len, plans))
    for rank in ranks:
        rank.preflight.progress = Progress()
    steps = {
        rank.rank: limited(rank, plan, last, waits, limit)
        for rank, plan, waits in zip(ranks, plans, late, strict=True)
    }
    run_all(steps, ranks, seed)
    assert all(rank.preflight.position == last for rank in ranks)


def limited(
    rank: Rank, plan: list[list[int]], last: int, late: list[int], limit: int
) -> Generator[None, None, None]:
    """Runs a plan in which each command begins late, and ends after so many steps."""
    progress = rank.preflight.progress
    assert isinstance(progress, Progress)
    for seq in range(1, last + 1):
        progress.position = seq
        wait = itertools.repeat(None, late[seq - 1])
        command = plan[seq - 1] if seq <= len(plan) else []
        calls = run_interrupted(rank, command, seq, catches=False)
        for taken, _ in enumerate(itertools.chain(wait, calls)):
            if taken >= limit:
                progress.until = seq
            yield
        rank.preflight.cannot_enter(seq)


def run_interrupted(
    rank: Rank, command: list[int], last: int, catches: bool
) -> Generator[None, None, None]:
    """Enters the collectives of a command, of which an error or an interrupt is the end."""
    progress = rank.preflight.progress
    seq = progress.position
    for index, number in enumerate(command):
        if number not in rank.channels:
            continue
        decision = yield from rank.enter(rank.channels[number])
        if decision.kind is Outcome.RUN:
            rank.ran.setdefault(number, []).append((seq, index))
        if not catches and (decision.kind is not Outcome.RUN or progress.interrupted):
            rank.preflight.cannot_enter(max(seq, last) if progress.interrupted else seq)
            return
