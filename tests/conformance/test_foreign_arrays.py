"""Arrays of another library in registers: tensors of TVM's, which speak DLPack."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import disco_client as di

pytest.importorskip("tvm_ffi")

VALUES = [1, 2, 3, 4]
SUM = [3.0, 6.0, 9.0, 12.0]


def tensor(tools, dtype="float32"):
    """A tensor on each worker: the values, and on the second worker twice them."""
    return tools.call("library.make", "tvm_ffi", VALUES, dtype)


def look(tools, ref):
    return tools.results("library.look", ref)


def on_host(session, dtype="float32"):
    return session.empty((4,), dtype, device="cpu:0")


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "float8_e4m3fn"])
def test_a_tensor_arrives_as_an_array_of_its_dtype(tools, dtype):
    """Also of dtypes that numpy's own DLPack lacks."""
    found = tensor(tools, dtype).numpy(1)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert type(found) is np.ndarray
    assert found.dtype == kind
    np.testing.assert_array_equal(found, (np.array(VALUES) * 2).astype(kind))


def test_the_workers_own_collectives_return_tensors(tools):
    """What comes of a tensor is one; what has a destination is that."""
    x = tensor(tools)
    assert tools.results("library.allreduce", x) == [[False, "tvm_ffi", SUM]] * 2
    gathered = tools.call("library.allgather", x)
    assert look(tools, gathered) == [["tvm_ffi", [[1, 2, 3, 4], [2, 4, 6, 8]]]] * 2
    assert tools.results("library.allreduce", x, x) == [[True, "tvm_ffi", SUM]] * 2
    assert look(tools, x) == [["tvm_ffi", SUM]] * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_sessions_collectives_read_and_write_tensors(session, tools, dtype):
    """In place, as they do with arrays, and mixed with them."""
    x, out = tensor(tools, dtype), on_host(session, dtype)
    assert look(tools, session.allreduce(x)) == [["tvm_ffi", SUM]] * 2
    session.allreduce(x, out)
    assert out.numpy(1).astype("float64").tolist() == SUM
    session.allreduce(out, x)
    assert look(tools, x) == [["tvm_ffi", [2 * each for each in SUM]]] * 2
    parts = tensor(tools, dtype)
    session.broadcast_from_worker0(out, parts)
    assert look(tools, parts) == [["tvm_ffi", SUM]] * 2


def test_all_collectives_of_a_team_take_tensors(tools):
    """And what is sent from one worker to another."""
    found = tools.results("library.line", tensor(tools), tensor(tools))
    assert found[0] == [[1, 2, 2, 4], [3, 4, 6, 8], [4, 6]]
    assert found[1] == [[3, 4, 6, 8], [1, 2, 2, 4], [8, 12]]


def test_copies_go_into_and_out_of_tensors(session, tools):
    """Those stay where they are: the content changes, not the tensor."""
    x = tensor(tools)
    session.copy_to_worker_0(np.full(4, 5, "float32"), x)
    x.debug_copy_from(1, np.full(4, 6, "float32"))
    assert look(tools, x) == [["tvm_ffi", [5.0] * 4], ["tvm_ffi", [6.0] * 4]]
    host = np.zeros(4, "float32")
    session.copy_from_worker_0(host, x)
    assert host.tolist() == [5.0] * 4
    with pytest.raises(di.BadArgument, match=r"float64\[4\], the worker's is float32\[4\]"):
        x.debug_copy_from(0, np.zeros(4))


def test_a_large_tensor_travels_as_arrays_do(session, tools):
    """Beside the commands, both ways."""
    x = tools.call("library.make", "tvm_ffi", list(range(30_000)), "float32")
    found = x.numpy(1)
    np.testing.assert_array_equal(found, np.arange(30_000, dtype="float32") * 2)
    session.copy_to_worker_0(found, x)
    assert look(tools, x)[0][1] == found.tolist()


def test_a_published_tensor_is_found_as_it_is(session, tools):
    """By the next program too."""
    session.publish("weights", tensor(tools))
    assert look(tools, session.published("weights"))[1] == ["tvm_ffi", [2, 4, 6, 8]]
    session.unpublish("weights")


def test_what_only_claims_to_be_an_array_is_an_error_that_says_so(session, tools):
    """In a collective, in a copy, and when it is fetched; with its own words."""
    x = tools.call("library.unwilling", [1, 0])
    with pytest.raises(di.BadArgument, match=r"Unwilling cannot be shared: ValueError: not today"):
        x.numpy()
    session.allreduce(x, on_host(session))
    with pytest.raises(di.BadArgument, match="not today"):
        session.sync_all()
    with pytest.raises(di.BadArgument, match="not today"):
        x.debug_copy_from(0, np.zeros(4, "float32"))
    far = tools.call("library.unwilling", [8, 0])
    with pytest.raises(di.BadArgument, match="Unwilling"):
        far.numpy()
