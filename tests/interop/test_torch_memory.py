"""Tensors of torch as numpy's arrays of the same memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from disco_client.wire.dlpack import DlpackError, view
from disco_client.wire.torch_memory import view_plain

torch = pytest.importorskip("torch", reason="needs torch: `make interop`")

PLAIN = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@pytest.mark.parametrize("name", PLAIN)
def test_a_tensor_of_a_dtype_of_numpy_needs_no_capsule(name):
    """Whatever its strides and offset, the array is of the same memory and can be written."""
    whole = torch.ones(3, 4, 5, dtype=getattr(torch, name))
    for tensor in (whole, whole[1:, ::2, 1:].permute(2, 0, 1), whole[0, 0, 0], whole[1].T):
        seen = view_plain(tensor)
        expected = np.from_dlpack(tensor)
        assert (seen.dtype, seen.shape) == (np.dtype(name), tuple(tensor.shape))
        assert seen.ctypes.data == expected.ctypes.data == tensor.data_ptr()
        assert seen.strides == expected.strides
        seen[...] = 0
        assert not tensor.any()


def test_the_memory_lives_as_long_as_the_array():
    """Also where the tensor is gone; and torch can resize its storage as before."""
    tensor = torch.arange(1000.0)
    seen = view(tensor)
    tensor.untyped_storage().resize_(8000)
    seen = view(tensor)
    del tensor
    gc.collect()
    _others = [torch.zeros(1000) for _ in range(100)]
    assert np.array_equal(seen, np.arange(1000.0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_other_tensors_are_left_to_dlpack():
    """It shares them in its way, or says why it cannot."""
    shared = {
        "no numpy dtype": torch.ones(3, dtype=torch.bfloat16),
        "no elements": torch.ones(0, 3),
        "a class of its own": torch.nn.Parameter(torch.ones(3), requires_grad=False),
    }
    for tensor in shared.values():
        assert view_plain(tensor) is None
        assert view(tensor).shape == tuple(tensor.shape)

    refused = {
        "sparse": torch.ones(3).to_sparse(),
        "conjugated lazily": torch.ones(3, dtype=torch.complex64).conj(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    }
    for tensor in refused.values():
        assert view_plain(tensor) is None
        with pytest.raises(DlpackError, match=r"torch\.Tensor cannot be shared"):
            view(tensor)
    assert view_plain(torch.ones(3, device="meta")) is None

    with pytest.raises(DlpackError, match="requires grad"):
        view(torch.ones(3, requires_grad=True))
    with pytest.raises(DlpackError, match="the other signs"):
        view((1j * torch.ones(3, dtype=torch.complex64)).conj().imag)


def test_a_tensor_without_memory_of_its_own_is_left_to_dlpack():
    """Such as what a function sees inside vmap, which torch shows as a plain tensor."""
    seen = []
    torch.vmap(lambda each: (seen.append(view_plain(each)), each)[1])(torch.ones(2, 3))
    assert seen == [None]
