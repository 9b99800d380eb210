"""Standard streams that look at the thread that writes."""

from __future__ import annotations

import contextlib
import io
import sys
import threading

from disco_server.embedded import threads
from disco_server.embedded.threads import RankOutput


@contextlib.contextmanager
def redirected():
    """Streams of the test's own, redirected; pytest's capture changes them between phases."""
    before = sys.stdout, sys.stderr
    inner = sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    threads.redirect()
    try:
        yield inner
    finally:
        threads.restore()
        sys.stdout, sys.stderr = before


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_only_threads_with_an_output_are_redirected():
    """Lines go to the session whole, the rest when the thread ends."""
    got = []
    rank = RankOutput(lambda is_error, lines: got.append((is_error, lines)))

    def work():
        rank.attach()
        print("one\ntwo")
        print("half", end="")
        print("trouble", file=sys.stderr)
        sys.stdout.writelines(["a\n", "b\n"])
        sys.stdout.flush()
        print("last", end="")
        rank.close()

    with redirected() as streams:
        in_thread(work)
        print("mine")
    assert streams[0].getvalue() == "mine\n"
    lines = [(is_error, line) for is_error, several in got for line in several]
    assert [line for is_error, line in lines if not is_error] == [
        "one",
        "two",
        "halfa",
        "b",
        "last",
    ]
    assert [line for is_error, line in lines if is_error] == ["trouble"]
    assert list(rank.last_lines)[-1] == "last"


def test_who_shows_the_lines_may_print():
    """In the same thread, without meeting itself."""
    rank = RankOutput(lambda _is_error, lines: print("shown:", *lines))

    def work():
        rank.attach()
        print("text")

    with redirected() as streams:
        in_thread(work)
    assert streams[0].getvalue() == "shown: text\n"


def test_sessions_share_the_redirection():
    """The last one restores; what somebody else put there since stays."""
    with redirected() as streams:
        stream = sys.stdout
        threads.redirect()
        assert sys.stdout is stream
        threads.restore()
        assert sys.stdout is stream
        other = sys.stdout = io.StringIO()
        threads.restore()
        seen = sys.stdout, sys.stderr
        threads.redirect()  # for the block's end
    assert seen == (other, streams[1])


def test_a_redirected_stream_is_as_the_one_below():
    """Whatever else is asked of it."""
    with redirected():
        answers = sys.stdout.getvalue(), sys.stdout.isatty()
    assert answers == ("", False)
