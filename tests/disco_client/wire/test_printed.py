"""Lines of ranks that are missing."""

from __future__ import annotations

from disco_client.text import dropped
from disco_client.wire.printed import LineCounter


def test_missing_lines_are_counted_rank_by_rank():
    """A line before those that follow says how many there were."""
    lines = LineCounter()
    assert lines.receive(0, 0, ["a", "b"]) == ["a", "b"]
    assert lines.receive(1, 3, ["x"]) == ["... 3 lines dropped", "x"]
    assert lines.receive(0, 2, ["c"]) == ["c"]
    assert lines.receive(0, 12_348, ["d"]) == ["... 12,345 lines dropped", "d"]
    assert lines.receive(0, 12_350, []) == ["... 1 line dropped"]
    assert lines.receive(0, 12_350, []) == []
    assert (lines.seen(0), lines.seen(1), lines.seen(2)) == (12_350, 4, 0)


def test_who_comes_later_misses_nothing_of_what_was_before():
    """Counting begins with the first lines that come."""
    lines = LineCounter(from_first=False)
    assert lines.receive(0, 100, ["a"]) == ["a"]
    assert lines.receive(0, 103, ["b"]) == [dropped(2), "b"]


def test_a_rank_that_does_not_number_its_lines_misses_none():
    """As one does that is older than these numbers."""
    lines = LineCounter()
    assert [lines.receive(0, 0, ["a"]) for _ in range(3)] == [["a"]] * 3
