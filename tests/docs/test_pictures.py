"""The pictures of the documents are what the program draws, and their traces what it writes."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from traces import check_chrome_trace, rows

from disco_client.distributed import DeviceMesh, DTensorStructInfo, ShardingPicture
from disco_client.distributed import TensorStructInfo as Tensor

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dtensor.md").read_text("utf-8")


@pytest.fixture(scope="module")
def drawn():
    """The pictures, drawn again."""
    return runpy.run_path(str(DOCS / "pictures" / "make.py"))["pictures"]()


def test_the_committed_pictures_are_those_that_the_script_draws(drawn):
    """Byte for byte; `make pictures` draws them again."""
    committed = {file.name: file.read_text("utf-8") for file in DOCS.glob("pictures/*.svg")}
    assert committed.keys() == drawn.keys()
    for name, svg in drawn.items():
        assert committed[name] == svg, f"{name} is old: run `make pictures`"


def test_the_pages_show_all_of_them(drawn):
    """Each with words for those who cannot see it."""
    others = ("timeline.md", "llm.md", "scale.md")
    pages = PAGE + "".join((DOCS / name).read_text("utf-8") for name in others)
    shown = dict(re.findall(r"!\[(.+)\]\(pictures/([^)]+)\)", pages))
    assert set(shown.values()) == drawn.keys()
    assert min(map(len, shown)) > 40


def test_the_drawn_trace_is_one_that_the_program_writes():
    """In the format of today."""
    trace = json.loads((DOCS / "pictures" / "training.trace.json").read_text("utf-8"))
    check_chrome_trace(trace)
    assert trace["otherData"]["missing"] == []
    assert len(rows(trace)) == 5


def test_the_drawing_in_the_page_is_what_a_terminal_shows():
    """Of the tensor that the page speaks of."""
    mesh = DeviceMesh((2, 2), range(4), ("dp", "tp"))
    picture = ShardingPicture(DTensorStructInfo(Tensor((6, 16), "float32"), mesh, "S[0], S[1]"))
    assert picture.text() in PAGE
