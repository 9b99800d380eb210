"""The MPI communicator among four real ranks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BRING = "brought allreduce(sum) of float32[3], destination float32[3]"


def test_reductions_of_every_dtype(ranks):
    """Every dtype, operation, group and size class gives what numpy gives, in place too."""
    assert ranks.run("reductions", sizes=[7, 5001]) == [[]] * 4


def test_moves_of_every_dtype(ranks):
    """Gathering and spreading bring every part to its place, in every way and in place."""
    assert ranks.run("moves") == [[]] * 4


def test_shapes_do_not_matter(ranks):
    """Only element counts do; strided, scalar, empty and overlapping arrays work."""
    assert ranks.run("shapes") == [[]] * 4


def test_halves_are_rounded_once(ranks):
    """float16 and bfloat16 are combined in float32."""
    assert ranks.run("halves_round_once") == [[]] * 4


def test_integers_wrap_and_average_toward_zero(ranks):
    """The sums of integers wrap, averages of what came out are cut."""
    assert ranks.run("integers_wrap") == [[]] * 4


@pytest.mark.parametrize(
    ("case", "odd", "words"),
    [
        ("count", [2], "the destination float32[3] needs 4 elements"),
        ("large", [2], "worker 2 brought allreduce(sum) of float32[5000]"),
        ("dtype", [2], "worker 2 brought allreduce(sum) of int32[3]"),
        ("reduction", [2], "worker 2 brought allreduce(max)"),
        ("operation", [2], "worker 2 brought broadcast of float32[3]"),
        ("destination", [2], "the destination float32[2] needs 3 elements"),
        ("read-only", [2], "is read-only"),
        ("nothing", [2], "the source must be an array, not None"),
    ],
)
def test_an_odd_rank_is_refused_everywhere(ranks, case, odd, words):
    """All ranks raise the same words, nothing was touched, and the next call works."""
    answers = ranks.run("refused", case=case)
    assert answers == [answers[0]] * 4
    named, message, untouched, after = answers[0]
    assert named == odd
    assert words in message
    assert f"workers 0, 1 and 3 {BRING}" in message
    assert untouched
    assert after == [4, 4, 4]


@pytest.mark.parametrize(
    ("case", "odd", "words"),
    [
        ("strings", [0, 1, 2, 3], "dtype <U1 cannot take part"),
        ("parts", [0], "float32[13] does not hold 4 parts like float32[3]"),
        ("order", [0, 1, 2, 3], "complex128 has no order, so no max"),
    ],
)
def test_what_cannot_be_done_is_refused_everywhere(ranks, case, odd, words):
    """A call that is wrong by itself reaches all ranks with its reason."""
    answers = ranks.run("refused", case=case)
    assert answers == [answers[0]] * 4
    assert answers[0][0] == odd
    assert words in answers[0][1]
    assert answers[0][3] == [4, 4, 4]


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("failing", [[3], [0, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_ranks_that_fail_end_the_collective(ranks, failing, idle):
    """Those who wait learn which ranks failed; afterwards all lanes work again."""
    answers = ranks.run("fails", failing=failing, in_group=False, idle=idle)
    for rank, (outcome, total, part, _) in enumerate(answers):
        want = "failed" if rank in failing else [failing, "allreduce(sum)", True]
        assert outcome == want
        assert total == [6, 6]
        assert part == ([1, 1] if rank < 2 else [5, 5])
    assert not any(answer[3] for answer in answers), "tokens still wait after all have met"


def test_a_failure_in_one_group_leaves_the_other_alone(ranks):
    """A collective in a group ends only where a member failed."""
    answers = ranks.run("fails", failing=[3], in_group=True, idle=True)
    assert [answer[0] for answer in answers] == [
        [2, 2, 2],
        [2, 2, 2],
        [[3], "allreduce(sum)", True],
        "failed",
    ]


def test_a_caught_abort_is_told_again(ranks):
    """A function that tries once more is refused once more, and nothing is left over."""
    assert ranks.run("second_try") == [[[3], [3], [3]]] * 3 + [[]]


@pytest.mark.parametrize("seed", range(3))
def test_random_failures_never_hang_anyone(ranks, seed):
    """Whoever fails where, all ranks come to the end and equal collectives met."""
    answers = ranks.run("random_log", seed=seed, commands=150)
    everyone = [[line for line in answer if "world" in line] for answer in answers]
    assert everyone == [everyone[0]] * 4
    assert len(everyone[0]) > 10
    for group, members in ((0, (0, 1)), (1, (2, 3))):
        first, second = (
            [line for line in answers[member] if f"group {group}" in line] for member in members
        )
        assert first == second


def test_arrays_pass_between_groups(ranks):
    """Send and recv move any dtype, small and large, strided too."""
    assert ranks.run("transfers") == [[]] * 4


def test_transfers_that_do_not_fit_are_refused(ranks):
    """Both ends learn what the other brought, or that it cannot come."""
    first, second, *others = ranks.run("wrong_transfers")
    assert others == [[], []]
    assert first[:2] == second[:2]
    assert "destination float64[4]" in first[0]
    assert "send_recv of float64[3]" in first[0]
    assert "worker 0 is not another one of the 4 workers" in first[2]
    assert "worker 9 is not another one" in first[3]
    assert re.fullmatch(r"send_recv of command #\d+ cannot happen: worker 1 .*", first[4])


def test_leaving_drains_what_is_pending(ranks):
    """Tokens that nobody came for do not disturb the orderly end; see the fixture."""
    assert ranks.run("left_pending") == [False, True, False, False]


def run_alone(program: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PMI_")}
    return subprocess.run(
        [*command, sys.executable, "-c", program],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_one_worker_needs_no_launcher():
    """A session of one worker works without any launcher, refusals included."""
    done = run_alone("""
import numpy as np
from disco_server.collectives.base import MismatchError, ReduceOp
from disco_server.collectives.select import open_communicator
with open_communicator("", worker_id=0, num_workers=1) as comm:
    comm.position = 1
    src, dst = np.arange(6.0), np.zeros(6)
    comm.allreduce(src, dst, ReduceOp.AVG)
    assert (src == dst).all()
    for act in (comm.allgather, comm.broadcast, comm.scatter, comm.gather, comm.all_to_all):
        dst[:] = 0
        act(src, dst)
        assert (src == dst).all()
    comm.barrier()
    comm.cannot_enter(1)
    assert not comm.poll()
    try:
        comm.allreduce(src, dst[:3], ReduceOp.SUM)
    except MismatchError as error:
        print(error.ranks, error)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(0,) allreduce(sum) of float64[6]")


def test_a_strange_world_is_refused():
    """A world that is not the session's is named with both sizes."""
    done = run_alone("""
from disco_server.collectives.base import UnavailableError
from disco_server.collectives.mpi import MpiCommunicator
try:
    MpiCommunicator.create(1, 2)
except UnavailableError as error:
    print(error)
""")
    assert "rank 0 of 1 in the MPI world, but worker 1 of 2 in the session" in done.stdout


def test_a_launchers_world_is_used():
    """Under mpiexec the world is the one that it made."""
    mpiexec = shutil.which("mpiexec", path=Path(sys.executable).parent)
    if mpiexec is None:
        pytest.skip("this environment has no mpiexec beside Python")
    done = run_alone(
        """
import os
import numpy as np
from disco_server.collectives.base import ReduceOp
from disco_server.collectives.mpi import MpiCommunicator
with MpiCommunicator.create(int(os.environ["PMI_RANK"]), 2) as comm:
    comm.position = 1
    data = np.ones(3)
    comm.allreduce(data, data, ReduceOp.SUM)
    print(data)
""",
        mpiexec,
        "-n",
        "2",
    )
    # Lines of two processes may run into one another.
    assert done.stdout.count("[2. 2. 2.]") == 2, done.stderr
