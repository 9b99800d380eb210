"""Ranks that die, hang or bring the wrong thing: rows 2, 3, 24, 25, 27 and 29 of the matrix."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from disco_client import connect, errors
from fault_tools.processes import frozen

QUICK_S = 5.0
"""The promise is 1 s on a machine that does nothing else."""

HOG = """
import sys, disco_client
sys.path.insert(0, sys.argv[1])
if __name__ == "__main__":
    session = disco_client.ProcessSession(2, logs=False)
    session.import_python_module("disco_test_functions")
    session.get_global_func("tests.hog_on")(1)
    try:
        session.sync_all()
    except disco_client.WorkerLost as lost:
        print(lost.worker, lost.exit_status, lost)
"""


def shares_memory_of_mpi(pid):
    """Whether a process maps what MPI's ranks share, which has lost its name by then."""
    return "/dev/shm/mpich_" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize(
    ("function", "arguments", "status", "how", "last_words"),
    [
        ("tests.kill_on", (1,), -signal.SIGKILL, "died of SIGKILL (signal 9, Killed)", ""),
        ("tests.exit_on", (1, 3), 3, "exited with status 3", "these are my last words"),
        (
            "tests.crash_on",
            (1,),
            -signal.SIGSEGV,
            "died of SIGSEGV (signal 11, Segmentation fault)",
            "in crash_on",
        ),
    ],
    ids=["killed", "exits", "segfaults"],
)
def test_a_lost_worker_ends_its_session_at_once(
    open_kind, function, arguments, status, how, last_words, all_end
):
    """Row 3: WorkerLost says rank, node, how it died in words, and its last output."""
    session = open_kind(2)
    doomed = session.get_global_func(function)
    session.sync_all()
    began = time.monotonic()
    doomed(*arguments)
    with pytest.raises(errors.WorkerLost) as raised:
        session.sync_all()
    assert time.monotonic() - began < QUICK_S
    error = raised.value
    assert (error.worker, error.node) == (1, session.workers[1].node)
    assert error.exit_status == status
    assert f"worker 1 on node {error.node!r} {how}" in str(error)
    assert last_words in "\n".join(error.output)
    assert last_words in str(error)
    # Every later call says the same.
    with pytest.raises(errors.WorkerLost):
        session.get_global_func("tests.echo")
    all_end(rank.pid for rank in session.workers)


def test_of_a_deep_stack_the_innermost_frames_are_in_the_error(open_kind):
    """Row 3: a segfault in a recursion shows where it happened, not only who began it."""
    session = open_kind(1)
    session.get_global_func("tests.crash_deep")(100)
    with pytest.raises(errors.WorkerLost) as raised:
        session.sync_all()
    output = list(raised.value.output)
    assert output[0] == "Fatal Python error: Segmentation fault"
    assert any("in crash_deep" in line for line in output[:6])


def test_a_worker_that_memory_ran_out_for_is_reported_as_that(limit, daemons):
    """Row 3: the kernel's SIGKILL is told from others, with the limit; the node goes on."""
    controller = daemons.controller()
    daemons.prefix = limit("memory", 400 << 20).prefix
    daemons.worker(controller.address, "--slots", "2")
    with connect(controller.address, num_workers=2, logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.hog_on")(1)
        with pytest.raises(errors.WorkerLost) as raised:
            session.sync_all()
    error = raised.value
    assert (error.worker, error.exit_status) == (1, -signal.SIGKILL)
    assert re.search(
        r"was killed because memory ran out \(the limit of its cgroup \S+ is 400 MiB\)", str(error)
    )
    # A SIGKILL that a person sent is not taken for another such death.
    with connect(controller.address, num_workers=2, logs=False, timeout=20) as session:
        os.kill(session.workers[0].pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost, match="died of SIGKILL"):
            session.sync_all()


def test_a_child_that_memory_ran_out_for_is_reported_as_that(limit, tmp_path):
    """Row 3: a program hears the same of the workers that it started itself."""
    program = tmp_path / "hog.py"
    program.write_text(HOG)
    modules = Path(__file__).parents[1] / "worker_modules"
    done = subprocess.run(
        [*limit("memory", 400 << 20).prefix, sys.executable, str(program), str(modules)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout.startswith("1 -9 "), done.stderr
    assert "was killed because memory ran out" in done.stdout
    assert "is 400 MiB" in done.stdout


def test_a_lost_worker_releases_its_peers_from_a_collective(open_kind, all_end):
    """Row 2: ranks that spin inside MPI for a peer that was killed end with the session."""
    session = open_kind(4)
    total = session.empty((1 << 20,), "float64")
    session.allreduce(session.broadcast(np.ones(1 << 20)), total)
    session.sync_all()
    assert all(shares_memory_of_mpi(rank.pid) for rank in session.workers)
    began = time.monotonic()
    session.get_global_func("tests.kill_on")(3)
    for _ in range(3):
        session.allreduce(total, total)
    with pytest.raises(errors.WorkerLost) as raised:
        session.sync_all()
    assert time.monotonic() - began < QUICK_S
    assert raised.value.worker == 3
    all_end(rank.pid for rank in session.workers)


def move_a_lot(session, name):
    """Gives each rank's number, and zeros, to a collective that is too large to ride along."""
    count, size = session.num_workers, 3 << 20
    source = session.get_global_func("tests.rank_array")([size], "float32")
    if name == "allgather":
        out = session.empty((count, size), "float32")
        session.allgather(source, out)
    else:
        out = session.empty((size,), "float32")
        session.broadcast_from_worker0(source, out)
    return out


@pytest.mark.parametrize("collective", ["allgather", "broadcast"])
def test_who_died_is_named_and_not_who_felt_it(open_kind, all_end, tmp_path, collective):
    """Row 29: a peer whose MPI fails or aborts for it tells nothing before the death is told."""
    session = open_kind(3)
    session.get_global_func("tests.fade_in_the_next_on")(0, str(tmp_path / "gone"))
    out = move_a_lot(session, collective)
    with pytest.raises(errors.WorkerLost) as raised:
        out.debug_get_from_remote(2)
    assert (raised.value.worker, raised.value.exit_status) == (0, -signal.SIGKILL), raised.value
    all_end(rank.pid for rank in session.workers)


@pytest.mark.parametrize("collective", ["allgather", "broadcast"])
def test_a_session_that_recovers_shows_no_consequence_of_a_death(shared_node, tmp_path, collective):
    """Row 29: the program goes on with other ranks, and hears of no error in the collective."""
    with connect(shared_node.address, num_workers=3, recover="replay", logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.fade_in_the_next_on")(0, str(tmp_path / "gone"))
        out = move_a_lot(session, collective).debug_get_from_remote(2)
        assert [each.lost.worker for each in session.recoveries] == [0]
    expected = [1, 2, 3] if collective == "allgather" else [1]
    np.testing.assert_array_equal(out.reshape(len(expected), -1)[:, 0], expected)


def kill_unseen(daemon, ranks, victim):
    """Kills a rank whose daemon stands still until its peers have ended, or will not of that."""
    peers = [psutil.Process(rank.pid) for rank in ranks if rank is not victim]
    with frozen(daemon.process.pid):
        os.kill(victim.pid, signal.SIGKILL)
        psutil.wait_procs(peers, 0.3)


KILLS = [
    ("allgather", 3 << 20, 0),
    ("broadcast_from_worker0", 3 << 20, 0),
    ("allreduce", 3 << 20, 2),
    ("scatter_from_worker0", 1 << 20, 0),
    ("gather_to_worker0", 1 << 20, 1),
    ("allreduce", 8, 1),
]


@pytest.mark.slow
def test_kills_inside_collectives_are_never_errors_of_the_program(node):
    """Row 29: large and small arrays, whichever rank; each value is right in the end."""
    controller, daemon = node(3)
    options = {"num_workers": 3, "recover": "replay", "logs": False}
    with connect(controller.address, **options) as session:
        session.import_python_module("disco_test_functions")
        fill = session.get_global_func("tests.rank_array")
        for collective, size, victim in KILLS:
            parts, count = fill([3, size], "float32"), len(session.recoveries)
            one = fill([size], "float32")
            whole = session.empty((3, size), "float32")
            out = session.empty((size,), "float32")
            calls = {
                "allgather": (one, whole),
                "gather_to_worker0": (one, whole),
                "scatter_from_worker0": (parts, out),
            }
            source, target = calls.get(collective, (one, out))
            move = getattr(session, collective)
            move(source, target)
            session.sync_all()
            for _ in range(10):
                move(source, target)
            kill_unseen(daemon, session.workers, session.workers[victim])
            found = target.debug_get_from_remote(0)
            session.sync_all()
            assert len(session.recoveries) == count + 1
            assert session.recoveries[-1].lost.worker == victim
            expected = {"allreduce": [6], "broadcast_from_worker0": [1], "allgather": [1, 2, 3]}
            expected |= {"gather_to_worker0": [1, 2, 3], "scatter_from_worker0": [1]}
            firsts = found.reshape(len(expected[collective]), -1)[:, 0]
            np.testing.assert_array_equal(firsts, expected[collective])


def test_an_error_of_ones_own_mpi_is_ones_own(open_kind):
    """Row 29: what fails where a function calls MPI is its error, and nothing is lost."""
    session = open_kind(2)
    total = session.empty((8,), "float64")
    session.allreduce(total, total)
    session.get_global_func("tests.misuse_mpi_on")(1)
    with pytest.raises(errors.RemoteException, match=r"mpi4py\.MPI\.Exception") as raised:
        session.sync_all()
    assert "tests.misuse_mpi_on" in str(raised.value)
    session.allreduce(total, total)
    session.sync_all()


def test_the_slots_of_a_lost_worker_are_free_at_once(node):
    """Row 2: another session gets them, within 5 s, and new processes."""
    controller, _ = node(2)
    with connect(controller.address, num_workers=2, logs=False) as doomed:
        os.kill(doomed.workers[0].pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost):
            doomed.sync_all()
        with connect(controller.address, num_workers=2, logs=False, timeout=5) as successor:
            total = successor.empty((4,), "int32")
            successor.allreduce(successor.broadcast(np.arange(4, dtype="int32")), total)
            np.testing.assert_array_equal(total.numpy(), [0, 2, 4, 6])
            ranks = {rank.pid for rank in successor.workers}
            assert not ranks & {rank.pid for rank in doomed.workers}


def test_a_rank_that_hangs_in_the_rendezvous_is_named_after_the_limit(open_kind, all_end):
    """Row 24: its peers wait for it inside MPI's start; all end, and the error says for whom."""
    session = open_kind(3, DISCO_INIT_TIMEOUT_S="1.5")
    stop = session.get_global_func("tests.stop_when_pmi_begins")
    stop(1)
    session.sync_all()
    small = session.empty((4,), "float64")
    session.allreduce(small, small)
    with pytest.raises(errors.WorkerLost) as raised:
        session.sync_all()
    text = str(raised.value)
    assert raised.value.worker == 1
    assert "the ranks did not meet within 1.5 s (DISCO_INIT_TIMEOUT_S)" in text
    assert "worker 1 did not run at all (stopped)" in text
    all_end(rank.pid for rank in session.workers)


def test_a_rank_that_dies_in_the_rendezvous_releases_the_others(open_kind, all_end):
    """Row 24: killed between MPI's start and its peers' arrival, it is named at once."""
    session = open_kind(3, DISCO_INIT_TIMEOUT_S="30")
    session.get_global_func("tests.stop_when_pmi_begins")(2, int(signal.SIGKILL))
    session.sync_all()
    total = session.empty((4,), "float64")
    session.allreduce(total, total)
    began = time.monotonic()
    with pytest.raises(errors.WorkerLost) as raised:
        session.sync_all()
    assert time.monotonic() - began < QUICK_S
    assert raised.value.worker == 2
    all_end(rank.pid for rank in session.workers)


def test_an_operation_that_kills_every_worker_leaves_the_node_whole(node, eventually):
    """Row 27: three sessions die of it one after the other, and the fourth one works."""
    controller, daemon = node(1)
    for _ in range(3):
        with connect(controller.address, num_workers=1, logs=False, timeout=20) as session:
            session.import_python_module("disco_test_functions")
            session.get_global_func("tests.crash_on")(0)
            with pytest.raises(errors.WorkerLost):
                session.sync_all()
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as session:
        session.sync_all()
    eventually(lambda: len(daemon.ranks()) == 0, what="the end of every rank")


def test_an_operation_that_kills_workers_again_and_again_is_given_up(node, eventually):
    """Row 27: a session that recovers stops after 3 deaths, and says at which command."""
    controller, daemon = node(2)
    options = {"num_workers": 2, "recover": "replay", "logs": False, "timeout": 20}
    with connect(controller.address, **options) as session:
        session.import_python_module("disco_test_functions")
        crash = session.get_global_func("tests.crash_on")
        session.sync_all()
        crash(1)
        seq = session.statistics()["issued"]
        with pytest.raises(errors.PoisonCommand) as raised:
            session.sync_all()
    error = raised.value
    assert (error.seq, error.function) == (seq, "tests.crash_on")
    assert [death.exit_status for death in error.deaths] == [-signal.SIGSEGV] * 3
    assert f"command #{seq} (tests.crash_on) 3 times in a row" in str(error)
    assert "in crash_on" in str(error)
    eventually(lambda: len(daemon.ranks()) == 0, what="the end of every rank")


def test_deaths_by_chance_are_not_taken_for_one_cause(node, eventually):
    """Row 27: whoever kills idle workers may do so as often as he likes."""
    controller, _ = node(1)
    with connect(controller.address, num_workers=1, recover="replay", logs=False) as session:
        for _ in range(3):
            session.sync_all()
            before = len(session.recoveries)
            os.kill(session.workers[0].pid, signal.SIGKILL)
            eventually(lambda was=before: len(session.recoveries) > was, what="another worker")
        session.sync_all()
        assert len(session.recoveries) == 3


def test_a_worker_with_a_tenth_of_a_core_is_slow_and_not_lost(limit, daemons):
    """Row 27: its daemon shares the tenth, answers late, and yet nobody gives it up."""
    controller = daemons.controller("--node-lease", "5")
    daemon = daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1, logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.sync_all()
        limit("cpu", 0.1).take(daemon.process.pid, session.workers[0].pid)
        add = session.get_global_func("tests.add")
        for number in range(2000):
            result = add(number, 1)
        assert result.debug_get_from_remote(0) == 2000


MISMATCHES = {
    "tests.sum_shape": "allreduce(sum) of float32[3]",
    "tests.sum_dtype": "allreduce(sum) of float64[2]",
    "tests.sum_op": "allreduce(max) of float32[2]",
    "tests.gather_instead": "allgather of float32[2]",
}


def test_a_mismatched_collective_is_refused_before_anybody_enters(open_kind):
    """Row 25: another shape, dtype, reduction or operation is named with its rank, always."""
    session = open_kind(3)
    mismatch = session.get_global_func("tests.mismatch_on")
    for call, brought in MISMATCHES.items():
        mismatch(1, call)
        with pytest.raises(errors.CollectiveMismatch) as raised:
            session.sync_all()
        text = str(raised.value)
        assert f"worker 1 brought {brought}" in text
        assert "workers 0 and 2 brought allreduce(sum) of float32[2], destination" in text
    # Nobody entered, so the session works on.
    total = session.empty((2,), "float64")
    session.allreduce(session.get_global_func("tests.rank_array")([2], "float64"), total)
    np.testing.assert_array_equal(total.numpy(), [6, 6])


def test_in_debug_mode_shapes_of_equal_size_are_compared_too(open_kind, monkeypatch):
    """Row 25: DISCO_DEBUG=1, or compare_shapes(), refuses [2, 3] beside [3, 2]; else it runs."""
    monkeypatch.delenv("DISCO_DEBUG", raising=False)
    session = open_kind(2)
    differ = session.get_global_func("tests.shape_for")(1, [3, 2], [2, 3])
    session.allreduce(differ, differ)
    session.sync_all()
    session.compare_shapes()
    session.allreduce(differ, differ)
    with pytest.raises(errors.CollectiveMismatch) as raised:
        session.sync_all()
    assert "worker 1 brought allreduce(sum) of float32[3, 2]" in str(raised.value)
    session.compare_shapes(False)
    session.allreduce(differ, differ)
    session.sync_all()


def test_the_environment_switches_debug_mode_on(open_kind):
    """Row 25: of the worker daemon, or of the program whose children the ranks are."""
    session = open_kind(2, DISCO_DEBUG="1")
    differ = session.get_global_func("tests.shape_for")(1, [3, 2], [2, 3])
    session.allreduce(differ, differ)
    with pytest.raises(errors.CollectiveMismatch):
        session.sync_all()


def test_a_rank_that_skips_a_collective_is_named_while_others_wait(node, printed, eventually):
    """Row 25: the ranks that wait say for whom after DISCO_SLOW_S, and nobody is killed."""
    controller, _ = node(2, DISCO_SLOW_S="0.5")
    with connect(controller.address, num_workers=2) as session:
        session.import_python_module("disco_test_functions")
        total = session.empty((2,), "float64")
        session.allreduce(total, total)
        session.get_global_func("tests.wait_alone")()
        said = "worker 1 has waited 0.5 s in barrier of command #"
        eventually(lambda: said in printed(), what="a word of who waits")
        assert "for worker 0, which did not enter it yet" in printed()
        session.shutdown()  # nobody would ever come; a sync would wait for ever
