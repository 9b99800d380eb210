"""Teams: some workers of a session in an order of their own, and their collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disco_client.wire.layout import cut
from disco_server.collectives.base import Array, MismatchError, ReduceOp
from disco_server.collectives.circle import Circle
from disco_server.collectives.sides import Transfer

__all__ = ["Team"]


class Team:
    """One rank's place in a team; `Communicator.make_teams` makes it, and keeps it.

    Every method except `send` and `recv` is collective among the members, which must
    call it in the same order. They compare what they bring before anything moves, and
    end it together where one of them failed, as all collectives of a `Communicator`
    do; what is said there of dtypes, reductions, and of arrays that overlap or are not
    contiguous holds here too. Arrays are numpy's, or cupy's where a library for GPUs
    was started. Only element counts matter: parts lie flat, one after the other, in
    the order of the members, and may be empty.

    Attributes:
        members: The worker ids, in the order of their ranks here.
        rank: This rank's place among them, from 0.
        size: How many they are.
        received_bytes: How many bytes of other members this rank has been given so
            far. It counts what an operation needs, not how a library brings it, with
            `own` this rank's part and n the elements of an array, times their size:

            - allgather: sum(counts) - own
            - all_to_all: what comes from other members
            - reduce_scatter: (size - 1) * own
            - allreduce: (size - 1) * own + n - own, where own is what
              `layout.cut(0, n, size, rank)` gives this rank
            - broadcast: n, at the root 0
            - scatter: own, at the root 0
            - gather: at the root sum(counts) - own, elsewhere 0
            - recv: n
    """

    def __init__(self, circle: Circle, arrive: Callable[[], None], transfer: Transfer) -> None:
        """Is for `Communicator.make_teams`.

        Args:
            circle: How the members meet.
            arrive: Called before each operation.
            transfer: Sends to a worker or receives from one.
        """
        self.members = tuple(circle.members)
        self.rank = circle.rank
        self.size = circle.size
        self.received_bytes = 0
        self._circle = circle
        self._arrive = arrive
        self._transfer = transfer

    def allreduce(self, src: Array, dst: Array, op: ReduceOp) -> None:
        """Combines equally long sources element by element, everywhere.

        Args:
            src: n elements.
            dst: n elements of the same dtype; may be `src`.
            op: The operation.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.allreduce(src, dst, op)
        start, stop = cut(0, src.size, self.size, self.rank)
        own = stop - start
        self._count(dst, (self.size - 1) * own + src.size - own)

    def allgather(self, src: Array, dst: Array, counts: Sequence[int]) -> None:
        """Brings every member's source to every member.

        Args:
            src: As many elements as `counts` says for this rank.
            dst: sum(counts) elements of the same dtype; this rank's part of it may
                be `src`.
            counts: How many elements each member has; equal on all members.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.allgather(src, dst, counts)
        self._count(dst, dst.size - src.size)

    def reduce_scatter(self, src: Array, dst: Array, op: ReduceOp, counts: Sequence[int]) -> None:
        """Combines sources as `allreduce` does and leaves each member its part.

        Args:
            src: sum(counts) elements.
            dst: As many elements as `counts` says for this rank, of the same dtype;
                may be this rank's part of `src`.
            op: The operation.
            counts: How many elements each member gets; equal on all members.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.reduce_scatter(src, dst, op, counts)
        self._count(dst, (self.size - 1) * dst.size)

    def all_to_all(self, src: Array, dst: Array, table: Sequence[Sequence[int]]) -> None:
        """Sends a part of every member's source to every member.

        Args:
            src: The parts for all members, one after the other.
            dst: The parts from all members, of the same dtype; may be `src` if it
                is as long.
            table: `table[i][j]` elements go from member i to member j; equal on all
                members.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.all_to_all(src, dst, table)
        self._count(dst, dst.size - int(table[self.rank][self.rank]))

    def broadcast(self, src: Array | None, dst: Array, root: int = 0) -> None:
        """Copies one member's source to every member.

        Args:
            src: n elements at the root; elsewhere not looked at.
            dst: n elements of the same dtype; may be `src`.
            root: Whose source, by its rank in the team; equal on all members.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.broadcast(src, dst, root)
        self._count(dst, dst.size if self.rank != root else 0)

    def scatter(self, src: Array | None, dst: Array, counts: Sequence[int], root: int = 0) -> None:
        """Gives each member its part of one member's source.

        Args:
            src: sum(counts) elements at the root; elsewhere not looked at.
            dst: As many elements as `counts` says for this rank, of the same dtype.
            counts: How many elements each member gets; equal on all members.
            root: Whose source, by its rank in the team; equal on all members.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.scatter(src, dst, counts, root)
        self._count(dst, dst.size if self.rank != root else 0)

    def gather(self, src: Array, dst: Array | None, counts: Sequence[int], root: int = 0) -> None:
        """Collects every member's source at one member.

        Args:
            src: As many elements as `counts` says for this rank.
            dst: sum(counts) elements of the same dtype at the root; elsewhere not
                looked at.
            counts: How many elements each member has; equal on all members.
            root: Where to, by its rank in the team; equal on all members.

        Raises:
            MismatchError: The members do not fit one another; nobody began.
            AbortedError: A member cannot come; nobody began.
        """
        self._arrive()
        self._circle.gather(src, dst, counts, root)
        if dst is not None and self.rank == root:
            self._count(dst, dst.size - src.size)

    def barrier(self) -> None:
        """Waits until every member is here.

        Raises:
            MismatchError: Another member is in a different collective.
            AbortedError: A member cannot come.
        """
        self._arrive()
        self._circle.barrier()

    def send(self, buf: Array, rank: int) -> None:
        """Gives an array to another member; see `Communicator.send`."""
        self._arrive()
        self._transfer(buf, self._member(rank), receives=False)

    def recv(self, buf: Array, rank: int) -> None:
        """Fills an array from another member; see `Communicator.recv`."""
        self._arrive()
        self._transfer(buf, self._member(rank), receives=True)
        self._count(buf, buf.size)

    def _member(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            me = self.members[self.rank]
            raise MismatchError((me,), f"{rank} is not the rank of one of {self.size} members")
        return self.members[rank]

    def _count(self, array: Array, elements: int) -> None:
        self.received_bytes += elements * array.dtype.itemsize

    def __repr__(self) -> str:
        return f"<Team of workers {', '.join(map(str, self.members))}, rank {self.rank}>"
