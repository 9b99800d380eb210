"""Shows which worker holds which part of a tensor, wherever the program runs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.pictures.model import INK, TINTS, picture_of
from disco_client.distributed.pictures.svg import document, draw_svg, figure
from disco_client.distributed.pictures.text import ASCII, Piece, draw, plain
from disco_client.distributed.struct_info import DTensorStructInfo

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

__all__ = ["ShardingPicture", "visualize_sharding"]

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


def _style(piece: Piece) -> str:
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
