"""What a worker's registers hold, taken out and put back."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client import Device, Shape
from disco_client.errors import RemoteFailure
from disco_client.wire.codec import FailureKind
from disco_client.wire.values import dtype_from_name
from disco_server.devices.foreign import native, of_library
from disco_server.modules.base import LoadedModule
from disco_server.rank.builtins.checkpoints import Snapshot, restore
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.registers import Poison
from disco_server.rank.worker import Worker

LARGE = 100_000
POISON = Poison(RemoteFailure(worker=1, seq=7, message="it failed"), FailureKind.BAD_ARGUMENT)


class Strange:
    """What neither travels nor is made by itself."""


@pytest.fixture
def worker():
    return Worker(1, 2, 1, open_groups=None, node="n")


@pytest.fixture
def other():
    """The worker that takes its place."""
    return Worker(1, 2, 1, open_groups=None, node="m")


def moved(worker, other, values, made=(), names=()):
    """Puts values into the registers of a worker, and what was saved into another's."""
    for number, value in enumerate(values, 1):
        worker.registers.write(number, value)
    taken = Snapshot(worker, range(1, len(values) + 1))
    taken.seal(made, names)
    copies = [np.array(tensor) for tensor in taken.tensors]
    restore(other, copies)
    return [other.registers.slots[number] for number in range(1, len(values) + 1)], copies


def test_values_come_back_as_they_were(worker, other):
    """Those that may travel, poison included."""
    values = [None, True, 3, 2.5, "s", b"b", Shape((1, 2)), Device("cpu", 0), [1, [2]], POISON]
    found, copies = moved(worker, other, values)
    assert found == values
    assert len(copies) == 1


def test_arrays_are_kept_by_themselves(worker, other):
    """Also those inside of lists; small ones there travel with the list."""
    array = np.arange(LARGE)
    values = [array, [array, np.arange(3)], array[::2], np.array(5.0), np.zeros((0, 2), "int8")]
    found, copies = moved(worker, other, values)
    np.testing.assert_array_equal(found[0], array)
    np.testing.assert_array_equal(found[1][0], array)
    assert found[1][1].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found[2], array[::2])
    assert (found[3].shape, found[3].item(), found[4].shape) == ((), 5.0, (0, 2))
    assert sum(each.nbytes for each in copies[1:]) < 2 * array.nbytes
    assert found[1][0] is found[0]


def test_what_is_made_again_is_left_alone(worker, other):
    """The commands that make it come first."""
    other.registers.write(1, len)
    found, _ = moved(worker, other, [abs, 5], made={1})
    assert found == [len, 5]


def test_what_was_published_comes_back(worker, other):
    """With what a client noted of it; not what is published again by a command."""
    worker.published["x"] = np.arange(3), {"shape": Shape((3,))}
    worker.published["f"] = len, {}
    moved(worker, other, [], names={"f"})
    assert list(other.published) == ["x"]
    assert other.published["x"][0].tolist() == [0, 1, 2]
    assert other.published["x"][1] == {"shape": Shape((3,))}


def test_what_cannot_be_saved_is_named(worker):
    """What commands make again is told from what they cannot make again."""
    for number, value in enumerate([5, len, LoadedModule("m", {}), Strange()], 1):
        worker.registers.write(number, value)
    worker.published["f"] = len, {}
    kinds = Snapshot(worker, range(1, 5)).kinds()
    assert kinds["made"] == [1, 2, 3]
    assert kinds["names"] == ["f"]
    assert [what for what, _ in kinds["refused"]] == [3]
    assert kinds["refused"][0][1].endswith("Strange")
    worker.registers.write(4, np.array([Strange()]))
    assert Snapshot(worker, [4]).kinds()["made"] == [0]
    worker.published["s"] = Strange(), {}
    assert Snapshot(worker, []).kinds()["refused"][0][0] == "s"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.ma.array([1.0, 2.0], mask=[0, 1]), "numpy.ma.MaskedArray"),
        ([np.ma.array(np.zeros(LARGE))], "builtins.list"),
        (np.zeros(2, [("a", "i4")]), "numpy.ndarray"),
        (np.rec.array([(1, 2)], dtype=[("a", "i4"), ("b", "i4")]), "numpy.rec.recarray"),
    ],
    ids=["mask", "inside", "structured", "records"],
)
def test_an_array_that_would_lose_its_meaning_is_named(worker, value, kind):
    """It is refused before anything is written."""
    worker.registers.write(1, value)
    assert Snapshot(worker, [1]).kinds()["refused"] == [[0, kind]]


def test_a_snapshot_is_sealed_before_it_is_written(worker):
    """Until then nobody knows which of its registers are made again on other workers."""
    with pytest.raises(ArgumentRefused, match="sealed"):
        _ = Snapshot(worker, [1]).tensors


def test_arrays_of_other_libraries_come_back_as_theirs(worker, other):
    """In registers, inside of values and published, with dtypes that numpy lacks."""
    tvm_ffi = pytest.importorskip("tvm_ffi")

    def tensor(count, dtype="float32"):
        return of_library("tvm_ffi", np.arange(count).astype(dtype_from_name(dtype)))

    worker.published["x"] = tensor(3), {}
    values = [tensor(LARGE), {"a": [1, tensor(3, "bfloat16")], "b": tensor(LARGE)}, np.arange(3)]
    (alone, nested, plain), _ = moved(worker, other, values)
    found = [alone, nested["a"][1], nested["b"], other.published["x"][0]]
    assert all(isinstance(each, tvm_ffi.Tensor) for each in found)
    assert [str(each.dtype) for each in found] == ["float32", "bfloat16", "float32", "float32"]
    for each in found:
        np.testing.assert_array_equal(native(each), np.arange(each.shape[0]))
    assert (nested["a"][0], type(plain)) == (1, np.ndarray)
