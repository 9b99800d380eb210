"""Sessions that share a node: what one prints or sends does not hold up another one."""

from __future__ import annotations

import re
import statistics
import threading
import time

from disco_client import connect

LINES = 400_000
PATIENCE_S = 2.0
"""Waits took 5 to 14 s beside a rank that prints; they take milliseconds beside one that does not,
and more only on a machine that is very busy."""


def printed_and_dropped(text):
    """How many lines of a rank a client has shown, and how many it says were dropped."""
    dropped = re.findall(r"^\[worker 0 here\] \.\.\. ([\d,]+) lines? dropped$", text, re.MULTILINE)
    shown = text.count("[worker 0 here] x\n")
    return shown, sum(int(count.replace(",", "")) for count in dropped)


def test_a_rank_that_prints_much_holds_up_no_other_session(node, eventually, printed):
    """Row 31: others wait as ever; of its lines some come, and the rest is counted and said."""
    controller, daemon = node(2)
    with (
        connect(controller.address, num_workers=1, logs=True) as printing,
        connect(controller.address, num_workers=1, logs=False) as other,
    ):
        printing.import_python_module("disco_test_functions")
        other.sync_all()
        count = printing.get_global_func("tests.chatter")(LINES)
        rank_is_done = threading.Thread(target=printing.sync_all)
        rank_is_done.start()
        waits = []
        while rank_is_done.is_alive():
            began = time.monotonic()
            other.sync_all()
            waits.append(time.monotonic() - began)
        rank_is_done.join()
        assert count.debug_get_from_remote(0) == LINES
        eventually(
            lambda: sum(printed_and_dropped(printed())) >= LINES,
            what="the last lines, or how many were dropped",
        )
        shown, dropped = printed_and_dropped(printed())
        assert shown + dropped == LINES
        assert shown > 10_000, "a beginning is shown"
    assert statistics.median(waits) < PATIENCE_S
    assert (daemon.folder / "stderr").stat().st_size < 1 << 20, "the log has a bound"
