"""Draws the pictures of dtensor.md, timeline.md, llm.md and scale.md; for `make pictures`.

Everything in them comes from the program: where parts lie, what moves, and what it costs.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np

import disco_client
from disco_client.distributed import DeviceMesh, DTensor, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.pictures.model import picture_of
from disco_client.distributed.pictures.svg import (
    Drawing,
    below,
    beside,
    document,
    draw_svg,
    lines_of_text,
)

HERE = Path(__file__).parent
timeline = runpy.run_path(str(HERE / "timeline.py"))["timeline"]
llm_pictures = runpy.run_path(str(HERE / "llm.py"))["pictures"]
scale_pictures = runpy.run_path(str(HERE / "scale.py"))["pictures"]
MESH = DeviceMesh((2, 2), range(4), ("dp", "tp"))
LINE = DeviceMesh((4,), range(4))
PLACEMENTS = ("R, R", "S[0], R", "R, S[1]", "S[0], S[1]", "S[0], S[0]", "S[0], P")
SMALL, WIDE = 170, 260


def info(shape: tuple[int, ...], mesh: DeviceMesh, placement: str) -> DTensorStructInfo:
    """A tensor of single precision."""
    return DTensorStructInfo(TensorStructInfo(shape, "float32"), mesh, placement)


def captioned(text: str, tensor: DTensorStructInfo, widest: int = SMALL) -> Drawing:
    """A tensor with a line above."""
    grid = draw_svg(picture_of(tensor), widest)
    return below(lines_of_text([text], max(grid.width, 8 * len(text)), strong=True), grid, gap=2)


def placements() -> str:
    """Six ways in which a tensor lies on two times two workers."""
    drawn = [captioned(text, info((6, 8), MESH, text)) for text in PLACEMENTS]
    rows = below(beside(*drawn[:3]), beside(*drawn[3:]))
    title = "A tensor of (6, 8) on a mesh of 2 (dp) x 2 (tp) workers. Cells name their workers."
    return document(title, rows)


def uneven() -> str:
    """What does not divide."""
    drawn = [
        captioned("(10,) as S[0]: 10 = 3 + 3 + 2 + 2", info((10,), LINE, "S[0]"), WIDE),
        captioned("(3,) as S[0]: worker 3 gets nothing", info((3,), LINE, "S[0]"), WIDE),
        captioned("(5, 7) as S[1]", info((5, 7), LINE, "S[1]"), WIDE),
    ]
    title = "Parts on four workers: the first ones get one more, late ones may get nothing."
    return document(title, below(*drawn, gap=16))


def redistribution(session: disco_client.Session) -> str:
    """A plan, from one state to the next."""
    x = session.distribute(np.ones((1024, 6), "float32"), MESH, "P, S[1]")
    plan = x.plan("S[0], R")
    states = [plan.before, *(step.after for step in plan.steps)]
    drawn = [captioned(str(state.placement), state) for state in states]
    title = 'x.plan("S[0], R") of a tensor of (1024, 6) numbers of four bytes'
    text = lines_of_text(str(plan).splitlines(), 620)
    return document(title, below(beside(*with_arrows(drawn, "->")), text, gap=16))


def expression(session: disco_client.Session) -> str:
    """Two layers, and what they cost."""
    x = session.distribute(np.ones((6, 8), "float32"), MESH, "S[0], R")
    up = session.distribute(np.ones((8, 16), "float32"), MESH, "R, S[1]")
    down = session.distribute(np.ones((16, 8), "float32"), MESH, "R, S[0]")
    hidden = x @ up
    y = hidden @ down
    whole = y.redistribute("S[0], R")
    steps = [
        equation([("x", x), ("up", up), ("hidden", hidden)], "@"),
        lines_of_text(hidden.explain().splitlines(), 620),
        equation([("hidden", hidden), ("down", down), ("y", y)], "@"),
        lines_of_text(y.explain().splitlines(), 620),
        equation([("y", y), ('y.redistribute("S[0], R")', whole)], "->"),
        lines_of_text(whole.explain().splitlines(), 620),
    ]
    return document("y = x @ up @ down, and what explain() says of each", below(*steps, gap=8))


def equation(tensors: list[tuple[str, DTensor]], sign: str) -> Drawing:
    """Tensors with signs between them."""
    drawn = [captioned(f"{name}: {x.placement}", x.info, 120) for name, x in tensors]
    return beside(*with_arrows(drawn, sign))


def with_arrows(drawn: list[Drawing], sign: str) -> list[Drawing]:
    """A sign between each two; the last one is always an equals sign behind other signs."""
    found = drawn[:1]
    for number, drawing in enumerate(drawn[1:], 2):
        last = number == len(drawn) and sign == "@"
        found += [lines_of_text(["=" if last else sign], 16, strong=True), drawing]
    return found


def pictures() -> dict[str, str]:
    """All pictures by the names of their files."""
    with disco_client.ThreadedSession(4) as session:
        return {
            "placements.svg": placements(),
            "uneven.svg": uneven(),
            "redistribution.svg": redistribution(session),
            "expression.svg": expression(session),
            "timeline.svg": timeline(),
            **llm_pictures(),
            **scale_pictures(),
        }


if __name__ == "__main__":
    for name, svg in pictures().items():
        (HERE / name).write_text(svg, "utf-8")
