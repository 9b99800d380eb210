"""Refusals of files name them."""

from __future__ import annotations

from pathlib import Path

from disco_server.storage.files import FileError


def test_a_refusal_names_file_and_tensor():
    """And what is wrong."""
    assert str(FileError(Path("/a/b"), "is empty")) == "/a/b: is empty"
    assert str(FileError("/a", "too long", tensor="x.y")) == "/a, tensor 'x.y': too long"
