"""Host arrays on their way to the workers and back, on a real cluster."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_client import (
    BadArgument,
    ConfigError,
    EncodingError,
    RemoteException,
)
from fakes import pair

session = pair

LARGE = 64 * 1024  # beyond this, arrays travel beside the log


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 4), (LARGE + 1,), (300, 500)])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", "bfloat16"]
)
def test_a_host_array_goes_to_worker_0_and_comes_back(session, shape, dtype):
    """Of any shape and dtype, small or large, to the byte."""
    dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    sent = (np.arange(np.prod(shape, dtype=int)) % 2 * 3).astype(dtype).reshape(shape)
    remote = session.copy_to_worker_0(sent)
    got = np.zeros_like(sent)
    session.copy_from_worker_0(got, remote)
    assert got.tobytes() == sent.tobytes()
    fetched = remote.numpy()
    assert (fetched.dtype, fetched.shape) == (sent.dtype, sent.shape)
    assert fetched.tobytes() == sent.tobytes()
    assert remote.debug_get_from_remote(1) is None


@pytest.mark.parametrize("size", [10, 400], ids=["small", "large"])
@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.T,
        lambda a: a[::2, ::-1],
        np.asfortranarray,
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: a.astype(">f8"),
        lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    ],
    ids=["transposed", "strided", "fortran", "broadcast", "swapped", "read-only"],
)
def test_a_host_array_may_lie_in_memory_as_it_likes(session, make, size):
    """On the way there, and as the destination on the way back."""
    sent = make(np.arange(size * size, dtype="float64").reshape(size, size))
    remote = session.copy_to_worker_0(sent)
    np.testing.assert_array_equal(remote.numpy(), sent)
    got = make(np.zeros((size, size)))
    if got.flags.writeable:
        session.copy_from_worker_0(got, remote)
        np.testing.assert_array_equal(got, sent)


@pytest.mark.parametrize("count", [10, LARGE, 1 << 20])
def test_a_host_array_may_be_changed_as_soon_as_the_call_returns(session, count):
    """The worker, which is busy meanwhile, gets what was there before."""
    session.get_global_func("tests.sleep")(0.3)
    host = np.full(count, 7.0)
    copied = session.copy_to_worker_0(host)
    passed = session.get_global_func("tests.echo")(host)
    host[:] = -1
    np.testing.assert_array_equal(copied.numpy(), np.full(count, 7.0))
    np.testing.assert_array_equal(passed.numpy(1), np.full(count, 7.0))


def test_a_copy_fills_the_array_that_is_there(session):
    """Sizes and dtypes must agree, shapes need not; other registers with it see it."""
    remote = session.empty((2, 3), "int32")
    alias = session.get_global_func("tests.echo")(remote)
    assert session.copy_to_worker_0(np.arange(6, dtype="int32"), remote) is remote
    assert alias.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    back = np.zeros((3, 2), "int32")
    session.copy_from_worker_0(back, remote)
    assert back.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("count", [6, LARGE])
@pytest.mark.parametrize(("size", "dtype"), [(1, "int32"), (0, "float32"), (0, "int16")])
def test_a_copy_between_unequal_arrays_is_refused(session, size, dtype, count):
    """Both are in the message; what was to be written is poisoned until another copy fits."""
    remote = session.empty((count,), "int32")
    session.copy_to_worker_0(np.arange(count, dtype="int32"), remote)
    host = np.zeros(count + size, dtype)
    with pytest.raises(BadArgument, match=dtype):
        session.copy_from_worker_0(host, remote)
    session.copy_to_worker_0(host, remote)
    with pytest.raises(BadArgument, match=rf"{dtype}\[{host.size}\].*int32\[{count}\]") as refused:
        session.sync_all()
    assert refused.value.function == "copy_to_worker_0"
    assert refused.value.issued_at.filename == __file__
    with pytest.raises(BadArgument, match=dtype):
        remote.numpy()
    session.copy_to_worker_0(np.arange(count, dtype="int32"), remote)
    np.testing.assert_array_equal(remote.numpy(), np.arange(count))


@pytest.mark.parametrize(
    "host", [[1, 2], 5.0, np.frombuffer(b"12345678"), "text", None], ids=lambda h: type(h).__name__
)
def test_only_a_writable_array_can_be_filled(session, host):
    """Refused here, without a word to the worker."""
    remote = session.empty((1,), "float64")
    with pytest.raises(EncodingError, match="writable"):
        session.copy_from_worker_0(host, remote)


@pytest.mark.parametrize("host", [[object()], "text", np.array(["a"]), {"a": 1}])
def test_only_numbers_are_host_arrays(session, host):
    """What numpy would make an array of objects or text is refused."""
    with pytest.raises(EncodingError, match="array of numbers"):
        session.copy_to_worker_0(host)
    with pytest.raises(EncodingError, match="reference"):
        session.copy_to_worker_0(session.empty((1,), "int8"))


def test_lists_and_numbers_are_host_arrays_too(session):
    """As numpy would read them."""
    assert session.copy_to_worker_0([[1, 2], [3, 4]]).numpy().tolist() == [[1, 2], [3, 4]]
    assert session.copy_to_worker_0(2.5).numpy() == np.float64(2.5)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3), "float32"), ((), "int8"), ([0, 5], np.float64), ((4,), "bfloat16")],
)
def test_empty_allocates_on_every_worker(session, shape, dtype):
    """Of that shape and dtype, writable, whatever it holds."""
    name, dims = np.dtype(getattr(ml_dtypes, str(dtype), dtype)).name, list(shape)
    described = session.get_global_func("tests.describe")(session.empty(shape, dtype))
    for worker in (0, 1):
        assert described.debug_get_from_remote(worker)[:3] == [name, dims, True]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (((2,), "float33"), ConfigError),
        (((-1,), "float32"), ValueError),
        (((1.5,), "float32"), (TypeError, ValueError)),
        ((5, "float32"), TypeError),
        (("12", "float32"), TypeError),
        (((2,), "float32", "tpu:0"), ConfigError),
        (((1 << 62,), "int8"), ConfigError),
    ],
)
def test_empty_refuses_what_cannot_be_allocated(session, args, error):
    """Here and now, before anything is sent."""
    issued = session.statistics()["issued"]
    with pytest.raises(error):
        session.empty(*args)
    assert session.statistics()["issued"] <= issued + 1


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (((1 << 45,), "int8"), RemoteException),
        (((2,), "int8", "cuda:0"), BadArgument),
        (((2,), "int8", "cpu:7"), BadArgument),
    ],
)
def test_empty_reports_what_the_workers_do_not_have(session, args, error):
    """More memory than a machine has, a device that is not theirs: an error of the next sync."""
    session.empty(*args)
    with pytest.raises(error):
        session.sync_all()


def test_a_large_result_comes_back_from_every_worker(session):
    """More than a chunk, in its dtype and layout, and ours to write to."""
    array = session.get_global_func("tests.counting_array")(5 << 20, "int16")
    for worker in (0, 1):
        got = array.numpy(worker)
        assert got.nbytes == 5 << 20
        np.testing.assert_array_equal(got, np.arange(got.size).astype("int16"))
        got[0] = 5
    turned = session.get_global_func("tests.noncontiguous")(300, 400)
    assert turned.numpy(1).shape == (300, 400)
    assert turned.numpy(1)[1, 0] == 1


def test_an_array_that_came_is_the_workers_to_write_to(session):
    """Whichever way it came, alone or inside something."""
    for count in (4, LARGE):
        sent = session.get_global_func("tests.echo")(np.ones(count, "float32"))
        described = session.get_global_func("tests.describe")(sent)
        assert described.debug_get_from_remote(1) == ["float32", [count], True, float(count)]
