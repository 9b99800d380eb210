"""Why a session does not go on: the words for every way in which ranks can stand."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import pytest

from disco_client.diagnosis import Diagnosis
from disco_client.hang_analysis import duration, judge, name_ranks, stands, step_in
from disco_client.tracing.ring import CollectiveRecord, CommandRecord, FlightRecord
from disco_client.wire.codec import Action
from disco_client.wire.reports import (
    CollectiveReport,
    CommandReport,
    EnteredReport,
    Inspection,
    NodeSilence,
    RankReport,
    RankState,
    decode_report,
    report_of,
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
NOT = f"rank 2 has not entered {REDUCTION}: "

CASES = {
    "idle": ([idle(0), idle(1)], "all ranks are idle: nothing is under way"),
    "in user code": (
        [waiting(0), waiting(1), idle(2, current=LOAD)],
        f"{NOT}it has been in user function load_batch (command #7) for 41 s; {WAIT}",
    ),
    "in our code": (
        [waiting(0), waiting(1), idle(2, current=replace(LOAD, name="runtime.disco.empty"))],
        f"{NOT}it has been in runtime.disco.empty (command #7) for 41 s; {WAIT}",
    ),
    "went past it": (
        [waiting(0), waiting(1), idle(2, finished=replace(DONE, seq=10, failed=True))],
        f"rank 2 never entered {REDUCTION}: it is idle, past command #10 with a failure; {WAIT}",
    ),
    "not reached": (
        [waiting(0), waiting(1), idle(2)],
        f"{NOT}it is idle after command #9, what follows has not reached that; {WAIT}",
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
            f"rank 2 never entered {REDUCTION}: "
            f"it is in broadcast #3 float32[1024] of command #11 since 12 s; {WAIT}; "
            "rank 1 has not entered broadcast #3 float32[1024] of command #11: it is in "
            f"{REDUCTION} since 12 s; rank 2 waits there since 12 s"
        ),
    ),
    "stopped": (
        [waiting(0), waiting(1), idle(2, state=RankState.STOPPED)],
        (
            f"rank 2's process 102 {STOPPED}; kill -CONT 102 lets it go on; "
            f"{NOT}its process {STOPPED}; {WAIT}"
        ),
    ),
    "killed": (
        [waiting(0), waiting(1), idle(2, state=RankState.ENDED)],
        (
            f"rank 2's process 102 has ended; rank 2 never entered {REDUCTION}: "
            f"its process has ended; {WAIT}"
        ),
    ),
    "two late ones": (
        [waiting(0), idle(1, current=LOAD), idle(2, current=LOAD)],
        (
            "ranks 1 and 2 have not entered allreduce(sum) #1043 float32[1024] of command #10: "
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
        f"{NOT}nothing is known of it; {WAIT}"
    )
    gone = judge([idle(0)], [NodeSilence("b", (1, 2, 3), 0.0)])
    assert gone == "node 'b' is not connected, so nothing is known of ranks 1-3"


def entered(seq, nth=0, members=(0, 1, 2), name="allreduce(sum)"):
    """What a rank says of a collective that it has left."""
    return (EnteredReport(members, seq, nth, name),)


def test_a_rank_that_has_left_a_collective_is_not_missing_from_it():
    """Its peers' reports are of a moment before, when they were still inside."""
    ahead = idle(2, finished=replace(DONE, seq=10), entered=entered(10))
    verdict = judge([waiting(0), waiting(1), ahead])
    assert "entered" not in verdict
    assert verdict == (f"ranks 0 and 1 have been in {REDUCTION} for 12 s, which rank 2 has left")
    next_one = reduction(seq=11, number=1044, seconds=0.004)
    further = idle(2, current=replace(REDUCE, seq=11), collective=next_one)
    before = [waiting(0), waiting(1), ahead]
    assert judge([waiting(0), waiting(1), further], before=before).startswith(f"{verdict}; slow")
    # One of the same command before it does not count, nor one of other ranks, nor another.
    behind = entered(9, 3) + entered(12, members=(1, 2)) + entered(10, name="start of mpi")
    assert judge([waiting(0), waiting(1), idle(2, entered=behind)]).startswith(NOT)


def test_a_rank_that_comes_further_is_not_said_to_be_missing():
    """Two looks tell it from one that stands, and how far all are is said."""
    late = idle(2, current=LOAD, finished=replace(DONE, seq=6))
    later = idle(2, current=replace(LOAD, seq=8, seconds=0.004), finished=replace(DONE, seq=7))
    before, now = [waiting(0), waiting(1), late], [waiting(0), waiting(1), later]
    assert judge(now, issued=12, before=before) == (
        f"rank 2 is on the way to {REDUCTION}; {WAIT}; slow, still progressing: #7 of #12"
    )
    assert judge(before, issued=12, before=before).startswith(NOT)
    assert "progressing" not in judge(before, issued=12, before=before)
    assert judge(now, before=before).endswith("slow, still progressing: #7")


def test_in_a_loop_of_small_collectives_nobody_is_accused():
    """Whoever waits has come since the earlier look, so the others have had no time to."""

    def at(seq, seconds):
        current, found = replace(REDUCE, seq=seq), reduction(seq=seq, seconds=seconds)
        return {"current": current, "collective": found, "finished": replace(DONE, seq=seq - 1)}

    before = [waiting(w) for w in range(3)]
    now = [
        idle(0, **at(8097, 0.005)),
        idle(1, **at(8097, 0.003)),
        idle(2, finished=replace(DONE, seq=8096)),
    ]
    verdict = judge(now, issued=9000, before=before)
    assert verdict == "slow, still progressing: #8096 of #9000"
    every_idle = [idle(w, finished=replace(DONE, seq=8096)) for w in range(3)]
    assert judge(every_idle, issued=9000, before=before) == verdict
    assert judge(every_idle, issued=8096, before=before) == (
        "all ranks are idle: nothing is under way"
    )
    assert stands(before, before)
    assert not stands(before, now)


def test_a_rank_that_stands_is_named_while_others_come_further():
    """They have come to the collective only now, and their work says that all goes on."""
    late = idle(2, current=LOAD, finished=replace(DONE, seq=6))
    before = [idle(0, current=DONE), idle(1, current=DONE), late]
    verdict = judge([waiting(0), waiting(1), late], issued=12, before=before)
    assert verdict == (
        "rank 2 has been in user function load_batch (command #7) for 41 s; "
        "slow, still progressing: #6 of #12"
    )
    mixed = judge([waiting(0), waiting(1), late, later_than(late, 3)], before=[*before, idle(3)])
    assert "load_batch (command #7) for 41 s" in mixed


def later_than(report, worker):
    """Another rank, which has come further than one that is given."""
    done = replace(report.finished, seq=report.finished.seq + 1)
    return replace(report, worker=worker, finished=done)


def test_some_are_missing_and_some_on_the_way():
    """Who stands comes first, with the reason; the others are told from him."""
    members = (0, 1, 2, 3)
    waits = [replace(waiting(w), collective=reduction(members)) for w in (0, 1)]
    stuck, slow = idle(2, current=LOAD), idle(3, finished=replace(DONE, seq=8))
    before = [*waits, stuck, replace(slow, finished=replace(DONE, seq=3))]
    assert judge([*waits, stuck, slow], before=before).startswith(
        f"rank 2 has not entered {REDUCTION}: it has been in user function load_batch "
        f"(command #7) for 41 s; rank 3 is on the way there; {WAIT}"
    )


MANY = 1024
SECOND = 1_000_000_000


def flown(worker, seq, name="step", *, inside=None, since=12.0):
    """The report of a rank by a flight record that was made up: it is in a command, or not."""
    began, now = 100 * SECOND, int((100 + since) * SECOND)
    commands = (
        CommandRecord(seq - 1, Action.CALL_PACKED, "before", 99 * SECOND, began),
        CommandRecord(seq, Action.CALL_PACKED, name, began, 0),
    )
    of = () if inside is None else (inside,)
    report = report_of(FlightRecord(commands, of), now)
    report.worker, report.node, report.pid = worker, f"node-{worker // 8}", 1000 + worker
    report.collectives = len(of)
    return decode_report(report)


def met_in(seq, members, name="allreduce(sum)"):
    """A collective that a rank of many waits in."""
    numbers = tuple(members)
    return CollectiveRecord(1, seq, 0, name, "float32", (4096,), 16384, numbers, 100 * SECOND, 0, 0)


ALL = tuple(range(MANY))
SCREEN_LINES, SCREEN_COLUMNS = 24, 80


def crowd(case):
    """1,024 ranks that stand in one of many ways."""
    if case == "one is missing":
        return [
            flown(w, 9, "load_batch") if w == 512 else flown(w, 10, inside=met_in(10, ALL))
            for w in ALL
        ]
    if case == "every second one is missing":
        return [
            flown(w, 9, f"load_{w}") if w % 2 else flown(w, 10, inside=met_in(10, ALL)) for w in ALL
        ]
    if case == "each at a command of its own":
        return [flown(w, 10 + w, f"load_{w}", since=1.0 + w / 10) for w in ALL]
    if case == "each pair in a collective of its own":
        pairs = [tuple(range(w - w % 2, w - w % 2 + 2)) for w in ALL]
        return [
            flown(w, 10 + w // 2, inside=met_in(10 + w // 2, pairs[w]))
            if w % 2
            else flown(w, 9, f"user.a_name_without_an_end.{'x' * 180}.{w}")
            for w in ALL
        ]
    assert case == "processes"
    states = [RankState.STOPPED, RankState.ENDED, RankState.UNINTERRUPTIBLE, RankState.RUNNING]
    return [replace(flown(w, 10, inside=met_in(10, ALL)), state=states[w % 4]) for w in ALL]


CROWDS = [
    "one is missing",
    "every second one is missing",
    "each at a command of its own",
    "each pair in a collective of its own",
    "processes",
]


@pytest.mark.parametrize("case", CROWDS)
@pytest.mark.parametrize("silent", [0, 60])
def test_a_verdict_on_1024_ranks_fits_a_screen(case, silent):
    """However differently they stand, and however many nodes say nothing; and so does the text."""
    ranks = crowd(case)[8 * silent :]
    silences = [
        NodeSilence(f"node-{n}", tuple(range(8 * n, 8 * n + 8)), 9.0) for n in range(silent)
    ]
    for before in ([], ranks):
        verdict = judge(ranks, silences, issued=5000, before=before)
        assert len(textwrap.wrap(verdict, SCREEN_COLUMNS)) < SCREEN_LINES, verdict
    text = str(Diagnosis.of(Inspection(1, "large", MANY, tuple(ranks), tuple(silences))))
    assert len(text.splitlines()) < 3 * SCREEN_LINES


def test_of_1024_ranks_the_one_that_is_missing_is_named():
    """With ranges for the others, and its row in the table."""
    ranks = crowd("one is missing")
    verdict = judge(ranks, before=ranks)
    assert verdict == (
        "rank 512 has not entered allreduce(sum) #1 float32[4096] of command #10: it has been in "
        "user function load_batch (command #9) for 12 s; ranks 0-511 and 513-1023 wait there "
        "since 12 s"
    )
    text = str(Diagnosis.of(Inspection(1, "large", MANY, tuple(ranks))))
    assert "\n512 " in text
    assert "and 992 other ranks" in text


def test_of_many_groups_the_longest_waits_are_told_and_the_rest_counted():
    """No rank is left out of the counts."""
    verdict = judge(crowd("each at a command of its own"))
    assert verdict.startswith("rank 1023 has been in user function load_1023 (command #1033) for")
    assert verdict.endswith("1022 more ranks are in 1022 other commands")
    verdict = judge(crowd("every second one is missing"))
    assert "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 504 others have not entered" in verdict
    assert "510 more ranks are elsewhere, in 510 places" in verdict
    verdict = judge(crowd("each pair in a collective of its own"))
    assert verdict.startswith("rank 0 has not entered allreduce(sum) #1 float32[4096] of command ")
    assert "510 more ranks are waiting in 510 collectives" in verdict


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
