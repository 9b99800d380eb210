"""How the ranks of a collective agree to begin it, without I/O.

Channels and rounds
----------------
A channel is a fixed set of ranks that take part in collectives: all workers, a group, or
the two ends of a transfer. Its life is a sequence of rounds; in each round every
rank of the channel posts exactly one header of eight numbers and then sees the headers of
all. A header is one of two things:

- a call: "in command `seq` I am about to enter my `nth` collective of this channel,
  and this is what I bring";
- a token: "I am done with every command up to `seq`". A rank that failed or
  skipped a command posts it without waiting (`Preflight.cannot_enter`).

All ranks see the same headers, so each can decide alone what the others decide too.
For a rank with a call in command H:

- a token with seq >= H came: its rank will never enter H, the call is *aborted*;
- tokens came, all older: their ranks may still come to H, the round is *repeated*;
- only calls came, all equal and without a problem: *run*;
- only calls came, but they differ: *mismatch*.

A rank with a token determines whether a peer might still wait for it. Each header says
how far its rank is: its *floor*, the first command in which that rank can enter
anything later, is H for a call of H and seq + 1 for a token. The floor of a token holds for
its channel only: a rank whose command was interrupted posts tokens in all other channels
while it waits in one with a call. If some floor is not beyond the last command that this
rank failed, or its own token was older than that, it posts a token again; so it does
if a call of a command came that it passed for any other reason. A rank that wants
to enter a collective first lets its pending token complete, as often as it takes.

Why this is right
-----------------
*Only equal calls run.* Run needs a round in which every rank posted an equal call,
and all ranks see that round; each then does the data operation, on a communicator of
its own, before it posts again. So the data operations of a channel happen in the
order of its rounds on every rank and their data never mixes.

*No call is aborted that could have run.* Say A's call (H, nth) meets C's token with
seq >= H in round k. C is done with H. Had C entered its own (H, nth) in a round
before k, then A posted in that round something else: an older token, then C
repeated and was not done; an older call, then both saw a mismatch, and C failed H.
So C never entered it together with A, and now never will.

*Every call ends.* A call in round k waits until all ranks of the channel post in k. A
rank that reaches the channel posts; a rank that fails a command posts a token or has
one pending; a rank whose token completes posts again while any peer's floor says that
the peer might wait for a command it failed. So in every round in which a rank waits,
all ranks that are done with its command have posted, and the others will either
enter or fail. A repeat needs an older token in that round, each rank posts older
tokens only while its own progress grows, and the log is finite. While a rank waits
in one channel it serves the tokens of all its other channels, otherwise two ranks could
wait for each other through two channels.

*An aborted rank is done with the command.* A rank posts a token for the command of a call
that was aborted as if it had failed the command, and further calls in it are aborted
without a round, also where its function catches the error. Otherwise it could wait in a
second channel for a peer that had an older token in the round, comes to the first call
later, and waits there for it.

*No call meets a call of another command* unless the ranks' programs differ: a rank posts a
call for a later command only when it has no pending token, that is, when all
floors have gone beyond what it failed.

Channels that begin later
----------------------
A channel may begin while the session runs (`group.Teams`): its members add it when a call of
all workers has run, in a command M, before they do anything else. Then all of the
above holds for it as if it had existed from the beginning:

- *All its members have it, or none.* They see the same round and decide the same. One
  that has not yet added it waits for no peer before it does, so a rank that posts early
  in it waits for a rank that will come.
- *No token is missing in it.* A rank that failed a command F before would have one
  pending there. It would inform ranks that wait in F or earlier; but calls in this channel
  are of M or later, and F < M, because tokens are posted for commands that are over.
  A rank that fails M or anything later posts a token in all channels, this one included.
- *Floors* of calls are those of ranks, in whatever channel they were seen, so what is known
  of a rank holds in the new channel as well; those of tokens are of one channel. `busy` is about
  pending tokens only, of which a new channel has none.
- *A rank that leaves has it.* A rank leaves after its last command, M among them, so each
  channel is left by all its members.

What carries the headers of a new channel must hold a header of a member until another one looks
for it; therefore all members have built their ends before the call that begins it.

Commands of chosen workers
--------------------------
A command may be one that only some workers execute, which all of these know. A call in a
channel with another member is *left out*: the rank posts nothing, and no round takes place.
All that it could have met there is left out likewise, so nothing is waited for; the rank is
not done with the command, and may enter channels whose members all execute it. To these
all of the above applies.

Interrupted commands
--------------------
A rank whose command H the program interrupts while it waits in a channel cannot take its call
back, but enters nothing else in H: it posts a token of H in all its other channels, as if it had
failed, and in this one when the call is over. The call itself ends as above: it runs, or a peer's
token aborts it; where it would be repeated, the rank posts its token instead, which aborts it for
all. So ranks that wait for each other in several channels, as around a ring, release each other.

What it cannot detect: a rank that goes past a collective without failing and stays
idle. Its peers wait until it reaches another collective of that channel (mismatch)
or fails; where all commands have a limit, until it has been idle for longer than that
(`GonePast` of `rank.time_limits`). Likewise ranks that enter two channels in different orders.

A pending token costs nothing until its peers come, but the rank must test whether
it completed while it could matter: it does while some peer's floor, as far as it is
known from tokens of its channel or calls in any, is not beyond the last
failed command. `Preflight.busy` says whether there is such a token; only then do waits
become polls.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from disco_server.collectives.validation import CollectiveSignature

__all__ = [
    "HEADER_BYTES",
    "Channel",
    "CommandPosition",
    "Decision",
    "Exchange",
    "Outcome",
    "Preflight",
    "RoundHeader",
    "decide",
]

_LAYOUT = struct.Struct("8q")
HEADER_BYTES = _LAYOUT.size
_DONE_WITH_ALL = 2**62
pack_header = _LAYOUT.pack


class RoundHeader(NamedTuple):
    """What one rank posts in one round.

    Attributes:
        call: 0 for a token. A call has here the checksum of its tag, 1 without one; so a tag needs
            no room of its own.
        seq: The command of the call, or the last command the rank is done with.
        nth: Which collective of the channel in that command, from 0.
        op: The operation, as in `CollectiveSignature`.
        dtype: The code of its dtype.
        elements: How many are in one part.
        wrong: 1 if the rank's own check failed. A token has here the command in
            which it was aborted last.
        extra: What else must agree. A token has here the worker that was to blame.
    """

    call: int
    seq: int
    nth: int = 0
    op: int = 0
    dtype: int = 0
    elements: int = 0
    wrong: int = 0
    extra: int = 0

    @property
    def floor(self) -> int:
        """The first command in which this rank can still enter anything."""
        return self.seq if self.call else self.seq + 1


class Outcome(Enum):
    """The outcome of a call after a round."""

    RUN = "run"
    REPEAT = "repeat"
    ABORTED = "aborted"
    LEFT_OUT = "left out"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a call, and the ranks that caused it.

    Attributes:
        kind: What happens next.
        workers: The ranks that failed, or the odd ones; in order.
        tagged: In a mismatch, whether some rank's call has a tag.
    """

    kind: Outcome
    workers: tuple[int, ...] = ()
    tagged: bool = False


_RUN = Decision(Outcome.RUN)
_REPEAT = Decision(Outcome.REPEAT)


def decide(headers: Sequence[tuple[int, RoundHeader]], mine: RoundHeader) -> Decision:
    """Decides the outcome of a call.

    Args:
        headers: Each rank of the channel with what it posted, this one included.
        mine: The call this rank posted.
    """
    tokens = [(worker, header) for worker, header in headers if not header.call]
    blamed = {
        header.extra if header.wrong == mine.seq else worker
        for worker, header in tokens
        if header.seq >= mine.seq
    }
    if blamed:
        return Decision(Outcome.ABORTED, tuple(sorted(blamed)))
    if tokens:
        return _REPEAT
    wrong = [worker for worker, header in headers if header.wrong]
    if not wrong and all(header == mine for _, header in headers):
        return _RUN
    odd = tuple(sorted(wrong)) or _find_odd(headers)
    return Decision(Outcome.MISMATCH, odd, any(header.call > 1 for _, header in headers))


def _find_odd(headers: Sequence[tuple[int, RoundHeader]]) -> tuple[int, ...]:
    """Finds the ranks outside the largest set; of equally large ones the lowest rank's counts."""
    parties: dict[RoundHeader, list[int]] = {}
    for worker, header in sorted(headers):
        parties.setdefault(header, []).append(worker)
    largest = max(parties.values(), key=len)
    return tuple(sorted(worker for worker, _ in headers if worker not in largest))


class Exchange(Protocol):
    """Carries the headers of one channel's rounds; one round at a time."""

    def start(self, header: bytes) -> None:
        """Posts this rank's header of the next round; returns at once.

        Args:
            header: `HEADER_BYTES` of header, perhaps with something behind it that only the
                exchange understands.
        """

    def test(self) -> bool:
        """Whether the round is complete."""
        ...

    def meet(self, header: bytes, gives_way: Callable[[], bool] = ...) -> bytes:
        """Posts a header, waits until the round is complete and returns its `headers`.

        Args:
            header: As of `start`.
            gives_way: Whether to wait no longer; then nothing is returned, and `test` says later
                whether the round is complete.
        """
        ...

    def headers(self) -> bytes:
        """After a round: the headers of all ranks of the channel, in the order of its members."""
        ...


@dataclass(slots=True, eq=False)
class Channel:
    """One rank's view of a channel.

    Attributes:
        members: The worker ids of its ranks, in the order of their headers.
        exchange: Carries their headers.
        pending: A token was posted and its round is not complete.
        ran: The last command in which a collective of this channel began.
        seq: The command `nth` counts in.
        nth: How many collectives of that command were entered here.
        entered: How many collectives of all commands were.
        floors: The floor of each rank by its tokens here. They say nothing of other channels, in
            one of which the rank may still wait with a call.
    """

    members: tuple[int, ...]
    exchange: Exchange
    pending: bool = False
    ran: int = -1
    seq: int = -1
    nth: int = 0
    entered: int = 0
    floors: dict[int, int] = field(default_factory=dict[int, int])


class CommandPosition(Protocol):
    """Says how far a rank is: `rank.signals.CallGuard` does.

    Attributes:
        position: The command being executed, or the last one.
    """

    position: int

    @property
    def interrupted(self) -> bool:
        """Whether the program has interrupted that command."""
        ...


@dataclass(slots=True)
class _OwnPosition:
    """That of a rank which says so itself; see `Preflight.position`."""

    position: int = -1
    interrupted: bool = False


@dataclass(slots=True, eq=False)
class Preflight:
    """One rank's part in the rounds of all its channels.

    Attributes:
        me: The worker id of this rank.
        channels: Every channel with peers.
        progress: Knows the command being executed, or the last one.
        failed: The last command that this rank failed or skipped.
        busy: A pending token must be polled.
        participants: The workers that execute the command, where these were chosen.
    """

    me: int
    channels: list[Channel] = field(default_factory=list[Channel])
    progress: CommandPosition = field(default_factory=_OwnPosition)
    failed: int = -1
    busy: bool = False
    participants: frozenset[int] | None = None
    _floors: dict[int, int] = field(default_factory=dict[int, int])
    _blame: tuple[int, int] = (-2, -1)
    _owed: Channel | None = None

    @property
    def position(self) -> int:
        """The command being executed, or the last one; -1 before any."""
        return self.progress.position

    @position.setter
    def position(self, seq: int) -> None:
        self.progress.position = seq

    @property
    def cannot_come(self) -> bool:
        """Whether this rank has posted that it enters nothing more in this command."""
        return 0 <= self.position <= self.failed

    def left_out(self, channel: Channel) -> tuple[int, ...]:
        """The members of a channel that do not execute the command, in order."""
        chosen = self.participants
        return () if chosen is None else tuple(sorted(set(channel.members) - chosen))

    def add_channel(self, members: Sequence[int], exchange: Exchange) -> Channel:
        """Begins a channel of these ranks, this one among them, in the order of its headers."""
        channel = Channel(tuple(members), exchange)
        self.channels.append(channel)
        return channel

    def next_header(self, channel: Channel, signature: CollectiveSignature) -> bytes:
        """Makes the header of the next call in a channel.

        Args:
            channel: Where it is about to enter.
            signature: What this rank brings.
        """
        seq = self.progress.position
        if channel.seq != seq:
            channel.seq = seq
            channel.nth = 0
        nth = channel.nth
        channel.nth = nth + 1
        op, dtype, elements, problem, _, extra, _, tag, _ = signature
        return pack_header(tag, seq, nth, op, dtype, elements, problem != "", extra)

    def enter_now(self, channel: Channel, header: bytes, payload: bytes) -> bool:
        """Enters by the fast path: one round, waited for.

        Args:
            channel: Where to enter; with no pending token, and not while `busy`.
            header: What `next_header` made of a sound signature.
            payload: Stands behind the header; see `Exchange.start`.

        Returns:
            Whether the call may run. If not, the round is complete, or the command was
            interrupted, and `negotiate` with `posted` must carry on.
        """
        met = channel.exchange.meet(header + payload, self._gives_way)
        if met == header * len(channel.members):
            channel.ran = channel.seq
            return True
        return False

    def negotiate(
        self, channel: Channel, header: bytes, *, posted: bool = False
    ) -> Generator[None, None, Decision]:
        """Enters by the slow path; yields whenever it would have to wait.

        Args:
            channel: Where to enter.
            header: What `next_header` made, perhaps with more behind it.
            posted: `enter_now` has posted it.

        Returns:
            Run, aborted, left out or mismatch.
        """
        left_out = self.left_out(channel)
        if left_out:
            channel.nth -= 1  # to the others it does not count, and the command may go on
            return Decision(Outcome.LEFT_OUT, left_out)
        if self.cannot_come:
            seq, worker = self._blame
            return Decision(Outcome.ABORTED, (worker if seq == self.position else self.me,))
        if not posted:
            yield from self._let_pass(channel)
            if self.cannot_come:  # it was interrupted meanwhile
                return Decision(Outcome.ABORTED, (self.me,))
        mine = RoundHeader._make(_LAYOUT.unpack_from(header))
        while True:
            if not posted:
                channel.exchange.start(header)
            yield from self._wait(channel)
            posted = False
            decision = decide(self._read(channel), mine)
            if decision.kind is Outcome.REPEAT and self.cannot_come:  # it was interrupted meanwhile
                decision = Decision(Outcome.ABORTED, (self.me,))
            if decision.kind is not Outcome.REPEAT:
                break
        if decision.kind is Outcome.ABORTED:
            self._blame = (mine.seq, decision.workers[0])
            self.cannot_enter(mine.seq)
        elif decision.kind is Outcome.RUN:
            channel.ran = mine.seq
        self._look_around()
        return decision

    def cannot_enter(self, seq: int, inside: Channel | None = None) -> None:
        """Posts a token in every channel that has none pending, once for a command.

        Args:
            seq: The command.
            inside: The channel in which this rank has posted a call of that command; it gets its
                token when that is over.
        """
        former, self._owed = self._owed, inside
        if seq > self.failed:
            self.failed = seq
            self._serve(inside, self.position - 1)
            due = [channel for channel in self.channels if channel is not inside]
        else:
            due = [] if former is None else [former]
        for channel in due:
            if not channel.pending:
                self._post_token(channel, self.position - 1)
        if due:
            self._look_around()

    def poll(self) -> bool:
        """Polls pending tokens between commands; returns `busy`."""
        if self.busy:
            self._serve(None, self.position)
            self._look_around()
        return self.busy

    def leave(self) -> Generator[None, None, None]:
        """Leaves all channels at once; yields whenever it would have to wait.

        After it every channel is at rest on all its ranks, since each repeats its
        last token until it has seen the last token of all.
        """
        self.failed = _DONE_WITH_ALL
        waiting = [(channel, not channel.pending) for channel in self.channels]
        for channel, posted in waiting:
            if posted:
                self._post_token(channel, self.failed)
        while waiting:
            yield
            again: list[tuple[Channel, bool]] = []
            for channel, last in waiting:
                if not channel.exchange.test():
                    again.append((channel, last))
                elif not last or any(
                    header.seq < _DONE_WITH_ALL for _, header in self._read(channel)
                ):
                    self._post_token(channel, self.failed)
                    again.append((channel, True))
                else:
                    channel.pending = False
            waiting = again
        self.busy = False

    def _wait(self, channel: Channel) -> Iterator[None]:
        while not channel.exchange.test():
            if self._gives_way():
                self.cannot_enter(self.position, channel)
            yield
            self._serve(channel, self.position - 1)

    def _let_pass(self, channel: Channel) -> Iterator[None]:
        """Waits until a pending token is complete; or the command is interrupted.

        Nobody waits for a call of this rank then, so the token may stay where it is.
        """
        while channel.pending:
            if channel.exchange.test():
                self._finish_token(channel, self.position - 1)
            elif self._gives_way():
                self.cannot_enter(self.position)
                return
            else:
                yield
                self._serve(channel, self.position - 1)

    def _gives_way(self) -> bool:
        """Whether the program has interrupted the command, and peers do not know that yet."""
        progress = self.progress
        return progress.interrupted and progress.position > self.failed

    def _serve(self, busy_channel: Channel | None, passed: int) -> None:
        if self.busy:
            for channel in self.channels:
                if channel is not busy_channel and channel.pending and channel.exchange.test():
                    self._finish_token(channel, passed)

    def _finish_token(self, channel: Channel, passed: int) -> None:
        channel.pending = False
        for worker, header in self._read(channel):
            if worker == self.me:
                again = header.seq < self.failed  # the others do not know yet
            else:
                again = header.floor <= self.failed or (header.call and header.seq <= passed)
            if again:
                self._post_token(channel, passed)
                return

    def _post_token(self, channel: Channel, passed: int) -> None:
        channel.exchange.start(pack_header(0, max(self.failed, passed), 0, 0, 0, 0, *self._blame))
        channel.pending = True

    def _read(self, channel: Channel) -> list[tuple[int, RoundHeader]]:
        found = map(RoundHeader._make, _LAYOUT.iter_unpack(channel.exchange.headers()))
        headers = list(zip(channel.members, found, strict=True))
        for worker, header in headers:
            floors = self._floors if header.call else channel.floors
            if header.floor > floors.get(worker, -1):
                floors[worker] = header.floor
        return headers

    def _look_around(self) -> None:
        """Finds out whether a pending token can still matter."""
        floors = self._floors
        for channel in self.channels:
            for worker in channel.members:
                if channel.ran > floors.get(worker, -1):
                    floors[worker] = channel.ran
        self.busy = any(
            max(floors.get(worker, -1), channel.floors.get(worker, -1)) <= self.failed
            for channel in self.channels
            if channel.pending
            for worker in channel.members
            if worker != self.me
        )
