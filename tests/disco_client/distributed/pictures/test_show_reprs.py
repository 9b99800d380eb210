"""What notebooks show of meshes and tensors."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.pictures.show import mesh_html, tensor_html


def texts(html):
    """The texts of all cells of a table, row by row; the page must be well formed."""
    root = ET.fromstring(html)
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


def test_a_mesh_is_a_table_of_its_workers():
    """With the names of its axes, escaped, and their places."""
    mesh = DeviceMesh((2, 2), [3, 1, 0, 2], ("<dp>", "tp"))
    assert texts(mesh._repr_html_()) == [
        ["", "tp 0", "tp 1"],
        ["<dp> 0", "3", "1"],
        ["<dp> 1", "0", "2"],
    ]
    assert "&lt;dp&gt; 0" in mesh_html(mesh)
    assert texts(mesh_html(DeviceMesh((3,), range(3)))) == [
        ["", "0", "1", "2"],
        ["workers", "0", "1", "2"],
    ]


def test_a_mesh_of_three_axes_is_several_tables():
    """One for each place along the first."""
    root = ET.fromstring(mesh_html(DeviceMesh((2, 1, 2), range(4))))
    assert [caption.text for caption in root.iter("caption")] == ["axis 0=0", "axis 0=1"]


def test_a_large_mesh_stays_small():
    """The first workers, and that there are more."""
    html = mesh_html(DeviceMesh((20, 20, 30), range(12000)))
    assert len(html) < 60_000
    assert "and 12 more" in html
    assert texts(html)[0][-1] == "..."
    assert texts(html)[9] == ["..."]


def test_a_tensor_is_its_facts_and_its_picture():
    """Escaped, without scripts, with the bytes of the largest part."""
    mesh = DeviceMesh((2, 2), range(4), ("<script>", "tp"))
    info = DTensorStructInfo(TensorStructInfo((3, 1024), "float32"), mesh, "S[0], R")
    html = tensor_html(info)
    facts = dict(texts(html))
    assert facts == {
        "shape": "(3, 1024)",
        "dtype": "float32",
        "placement": "S[0], R",
        "mesh": "(2, 2) ('<script>', 'tp'), workers 0-3",
        "parts": "(2, 1024) or (1, 1024)",
        "a worker holds": "at most 8 KiB",
    }
    assert "<script" not in html
    assert "<svg" in html


def test_the_repr_of_a_tensor_in_a_notebook(workers):
    """That of what it is."""
    x = workers.distribute(np.ones((4, 3), "int8"), workers.mesh(), "S[0]")
    assert x._repr_html_() == tensor_html(x.info)
    assert dict(texts(x._repr_html_()))["a worker holds"] == "at most 3 bytes"
