"""Collectives of arrays on GPUs: how they begin, and who may take part; with the stand-in."""

from __future__ import annotations

import importlib
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.wire.values import Device
from disco_server.collectives import nccl
from disco_server.collectives.nccl import _Record
from disco_server.collectives.types import (
    AbortedError,
    CommunicatorLost,
    MismatchError,
    ReduceOp,
    UnavailableError,
)
from disco_server.collectives.unique_ids import HostIds
from disco_server.devices.host import HostArrays

SUM = ReduceOp.SUM
GROUPS = [pytest.param(1, id="one group"), pytest.param(2, id="two groups")]


def begin(rank):
    return rank.start() or rank.flat.ccl


def total(rank, value=1, *, host=False):
    """A sum over all ranks, of arrays on their GPUs or on the host."""
    array = np.full(9, value, np.float32)
    array = array if host else rank.arrays.from_host(array)
    rank.flat.world.allreduce(array, array, SUM)
    return (array if host else rank.arrays.to_host(array)).tolist() == [4 * value] * 9


@pytest.fixture
def binding(standin):
    """The module of the stand-in that binds the library."""
    return importlib.import_module("cupy.cuda.nccl")


@pytest.fixture
def version_of(binding, monkeypatch):
    """Gives ranks another version of the library; the thread tells who asks."""
    versions = {}

    def get_version():
        rank = int(threading.current_thread().name.split("-")[1].partition("_")[0])
        return versions.get(rank, 23203)

    monkeypatch.setattr(binding, "get_version", get_version)
    return versions


# How they begin -----------------------------------------------------------------------------


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("version", "splits"), [(23203, True), (21801, True), (21703, False)])
def test_groups_of_the_standin_begin_with_any_version(
    device_ranks, binding, monkeypatch, groups, version, splits
):
    """By splitting where that is possible, else each with a unique id from its leader."""
    monkeypatch.setenv("STANDIN_NCCL_VERSION", str(version))
    ids = []
    real = binding.get_unique_id
    monkeypatch.setattr(binding, "get_unique_id", lambda: ids.append(1) or real())
    ranks = device_ranks(4, groups=groups, start=False)

    def act(rank):
        begin(rank)
        mine = rank.arrays.from_host(np.full(3, rank.rank))
        out = rank.arrays.empty((rank.grouped.group.size, 3), mine.dtype)
        rank.grouped.group.allgather(mine, out)
        return rank.arrays.to_host(out)[:, 0].tolist()

    members = [[0, 1, 2, 3]] * 4 if groups == 1 else [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert ranks.each(act) == members
    # One for each communicator of all ranks, and where it must be one for each group.
    assert len(ids) == groups + (0 if splits or groups == 1 else groups)


def test_a_rank_without_a_gpu_ends_the_beginning_of_the_standin(device_ranks):
    """All learn who computes where, nobody waits, and what was there before still works."""
    ranks = device_ranks(4, groups=1, start=False)
    gpu, ranks.ranks[2].arrays = ranks.ranks[2].arrays, HostArrays(Device("cpu", 0))
    errors = ranks.each(begin)
    ranks.ranks[2].arrays = gpu
    later = ranks.each(total)

    words = (
        "nccl needs a GPU of its own for each worker, so none began: worker 2: it computes on cpu:0"
    )
    assert [(type(error), str(error)) for error in errors] == [(UnavailableError, words)] * 4
    assert [type(error) for error in later] == [MismatchError] * 4
    assert words in str(later[0])
    assert ranks.each(lambda rank: total(rank, host=True)) == [True] * 4


def test_why_it_did_not_begin_is_told_to_arrays_of_the_standin(device_ranks):
    """Whoever tries to use them later sees the reason again."""
    ranks = device_ranks(2, groups=1, devices=[1, 1], start=False)
    ranks.each(begin)

    errors = [str(error) for error in ranks.each(total)]
    assert errors == [errors[0]] * 2
    assert "workers 0 and 1 share the GPU 0000:11:00.0" in errors[0]


def test_before_it_begins_arrays_of_the_standin_are_refused(device_ranks):
    """With the call that helps; strided ones too."""
    ranks = device_ranks(2, groups=1, start=False)

    def strided(rank):
        array = rank.arrays.from_host(np.ones((4, 4)))[:, ::2]
        rank.flat.world.allgather(array, rank.arrays.empty((2, 8), array.dtype))

    for act in (total, strided):
        errors = ranks.each(act)
        assert [type(error) for error in errors] == [MismatchError] * 2
        assert "no library for arrays on GPUs was started; session.init_ccl('nccl') does" in str(
            errors[0]
        )


def test_two_ranks_of_the_standin_on_one_gpu(device_ranks):
    """Are named with the place of the GPU, before the library sees them."""
    ranks = device_ranks(4, groups=1, devices=[0, 1, 2, 1], start=False)
    (said,) = {str(error) for error in ranks.each(begin)}

    assert said == (
        "nccl needs a GPU of its own for each worker, so none began:"
        " workers 1 and 3 share the GPU 0000:11:00.0"
    )


def test_the_same_gpu_of_two_machines_is_none_for_the_standin(device_ranks, monkeypatch):
    """Machines are told apart by what their ranks say of them."""
    ranks = device_ranks(2, groups=1, devices=[0, 0], start=False)
    errors = ranks.each(lambda rank: rank.start(host=f"machine {rank.rank}"))

    # Here it is one machine after all, which the library sees for itself.
    assert all(isinstance(error, CommunicatorLost) for error in errors)
    assert "Duplicate GPU detected" in str(errors[0])


def test_different_versions_of_the_standin_do_not_begin(device_ranks, version_of):
    """Which would hang or go wrong; who has which is told."""
    ranks = device_ranks(4, groups=1, start=False)
    version_of.update({1: 22707, 3: 22707})
    (said,) = {str(error) for error in ranks.each(begin)}

    assert said == (
        "nccl must have the same version everywhere, so none began:"
        " workers 0 and 2 2.32.3; workers 1 and 3 2.27.7"
    )


def test_a_library_that_breaks_on_one_rank_of_the_standin(device_ranks, version_of, monkeypatch):
    """Whatever it raises is that rank's reason, cut to what may travel."""
    ranks = device_ranks(2, groups=1, start=False)
    version_of[1] = "no number " + 1000 * "\N{SKULL}"
    (said,) = {str(error) for error in ranks.each(begin)}

    assert "worker 1: invalid literal for int() with base 10: 'no number \N{SKULL}" in said
    assert len(said) < 500


@pytest.mark.parametrize("plan", ["init:1", "init:0", "init:1/2", "init:1/4"])
def test_a_rank_of_the_standin_that_fails_to_connect(device_ranks, monkeypatch, plan):
    """In the communicator of all or in a group's: who it was is told, with the reason."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", plan)
    ranks = device_ranks(4, start=False)
    errors = ranks.each(begin)

    which = "the group" if plan.endswith("/2") else "the workers"
    for rank, error in enumerate(errors):
        assert isinstance(error, CommunicatorLost)
        words = f"worker {rank}: nccl could not connect {which}: NCCL_ERROR_"
        assert str(error).startswith(words)
    assert sum("NCCL_ERROR_SYSTEM_ERROR" in str(error) for error in errors) == (
        2 if plan.endswith("/2") else 1
    )


def test_an_error_of_the_standin_without_a_name_ends_the_beginning(
    device_ranks, binding, monkeypatch
):
    """The peers are in the same call, so it counts like every other."""

    def fail(*_args):
        raise KeyError(8)

    ranks = device_ranks(1, groups=1, start=False)
    monkeypatch.setattr(binding, "NcclCommunicator", fail)
    (error,) = ranks.each(begin)

    assert isinstance(error, CommunicatorLost)
    assert str(error) == "worker 0: nccl could not connect the workers: 8"


@given(
    st.text(max_size=nccl._PROBLEM_CHARACTERS),
    st.integers(0, 10**6),
    st.text(max_size=20),
    st.integers(0, 1 << 16),
)
def test_what_a_rank_says_of_itself_arrives(problem, version, gpu, id_bytes):
    """Of any text, and always of the same size."""
    record = _Record(problem, version, gpu, id_bytes)
    data = record.encode()

    assert data.size == nccl._RECORD_BYTES
    assert _Record.decode(data) == record


def test_an_id_of_another_length_is_refused(device_ranks, binding, monkeypatch):
    """Whatever the library's length is; one that was cut on its way begins nothing."""
    ranks = device_ranks(2, groups=1, start=False)
    real = HostIds.share

    def cut(self, *given):
        return real(self, *given)[:-1]

    monkeypatch.setattr(HostIds, "share", cut)
    for error in ranks.each(begin):
        assert isinstance(error, CommunicatorLost)
        assert "expected a unique id of 128 bytes from worker 0, got 127 bytes" in str(error)


# Who may take part --------------------------------------------------------------------------


def test_host_arrays_keep_their_own_way_beside_the_standin(device_ranks):
    """Through the communicator that was there before, in the same session."""
    ranks = device_ranks(4)

    assert {rank.flat.ccl for rank in ranks.ranks} == {"nccl"}
    assert ranks.each(lambda rank: total(rank, 2, host=True)) == [True] * 4
    assert ranks.each(total) == [True] * 4
    assert ranks.each(lambda rank: total(rank, 3, host=True)) == [True] * 4


@pytest.mark.parametrize("large", [False, True])
def test_a_host_array_among_arrays_of_the_standin_is_refused_everywhere(device_ranks, large):
    """Nothing was touched, who brought what is told, and the next call works."""
    ranks = device_ranks(4)
    size = 200_000 if large else 3

    def act(rank):
        array = np.ones(size, np.float32)
        array = array if rank.rank == 2 else rank.arrays.from_host(array)
        rank.flat.world.allreduce(array, array, SUM)

    errors = ranks.each(act)

    assert {type(error) for error in errors} == {MismatchError}
    assert {str(error) for error in errors} == {str(errors[0])}
    assert errors[0].ranks == (2,)
    bring = f"brought allreduce(sum) of float32[{size}]"
    assert f"worker 2 {bring}, destination" in str(errors[0])
    assert f"workers 0, 1 and 3 {bring} on a GPU, destination" in str(errors[0])
    assert ranks.each(total) == [True] * 4


def test_source_and_destination_of_the_standin_are_in_one_place(device_ranks):
    """A call that mixes host and GPU is refused on every rank, whichever way."""
    ranks = device_ranks(2, groups=1)

    def act(rank):
        one, two = np.ones(3), rank.arrays.from_host(np.ones(3))
        pair = (one, two) if rank.rank else (two, one)
        rank.flat.world.allreduce(*pair, SUM)

    (said,) = {str(error) for error in ranks.each(act)}

    assert "the destination float64[3] must be where the source float64[3] on a GPU is" in said
    assert "the destination float64[3] on a GPU must be where the source float64[3] is" in said


@pytest.mark.parametrize(
    ("dtype", "op", "words"),
    [
        ("int16", SUM, "int16 on a GPU has no such reduction; convert it to another dtype"),
        ("uint16", ReduceOp.MAX, "uint16 on a GPU has no such reduction"),
        ("complex64", ReduceOp.PROD, "complex64 on a GPU has no such reduction"),
        ("complex128", ReduceOp.MIN, "complex128 has no order, so no min"),
        ("bool", ReduceOp.AVG, "bool has no avg"),
    ],
)
@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter"])
def test_what_the_standin_cannot_reduce_is_refused_before_anybody_enters(
    device_ranks, binding, monkeypatch, kind, dtype, op, words
):
    """On every rank, also where the others bring something sound; moving it works."""
    entered = []
    real = binding.NcclCommunicator._put
    monkeypatch.setattr(
        binding.NcclCommunicator,
        "_put",
        lambda self, call, *rest: entered.append(call.kind) or real(self, call, *rest),
    )
    ranks = device_ranks(2, groups=1)

    def act(rank, odd):
        chosen = np.dtype(dtype) if rank.rank in odd else np.dtype("float32")
        source = rank.arrays.from_host(np.ones(4, chosen))
        target = rank.arrays.empty((4 if kind == "allreduce" else 2,), chosen)
        getattr(rank.flat.world, kind)(source, target, op)

    for odd in ((0, 1), (1,)):
        errors = ranks.each(lambda rank, odd=odd: act(rank, odd))
        assert [type(error) for error in errors] == [MismatchError] * 2
        assert str(errors[0]) == str(errors[1])
        assert words in str(errors[0])
        assert errors[0].ranks == odd
    assert entered == []

    def move(rank):
        source = rank.arrays.from_host(np.array([rank.rank, 1], dtype))
        target = rank.arrays.empty((4,), source.dtype)
        rank.flat.world.allgather(source, target)
        return rank.arrays.to_host(target).tolist()

    assert ranks.each(move) == [[0, 1, 1, 1]] * 2


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("count", "the destination float32[3] on a GPU needs 4 elements"),
        ("dtype", "worker 2 brought allreduce(sum) of int32[3] on a GPU"),
        ("reduction", "worker 2 brought allreduce(max) of float32[3] on a GPU"),
        ("operation", "worker 2 brought broadcast of float32[3] on a GPU"),
        ("nothing", "the source must be an array, not None"),
        ("large", "worker 2 brought allreduce(sum) of float32[5000] on a GPU"),
    ],
)
def test_an_odd_rank_of_the_standin_is_refused_everywhere(device_ranks, case, words):
    """As among host arrays: all raise the same words, nothing was touched."""
    ranks = device_ranks(4)
    answers = ranks.run("refused", case=case)

    assert answers == [answers[0]] * 4
    named, message, untouched, after = answers[0]
    assert named == [2]
    assert words in message
    assert untouched
    assert after == [4, 4, 4]


@pytest.mark.parametrize("failing", [[3], [0, 1], [0, 1, 2, 3]])
def test_ranks_of_the_standin_that_fail_end_the_collective(device_ranks, failing):
    """Those who wait learn which ranks failed; afterwards all channels work again."""
    answers = device_ranks(4).run("fails", failing=failing, in_group=False, idle=True)
    for rank, (outcome, whole, part, _) in enumerate(answers):
        assert outcome == ("failed" if rank in failing else [failing, "allreduce(sum)", True])
        assert whole == [6, 6]
        assert part == ([1, 1] if rank < 2 else [5, 5])


def test_random_failures_never_hang_ranks_of_the_standin(device_ranks):
    """Whoever fails where, all ranks come to the end and equal collectives met."""
    ranks = device_ranks(4)
    answers = ranks.run("random_log", seed=4, commands=60)
    everyone = [[line for line in answer if "world" in line] for answer in answers]

    assert everyone == [everyone[0]] * 4
    assert len(everyone[0]) > 5
    assert [rank.failed for rank in ranks.ranks] == [[]] * 4


def test_a_rank_of_the_standin_without_room_fails_before_the_others_begin(
    device_ranks, monkeypatch
):
    """Strided arrays need copies; who cannot make one keeps its peers from beginning."""
    ranks = device_ranks(4, groups=1)

    def no_room(*_args):
        msg = "no room"
        raise MemoryError(msg)

    def act(rank):
        rank.flat.position = 1
        wide = rank.arrays.from_host(np.ones((10, 2), np.float32))
        try:
            rank.flat.world.broadcast(wide[:, 0], wide[:, 1])
        except MemoryError:
            rank.flat.cannot_enter(1)
            raise

    with monkeypatch.context() as patch:
        patch.setattr(ranks.ranks[3].flat._agreement, "stage", no_room)
        errors = ranks.each(act)

    assert [type(error) for error in errors] == [AbortedError] * 3 + [MemoryError]
    assert errors[0].ranks == (3,)
    assert [rank.failed for rank in ranks.ranks] == [[]] * 4
    for rank in ranks.ranks:
        rank.flat.position = 2
    assert ranks.each(total) == [True] * 4


def test_transfers_of_the_standin_that_do_not_fit_are_refused(device_ranks):
    """Both ends learn what the other brought, or that it cannot come."""
    first, second, *others = device_ranks(4).run("wrong_transfers")

    assert others == [[], []]
    assert first[:2] == second[:2]
    assert "send_recv of float64[3] on a GPU" in first[0]
    assert "destination float64[4] on a GPU" in first[0]
    assert first[3] == "9 is not the rank of one of 4 members"
