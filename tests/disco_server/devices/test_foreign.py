"""Arrays of other libraries as a worker's own, and back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from disco_client.wire.dlpack import DlpackError
from disco_server.devices import foreign

tvm_ffi = pytest.importorskip("tvm_ffi")


def test_an_array_becomes_the_librarys_and_back_without_a_copy():
    """Whatever the dtype."""
    for dtype in (np.float32, ml_dtypes.bfloat16):
        array = np.ones(64, dtype)
        tensor = foreign.of_library("tvm_ffi", array)
        assert isinstance(tensor, tvm_ffi.Tensor)
        assert foreign.library_of(tensor) == "tvm_ffi"
        assert np.shares_memory(foreign.native(tensor), array)
        assert foreign.native(tensor).dtype == dtype


def test_everything_else_stays_what_it_is():
    """Arrays of numpy, of whichever subclass that loses nothing, and what is no array."""
    for value in (
        np.ones(3),
        np.ones(3).view(np.recarray),
        None,
        5,
        [np.ones(3)],
        SimpleNamespace(),
    ):
        assert foreign.native(value) is value
        assert foreign.destination(value) is value


def test_an_array_reduced_in_place_is_one_array():
    """So that a collective sees that source and destination are the same."""
    tensor = foreign.of_library("tvm_ffi", np.ones(3))
    source, target = foreign.between(tensor, tensor)
    assert source is target


class FarTensor:
    """A tensor on a GPU."""

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_options):
        raise AssertionError("its memory is not the host's")


def test_what_is_on_a_gpu_is_cupys_to_take(monkeypatch):
    """Where a worker has loaded none, the error says what to do."""
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(DlpackError, match=r"FarTensor is on a GPU, .*copy it to the host first"):
        foreign.native(FarTensor())
    seen = []
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(from_dlpack=seen.append))
    tensor = FarTensor()
    foreign.native(tensor)
    assert seen == [tensor]


def test_a_library_that_takes_no_arrays_is_named():
    """And one that is not loaded here."""
    with pytest.raises(DlpackError, match="FarTensor has no from_dlpack; give a destination"):
        foreign.library_of(FarTensor())
    with pytest.raises(DlpackError, match="expected that absent is loaded"):
        foreign.of_library("absent", np.ones(3))
    with pytest.raises(DlpackError, match=r"tvm_ffi has no array for <U1\[1\]"):
        foreign.of_library("tvm_ffi", np.array(["a"]))
