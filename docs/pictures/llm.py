"""Draws the pictures of docs/llm.md; `make pictures` writes them.

How a layer is split comes from the example itself. The curves are figures of ``make bench
ARGS='--only llm'``, which llm.json has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from disco_client.distributed import (
    DeviceMesh,
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
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
sys.path.insert(0, str(HERE.parents[1] / "examples"))

from llm.config import Config  # noqa: E402
from llm.shares import cut_of, divide  # noqa: E402

SMOLLM2 = Config(30, 576, 9, 3, 64, 1536, 49152, 8192)
WORKERS = 4
MESH = DeviceMesh((WORKERS,), range(WORKERS))
TENSORS = {
    "query": (576, 576),
    "key": (192, 576),
    "value": (192, 576),
    "out": (576, 576),
    "gate": (1536, 576),
    "up": (1536, 576),
    "down": (576, 1536),
}
WIDE, PLOT, HIGH, LEFT = 620, 540, 190, 56
TINTS = ("#2f6fab", "#c05a1c", "#3a8f5d")


def weight(name: str) -> Drawing:
    """Which worker holds what of a matrix of [out, in]."""
    cut = cut_of(SMOLLM2, divide(SMOLLM2, WORKERS), f"0.{name}")
    placement = Placement(
        [PlacementSpec.replica() if cut is None else PlacementSpec.explicit(*cut)]
    )
    info = DTensorStructInfo(TensorStructInfo(TENSORS[name], "float32"), MESH, placement)
    grid = draw_svg(picture_of(info), 150)
    caption = f"{name} {list(TENSORS[name])}"
    return below(lines_of_text([caption], max(grid.width, 8 * len(caption)), strong=True), grid)


def layer() -> str:
    """The matrices of a layer on four workers, and where sums are needed."""
    shares = divide(SMOLLM2, WORKERS)
    heads = ", ".join(str(end - first) for first, end in shares.heads)
    texts = [
        f"Query heads of 64 rows: {heads}. Heads of keys and values: those that they read.",
        "out takes each worker's heads in: an allreduce adds up what comes out.",
        "Feed-forward columns in blocks of 32, more of them where there are fewer heads.",
        "down takes each worker's columns in: the second allreduce of the layer.",
    ]
    said = [lines_of_text([text], WIDE) for text in texts]
    return document(
        "One layer of SmolLM2-135M on four workers: who holds which rows and columns",
        below(
            said[0],
            beside(weight("query"), weight("key"), weight("value")),
            said[1],
            weight("out"),
            said[2],
            beside(weight("gate"), weight("up")),
            said[3],
            weight("down"),
        ),
    )


def chart(title: str, across: str, ticks: Sequence[int], lines: dict[str, Sequence[float]]) -> str:
    """Lines over equal steps, from zero; each point says its figure."""
    most = max(max(line) for line in lines.values()) * 1.12
    places = [LEFT + 24 + (PLOT - 48) * n / (len(ticks) - 1) for n in range(len(ticks))]

    def y_of(value: float) -> float:
        return HIGH - (HIGH - 14) * value / most

    drawn = [f'<path d="M{LEFT} 8V{HIGH}H{LEFT + PLOT}" fill="none" stroke="#57606a"/>']
    for place, tick in zip(places, ticks, strict=True):
        drawn.append(words(place, HIGH + 16, str(tick)))
    drawn.append(words(LEFT + PLOT / 2, HIGH + 34, across))
    for number, (name, line) in enumerate(lines.items()):
        tint = TINTS[number]
        points = [(x, y_of(value)) for x, value in zip(places, line, strict=True)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        drawn.append(f'<path d="M{path}" fill="none" stroke="{tint}" stroke-width="2"/>')
        for (x, y), value in zip(points, line, strict=True):
            drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{tint}"/>')
            # Above the line for the first, below it for others, which are less.
            drawn.append(words(x, y - 7 if not number else y + 16, f"{value:.0f}", tint))
        drawn.append(words(LEFT + 8, 18 + 16 * number, name, tint, "start"))
    return document(title, Drawing(tuple(drawn), LEFT + PLOT, HIGH + 40))


def words(x: float, y: float, text: str, ink: str = "currentColor", anchor: str = "middle") -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'
    )


def pictures() -> dict[str, str]:
    """All of them by the names of their files."""
    figures = json.loads((HERE / "llm.json").read_text(encoding="utf-8"))
    streams, workers = figures["streams"], figures["workers"]
    return {
        "llm-layer.svg": layer(),
        "llm-batches.svg": chart(
            "Tokens a second, all sequences together, on 2 workers of two cores",
            "sequences at a time",
            [int(count) for count in streams],
            {"tokens/s": list(streams.values())},
        ),
        "llm-workers.svg": chart(
            "Tokens a second of one sequence, on two cores",
            "workers",
            [int(count) for count in workers],
            {
                name: [each[key] for each in workers.values()]
                for key, name in (("bare", "bare mpi4py"), ("disco", "Disco, ProcessSession"))
            },
        ),
    }
