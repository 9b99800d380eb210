"""What is kept of a dead process's output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disco_server.observe.printed_lines import KEPT_LINES, LastLines, LineCutter, decode_lines


def fed(*blocks):
    """What is kept of blocks of lines."""
    lines = LastLines()
    for block in blocks:
        lines.feed("\n".join(block).encode())
    return list(lines)


def test_the_last_lines_are_kept():
    """As many as the report shows, in order."""
    lines = [f"line {number}" for number in range(50)]
    assert fed(lines) == fed(*([line] for line in lines)) == lines[-KEPT_LINES:]


def test_of_a_crash_the_beginning_is_kept_as_well():
    """The innermost frames come first in Python's report, and the last lines follow."""
    kept = fed(
        ["something before"],
        ["Fatal Python error: Segmentation fault", "", "Current thread:"],
        [f"  File, line {number}" for number in range(50)],
        [f"  File, line {number}" for number in range(50, 100)],
    )
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
    first, last = "Fatal Python error: not really", "Fatal Python error: Aborted"
    assert fed([first, last, "here"]) == fed([first], ["x", last], ["here"]) == [last, "here"]


@given(st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"a", b"\n")), max_size=12))
def test_lines_are_the_same_however_their_bytes_come(parts):
    """Cut at any byte, in the middle of a character too, and with or without an end."""
    cutter = LineCutter(LastLines())
    blocks = [cutter.feed(part) for part in [*filter(None, parts), b""]]
    lines = [line for block in blocks if block is not None for line in decode_lines(block)]
    whole = b"".join(parts).removesuffix(b"\n")
    assert lines == (decode_lines(whole) if b"".join(parts) else [])


def test_a_line_without_an_end_is_not_waited_for_for_ever():
    """What is longer than any line of a person becomes one."""
    cutter = LineCutter(LastLines())
    assert cutter.feed(b"x" * 10_000) is None
    assert cutter.feed(b"x" * 10_000) == b"x" * 20_000
    assert cutter.feed(b"") is None
