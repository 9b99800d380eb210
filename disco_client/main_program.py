"""A script as the main program of a process that Python did not start with it."""

from __future__ import annotations

import builtins
import contextlib
import sys
import traceback
from collections.abc import Generator, Sequence
from types import ModuleType, TracebackType
from typing import Any

__all__ = ["exit_status", "in_place_of_main", "traceback_from"]


@contextlib.contextmanager
def in_place_of_main(
    file: str, argv: Sequence[str], folder: str | None = None
) -> Generator[dict[str, Any]]:
    """Sets up the process as if Python itself ran a script; afterwards it is as before.

    Args:
        file: The script's file here.
        argv: What the script finds in ``sys.argv``.
        folder: Where it finds modules before all other places; None where that stays as it is.

    Returns:
        A context whose value is the script's globals, those of a new ``__main__``.
    """
    main = ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=builtins)
    before = sys.modules["__main__"], sys.argv, sys.path
    sys.modules["__main__"] = main
    sys.argv = [*argv]
    if folder is not None:
        sys.path = [folder, *sys.path]
    try:
        yield main.__dict__
    finally:
        sys.modules["__main__"], sys.argv, path = before
        if folder is not None:
            sys.path = path


def exit_status(code: object) -> tuple[int, str]:
    """What Python makes of the argument of ``sys.exit()``.

    Args:
        code: The argument.

    Returns:
        The exit code, and the text that is printed on standard error; "" for none.
    """
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return code & 0xFF, ""
    return 1, str(code)


def traceback_from(error: BaseException, filename: str) -> str | None:
    """What Python prints of an exception that ends a script, without the frames above the script.

    Args:
        error: The exception.
        filename: The name under which the script was compiled.

    Returns:
        The lines, without the end of the last one; None where no frame is the script's.
    """
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != filename:
        frames = frames.tb_next
    if frames is None:
        return None
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip("\n")
