"""The page about functions on workers names all that a worker offers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from disco_server import Worker

PAGE = (Path(__file__).parents[2] / "docs" / "worker-functions.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def offered():
    """The public names of a worker, its class's and its own."""
    worker = Worker(0, 1, 1, open_groups=None)
    return {name for name in dir(worker) if not name.startswith("_")}


def test_every_public_name_has_a_line_and_every_line_a_name(offered):
    """Methods, properties and attributes; each once."""
    named = [name for cell, _ in ROWS for name in re.findall(r"`(\w+)", cell)]
    assert sorted(named) == sorted(offered)


def test_each_signature_is_the_one_of_the_method():
    """Its parameters in their order, with the defaults that the page shows."""
    checked = 0
    for cell, _ in ROWS:
        for name, shown in re.findall(r"`(\w+)\(([^`]*)\)`", cell):
            parameters = list(inspect.signature(getattr(Worker, name)).parameters.values())[1:]
            expected = [
                each.name if each.default is each.empty else f"{each.name}={each.default!r}"
                for each in parameters
            ]
            assert shown.replace('"', "'") == ", ".join(expected), name
            checked += 1
    assert checked > 8
