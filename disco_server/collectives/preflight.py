"""How the ranks of a collective agree to begin it, without I/O.

Lanes and rounds
----------------
A lane is a fixed set of ranks that meet in collectives: all workers, a group, or
the two ends of a transfer. Its life is a sequence of rounds; in each round every
rank of the lane posts exactly one row of eight numbers and then sees the rows of
all. A row is one of two things:

- a call: "in command `seq` I am about to enter my `nth` collective of this lane,
  and this is what I bring";
- a token: "I am done with every command up to `seq`". A rank that failed or
  skipped a command posts it without waiting (`Preflight.cannot_enter`).

All ranks see the same rows, so each can decide alone what the others decide too.
For a rank with a call in command H:

- a token with seq >= H came: its rank will never enter H, the call is *aborted*;
- tokens came, all older: their ranks may still come to H, the round is *repeated*;
- only calls came, all equal and without a problem: *run*;
- only calls came, but they differ: *mismatch*.

A rank with a token asks whether anybody might still wait for it. Each row tells
how far its rank is: its *floor*, the first command in which that rank can enter
anything later, is H for a call of H and seq + 1 for a token. If some floor is not
beyond the last command that this rank failed, it posts a token again; so it does
if a call of a command came that it passed for any other reason. A rank that wants
to enter a collective first lets its pending token complete, as often as it takes.

Why this is right
-----------------
*Only equal calls run.* Run needs a round in which every rank posted an equal call,
and all ranks see that round; each then does the data operation, on a channel of
its own, before it posts again. So the data operations of a lane happen in the
order of its rounds on every rank and never meet another one's data.

*Nobody is aborted who could have run.* Say A's call (H, nth) meets C's token with
seq >= H in round k. C is done with H. Had C entered its own (H, nth) in a round
before k, then A posted in that round something else: an older token, then C
repeated and was not done; an older call, then both saw a mismatch, and C failed H.
So C never entered it together with A, and now never will.

*Every call ends.* A call in round k waits until all ranks of the lane post in k. A
rank that reaches the lane posts; a rank that fails a command posts a token or has
one pending; a rank whose token completes posts again while anybody's floor says
they might wait for a command it failed. So in every round that somebody waits in,
all ranks that are done with his command have posted, and the others will either
come or fail. A repeat needs an older token in that round, each rank posts older
tokens only while its own progress grows, and the log is finite. While a rank waits
in one lane it serves the tokens of all its other lanes, otherwise two ranks could
wait for each other through two lanes.

*No call meets a strange call* unless the ranks' programs differ: a rank posts a
call for a later command only when it has no pending token, that is, when all
floors have gone beyond what it failed.

Lanes that begin later
----------------------
A lane may begin while the session runs (`teams`): its members add it when a call of
all workers has run, in a command M, before they do anything else. Then all that is
said above holds of it as if it had been there from the beginning:

- *All its members have it, or none.* They see the same round and decide the same. One
  that has not yet added it waits for nobody before it does, so who posts in it early
  waits for a rank that will come.
- *No token is missing in it.* A rank that failed a command F before would have one
  pending there. It would tell those who wait in F or earlier; but calls in this lane
  are of M or later, and F < M, because tokens are posted for commands that are over.
  A rank that fails M or anything later posts a token in all lanes, this one included.
- *Floors* are those of ranks, in whatever lane they were seen, so what is known of a
  rank holds in the new lane as well. `busy` is about pending tokens only, of which a
  new lane has none.
- *Who leaves has it.* A rank takes leave after its last command, M among them, so each
  lane is left by all its members.

What carries the rows of a new lane must hold a row of a member until another one looks
for it; therefore all members have built their ends before the call that begins it.

What it cannot see: a rank that goes past a collective without failing and stays
idle. Its peers wait until it reaches another collective of that lane (mismatch)
or fails; likewise ranks that enter two lanes in different orders. Nor functions that
catch an aborted collective's error and enter one of another lane in the same command:
a peer that had an older token in the round comes to the first one later, waits there
for them, and they may wait for it in the second.

A pending token costs nothing until its peers come, but somebody must look whether
it completed while it could matter: it does while some peer's floor, as far as it
is known from any lane, is not beyond the last failed command. `Preflight.busy`
says whether there is such a token; only then do waits become polls.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from disco_server.collectives.validation import Offer

__all__ = ["ROW_BYTES", "Exchange", "Lane", "Preflight", "Row", "Verdict", "VerdictKind", "decide"]

_LAYOUT = struct.Struct("8q")
ROW_BYTES = _LAYOUT.size
_DONE_WITH_ALL = 2**62
pack_row = _LAYOUT.pack


class Row(NamedTuple):
    """What one rank posts in one round.

    Attributes:
        call: 1 for a call, 0 for a token.
        seq: The command of the call, or the last command the rank is done with.
        nth: Which collective of the lane in that command, from 0.
        op: The operation, as in `checks.Offer`.
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


class VerdictKind(Enum):
    """What becomes of a call after a round."""

    RUN = "run"
    REPEAT = "repeat"
    ABORTED = "aborted"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a call, and because of whom.

    Attributes:
        kind: What happens next.
        workers: The ranks that failed, or the odd ones; in order.
    """

    kind: VerdictKind
    workers: tuple[int, ...] = ()


_RUN = Verdict(VerdictKind.RUN)
_REPEAT = Verdict(VerdictKind.REPEAT)


def decide(rows: Sequence[tuple[int, Row]], mine: Row) -> Verdict:
    """Decides what becomes of a call.

    Args:
        rows: Each rank of the lane with what it posted, this one included.
        mine: The call this rank posted.
    """
    tokens = [(worker, row) for worker, row in rows if not row.call]
    blamed = {
        row.extra if row.wrong == mine.seq else worker
        for worker, row in tokens
        if row.seq >= mine.seq
    }
    if blamed:
        return Verdict(VerdictKind.ABORTED, tuple(sorted(blamed)))
    if tokens:
        return _REPEAT
    wrong = [worker for worker, row in rows if row.wrong]
    if wrong:
        return Verdict(VerdictKind.MISMATCH, tuple(sorted(wrong)))
    if all(row == mine for _, row in rows):
        return _RUN
    return Verdict(VerdictKind.MISMATCH, _find_odd(rows))


def _find_odd(rows: Sequence[tuple[int, Row]]) -> tuple[int, ...]:
    """Finds the ranks outside the largest party; of equal ones the lowest rank's counts."""
    parties: dict[Row, list[int]] = {}
    for worker, row in sorted(rows):
        parties.setdefault(row, []).append(worker)
    largest = max(parties.values(), key=len)
    return tuple(sorted(worker for worker, _ in rows if worker not in largest))


class Exchange(Protocol):
    """Carries the rows of one lane's rounds; one round at a time."""

    def start(self, row: bytes) -> None:
        """Posts this rank's row of the next round; returns at once.

        Args:
            row: `ROW_BYTES` of row, perhaps with something behind it that only the
                exchange understands.
        """

    def test(self) -> bool:
        """Whether the round is complete."""
        ...

    def meet(self, row: bytes) -> bytes:
        """Posts a row, waits until the round is complete and returns its `rows`."""
        ...

    def rows(self) -> bytes:
        """After a round: the rows of all ranks of the lane, in the order of its members."""
        ...


@dataclass(slots=True, eq=False)
class Lane:
    """One rank's view of a lane.

    Attributes:
        members: The worker ids of its ranks, in the order of their rows.
        exchange: Carries their rows.
        pending: A token was posted and its round is not complete.
        ran: The last command in which a collective of this lane began.
        seq: The command `nth` counts in.
        nth: How many collectives of that command were entered here.
        entered: How many collectives of all commands were.
    """

    members: tuple[int, ...]
    exchange: Exchange
    pending: bool = False
    ran: int = -1
    seq: int = -1
    nth: int = 0
    entered: int = 0


@dataclass(slots=True, eq=False)
class Preflight:
    """One rank's part in the rounds of all its lanes.

    Attributes:
        me: The worker id of this rank.
        lanes: Every lane with peers.
        position: The command being executed, or the last one.
        failed: The last command that this rank failed or skipped.
        busy: A pending token must be looked after.
    """

    me: int
    lanes: list[Lane] = field(default_factory=list[Lane])
    position: int = -1
    failed: int = -1
    busy: bool = False
    _floors: dict[int, int] = field(default_factory=dict[int, int])
    _blame: tuple[int, int] = (-2, -1)

    def add_lane(self, members: Sequence[int], exchange: Exchange) -> Lane:
        """Begins a lane of these ranks, this one among them, in the order of its rows."""
        lane = Lane(tuple(members), exchange)
        self.lanes.append(lane)
        return lane

    def next_row(self, lane: Lane, offer: Offer) -> bytes:
        """Makes the row of the next call in a lane.

        Args:
            lane: Where it is about to enter.
            offer: What this rank brings.
        """
        seq = self.position
        if lane.seq != seq:
            lane.seq = seq
            lane.nth = 0
        nth = lane.nth
        lane.nth = nth + 1
        op, dtype, elements, problem, _, extra, _ = offer
        return pack_row(1, seq, nth, op, dtype, elements, problem != "", extra)

    def enter_now(self, lane: Lane, row: bytes, rider: bytes) -> bool:
        """Enters by the short way: one round, waited for.

        Args:
            lane: Where to enter; with no pending token, and not while `busy`.
            row: What `next_row` made of a sound offer.
            rider: Stands behind the row; see `Exchange.start`.

        Returns:
            Whether the call may run. If not, the round is complete and `negotiate`
            with `posted` must carry on.
        """
        if lane.exchange.meet(row + rider) == row * len(lane.members):
            lane.ran = lane.seq
            return True
        return False

    def negotiate(
        self, lane: Lane, row: bytes, *, posted: bool = False
    ) -> Generator[None, None, Verdict]:
        """Enters by the long way; yields whenever it would have to wait.

        Args:
            lane: Where to enter.
            row: What `next_row` made, perhaps with more behind it.
            posted: `enter_now` has posted it.

        Returns:
            Run, aborted or mismatch.
        """
        if not posted:
            while lane.pending:
                yield from self._wait(lane)
                self._finish_token(lane, self.position - 1)
        mine = Row._make(_LAYOUT.unpack_from(row))
        while True:
            if not posted:
                lane.exchange.start(row)
                yield from self._wait(lane)
            posted = False
            verdict = decide(self._read(lane), mine)
            if verdict.kind is not VerdictKind.REPEAT:
                break
        if verdict.kind is VerdictKind.ABORTED:
            self._blame = (mine.seq, verdict.workers[0])
        elif verdict.kind is VerdictKind.RUN:
            lane.ran = mine.seq
        self._look_around()
        return verdict

    def cannot_enter(self, seq: int) -> None:
        """Posts a token in every lane that has none pending."""
        self.failed = max(self.failed, seq)
        self._serve(None, self.position - 1)
        for lane in self.lanes:
            if not lane.pending:
                self._post_token(lane, self.position - 1)
        self._look_around()

    def poll(self) -> bool:
        """Looks after pending tokens between commands; returns `busy`."""
        if self.busy:
            self._serve(None, self.position)
            self._look_around()
        return self.busy

    def leave(self) -> Generator[None, None, None]:
        """Takes leave in all lanes at once; yields whenever it would have to wait.

        After it every lane is at rest on all its ranks, since each repeats its
        last token until it has seen the last token of all.
        """
        self.failed = _DONE_WITH_ALL
        waiting = [(lane, not lane.pending) for lane in self.lanes]
        for lane, posted in waiting:
            if posted:
                self._post_token(lane, self.failed)
        while waiting:
            yield
            again: list[tuple[Lane, bool]] = []
            for lane, last in waiting:
                if not lane.exchange.test():
                    again.append((lane, last))
                elif not last or any(row.seq < _DONE_WITH_ALL for _, row in self._read(lane)):
                    self._post_token(lane, self.failed)
                    again.append((lane, True))
                else:
                    lane.pending = False
            waiting = again
        self.busy = False

    def _wait(self, lane: Lane) -> Iterator[None]:
        while not lane.exchange.test():
            yield
            self._serve(lane, self.position - 1)

    def _serve(self, busy_lane: Lane | None, passed: int) -> None:
        if self.busy:
            for lane in self.lanes:
                if lane is not busy_lane and lane.pending and lane.exchange.test():
                    self._finish_token(lane, passed)

    def _finish_token(self, lane: Lane, passed: int) -> None:
        lane.pending = False
        for worker, row in self._read(lane):
            if worker == self.me:
                continue
            if row.floor <= self.failed or (row.call and row.seq <= passed):
                self._post_token(lane, passed)
                return

    def _post_token(self, lane: Lane, passed: int) -> None:
        lane.exchange.start(pack_row(0, max(self.failed, passed), 0, 0, 0, 0, *self._blame))
        lane.pending = True

    def _read(self, lane: Lane) -> list[tuple[int, Row]]:
        found = map(Row._make, _LAYOUT.iter_unpack(lane.exchange.rows()))
        rows = list(zip(lane.members, found, strict=True))
        for worker, row in rows:
            if row.floor > self._floors.get(worker, -1):
                self._floors[worker] = row.floor
        return rows

    def _look_around(self) -> None:
        """Finds out whether a pending token can still matter."""
        floors = self._floors
        for lane in self.lanes:
            for worker in lane.members:
                if lane.ran > floors.get(worker, -1):
                    floors[worker] = lane.ran
        late = {
            worker
            for lane in self.lanes
            for worker in lane.members
            if worker != self.me and floors.get(worker, -1) <= self.failed
        }
        self.busy = any(lane.pending and not late.isdisjoint(lane.members) for lane in self.lanes)
