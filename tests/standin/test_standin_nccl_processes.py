"""The stand-in for NCCL among processes, and the failures that can be asked of it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

LOST = 6


def in_time(result):
    """Whether it ended with the error; that may come before the last result is looked at."""
    *got, end = result
    return end == "error 6" and got in ([3], [3, 9])


@pytest.mark.parametrize("sockets", [False, True])
def test_collectives_among_processes(run_ranks, sockets):
    """With sockets that leave no file, or in a folder of the test."""
    found = run_ranks(4, "sums", sockets=sockets)

    assert found == [[6, 10, 14, 2], [6, 10, 14, 4], [6, 10, 14, 2], [6, 10, 14, 4]]


def test_keys_order_the_ranks_of_a_split(run_ranks, carrier):
    """In a communicator of all ranks but one, for gathering as for sending."""
    found = run_ranks(4, "turned", **carrier)

    assert found == [[2, 3, [3, 1, 0]], [1, 3, [3, 1, 0]], None, [0, 3, [3, 1, 0]]]


def test_averages_and_groups(run_ranks, carrier):
    """Averages are cut or rounded; reductions and transfers of a group go together."""
    found = run_ranks(2, "averages", **carrier)

    assert found == [[[-1, 1, 2], 1.5, [4, 0], 1], [[-1, 1, 2], 1.5, [4, 1], 0]]


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


def test_another_name_of_a_carrier_is_refused(nccl, monkeypatch):
    """With those that there are."""
    monkeypatch.setenv("STANDIN_NCCL_CARRIER", "pigeons")
    with pytest.raises(ValueError, match="expected hub or oneccl as STANDIN_NCCL_CARRIER, got p"):
        nccl.get_unique_id()


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets without files")
def test_nothing_is_left_of_a_killed_hub(run_ranks):
    """Its socket was in no folder."""
    run_ranks(2, "watched", STANDIN_NCCL_FAIL="kill:0:1")
    names = Path("/proc/net/unix").read_text()

    assert f"standin-{run_ranks.started[0].pid}-" not in names
