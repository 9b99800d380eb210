"""The worker's side of saving a store of arrays, call by call."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client import ConfigError, Shape
from disco_server.rank.builtins import array_stores
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.worker import Worker, set_current_worker
from disco_server.storage.files import FileError, FileNotAllowed

zarr = pytest.importorskip("zarr")

TOKEN = "0123456789abcdef"
ROW = {"name": "x", "shape": Shape((4,)), "dtype": "int64", "chunks": Shape((2,))}


@pytest.fixture
def at():
    """Makes this thread the one of a worker."""

    def become(worker_id=0, allow=("*",)):
        worker = Worker(worker_id, 2, 1, open_groups=None, allow_save=allow)
        set_current_worker(worker)

    yield become
    set_current_worker(None)


def call(name, *args):
    return getattr(array_stores, f"store_{name}")(*args)


def row(first, second, **more):
    return {**ROW, "parts": [first and Shape(first), second and Shape(second)], **more}


def test_two_workers_write_an_array(at, tmp_path):
    """Each the chunks that it has alone, and then in turn the chunk that they share."""
    path = tmp_path / "new" / "a.zarr"
    saves = []
    for worker in (0, 1):
        at(worker)
        saves.append(call("begin", str(path), "zarr", TOKEN))
        call("describe", saves[-1], [row((0, 3), (3, 4))])
        call("start", saves[-1])
    parts = [np.array([1, 2, 3]), np.array([4])]
    chunks = {-1: {"0"}, 0: {"0", "1"}, 1: {"0", "1"}}  # of which both share the second
    for turn in (-1, 0, 1):
        for worker in (0, 1):
            at(worker)
            call("write", saves[worker], 0, [parts[worker]], turn)
        made = {each.name for each in path.parent.glob(".a.zarr.*/x/c/*")}
        assert made == chunks[turn]
    assert not path.exists()
    for worker in (1, 0):
        at(worker)
        call("commit", saves[worker])
        call("close", saves[worker])
    assert zarr.open_array(path, path="x")[...].tolist() == [1, 2, 3, 4]
    assert [each.name for each in path.parent.iterdir()] == ["a.zarr"]


def test_a_save_that_is_dropped_leaves_nothing(at, tmp_path):
    """Also where the client is gone and nobody closes it."""
    at(0)
    save = call("begin", str(tmp_path / "a.h5"), "zarr", TOKEN)
    call("describe", save, [row((0, 4), None)])
    call("start", save)
    assert list(tmp_path.iterdir())
    del save
    assert not list(tmp_path.iterdir())


def test_what_a_client_may_send_is_refused(at, tmp_path):
    """Formats, tokens, names, dtypes, chunks, parts and arrays that are not what they should be."""
    at(0)
    path = str(tmp_path / "a.zarr")
    for form, token in (("zip", TOKEN), ("zarr", "../x"), ("zarr", TOKEN + "/")):
        with pytest.raises(ArgumentRefused, match="expected a format of arrays and a token"):
            call("begin", path, form, token)
    with pytest.raises(ArgumentRefused, match="expected a save of arrays that was begun"):
        call("start", [])
    with pytest.raises(FileError, match="expected an absolute path"):
        call("begin", "a.zarr", "zarr", TOKEN)
    save = call("begin", path, "zarr", TOKEN)
    for wrong, error, text in (
        ({"chunks": Shape((0,))}, ArgumentRefused, "expected the extents of chunks"),
        ({"chunks": Shape((2, 2))}, ArgumentRefused, "expected the extents of chunks"),
        ({"parts": [Shape((0, 5)), None]}, ArgumentRefused, "expected the bounds of a part"),
        ({"dtype": "bfloat16"}, ConfigError, "does not have"),
    ):
        with pytest.raises(error, match=text):
            call("describe", save, [row((0, 4), None, **wrong)])
    call("describe", save, [row((0, 4), None)])
    call("start", save)
    for first, array, text in (
        (1, np.zeros(4, "i8"), "expected one of 1 arrays, got 1"),
        (0, np.zeros(3, "i8"), r"expected 'x' as int64\[4\], got int64\[3\]"),
        (0, np.zeros(4, "f8"), r"expected 'x' as int64\[4\], got float64\[4\]"),
    ):
        with pytest.raises(ArgumentRefused, match=text):
            call("write", save, first, [array], -1)
    outside = call("begin", path, "zarr", TOKEN[::-1])
    call("describe", outside, [row((0, 4), None, name="../../x")])
    with pytest.raises(ConfigError, match="expected the name of an array"):
        call("start", outside)


def test_only_where_saving_is_allowed_is_anything_made(at, tmp_path):
    """The folder in which the store lies counts, since the store is made beside its place."""
    for allowed in ((), (str(tmp_path / "a.zarr"),)):
        at(0, allow=allowed)
        with pytest.raises(FileNotAllowed, match="--allow-save"):
            call("begin", str(tmp_path / "a.zarr"), "zarr", TOKEN)
    assert not list(tmp_path.iterdir())
