"""The worker's side of load_weights, call by call."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from disco_client import Shape
from disco_server.rank.builtins import weights
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import resolve
from disco_server.rank.worker import Worker, set_current_worker
from disco_server.storage.files import FileError, FileNotAllowed

A = np.arange(48, dtype=np.float32).reshape(8, 6)
B = np.arange(8, dtype=np.int16)


@pytest.fixture
def at():
    """Makes this thread the one of a worker."""

    def become(worker_id=0, num_workers=4, num_groups=2, allow=("*",)):
        worker = Worker(worker_id, num_workers, num_groups, open_groups=None, allow_read=allow)
        set_current_worker(worker)

    yield become
    set_current_worker(None)


@pytest.fixture
def files(tmp_path):
    """A model of two tensors."""
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors")
    return str(tmp_path)


def call(name, *args):
    return resolve(f"runtime.disco._weights_{name}", ())(*args)


def test_the_catalog_has_a_row_for_each_tensor(at, files):
    """In the order of the file, with all that a plan needs."""
    at()
    catalog = call("catalog", call("open", files), 0)
    assert catalog["total"] == 2
    assert catalog["names"] == ["a", "b"]
    assert catalog["shapes"] == [Shape([8, 6]), Shape([8])]
    assert catalog["dtypes"] == catalog["stored"] == ["float32", "int16"]
    assert catalog["nbytes"] == Shape([192, 16])


def test_a_long_catalog_comes_in_pages(at, files, monkeypatch):
    """So that every answer stays within what an answer may hold."""
    at()
    monkeypatch.setattr(weights, "_PAGE", 1)
    pages = [call("catalog", call("open", files), first) for first in range(3)]
    assert [page["names"] for page in pages] == [["a"], ["b"], []]
    assert {page["total"] for page in pages} == {2}


LAYOUT = [[Shape([0, 0, 4]), Shape([0]), Shape([0, 0, 2, 6, 8]), Shape([0, 4, 8])]]


@pytest.mark.parametrize(
    ("worker", "rows"), [(0, [0, 1, 2, 3]), (1, []), (2, [0, 1, 6, 7]), (3, [4, 5, 6, 7])]
)
def test_a_worker_reads_its_own_share(at, files, worker, rows):
    """Those pieces that its entry of the layout names."""
    at(worker)
    a, b = call("read", call("open", files), [Shape([0, 0]), Shape([1])], LAYOUT, "")
    assert np.array_equal(a, A[rows])
    assert np.array_equal(b, B)
    assert call("item", [a, b], 1) is b


def test_files_that_differ_from_worker_0_s_are_refused(at, files):
    """Before anything is read."""
    at()
    checkpoint = call("open", files)
    call("check", checkpoint, checkpoint.fingerprint)
    with pytest.raises(FileError, match="are not those on worker 0's node"):
        call("check", checkpoint, "another")


@pytest.mark.parametrize(
    ("wanted", "layout", "dtype", "text"),
    [
        (Shape([2]), (), "", "expected one of 2 tensors"),
        (Shape([]), (), "", "expected one of 2 tensors"),
        (Shape([0, 0]), (2, 0, 8), "", "axis 2 in pieces .* does not fit 'a'"),
        (Shape([0, 0]), (0, 0, 9), "", "axis 0 in pieces .* does not fit 'a'"),
        (Shape([0, 0]), (0, 0), "", "axis 0 in pieces .* does not fit 'a'"),
        (Shape([0, 0]), (0, 4, 6, 2, 4), "", "axis 0 in pieces .* does not fit 'a'"),
        (Shape([0, 0]), (0, 0, 4, 2, 6), "", "axis 0 in pieces .* does not fit 'a'"),
        (Shape([0, 1]), (0, 0, 4), "", "expected one of 1 layouts, with an entry for each worker"),
        (Shape([0]), (), "int3", "expected the name of a dtype, got 'int3'"),
    ],
)
def test_requests_that_do_not_fit_are_refused(at, files, wanted, layout, dtype, text):
    """Whatever a client sends."""
    at()
    checkpoint = call("open", files)
    with pytest.raises(ArgumentRefused, match=text):
        call("read", checkpoint, [wanted], [[Shape(layout)] * 4], dtype)
    assert checkpoint.bytes_read == 0


def test_only_opened_weights_can_be_read(at):
    """A register may hold anything."""
    at()
    with pytest.raises(ArgumentRefused, match="expected weights that were opened, got list"):
        call("catalog", [], 0)


def test_the_worker_s_allow_list_counts(at, files):
    """A session cannot widen it."""
    at(allow=("/nowhere",))
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        call("open", files)
