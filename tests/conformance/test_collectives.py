"""Collectives: results as numpy has them, and exact refusals that hang nobody."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import disco_client as di

LAYOUTS = pytest.mark.layouts((1, 1), (4, 2))
WIDEST = pytest.mark.layouts((4, 1))
MOVED = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]
REDUCED = [
    "int8",
    "int32",
    "int64",
    "uint8",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
]


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def average(parts):
    if parts[0].dtype.kind in "iu":  # exact, and toward zero, unlike numpy's own division
        total = np.sum([part.astype(object) for part in parts], 0)
        return (np.sign(total) * (np.abs(total) // len(parts))).astype(parts[0].dtype)
    total = np.sum(parts, 0, dtype=parts[0].dtype)
    return (total.astype("float64") / len(parts)).astype(total.dtype)


REDUCE = {
    "sum": lambda parts: np.sum(parts, 0, dtype=parts[0].dtype),
    "prod": lambda parts: np.prod(parts, 0, dtype=parts[0].dtype),
    "min": lambda parts: np.min(parts, 0),
    "max": lambda parts: np.max(parts, 0),
    "avg": average,
}


# Results --------------------------------------------------------------------------------


@pytest.mark.layouts((2, 1), (4, 2))
@pytest.mark.parametrize("dtype", REDUCED)
def test_allreduce_is_numpys_reduction_everywhere(session, tools, dtype):
    """For every operation; only counts matter, not shapes; the source stays as it was."""
    parts = tools.counting(3, 5, dtype=dtype_of(dtype))
    src = tools.place(parts)
    for op in di.REDUCE_OPS:
        dst = session.empty((15,), dtype)
        assert session.allreduce(src, dst, op) is dst
        for worker, got in enumerate(tools.fetch(dst)):
            expected = REDUCE[op]([parts[member] for member in tools.team(worker, True)])
            np.testing.assert_array_equal(got, expected.reshape(-1))
    for got, sent in zip(tools.fetch(src), parts, strict=True):
        np.testing.assert_array_equal(got, sent)


@WIDEST
def test_integers_wrap_and_their_average_is_cut_off(session, tools):
    """Toward zero, with the sign."""
    wrap = tools.place([np.array([100, -100], "int8")] * 4)
    session.allreduce(wrap, wrap)
    assert wrap.numpy(1).tolist() == [-112, 112]  # 400 and -400 in eight bits
    parts = [np.array([7, -7, 1, -1], "int32") + n for n in range(4)]
    mean = tools.place(parts)
    session.allreduce(mean, mean, "avg")
    assert mean.numpy(3).tolist() == [8, -5, 2, 0]  # 34, -22, 10 and 2, divided by 4
    unsigned = tools.place([np.array([250], "uint8")] * 4)
    session.allreduce(unsigned, unsigned, "prod")
    assert unsigned.numpy(2).tolist() == [250**4 % 256]


@pytest.mark.layouts((4, 1))
def test_the_average_of_equal_integers_is_that_integer(session, tools):
    """Also where their sum does not fit the dtype; small ones and many of them."""
    most = {"uint8": 250, "int8": -128, "uint32": 2**32 - 1, "int64": -(2**63), "uint64": 2**64 - 2}
    for dtype, value in most.items():
        for count in (2, 300_000):
            same = tools.place([np.full(count, value, dtype)] * 4)
            session.allreduce(same, same, "avg")
            got = same.numpy(3)
            assert got.dtype == dtype
            assert (got == np.array(value, dtype)).all(), (dtype, count, got[:2])


def no_arrays_of(dtype, case, session):
    """Whether the workers' device has no such dtype; then it says so."""
    if not case.kind.gpus or not dtype.startswith("float8"):
        return False
    session.empty((2,), dtype)
    with pytest.raises(di.BadArgument, match=f"holds no arrays of {dtype}"):
        session.sync_all()
    return True


@pytest.mark.layouts((4, 2))
@pytest.mark.parametrize("dtype", MOVED)
def test_everything_of_plain_numbers_can_be_moved(case, session, tools, dtype):
    """By every operation that does not reduce; also what the original refuses."""
    if no_arrays_of(dtype, case, session):
        return
    parts = tools.counting(2, 3, dtype=dtype_of(dtype))
    size = len(tools.team(0, True))
    src = tools.place(parts)
    every = session.empty((size * 6,), dtype)
    session.allgather(src, every)
    gathered = session.empty((size, 6), dtype, worker0_only=True)
    session.gather_to_worker0(src, gathered)
    dealt = session.empty((3, 2), dtype)
    session.scatter_from_worker0(every, dealt)
    copied = session.empty((6, 1), dtype)
    session.broadcast_from_worker0(src, copied)
    for worker in tools.workers:
        team = [parts[member] for member in tools.team(worker, True)]
        raw = np.stack(team).tobytes()
        assert every.numpy(worker).tobytes() == raw
        assert dealt.numpy(worker).tobytes() == parts[worker].tobytes()
        assert copied.numpy(worker).tobytes() == team[0].tobytes()
        if tools.team(worker, True)[0] == worker:
            assert gathered.numpy(worker).tobytes() == raw


@LAYOUTS
@pytest.mark.parametrize("count", [0, 1, 70_000])
def test_arrays_of_any_size(session, tools, count):
    """None at all, one element, and more than fits a message."""
    parts = tools.counting(count, dtype="int64")
    src, size = tools.place(parts), len(tools.team(0, True))
    total, every = session.empty((count,), "int64"), session.empty((size, count), "int64")
    session.allreduce(src, total)
    session.allgather(src, every)
    for worker in tools.workers:
        team = [parts[member] for member in tools.team(worker, True)]
        np.testing.assert_array_equal(total.numpy(worker), np.sum(team, 0))
        np.testing.assert_array_equal(every.numpy(worker), team)


@LAYOUTS
def test_a_scatter_is_not_tied_to_an_axis(session, tools):
    """(3, 4, 3) becomes two (3, 3, 2): equal flat chunks."""
    size = len(tools.team(0, True))
    whole = np.arange(36, dtype="float32").reshape(3, 4, 3)
    src = tools.place([whole] * session.num_workers)
    dst = session.empty((3, 3, 4 // size), "float32")
    session.scatter_from_worker0(src, dst)
    for worker, got in enumerate(tools.fetch(dst)):
        part = whole.reshape(size, -1)[tools.team(worker, True).index(worker)]
        np.testing.assert_array_equal(got.reshape(-1), part)


@LAYOUTS
def test_the_destination_may_be_the_source(session, tools):
    """Of a reduction and of a broadcast."""
    parts = tools.counting(4)
    ref = tools.place(parts)
    session.allreduce(ref, ref)
    for worker, got in enumerate(tools.fetch(ref)):
        team = [parts[member] for member in tools.team(worker, True)]
        np.testing.assert_array_equal(got, np.sum(team, 0))
    ref = tools.place(parts)
    session.broadcast_from_worker0(ref, ref)
    for worker, got in enumerate(tools.fetch(ref)):
        np.testing.assert_array_equal(got, parts[tools.team(worker, True)[0]])


@LAYOUTS
def test_reduce_scatter_and_all_to_all(session, tools):
    """What the original lacks."""
    size = len(tools.team(0, True))
    parts = tools.counting(size, 2)
    src = tools.place(parts)
    chunk, turned = session.empty((2,), "float32"), session.empty((size, 2), "float32")
    session.reduce_scatter(src, chunk)
    session.all_to_all(src, turned)
    for worker in tools.workers:
        team = tools.team(worker, True)
        place = team.index(worker)
        np.testing.assert_array_equal(
            chunk.numpy(worker), np.sum([parts[member][place] for member in team], 0)
        )
        np.testing.assert_array_equal(
            turned.numpy(worker), [parts[member][place] for member in team]
        )


@LAYOUTS
@pytest.mark.parametrize("captured", [False, True])
def test_without_a_destination_a_collective_makes_one(session, tools, captured):
    """A new reference of the source's dtype, also inside a program; the source stays as it was."""
    size = len(tools.team(0, True))
    parts = tools.counting(2 * size, 3, dtype="float32")
    src = tools.place(parts)
    root = session.copy_to_worker_0(parts[0])  # the other workers have nothing

    def issue():
        return {
            "allreduce": session.allreduce(src),
            "max": session.allreduce(src, op="max", in_group=False),
            "allgather": session.allgather(src),
            "broadcast": session.broadcast_from_worker0(src),
            "from root": session.broadcast_from_worker0(root, in_group=False),
            "scatter": session.scatter_from_worker0(src),
            "gather": session.gather_to_worker0(src),
            "reduce_scatter": session.reduce_scatter(src),
            "all_to_all": session.all_to_all(src),
        }

    results = [issue()]
    if captured:
        with session.capture() as program:
            program.output(**issue())
        results = [program(), program()]
    for worker in tools.workers:
        team = [parts[member] for member in tools.team(worker, True)]
        place = tools.team(worker, True).index(worker)
        mine = slice(2 * place, 2 * place + 2)
        expected = {
            "allreduce": np.sum(team, 0),
            "max": np.max(parts, 0),
            "allgather": np.stack(team),
            "broadcast": team[0],
            "from root": parts[0],
            "scatter": team[0][mine],
            "gather": np.stack(team) if place == 0 else None,
            "reduce_scatter": np.sum(team, 0)[mine],
            "all_to_all": np.concatenate([part[mine] for part in team]),
        }
        for result in results:
            for name, want in expected.items():
                got = result[name].debug_get_from_remote(worker)
                if want is None:
                    assert got is None
                    continue
                assert got.dtype == np.float32
                np.testing.assert_array_equal(got, want, err_msg=name)
        np.testing.assert_array_equal(src.numpy(worker), parts[worker])


@WIDEST
def test_a_collective_that_fails_poisons_what_it_would_have_made(session, tools):
    """On every worker, whichever of them cannot take part."""
    for issue in (
        session.allreduce,
        session.allgather,
        session.broadcast_from_worker0,
        session.scatter_from_worker0,
        session.gather_to_worker0,
        session.reduce_scatter,
        session.all_to_all,
    ):
        made = issue(tools.call("fail_on", [0], "no source"))
        with pytest.raises(di.RemoteException, match="no source"):
            session.sync_all()
        for worker in tools.workers:
            with pytest.raises(di.DiscoError):
                made.debug_get_from_remote(worker)
    odd = session.empty((3, 2), "float32")
    for issue in (session.reduce_scatter, session.scatter_from_worker0):
        issue(odd)
        with pytest.raises(di.BadArgument, match=r"first axis 4 workers divide.*\(3, 2\)"):
            session.sync_all()
    session.broadcast_from_worker0(tools.call("echo", None))
    with pytest.raises(di.BadArgument, match="the source must be an array"):
        session.sync_all()
    assert session.allreduce(session.scatter(np.ones((4, 1)))).numpy(3).tolist() == [4.0]


@LAYOUTS
def test_the_builtins_take_what_compiled_programs_send(session, tools):
    """``in_group`` as an integer; the reduction as a shape, a number or a name."""
    parts = tools.counting(3)
    src, dst = tools.place(parts), session.empty((3,), "float32")
    for op in (di.Shape((3,)), 3, "max"):
        for in_group in (0, 1, True):
            tools.call("runtime.disco.allreduce", src, op, in_group, dst)
            for worker, got in enumerate(tools.fetch(dst)):
                team = [parts[member] for member in tools.team(worker, bool(in_group))]
                np.testing.assert_array_equal(got, np.max(team, 0))


def test_functions_on_workers_call_collectives_themselves(tools):
    """Between two of the session's own."""
    parts = tools.counting(3)
    got = tools.fetch(tools.call("fail_before_allreduce", tools.place(parts), -1))
    for each in got:
        np.testing.assert_array_equal(each, np.sum(parts, 0))


# Refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["mean", "SUM", "", None, 0, "average"])
def test_a_reduction_that_there_is_not_is_refused_here(session, op):
    """As a ValueError, before anything is sent."""
    ref = session.empty((1,), "float32")
    issued = session.statistics()["issued"]
    with pytest.raises(ValueError, match="sum, prod, min, max, avg"):
        session.allreduce(ref, ref, op)
    assert session.statistics()["issued"] == issued


@LAYOUTS
@pytest.mark.parametrize("code", [5, -1, 1 << 40, "mean", None])
def test_a_code_that_there_is_not_is_refused_by_the_workers(session, tools, code):
    """Whoever sends it past the session's own check."""
    ref = session.empty((1,), "float32")
    tools.call("runtime.disco.allreduce", ref, code, True, ref)
    with pytest.raises(di.BadArgument):
        session.sync_all()


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_are_not_reduced(case, session, dtype):
    """They have too few digits for it; moving them is fine."""
    if no_arrays_of(dtype, case, session):
        return
    ref = session.empty((2,), dtype)
    session.allreduce(ref, ref)
    with pytest.raises(di.CollectiveMismatch, match=f"{dtype} can be moved but not reduced"):
        session.sync_all()


def calls(session):
    """Every collective by its name."""
    return {
        "allreduce": session.allreduce,
        "allgather": session.allgather,
        "broadcast": session.broadcast_from_worker0,
        "scatter": session.scatter_from_worker0,
        "gather": session.gather_to_worker0,
        "reduce_scatter": session.reduce_scatter,
        "all_to_all": session.all_to_all,
    }


@WIDEST
@pytest.mark.parametrize(
    ("name", "sent", "received"),
    [
        ("allreduce", 3, 2),
        ("allreduce", 2, 3),
        ("allgather", 2, 7),
        ("allgather", 2, 2),
        ("broadcast", 3, 2),
        ("scatter", 7, 2),
        ("scatter", 9, 2),
        ("gather", 2, 7),
        ("reduce_scatter", 7, 2),
        ("all_to_all", 6, 6),
        ("all_to_all", 4, 8),
    ],
)
def test_counts_that_do_not_fit_are_refused_on_every_worker(session, tools, name, sent, received):
    """Before anybody begins; no one waits for the root, and the destination is not read."""
    src = tools.call("numpy.ones", [sent], "float32")
    dst = tools.call("numpy.zeros", [received], "float32")
    calls(session)[name](src, dst)
    with pytest.raises(di.CollectiveMismatch) as refused:
        session.sync_all()
    assert len(refused.value.failures) == session.num_workers
    for worker in tools.workers:
        with pytest.raises(di.CollectiveMismatch):
            dst.debug_get_from_remote(worker)


@pytest.mark.parametrize(
    "name", ["allreduce", "allgather", "broadcast", "scatter", "gather", "reduce_scatter"]
)
def test_source_and_destination_have_one_dtype(session, name):
    """No bits are taken for something else."""
    src, dst = session.empty((4,), "float32"), session.empty((4,), "int32")
    calls(session)[name](src, dst)
    with pytest.raises(di.CollectiveMismatch, match="int32"):
        session.sync_all()


@WIDEST
@pytest.mark.parametrize("odd", [0, 3])
@pytest.mark.parametrize(
    "part", [np.ones(3, "float32"), np.ones(2, "int32"), None], ids=["count", "dtype", "none"]
)
@pytest.mark.parametrize("name", ["allreduce", "allgather"])
def test_one_worker_with_another_array_is_refused_everywhere(session, tools, name, part, odd):
    """All of them say who is the odd one; the next collective works."""
    parts = [np.ones(2, "float32")] * 4
    parts[odd] = part
    src = tools.place(parts)
    dst = session.empty((2 if name == "allreduce" else 8,), "float32")
    calls(session)[name](src, dst)
    with pytest.raises(di.CollectiveMismatch, match=f"worker {odd}"):
        session.sync_all()
    good = session.empty((2,), "float32")
    session.allreduce(good, good)
    session.sync_all()


@WIDEST
@pytest.mark.parametrize("failing", [0, 2])
def test_a_worker_that_fails_before_a_collective_ends_it_for_all(session, tools, failing):
    """The error is the cause, not that the others waited in vain."""
    array = session.empty((3,), "float32")
    tools.call("fail_before_allreduce", array, failing)
    with pytest.raises(di.RemoteException, match="told to fail") as raised:
        session.sync_all()
    assert raised.value.worker == failing
    session.allreduce(array, array)
    session.sync_all()


@WIDEST
def test_a_poisoned_source_ends_a_collective_for_all(session, tools):
    """Its first cause is told, and the session's collectives go on."""
    src = tools.call("fail_on", [1], "no source")
    dst = session.empty((2,), "float32")
    session.allreduce(src, dst)
    with pytest.raises(di.RemoteException, match="no source"):
        session.sync_all()
    session.allreduce(dst, dst)
    session.sync_all()


# The library ----------------------------------------------------------------------------


def test_the_library_is_chosen_by_itself_or_by_name(case, open_session):
    """Asking again for the same one is fine; another one is refused then."""
    session = open_session(2)
    assert session.ccl == case.kind.ccl
    session.init_ccl(case.kind.ccl)
    session.init_ccl(case.kind.ccl)
    with pytest.raises((di.CclError, di.BadArgument)):
        session.init_ccl({"mpi": "local", "local": "nccl", "nccl": "mpi"}[case.kind.ccl])
    assert session.ccl == case.kind.ccl
    ref = session.scatter([[1.0], [2.0]])
    session.allreduce(ref, ref)
    assert ref.numpy(1).tolist() == [3.0]


def test_mpi_is_what_moves_arrays_of_the_host(open_session, kind):
    """Under that name every kind has a library, with or without the original's devices."""
    session = open_session(2)
    session.init_ccl("mpi", 0, 1)
    session.init_ccl("mpi")
    served = "mpi" if kind.processes else "local"
    assert session.ccl == served
    compiled = session.get_global_func("runtime.disco.compiled_ccl")()
    assert compiled.debug_get_from_remote(1) == served
    part = session.empty((1,), "float64", di.cpu())
    for worker in range(2):
        part.debug_copy_from(worker, [worker + 1.0])
    session.allreduce(part, part)
    assert part.numpy(1).tolist() == [3.0]


@pytest.mark.parametrize("name", ["gloo", "", None, "MPI"])
def test_a_library_that_there_is_not_is_refused_here(session, name):
    """With those that there are."""
    with pytest.raises(di.ConfigError, match="mpi"):
        session.init_ccl(name)


def test_a_library_that_cannot_work_says_so_and_the_session_goes_on(open_session, kind):
    """Here for lack of AMD GPUs; the ordinary one serves instead."""
    session = open_session(2)
    with pytest.raises(di.BadArgument if kind.gpus else di.CclError, match="rccl"):
        session.init_ccl("rccl", 0, 1)
    ref = session.scatter([[1.0], [2.0]])
    session.allreduce(ref, ref)
    assert ref.numpy().tolist() == [3.0]
