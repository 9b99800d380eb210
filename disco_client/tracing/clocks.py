"""Clocks of several machines on one axis: what is known of their differences, and how well.

A request and its reply give four times. As in NTP, the difference of the two clocks
is taken from the midpoints, and its error is at most half of the travel time.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NO_DIFFERENCE", "Clock", "ClockSample", "clock_offset"]


def clock_offset(asked_ns: int, received_ns: int, sent_ns: int, heard_ns: int) -> tuple[int, int]:
    """Compares two clocks by one request and its reply.

    Args:
        asked_ns: When the request was sent, by our clock.
        received_ns: When it arrived, by theirs.
        sent_ns: When the reply was sent, by theirs.
        heard_ns: When it arrived, by ours.

    Returns:
        What to add to their times for ours, and by how much that may be wrong.
    """
    offset = ((asked_ns - received_ns) + (heard_ns - sent_ns)) // 2
    error = max(((heard_ns - asked_ns) - (sent_ns - received_ns) + 1) // 2, 0)
    return offset, error


@dataclass(frozen=True, slots=True, order=True)
class ClockSample:
    """The result of one comparison of two clocks.

    Attributes:
        at_ns: When, by the clock that is to be corrected.
        offset_ns: What to add to its times.
        error_ns: By how much that may be wrong.
    """

    at_ns: int
    offset_ns: int
    error_ns: int


NO_DIFFERENCE = ClockSample(0, 0, 0)
"""Of two programs on one machine."""


class Clock:
    """Brings the times of a clock to those of another one.

    As long as one difference explains every comparison, that is taken, and it is none
    where none explains them: two programs of one machine have the same clock. Otherwise
    one of the clocks is the faster one, and the difference changes from each comparison
    to the next.

    Args:
        samples: The comparisons; without any the clocks are the same.

    Attributes:
        offset_ns: What to add to times; the first, where that changes.
        error_ns: By how much corrected times may be wrong.
        same: Whether times stay as they are.
        samples: How many comparisons there were.
    """

    def __init__(self, samples: Iterable[ClockSample] = ()) -> None:
        known = sorted(samples)
        self.samples: int = len(known)
        self._at = [0]
        self._offsets = [0]
        self.error_ns = 0
        if known:
            low = max(sample.offset_ns - sample.error_ns for sample in known)
            high = min(sample.offset_ns + sample.error_ns for sample in known)
            if low <= high:
                offset = 0 if low <= 0 <= high else (low + high) // 2
                self._offsets = [offset]
                self.error_ns = max(offset - low, high - offset)
            else:
                self._at = [sample.at_ns for sample in known]
                self._offsets = [sample.offset_ns for sample in known]
                self.error_ns: int = max(sample.error_ns for sample in known)
        self.offset_ns: int = self._offsets[0]
        self.same: bool = not any(self._offsets)

    def correct(self, at_ns: int) -> int:
        """A time of this clock by the other one; 0, which says that none was taken, stays."""
        return at_ns + self._offset(at_ns) if at_ns else 0

    def _offset(self, at_ns: int) -> int:
        after = bisect(self._at, at_ns)
        if after == 0 or after == len(self._at):
            return self._offsets[min(after, len(self._at) - 1)]
        begin, end = self._at[after - 1], self._at[after]
        first, last = self._offsets[after - 1], self._offsets[after]
        return first + (last - first) * (at_ns - begin) // (end - begin)
