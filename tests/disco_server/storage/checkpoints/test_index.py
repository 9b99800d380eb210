"""The index of a checkpoint: what is written is read, and what cannot be true is refused."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from disco_server.storage.checkpoint_read import (
    Entry,
    Index,
    StoredFile,
    decode_index,
    encode_index,
    file_name,
)
from disco_server.storage.files import FileError

PATH = Path("/c/disco-checkpoint.json")
INDEX = Index(
    f"generation-{1:016x}",
    {0: StoredFile(10, "ab"), 12: StoredFile(20, "cd")},
    (
        Entry(
            "a",
            (5, 2),
            np.dtype(ml_dtypes.bfloat16),
            {"x": [1]},
            (
                (0, ((0, 5), (0, 1))),
                (12, ((0, 5), (1, 2))),
            ),
        ),
        Entry("é", (), np.dtype("M8[s]"), {}, ((12, ()),)),
        Entry("empty", (0, 3), np.dtype("?"), {}, ((0, ((0, 0), (0, 3))),)),
    ),
)


def test_an_index_is_read_as_it_was_written():
    """With dtypes that are not numpy's own, and tensors without axes or elements."""
    assert decode_index(PATH, encode_index(INDEX)) == INDEX
    assert file_name(12) == "worker-00012.safetensors"


def changed(*path, to):
    content = json.loads(encode_index(INDEX))
    *outer, last = path
    inside = content
    for key in outer:
        inside = inside[key]
    inside[last] = to
    return json.dumps(content).encode()


PARTS = ("tensors", "a", "parts")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "expected JSON"),
        (b"[]", "expected a JSON object"),
        (b'{"weight_map": {}}', "expected the index of a checkpoint"),
        (changed("version", to=2), "expected version 1 of the format, got 2; use a later"),
        (changed("generation", to="../../etc"), "expected the name of a generation"),
        (changed("files", to=[]), "expected an object under 'files'"),
        (changed("files", to={"../x": {}}), "expected the name of a worker's file"),
        (changed("files", "worker-00000.safetensors", to={}), "expected nbytes and header"),
        (changed("tensors", to=None), "expected an object under 'tensors'"),
        (changed("tensors", "a", to=[]), "tensor 'a': expected a shape"),
        (changed("tensors", "a", "shape", to=[-1]), "tensor 'a': expected a shape"),
        (changed("tensors", "a", "dtype", to="float33"), "expected the name of a dtype"),
        (changed("tensors", "a", "dtype", to="O"), "expected a plain numeric dtype"),
        (changed("tensors", "a", "layout", to=3), "expected an object under 'layout'"),
        (changed(*PARTS, to=[]), "its 0 parts are not a whole of shape"),
        (changed(*PARTS, to=3), "its 0 parts are not a whole of shape"),
        (changed(*PARTS, 0, to={}), "expected file and bounds of a part"),
        (changed(*PARTS, 0, "file", to="/etc/passwd"), "expected file and bounds of a part"),
        (changed(*PARTS, 0, "file", to="worker-00099.safetensors"), "not among the files"),
        (changed(*PARTS, 0, "bounds", to=[[0, 6], [0, 1]]), "expected file and bounds of a part"),
        (changed(*PARTS, 0, "bounds", to=[[3, 2], [0, 1]]), "expected file and bounds of a part"),
        (changed(*PARTS, 0, "bounds", to=[[0, 5]]), "expected file and bounds of a part"),
        (changed(*PARTS, 0, "bounds", to=[[0, 5], [0, 2]]), "2 parts are not a whole"),
        (changed(*PARTS, 0, "bounds", to=[[0, 5], [1, 2]]), "2 parts are not a whole"),
        (changed("tensors", "empty", "parts", to=[]), "0 parts are not a whole"),
    ],
    ids=range(25),
)
def test_what_cannot_be_true_is_refused(content, text):
    """With the file, the tensor, and what was expected."""
    with pytest.raises(FileError, match=text) as raised:
        decode_index(PATH, content)
    assert str(raised.value).startswith(str(PATH))
