"""Where pictures go."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import rich.console

from disco_client.distributed import (
    DeviceMesh,
    DTensorStructInfo,
    ShardingPicture,
    TensorStructInfo,
    visualize_sharding,
)

INFO = DTensorStructInfo(
    TensorStructInfo((6, 8), "float32"), DeviceMesh((2, 2), range(4), ("dp", "tp")), "S[0], R"
)
WIDE = DTensorStructInfo(TensorStructInfo((640,), "float32"), DeviceMesh((64,), range(64)), "S[0]")


def test_it_is_printed(capsys):
    """The same characters with colours as without; nothing is returned, so nothing echoes."""
    assert visualize_sharding(INFO) is None
    printed = capsys.readouterr().out
    lines = [line.rstrip() for line in printed.splitlines()]
    assert "\n".join(lines) == str(ShardingPicture(INFO)) == ShardingPicture(INFO).text()


def test_without_rich_it_is_printed_too(capsys, monkeypatch):
    """In box characters, or others where the output has none."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    visualize_sharding(INFO)
    assert capsys.readouterr().out == f"{ShardingPicture(INFO)}\n"
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    visualize_sharding(INFO, file=stream)
    stream.flush()
    assert b"+----" in raw.getvalue()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("has_rich", [True, False])
def test_the_width_is_that_of_the_terminal(monkeypatch, has_rich):
    """Unless one is given."""
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    widths = []
    for options in ({}, {"max_width": 100}):
        stream = Terminal()
        visualize_sharding(WIDE, file=stream, **options)
        widths.append(max(len(line.rstrip()) for line in stream.getvalue().splitlines()))
    assert 40 < widths[0] <= 50
    assert 90 < widths[1] <= 100


@pytest.mark.parametrize(("use_color", "colored"), [(True, True), (False, False)])
def test_a_terminal_gets_colours(monkeypatch, use_color, colored):
    """Of what it has, unless they are not wanted."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    visualize_sharding(INFO, file=stream, use_color=use_color)
    assert ("\x1b[" in stream.getvalue()) == colored


def test_rich_prints_it_itself():
    """As one of its own, for programs that print with rich; in ASCII where it must be."""
    console = rich.console.Console(file=io.StringIO(), width=60)
    console.print(ShardingPicture(INFO))
    assert "│           0, 1           │" in console.file.getvalue()
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    rich.console.Console(file=stream, width=60).print(ShardingPicture(INFO))
    stream.seek(0)
    assert "|           0, 1           |" in stream.read()


@pytest.mark.parametrize("kernel", [object(), None])
def test_a_notebook_shows_it(monkeypatch, capsys, kernel):
    """A shell with a kernel is one; a shell in a terminal prints. IPython is replaced here."""
    shown = []
    ipython = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=kernel),
        display=SimpleNamespace(display=shown.append),
    )
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    visualize_sharding(INFO)
    printed = capsys.readouterr().out
    if kernel is None:
        assert shown == []
        assert "0, 1" in printed
    else:
        assert printed == ""
        (picture,) = shown
        assert picture._repr_html_() == ShardingPicture(INFO).html()
        visualize_sharding(INFO, file=sys.stdout)
        assert "0, 1" in capsys.readouterr().out


def test_a_tensor_shows_as_what_it_is(workers):
    """Nothing is fetched for it."""
    x = workers.distribute(np.ones((6, 8), "float32"), workers.mesh((2, 2), ("dp", "tp")), "S[0]R")
    picture = ShardingPicture(x)
    assert picture.text() == ShardingPicture(INFO).text()
    assert picture.svg() == ShardingPicture(INFO).svg()
    assert repr(picture) == (
        "<ShardingPicture of (6, 8) float32: S[0] along dp (2), R along tp (2)>"
    )


@pytest.mark.parametrize("wrong", [None, np.ones(3), "S[0]"])
def test_what_is_no_distributed_tensor_is_refused(wrong):
    """With what was expected."""
    with pytest.raises(TypeError, match="expected a DTensor or a DTensorStructInfo"):
        visualize_sharding(wrong)
