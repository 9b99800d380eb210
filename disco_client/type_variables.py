"""What stands for the types of a program's own functions, in the classes of references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["P", "R", "R_co", "T", "T_co"]

if TYPE_CHECKING:
    # Defaults (PEP 696) are in `typing` from Python 3.13 on. Without them a DRef that says nothing
    # of its value would be an error in strict programs.
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
    R_co = TypeVar("R_co", covariant=True, default=Any)
    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")
    R_co = TypeVar("R_co", covariant=True)
    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
