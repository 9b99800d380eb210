"""The worker's side of tensors in files, call by call."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client import Shape
from disco_server.rank.builtins import files
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.worker import Worker, set_current_worker
from disco_server.storage.files import FileError, FileNotAllowed

A = np.arange(12.0).reshape(4, 3)


@pytest.fixture
def at():
    """Makes this thread the one of a worker."""

    def become(worker_id=0, allow=("*",)):
        worker = Worker(worker_id, 2, 1, open_groups=None, allow_read=allow)
        set_current_worker(worker)

    yield become
    set_current_worker(None)


@pytest.fixture
def path(tmp_path):
    """A file with an array."""
    np.save(tmp_path / "a.npy", A)
    return str(tmp_path / "a.npy")


def call(name, *args):
    return getattr(files, f"file_{name}")(*args)


def test_a_worker_reads_its_part(at, path):
    """Of the shape and dtype that the first reader found."""
    at(1)
    file = call("open", "npy", path, "", Shape((0, 1)))
    assert call("facts", file) == [Shape((4, 3)), "float64"]
    table = [None, Shape((1, 3, 0, 2))]
    assert np.array_equal(call("read", file, Shape((4, 3)), "float64", table), A[1:3, :2])
    for shape, dtype in (((4, 4), "float64"), ((4, 3), "float32")):
        with pytest.raises(FileError, match="as another worker sees, got float64"):
            call("read", file, Shape(shape), dtype, table)


def test_who_reads_nothing_opens_nothing(at, path):
    """The file need not be there, nor be allowed."""
    at(1, allow=())
    file = call("open", "npy", "/nowhere", "", Shape((0,)))
    assert file is None
    assert call("facts", file) is None
    assert call("read", file, Shape((4, 3)), "float64", [Shape((0, 4, 0, 3)), None]) is None
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        call("open", "npy", path, "", Shape((1,)))


def test_what_a_client_may_send_is_refused(at, path):
    """Another kind of file, another thing than a file, parts that there are not."""
    at(0)
    with pytest.raises(ArgumentRefused, match=r"expected one of 'hdf5', .*'zarr', got 'zip'"):
        call("open", "zip", path, "", Shape((0,)))
    with pytest.raises(ArgumentRefused, match="expected a tensor's file that was opened"):
        call("facts", [])
    file = call("open", "npy", path, "", Shape((0,)))
    with pytest.raises(ArgumentRefused, match="expected the bounds of a part"):
        call("read", file, Shape((4, 3)), "float64", [Shape((0, 5, 0, 3)), None])
