"""Why a session does not go on: the words for every way in which ranks can stand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco_client.verdict import duration, judge, name_ranks, step_in
from disco_client.wire.codec import Action
from disco_client.wire.inspection import (
    CollectiveReport,
    CommandReport,
    NodeSilence,
    RankReport,
    RankState,
)

DONE = CommandReport(9, Action.CALL_PACKED, "scale", 20.0)
REDUCE = CommandReport(10, Action.CALL_PACKED, "runtime.disco.allreduce", 12.0)
LOAD = CommandReport(7, Action.CALL_PACKED, "load_batch", 41.0)


def reduction(members=(0, 1, 2), seconds=12.0, **changes):
    """An allreduce that some ranks wait in."""
    whole = CollectiveReport(
        1043, 10, 0, "allreduce(sum)", "float32", (1024,), 4096, members, seconds, met=False
    )
    return replace(whole, **changes)


def idle(worker, **changes):
    """A rank with nothing to do."""
    return replace(RankReport(worker, "a", 100 + worker, finished=DONE), **changes)


def waiting(worker, **changes):
    """A rank in a collective."""
    return idle(worker, current=REDUCE, collective=reduction(), **changes)


REDUCTION = "allreduce(sum) #1043 float32[1024] of command #10"
STOPPED = "is stopped (by SIGSTOP, or a debugger)"
WAIT = "ranks 0 and 1 wait there since 12 s"
NEVER = f"rank 2 never entered {REDUCTION}: "

CASES = {
    "idle": ([idle(0), idle(1)], "all ranks are idle: nothing is under way"),
    "in user code": (
        [waiting(0), waiting(1), idle(2, current=LOAD)],
        f"{NEVER}it has been in user function load_batch (command #7) for 41 s; {WAIT}",
    ),
    "in our code": (
        [waiting(0), waiting(1), idle(2, current=replace(LOAD, name="runtime.disco.empty"))],
        f"{NEVER}it has been in runtime.disco.empty (command #7) for 41 s; {WAIT}",
    ),
    "went past it": (
        [waiting(0), waiting(1), idle(2, finished=replace(DONE, seq=10, failed=True))],
        f"{NEVER}it is idle, past command #10 with a failure; {WAIT}",
    ),
    "not reached": (
        [waiting(0), waiting(1), idle(2)],
        f"{NEVER}it is idle after command #9, what follows has not reached that; {WAIT}",
    ),
    "in another collective": (
        [
            waiting(0),
            waiting(1),
            idle(
                2,
                current=replace(REDUCE, seq=11),
                collective=reduction(name="broadcast", number=3, seq=11, members=(1, 2)),
            ),
        ],
        (
            f"{NEVER}it is in broadcast #3 float32[1024] of command #11 since 12 s; {WAIT}; "
            "rank 1 never entered broadcast #3 float32[1024] of command #11: it is in "
            f"{REDUCTION} since 12 s; rank 2 waits there since 12 s"
        ),
    ),
    "stopped": (
        [waiting(0), waiting(1), idle(2, state=RankState.STOPPED)],
        (
            f"rank 2's process 102 {STOPPED}; kill -CONT 102 lets it go on; "
            f"{NEVER}its process {STOPPED}; {WAIT}"
        ),
    ),
    "killed": (
        [waiting(0), waiting(1), idle(2, state=RankState.ENDED)],
        f"rank 2's process 102 has ended; {NEVER}its process has ended; {WAIT}",
    ),
    "two late ones": (
        [waiting(0), idle(1, current=LOAD), idle(2, current=LOAD)],
        (
            "ranks 1 and 2 never entered allreduce(sum) #1043 float32[1024] of command #10: "
            "ranks 1 and 2 have been in user function load_batch (command #7) for 41 s; "
            "rank 0 waits there since 12 s"
        ),
    ),
    "all have come": (
        [waiting(0), waiting(1), waiting(2)],
        (f"ranks 0-2 have all entered {REDUCTION}, the first 12 s ago"),
    ),
    "moving": (
        [
            idle(w, current=REDUCE, collective=reduction(met=True, seconds=float(w)))
            for w in range(3)
        ],
        (f"ranks 0-2 have been in {REDUCTION} for 2 s, where all have come and data moves"),
    ),
    "busy": (
        [idle(0), idle(1), idle(2, current=LOAD)],
        "rank 2 has been in user function load_batch (command #7) for 41 s; the others are idle",
    ),
    "all busy": (
        [idle(w, current=LOAD) for w in range(4)],
        "ranks 0-3 have been in user function load_batch (command #7) for 41 s",
    ),
    "over": (
        [idle(w, state=RankState.ENDED) for w in range(2)],
        "every rank has ended: the session is over",
    ),
    "inside the kernel": (
        [idle(0, state=RankState.UNINTERRUPTIBLE, current=LOAD)],
        "rank 0's process 100 waits inside the kernel, for a disk or a device",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_names_who_is_waited_for_and_why(case):
    """In one sentence for each thing that is wrong, the gravest first."""
    ranks, expected = CASES[case]
    assert judge(ranks) == expected


def test_what_was_issued_and_has_not_come_is_counted():
    """Ranks that are idle, while the client has issued more, point to the way between."""
    assert judge([idle(0), idle(1)], issued=9) == "all ranks are idle: nothing is under way"
    assert "commands #10 to #12 have not reached all" in judge([idle(0), idle(1)], issued=12)
    new = [idle(0, finished=None)]
    assert "commands #1 to #3 have not reached all" in judge(new, issued=3)


def test_a_silent_node_is_named_with_its_ranks():
    """And those who wait for its ranks wait for what nothing is known of."""
    silence = NodeSilence("b", (2,), 9.0)
    assert judge([waiting(0), waiting(1)], [silence]) == (
        "no answer from node 'b', heard of last 9 s ago, so nothing is known of rank 2; "
        f"{NEVER}nothing is known of it; {WAIT}"
    )
    gone = judge([idle(0)], [NodeSilence("b", (1, 2, 3), 0.0)])
    assert gone == "node 'b' is not connected, so nothing is known of ranks 1-3"


def test_a_step_of_a_program_is_read_from_the_stack():
    """The line is the step, except where programs run others."""
    current = CommandReport(5, Action.RUN_PROGRAM, "decode", 3.0)
    stack = '  File "<program decode>", line 14 in program\n'
    report = idle(0, current=current, stack=stack)
    assert step_in(report) == "step 12"
    assert judge([report]) == (
        "rank 0 has been in step 12 of program 'decode' (command #5) for 3 s"
    )
    inside = stack.replace("decode", "decode, with others inside")
    assert step_in(replace(report, stack=inside)) == "line 12 of its steps"
    assert step_in(replace(report, stack="")) == ""


def test_ranks_and_times_are_named_as_people_do():
    """Long rows are short, and so are long times."""
    assert name_ranks([2]) == "rank 2"
    assert name_ranks([3, 0]) == "ranks 0 and 3"
    assert name_ranks(range(8)) == "ranks 0-7"
    assert name_ranks([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7 and 8"
    assert [duration(s) for s in (0.0123, 2.0, 41.2, 600)] == ["0.012 s", "2 s", "41 s", "10 min"]
