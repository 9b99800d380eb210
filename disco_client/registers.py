"""Register ids: the client hands them out, so calls need no answer first.

Freed ids are reused last in, first out, before the counter moves on, as in the
original; that keeps the workers' register files as small as the program's
largest number of live references.
"""

from __future__ import annotations

__all__ = ["RegisterIds"]


class RegisterIds:
    """The free list of one session; the owner's lock guards it."""

    __slots__ = ("_free", "_next")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 1  # 0 is never a live register

    def allocate(self) -> int:
        """Takes an id that no live reference has."""
        if self._free:
            return self._free.pop()
        register = self._next
        self._next = register + 1
        return register

    def free(self, register: int) -> None:
        """Gives an id back; the caller has put its release into the log."""
        self._free.append(register)

    def live(self) -> set[int]:
        """The ids that are handed out at this moment."""
        return set(range(1, self._next)).difference(self._free)

    @property
    def high_water(self) -> int:
        """The largest id ever handed out."""
        return self._next - 1
