"""Shows which worker holds which part of a tensor, wherever the program runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np

from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.pictures.model import INK, TINTS, picture_of, ranges
from disco_client.distributed.pictures.svg import document, draw_svg, figure
from disco_client.distributed.pictures.text import ASCII, TintedText, draw, plain
from disco_client.distributed.placement import DTensorStructInfo
from disco_client.notebook import facts_table
from disco_client.wire.partition import coordinate_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from disco_client.distributed.mesh import DeviceMesh

__all__ = ["ShardingPicture", "mesh_html", "tensor_html", "visualize_sharding"]


_WIDTH = 80


class ShardingPicture:
    """Which worker holds which part of a tensor, as a picture in several forms.

    `print` writes it in box characters, a notebook shows it, `rich.print` writes it in
    colours. Cells are to scale along each axis and name their workers, so that nothing
    depends on colours.

    Args:
        tensor: A distributed tensor, or what one would be.

    Raises:
        TypeError: It is neither.

    Examples:
        >>> x = session.distribute(np.ones((4, 4)), placement="S[1]")
        >>> print(distributed.ShardingPicture(x))
        (4, 4) float64: S[1] along mesh axis 0 (4)...
    """

    def __init__(self, tensor: DTensor | DTensorStructInfo) -> None:
        info = tensor.info if isinstance(tensor, DTensor) else tensor
        if not isinstance(cast("object", info), DTensorStructInfo):
            msg = f"expected a DTensor or a DTensorStructInfo, got {tensor!r}"
            raise TypeError(msg)
        self._picture = picture_of(info)

    def text(self, max_width: int = _WIDTH) -> str:
        """The picture in box characters.

        Args:
            max_width: How many characters a line may have.
        """
        return plain(draw(self._picture, max_width))

    def svg(self) -> str:
        """The picture as an SVG document, the same for the same tensor, for files and pages."""
        return document(self._picture.title, draw_svg(self._picture))

    def html(self) -> str:
        """The picture as a part of an HTML page, in the colours of the page's text."""
        return figure(self._picture, title=True)

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<ShardingPicture of {self._picture.title}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Lets rich write it in colours; what has no box characters gets others."""
        from rich.text import Text

        for line in draw(self._picture, options.max_width):
            text = Text(no_wrap=True)
            for piece in line:
                content = piece.text.translate(ASCII) if options.ascii_only else piece.text
                text.append(content, _style(piece))
            yield text


def visualize_sharding(
    tensor: DTensor | DTensorStructInfo,
    *,
    max_width: int | None = None,
    use_color: bool = True,
    file: TextIO | None = None,
) -> None:
    """Draws which worker holds which part of a tensor; nothing is computed or fetched.

    In a notebook the picture is shown there. Elsewhere it is written in box characters,
    in colours where `rich` is installed and the output is a terminal that has them.

    Args:
        tensor: A distributed tensor, or what one would be.
        max_width: How many characters a line may have; by default as many as the
            terminal has, and 80 where there is none.
        use_color: Whether to use colours where there are some.
        file: Where to write; by default a notebook, or the standard output.

    Raises:
        TypeError: It is no such tensor.

    Examples:
        >>> x = session.distribute(np.ones((4, 4)), placement="S[0]")
        >>> distributed.visualize_sharding(x, max_width=40)
        (4, 4) float64: S[0] along mesh axis 0...
    """
    picture = ShardingPicture(tensor)
    if file is None and (display := _notebook_display()) is not None:
        display(picture)
        return
    stream = sys.stdout if file is None else file
    try:
        from rich.console import Console
    except ImportError:
        width = max_width or (shutil.get_terminal_size().columns if stream.isatty() else _WIDTH)
        text = picture.text(width)
        stream.write(f"{text if _can_write(stream, text) else text.translate(ASCII)}\n")
        return
    console = Console(
        file=stream,
        width=max_width,
        force_jupyter=False,
        highlight=False,
        # rich knows NO_COLOR, and what the terminal has.
        no_color=None if use_color else True,
    )
    console.print(picture)


def _style(piece: TintedText) -> str:
    return "" if piece.tint is None else f"{INK} on {TINTS[piece.tint]}"


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _notebook_display() -> Any:
    """What shows a thing in a notebook, if the program runs in one: IPython is there then."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None:
        return None
    # A shell in a terminal has no kernel.
    kernel = getattr(ipython.get_ipython(), "kernel", None)
    return None if kernel is None else ipython.display.display


# What notebooks show of meshes and tensors: small tables, and for a tensor its picture.


_PLANE = 2
_MOST = 8
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024
_CELL = 'style="padding:0 .7em;text-align:right"'


def mesh_html(mesh: DeviceMesh) -> str:
    """The workers of a mesh as a table; one for each place along the leading axes.

    Args:
        mesh: The mesh.
    """
    grid = np.array(mesh.device_ids).reshape((1,) * max(_PLANE - mesh.ndim, 0) + tuple(mesh.shape))
    lead = grid.shape[:-_PLANE]
    planes = grid.reshape(-1, *grid.shape[-_PLANE:])
    shown = min(len(planes), _MOST)
    tables = [_plane(mesh, coordinate_of(lead, at), planes[at]) for at in range(shown)]
    more = f"<p>and {len(planes) - shown} more</p>" if shown < len(planes) else ""
    size = " x ".join(map(str, mesh.shape))
    title = f"DeviceMesh of {size} worker{'s' * (mesh.size != 1)}: {ranges(mesh.device_ids)}"
    return f"<div><p>{escape(title)}</p>{''.join(tables)}{more}</div>"


def tensor_html(info: DTensorStructInfo) -> str:
    """What a tensor is, beside the picture of its placement.

    Args:
        info: The tensor.
    """
    tensor, mesh = info.tensor_sinfo, info.device_mesh
    parts = [info.local_shape(place) for place in range(mesh.size)]
    sizes = [int(np.prod(part, dtype=np.int64)) * tensor.dtype.itemsize for part in parts]
    each = sorted(set(parts), reverse=True)
    names = f" {mesh.names}" if mesh.names else ""
    facts = {
        "shape": str(tuple(tensor.shape)),
        "dtype": tensor.dtype.name,
        "placement": str(info.placement),
        "mesh": f"{tuple(mesh.shape)}{names}, workers {ranges(mesh.device_ids)}",
        "parts": " or ".join(map(str, each[:_PLANE])),
        "a worker holds": f"at most {_amount(max(sizes))}",
    }
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:1.5em;align-items:center">'
        f"{facts_table('DTensor', facts)}"
        f"{figure(picture_of(info), title=False)}</div>"
    )


def _plane(mesh: DeviceMesh, at: Sequence[int], plane: np.ndarray[Any, Any]) -> str:
    names = mesh.names or ("",) * mesh.ndim
    lead = [name or f"axis {axis}" for axis, name in enumerate(names)]
    title = ", ".join(f"{name}={index}" for name, index in zip(lead, at, strict=False))
    down, across = ("workers", names[0]) if mesh.ndim < _PLANE else names[-_PLANE:]
    rows, columns = (min(extent, _MOST) for extent in plane.shape)
    cut = f"<td {_CELL}>...</td>" if columns < plane.shape[1] else ""
    head = "".join(
        f'<th scope="col" {_CELL}>{escape(_place(across, at))}</th>' for at in range(columns)
    )
    lines = [f"<tr><td></td>{head}{cut}</tr>"]
    for index in range(rows):
        name = down if mesh.ndim < _PLANE else _place(down, index)
        cells = "".join(f"<td {_CELL}>{worker}</td>" for worker in plane[index, :columns])
        lines.append(f'<tr><th scope="row" {_CELL}>{escape(name)}</th>{cells}{cut}</tr>')
    if rows < plane.shape[0]:
        lines.append(f'<tr><td colspan="{columns + 1}">...</td></tr>')
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(lines)}</table>"


def _place(name: str, index: int) -> str:
    return f"{name} {index}".strip()


def _amount(nbytes: int) -> str:
    """So many bytes, in the unit that is easy to read."""
    amount, unit = float(nbytes), 0
    while amount >= _STEP and unit + 1 < len(_UNITS):
        amount, unit = amount / _STEP, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if unit else f"{nbytes} {_UNITS[0]}"
