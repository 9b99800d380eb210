"""Tensors of torch and arrays of JAX in registers; `make interop` installs both."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import disco_client as di

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
VALUES = [1, 2, 3, 4]
SUM = [3.0, 6.0, 9.0, 12.0]
KINDS = {"threads": di.ThreadedSession, "processes": di.ProcessSession}


def needs(library):
    """Skips what needs a library that is not installed."""
    missing = find_spec(library) is None
    return pytest.mark.skipif(missing, reason=f"needs {library}: `make interop`")


torch_only = needs("torch")
pytestmark = pytest.mark.timeout(180)  # loading such a library may take long


@pytest.fixture(scope="module", params=KINDS)
def session(request):
    """Two workers, as threads and as processes."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.syspath_prepend(str(WORKER_MODULES))
        patch.setenv("PYTHONPATH", str(WORKER_MODULES))
        session = stack.enter_context(KINDS[request.param](2))
        session.import_python_module("disco_library_functions")
        yield session


@pytest.fixture(params=[pytest.param(each, marks=needs(each)) for each in ("torch", "jax")])
def library(request):
    return request.param


@pytest.fixture
def call(session):
    """Calls a function of the tests by its name; the reference of the results."""
    return lambda name, *args: session.get_global_func(f"library.{name}")(*args)


@pytest.fixture
def look(call):
    """The library of what each worker's register holds, and its numbers."""
    return lambda ref: [call("look", ref).debug_get_from_remote(worker) for worker in (0, 1)]


def of(library):
    """How the type of a library's arrays calls its home."""
    return {"jax": "jaxlib"}.get(library, library)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_an_array_arrives_as_numpys_of_its_dtype(call, library, dtype):
    """Also where numpy's own DLPack lacks it."""
    if (library, dtype) == ("jax", "int64"):
        dtype = "int32"  # jax has the other one only where it is told so
    found = call("make", library, VALUES, dtype).numpy(1)
    assert type(found) is np.ndarray
    assert found.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert found.astype("float64").tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_collectives_read_arrays_and_return_the_same_kind(session, call, look, library, dtype):
    """The worker's own return the library's, the session's write into what they are given."""
    x = call("make", library, VALUES, dtype)
    found = call("allreduce", x)
    assert [found.debug_get_from_remote(w) for w in (0, 1)] == [[False, of(library), SUM]] * 2
    gathered = [[1, 2, 3, 4], [2, 4, 6, 8]]
    assert look(call("allgather", x)) == [[of(library), gathered]] * 2
    assert look(session.allreduce(x)) == [[of(library), SUM]] * 2
    out = session.empty((4,), dtype)
    session.allreduce(x, out)
    assert out.numpy(1).astype("float64").tolist() == SUM


@torch_only
def test_a_tensor_is_reduced_copied_and_set_in_place(session, call, look):
    """What is written is the tensor's own memory, and the tensor is returned."""
    x = call("make", "torch", VALUES, "bfloat16")
    found = call("allreduce", x, x)
    assert [found.debug_get_from_remote(w) for w in (0, 1)] == [[True, "torch", SUM]] * 2
    session.allreduce(x, x)
    assert look(x) == [["torch", [2 * each for each in SUM]]] * 2
    five = np.full(4, 5, ml_dtypes.bfloat16)
    session.copy_to_worker_0(five, x)
    x.debug_copy_from(1, five + five)
    assert look(x) == [["torch", [5] * 4], ["torch", [10] * 4]]
    host = np.zeros(4, ml_dtypes.bfloat16)
    session.copy_from_worker_0(host, x)
    assert host.tolist() == five.tolist()


@needs("jax")
def test_an_array_that_cannot_change_is_refused_as_a_destination(session, call):
    """In words, by a collective and by a copy; the session goes on."""
    x = call("make", "jax", VALUES, "float32")
    call("allreduce", x, x)
    with pytest.raises(di.BadArgument, match="ArrayImpl cannot be overwritten"):
        session.sync_all()
    y = call("make", "jax", VALUES, "float32")
    with pytest.raises(di.BadArgument, match="ArrayImpl cannot be overwritten"):
        y.debug_copy_from(1, np.ones(4, "float32"))
    assert y.numpy(1).tolist() == [2, 4, 6, 8]


@torch_only
def test_a_tensor_that_requires_grad_is_refused_with_the_way_on(session, call):
    """In a collective, and when it is fetched."""
    x = call("requiring_grad")
    with pytest.raises(di.BadArgument, match=r"requires grad .* \.detach\(\)"):
        x.numpy()
    session.allreduce(x, session.empty((3,), "float32"))
    with pytest.raises(di.BadArgument, match=r"requires grad .* \.detach\(\)"):
        session.sync_all()


def test_a_distributed_tensor_is_made_of_an_array(session, library):
    """Of the program's own library; its parts are numpy's."""
    module = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    x = session.distribute(module.ones((4, 6)), session.mesh(), "S[0]")
    assert (x + x).numpy().tolist() == [[2.0] * 6] * 4
