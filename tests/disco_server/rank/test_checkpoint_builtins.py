"""The worker's side of save and load, call by call, whatever a client sends."""

from __future__ import annotations

import json

import numpy as np
import pytest

from disco_client import Shape
from disco_server.rank.builtins import checkpoints
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import resolve
from disco_server.rank.worker import Worker, set_current_worker
from disco_server.storage.files import FileError, FileNotAllowed

A = np.arange(48, dtype=np.float32).reshape(8, 6)
GENERATION = f"generation-{1:016x}"
LAYOUT = {
    "mesh": {"shape": Shape((2,)), "names": ["tp"], "workers": Shape((0, 1))},
    "placement": "S[0]",
}
ROW = {
    "name": "a",
    "shape": Shape((8, 6)),
    "dtype": "float32",
    "layout": LAYOUT,
    "parts": [Shape((0, 8, 0, 6)), None],
}


@pytest.fixture
def at():
    """Makes this thread the one of a worker."""

    def become(worker_id=0, allow=("*",)):
        set_current_worker(
            Worker(worker_id, 2, 1, open_groups=None, allow_read=allow, allow_save=allow)
        )

    yield become
    set_current_worker(None)


def call(name, *args):
    return resolve(f"runtime.disco._{name}", ())(*args)


def saved(path, rows=(ROW,), arrays=(A,)):
    save = call("save_begin", str(path), GENERATION)
    call("save_describe", save, list(rows))
    call("save_start", save)
    call("save_write", save, range(len(arrays)), list(arrays))
    call("save_finish", save)
    call("save_commit", save)
    call("save_close", save)


@pytest.fixture
def opened(at, tmp_path):
    """A checkpoint of one tensor that worker 0 wrote, opened by it."""
    at(0)
    saved(tmp_path)
    return call("load_open", str(tmp_path))


def test_each_worker_reads_what_its_entry_says(at, opened):
    """None for one that is to have nothing."""
    table = [Shape((2, 4, 1, 6)), None]
    assert np.array_equal(call("load_read", opened, [[0, table]])[0], A[2:4, 1:6])
    at(1)
    assert call("load_read", opened, [[0, table], [0, table]]) == [None, None]


def test_the_catalog_says_how_each_tensor_lay(opened, monkeypatch):
    """In pages, each of a limited size."""
    monkeypatch.setattr(checkpoints, "_PAGE", 1)
    row = {"name": "a", "shape": Shape((8, 6)), "dtype": "float32", "placement": "S[0]"}
    row |= {"mesh": Shape((2,)), "workers": Shape((0, 1)), "names": ["tp"]}
    assert call("load_catalog", opened, 0)["rows"] == [row]
    assert call("load_catalog", opened, 1)["rows"] == []
    assert call("load_catalog", opened, 1)["total"] == 1


def test_another_checkpoint_than_worker_0_s_is_refused(opened):
    """Whether it was replaced, or is in a folder of the worker's own."""
    call("load_check", opened, opened.fingerprint)
    with pytest.raises(FileError, match="not the checkpoint that worker 0 sees"):
        call("load_check", opened, "another")


def test_what_lay_in_no_known_way_is_refused(at, tmp_path):
    """With the tensor's name."""
    at(0)
    saved(tmp_path, [ROW | {"layout": {"mesh": None}}])
    with pytest.raises(FileError, match="tensor 'a': expected mesh and placement in its layout"):
        call("load_catalog", call("load_open", str(tmp_path)), 0)


@pytest.mark.parametrize(
    ("number", "bounds"),
    [(1, (0, 8, 0, 6)), (-1, (0, 8, 0, 6)), (0, (0, 9, 0, 6)), (0, (3, 2, 0, 6)), (0, (0, 8))],
)
def test_requests_that_do_not_fit_are_refused(opened, number, bounds):
    """Before anything is read."""
    before = opened.bytes_read
    with pytest.raises(ArgumentRefused, match=r"expected one of 1 tensors|expected the bounds of"):
        call("load_read", opened, [[number, [Shape(bounds), None]]])
    assert opened.bytes_read == before


def test_a_save_takes_only_what_was_described(at, tmp_path):
    """Another dtype or size is refused, and leaves nothing."""
    at(0)
    with pytest.raises(ArgumentRefused, match="expected the name of a generation"):
        call("save_begin", str(tmp_path), "../elsewhere")
    for array, error in ((A.astype("f8"), ArgumentRefused), (A[:7], FileError)):
        save = call("save_begin", str(tmp_path), GENERATION)
        call("save_describe", save, [ROW])
        call("save_start", save)
        with pytest.raises(error, match=r"expected 'a' as float32|expected 192 bytes"):
            call("save_write", save, [0], [array])
        call("save_close", save)
    assert list(tmp_path.iterdir()) == []


def test_numbers_and_arrays_in_any_order_are_written(at, tmp_path):
    """As they are, in C order."""
    at(0)
    one = ROW | {"name": "one", "shape": Shape(), "parts": [Shape(), None]}
    saved(tmp_path, [ROW, one], [np.asfortranarray(A), np.float32(7)])
    stored = call("load_open", str(tmp_path))
    whole = [[0, [Shape((0, 8, 0, 6)), None]], [1, [Shape(), None]]]
    a, number = call("load_read", stored, whole)
    assert np.array_equal(a, A)
    assert (number.shape, number.item()) == ((), 7)
    (index,) = tmp_path.glob("disco-checkpoint-*.json")
    assert json.loads(index.read_text())["tensors"].keys() == {"a", "one"}


def test_only_what_was_begun_or_opened_goes_on(at):
    """A register may hold anything."""
    at(0)
    with pytest.raises(ArgumentRefused, match="expected a save that was begun, got list"):
        call("save_start", [])
    with pytest.raises(ArgumentRefused, match="expected a checkpoint that was opened, got list"):
        call("load_catalog", [], 0)


def test_the_worker_s_allow_lists_count(at, tmp_path):
    """A session cannot widen them."""
    at(1, allow=("/nowhere",))
    with pytest.raises(FileNotAllowed, match="--allow-save"):
        call("save_begin", str(tmp_path), GENERATION)
    with pytest.raises(FileNotAllowed, match="--allow-read"):
        call("load_open", str(tmp_path))
