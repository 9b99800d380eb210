"""The stand-in for NCCL among processes, and the failures that can be asked of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LOST = 6


@pytest.fixture
def run_ranks(tmp_path):
    """Runs a function of the rank program on several ranks; rank N gets device N.

    Returns what each printed, or the code with which it ended.
    """
    started = []
    short = tempfile.mkdtemp()  # the name of a socket cannot be long

    def run(size, what, *, each=lambda rank: {}, sockets=False, **env):
        for rank in range(size):
            environ = {
                **{k: v for k, v in os.environ.items() if not k.startswith("STANDIN_")},
                "PYTHONPATH": str(FOLDER),
                "STANDIN_DEVICE": str(rank),
                **({"STANDIN_SOCKETS": short} if sockets else {}),
                **env,
                **each(rank),
            }
            program = FOLDER / "rank_program.py"
            command = [sys.executable, program, str(rank), str(size), tmp_path / "id", what]
            started.append(
                subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
            )
        found = []
        for process in started:
            output, _ = process.communicate(timeout=40)
            found.append(process.returncode or json.loads(output))
        return found

    run.started = started
    yield run
    for process in started:
        process.kill()
        process.communicate()
    shutil.rmtree(short)


def in_time(result):
    """Whether it ended with the error; that may come before the last result is looked at."""
    *got, end = result
    return end == "error 6" and got in ([3], [3, 9])


@pytest.mark.parametrize("sockets", [False, True])
def test_collectives_among_processes(run_ranks, sockets):
    """With sockets that leave no file, or in a folder of the test."""
    found = run_ranks(4, "sums", sockets=sockets)

    assert found == [[6, 10, 14, 2], [6, 10, 14, 4], [6, 10, 14, 2], [6, 10, 14, 4]]


def test_threads_of_several_processes(run_ranks):
    """Mixed in one communicator."""
    assert run_ranks(2, "with_threads") == [[6, 6], [6, 6]]


def test_two_processes_on_one_device(run_ranks):
    """Are refused, whatever number each of them knows it by."""
    found = run_ranks(2, "construction", STANDIN_DEVICE="0", CUDA_VISIBLE_DEVICES="2,3")

    assert [status for status, _ in found] == [5, 5]
    assert all("Duplicate GPU detected" in text for _, text in found)


def test_the_same_device_of_two_hosts(run_ranks):
    """Is another device."""
    found = run_ranks(
        2, "construction", STANDIN_DEVICE="0", each=lambda rank: {"STANDIN_HOST": f"host-{rank}"}
    )

    assert found == [[0, "2"], [0, "2"]]


def test_versions_that_differ(run_ranks):
    """Are refused."""
    found = run_ranks(
        2, "construction", each=lambda rank: {"STANDIN_NCCL_VERSION": str(23000 + rank)}
    )

    assert [status for status, _ in found] == [5, 5]
    assert "Mismatched NCCL version" in found[0][1]


def test_a_rank_whose_construction_fails(run_ranks):
    """The others see that it is gone."""
    found = run_ranks(3, "construction", STANDIN_NCCL_FAIL="init:1")

    assert [status for status, _ in found] == [LOST, 2, LOST]


def test_an_asynchronous_error(run_ranks):
    """The rank sees it; when it gives up, so do the others."""
    found = run_ranks(3, "watched", STANDIN_NCCL_FAIL="async:1:3")

    assert found[1] == [3, 9, "error 6"]
    assert all(in_time(result) for result in found)


def test_a_hang_is_an_error_nowhere(run_ranks):
    """Until somebody gives up."""
    found = run_ranks(2, "watched", STANDIN_NCCL_FAIL="hang:1:2")

    assert all(result[0] == 2 for result in found)
    assert {result[1] for result in found} <= {"error timeout", "error 6"}
    assert "error timeout" in {result[1] for result in found}


@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_that_is_killed(run_ranks, victim):
    """Its end closes its connections, and the others see an error; rank 0 has the hub."""
    found = run_ranks(3, "watched", STANDIN_NCCL_FAIL=f"kill:{victim}:3")

    assert found.pop(victim) == -signal.SIGKILL
    assert all(in_time(result) for result in found)


def test_failures_from_a_file(run_ranks, tmp_path):
    """Which need not be there, and may name the size of a communicator."""
    plan = tmp_path / "plan"
    plan.write_text("hang:0/9:1, kill:0/2:1")
    found = run_ranks(2, "watched", STANDIN_NCCL_FAIL=f"@{plan}")

    assert found == [-signal.SIGKILL, ["error 6"]]


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets without files")
def test_nothing_is_left_of_a_killed_hub(run_ranks):
    """Its socket was in no folder."""
    run_ranks(2, "watched", STANDIN_NCCL_FAIL="kill:0:1")
    names = Path("/proc/net/unix").read_text()

    assert f"standin-{run_ranks.started[0].pid}-" not in names
