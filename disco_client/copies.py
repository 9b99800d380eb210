"""Copies of what stands for something on the workers of a session.

A shallow copy (``copy.copy``) stands for the same. There is no deep copy and no pickle, because
what a handle stands for lies elsewhere; the error says what to do instead.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, TypeVar, cast

from disco_client.errors import EncodingError

__all__ = ["Handle", "copy_fields"]

_Copied = TypeVar("_Copied")


class Handle:
    """Something of a program that stands for something on the workers.

    ``copy.copy`` makes another one with the same fields; pickle and ``copy.deepcopy`` are
    refused.

    Attributes:
        _instead: What to do instead of these. A private name, as those of objects on the
            workers are looked up by attributes of their references.
    """

    __slots__ = ()

    _instead: ClassVar[str]

    def __copy__(self) -> Any:
        return copy_fields(self)

    def __dir__(self) -> list[str]:
        """What a person may use: completion lists no private names."""
        return [name for name in object.__dir__(self) if name[:1] != "_" or name[:2] == "__"]

    # Asked by pickle, in every protocol, and by copy.deepcopy.
    def __reduce__(self) -> NoReturn:
        msg = (
            f"a {type(self).__name__} can be neither pickled nor copied by copy.deepcopy, because"
            f" what it stands for is on the workers of a session of this process; {self._instead}"
        )
        raise EncodingError(msg)


def copy_fields(thing: _Copied, without: str = "") -> _Copied:
    """Makes another object of the same class with the same fields, those of subclasses included.

    Args:
        thing: The object.
        without: A field that the copy does not get.
    """
    made = object.__new__(type(thing))
    state = cast("Any", object.__getstate__(thing))
    # Of __dict__, of slots, or of both.
    several = cast("tuple[dict[str, Any] | None, ...]", state if type(state) is tuple else (state,))
    for fields in several:
        for name, value in (fields or {}).items():
            if name != without:
                object.__setattr__(made, name, value)
    return made
