"""Files of weights for the tests of this folder."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a file and returns its path."""

    def write_one(content, name="model.safetensors"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write_one
