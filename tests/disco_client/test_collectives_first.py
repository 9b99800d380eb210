"""The very first collective of a session, which also starts MPI."""

from __future__ import annotations

import pytest

from disco_client import CclError, NoSlots, RemoteException


@pytest.mark.parametrize("options", [{}, {"num_groups": 2}, {"ccl": "mpi"}], ids=str)
def test_a_rank_that_fails_before_the_first_collective_releases_the_others(open_session, options):
    """It starts the library all the same, because its peers need it for that."""
    session = open_session(4, **options)
    ones = session.get_global_func("tests.rank_array")([2], "float32")
    session.get_global_func("tests.fail_before_allreduce")(ones, 1)
    with pytest.raises(RemoteException, match="told to fail") as raised:
        session.sync_all()
    assert raised.value.worker == 1
    session.allreduce(ones, ones, in_group=False)
    assert ones.numpy(1).tolist() == [10, 10]


def test_a_library_that_does_not_fit_is_an_error_of_the_first_use(open_session):
    """On every rank, with what there is; what needs no collectives works on."""
    session = open_session(2, ccl="local")
    ones = session.get_global_func("tests.rank_array")([2], "float32")
    session.allreduce(ones, ones)
    with pytest.raises(CclError, match="'local' works between threads") as raised:
        session.sync_all()
    assert [failure.worker for failure in raised.value.failures] == [0, 1]
    with pytest.raises(CclError):
        ones.numpy(1)  # the sum should have come to be there
    assert session.get_global_func("numpy.ones")(2).numpy(1).tolist() == [1, 1]


def test_a_library_of_gpus_needs_slots_that_are_gpus(open_session):
    """Nothing is placed on a CPU in their stead; the error says what there is."""
    with pytest.raises(NoSlots, match=r"2 cuda workers.* cpu\).*--devices cuda"):
        open_session(2, ccl="nccl", timeout=2.0)


def test_a_single_worker_needs_no_peers(open_session):
    """Every collective of one is a copy."""
    session = open_session(1)
    ones = session.get_global_func("tests.rank_array")([4], "float32")
    dst = session.empty((4,), "float32")
    for collective in (
        session.allreduce,
        session.allgather,
        session.broadcast_from_worker0,
        session.scatter_from_worker0,
        session.gather_to_worker0,
        session.reduce_scatter,
        session.all_to_all,
    ):
        collective(ones, dst)
        assert dst.numpy().tolist() == [1, 1, 1, 1]
