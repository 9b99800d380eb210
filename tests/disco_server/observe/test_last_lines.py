"""What is kept of a dead process's output."""

from __future__ import annotations

from disco_server.observe.last_lines import KEPT_LINES, LastLines


def test_the_last_lines_are_kept():
    """As many as the report shows, in order."""
    lines = LastLines()
    lines.extend(f"line {number}" for number in range(50))
    assert list(lines) == [f"line {number}" for number in range(50 - KEPT_LINES, 50)]


def test_of_a_crash_the_beginning_is_kept_as_well():
    """The innermost frames come first in Python's report, and the last lines follow."""
    lines = LastLines()
    lines.extend(["something before"])
    lines.extend(["Fatal Python error: Segmentation fault", "", "Current thread:"])
    lines.extend(f"  File, line {number}" for number in range(100))
    kept = list(lines)
    assert kept[:4] == [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread:",
        "  File, line 0",
    ]
    assert kept[-1] == "  File, line 99"
    assert len(kept) == 40 + KEPT_LINES


def test_the_last_crash_is_the_one_that_counts():
    """What a program printed that looked like one does not hide it."""
    lines = LastLines()
    lines.extend(["Fatal Python error: not really", "Fatal Python error: Aborted", "here"])
    assert list(lines) == ["Fatal Python error: Aborted", "here"]
