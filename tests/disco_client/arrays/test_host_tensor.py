"""What a program gets from ``debug_get_from_remote``: an array, and TVM's methods of one."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest

import disco_client as di
from disco_client.arrays.host_tensor import HostTensor, with_tensors


@pytest.fixture
def tensor():
    """The numbers from 0 to 5."""
    return with_tensors(np.arange(6.0).reshape(2, 3))


def test_it_answers_as_tvms_tensors_do(tensor):
    """Its plain copy is another memory; copies go in and out, in place."""
    plain = tensor.numpy()
    assert type(plain) is np.ndarray
    assert not np.shares_memory(plain, tensor)
    assert tensor.copyfrom([[1, 1, 1], [2, 2, 2]]) is tensor
    target = np.zeros((2, 3), "int8")
    assert tensor.copyto(target) is target
    assert target.tolist() == [[1, 1, 1], [2, 2, 2]]
    for device in ("cpu", di.cpu(0)):
        other = tensor.copyto(device)
        assert type(other) is HostTensor
        assert other.tolist() == tensor.tolist()
        assert not np.shares_memory(other, tensor)


def test_what_does_not_fit_is_not_copied(tensor):
    """Another shape, a device of its own, a read-only array."""
    for copy_it in (lambda: tensor.copyfrom([1, 2, 3]), lambda: tensor.copyto(np.zeros(6))):
        with pytest.raises(ValueError, match="expected an array of shape"):
            copy_it()
    with pytest.raises(di.ConfigError, match="cuda:1"):
        tensor.copyto("cuda:1")
    with pytest.raises(di.EncodingError, match="writable"):
        tensor.copyto(np.broadcast_to(0.0, (2, 3)))


def test_its_device_is_every_librarys_cpu(tensor):
    """A text as numpy has it, and equal to devices; not to others."""
    assert tensor.device == "cpu"
    assert hash(tensor.device) == hash("cpu")
    assert tensor.device == di.cpu()
    assert di.cpu() == tensor.device
    assert tensor.device != di.cpu(1)
    assert tensor.device not in ("cuda", di.cuda(), None, 5)
    ffi = pytest.importorskip("tvm_ffi")
    assert tensor.device == ffi.device("cpu", 0)
    assert tensor.device not in (ffi.device("cpu", 1), ffi.device("cuda"), ffi.device("metal"))


MAKE = {
    "item": lambda x: x[0],
    "slice": lambda x: x[:, 1:],
    "row": lambda x: next(iter(x)),
    "sum": lambda x: x + 1,
    "reflected": lambda x: np.ones(3) + x,
    "ufunc": np.sin,
    "reduced": np.add.reduce,
    "outer": lambda x: np.multiply.outer(x, x),
    "product": lambda x: x @ x.T,
    "transposed": lambda x: x.T,
    "real": lambda x: x.real,
    "view": lambda x: x.view(),
    "reshaped": lambda x: x.reshape(6),
    "copied": lambda x: x.copy(),
    "cast": lambda x: x.astype("float32"),
    "function": lambda x: np.concatenate([x, x]),
    "like": np.zeros_like,
    "asarray": np.asarray,
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_what_is_made_of_it_is_plain(tensor, make):
    """So that nothing that asks for an array's exact type meets another one."""
    made = make(tensor)
    assert type(made) is np.ndarray
    np.testing.assert_array_equal(made, make(np.arange(6.0).reshape(2, 3)))


def test_it_is_an_array_like_any_other(tensor):
    """Saved, copied, printed, changed in place; numbers come out of it as numpy's."""
    file = io.BytesIO()
    np.save(file, tensor)
    file.seek(0)
    assert np.load(file).tolist() == tensor.tolist()
    assert type(copy.deepcopy(tensor)) is type(copy.copy(tensor)) is HostTensor
    assert repr(tensor) == repr(np.asarray(tensor))
    assert type(tensor.sum()) is type(tensor[1, 2]) is np.float64
    before = tensor
    tensor += 1
    tensor[0] = 7
    tensor.real[1, 2] = 9
    assert tensor is before
    assert tensor.tolist() == [[7, 7, 7], [4, 5, 9]]


def test_arrays_inside_others_are_of_this_kind_and_the_rest_stays():
    """The same memory, and the same list where there are none."""
    array, numbers = np.zeros(2), [1, [2]]
    held = {"a": [array, "x"], "b": numbers, "c": (array,)}
    got = with_tensors(held)
    assert type(got["a"][0]) is type(got["c"][0]) is HostTensor
    assert np.shares_memory(got["a"][0], array)
    assert got["b"] is numbers
    assert with_tensors(numbers) is numbers
    assert with_tensors(np.float32(1)).dtype == "float32"
    assert type(held["a"][0]) is np.ndarray


def test_a_shape_is_tvms_as_well_where_the_program_uses_that():
    """It stays one of Disco's, and travels as one."""
    ffi = pytest.importorskip("tvm_ffi")
    shape = with_tensors([di.Shape((2, 3))])[0]
    assert isinstance(shape, ffi.Shape)
    assert isinstance(shape, di.Shape)
    assert (shape, repr(shape)) == (di.Shape((2, 3)), "Shape([2, 3])")
    assert type(pickle.loads(pickle.dumps(shape))) is di.Shape
