"""The stand-in for cupy for the tests of this folder; tests/standin says what it shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STANDIN = Path(__file__).parents[1] / "standin"


def cupy_modules() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "cupy"]


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in in cupy's place, new for each test and gone with it.

    Processes that a session starts meanwhile find it too.
    """
    for name in [*os.environ]:
        if name.startswith("STANDIN_") or name.endswith("_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    before = {name: sys.modules.pop(name) for name in cupy_modules()}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(STANDIN), *sys.path])
        import cupy  # pyright: ignore[reportMissingImports]

        assert cupy.STANDIN, "these tests are not meant for a real GPU"
        yield cupy
    for name in cupy_modules():
        del sys.modules[name]
    sys.modules.update(before)
