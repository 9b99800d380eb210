"""The registers of a session: who owns each, and which ids are free.

A register has one owner, but for those of which a reference was copied, or which a captured
program reads. The client allocates their ids, so that calls need no answer first. Freed ids are
reused last in, first out, before the counter moves on, as in the original; that keeps the
workers' register files as small as the program's largest number of live references.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from disco_client.call_sites import Site
from disco_client.reentry import move

__all__ = ["Owners", "RegisterIds"]


class _Shared:
    """What is to be known of a register that has not just one owner.

    Attributes:
        others: As many entries as it has owners besides one.
        kept: The registers of which it is an owner itself.
    """

    __slots__ = ("kept", "others")

    def __init__(self) -> None:
        self.others: list[None] = []
        self.kept: Sequence[int] = ()


class Owners:
    """The owners of the registers of one session; the last one frees a register.

    References are copied and end in any thread, in signal handlers and in the garbage
    collector, so no method takes a lock: each step that counts is one operation of a dict or
    a list, which nothing interrupts. Who adds an owner is one, or has one, meanwhile.

    The count is that of owners which have not ended. It does not follow who refers to whom,
    because the garbage collector ends all objects of a cycle, in any order, before any of
    them is gone.

    Attributes:
        several: The registers that have not just one.
    """

    __slots__ = ("several",)

    def __init__(self) -> None:
        self.several: dict[int, _Shared] = {}

    def add(self, register: int) -> None:
        """Notes one more owner of a register."""
        self.several.setdefault(register, _Shared()).others.append(None)

    def keep(self, register: int, kept: Sequence[int]) -> None:
        """Makes a register an owner of others, for as long as it has one itself."""
        for other in kept:
            self.add(other)
        self.several.setdefault(register, _Shared()).kept = kept

    def remove(self, register: int) -> list[int]:
        """Notes that an owner has ended; returns the registers that have none any more."""
        ended: list[int] = []
        removed = [register]
        while removed:
            register = removed.pop()
            shared = self.several.get(register)
            if shared is not None:
                try:
                    shared.others.pop()
                except IndexError:
                    # Before it is freed: its number may be taken right after that.
                    del self.several[register]
                    removed += shared.kept
                else:
                    continue
            ended.append(register)
        return ended


class RegisterIds:
    """The ids of one session's registers; the owner's lock guards what takes them away.

    Attributes:
        owners: Whose the registers are.
        dead: Those that have no owner any more, the oldest first. Workers learn it with the next
            command, in which one of them may be used again.
        makers: The positions in the program that issued the commands whose results are in them.
    """

    __slots__ = ("_free", "_next", "dead", "makers", "owners")

    def __init__(self) -> None:
        self.owners: Owners = Owners()
        self.dead: deque[int] = deque()
        self.makers: dict[int, Site] = {}
        self._free: list[int] = []
        self._next = 1  # 0 is never a live register

    def allocate(self) -> int:
        """Takes an id of which workers know that it is free; no lock is needed."""
        try:
            return self._free.pop()
        except IndexError:
            register = self._next
            self._next = register + 1
            return register

    def reuse(self, count: int) -> int:
        """Takes the last of the oldest dead ids, for the command that tells of them.

        Where an exception comes right after it, the id may be lost; it is never taken twice.
        """
        dead = self.dead
        register = dead[count - 1]
        del dead[count - 1]
        return register

    def told(self, count: int) -> None:
        """Notes that a command in the log tells of the oldest dead ids: they are free."""
        move(self.dead, count, self._free)

    def live(self) -> set[int]:
        """The ids that references stand for at this moment."""
        return set(range(1, self._next)).difference(self._free, self.dead)

    def sites_of(self, registers: Iterable[int]) -> list[Site]:
        """The positions that issued the commands whose results are in some of them."""
        makers = self.makers
        return [makers[register] for register in registers if register in makers]

    @property
    def high_water(self) -> int:
        """The largest id ever allocated."""
        return self._next - 1
