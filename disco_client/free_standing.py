"""Whether workers could find a function or a class by the name that it has in its module."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from disco_client.errors import ConfigError

__all__ = ["check_free_standing"]


def check_free_standing(thing: Any, module: str, qualname: str) -> None:
    """Makes sure that a module has a function or a class under a name.

    Args:
        thing: The function or the class.
        module: The name of its module.
        qualname: Its name there.

    Raises:
        ConfigError: It captures variables, is a lambda, or is defined inside of a function.
    """
    captured = [name for name in _captured(thing) if name != "__class__"]
    if captured:
        named = ", ".join(captured)
        msg = (
            f"{qualname!r} captures {named} of the function around it, which workers do not have;"
            f" define it at the top of {module!r}, and pass {named} as arguments"
        )
    elif "<lambda>" in qualname:
        msg = f"a lambda has no name by which workers find it; define it by def in {module!r}"
    elif "<locals>" in qualname:
        msg = (
            f"{qualname!r} is there while the function around it runs, and workers do not run that;"
            f" define it at the top of {module!r}"
        )
    else:
        return
    raise ConfigError(msg)


def _captured(thing: Any) -> tuple[str, ...]:
    code = thing.__code__ if isinstance(thing, FunctionType) else None
    return code.co_freevars if code else ()
