"""Functions of the workers that a program names where it makes tensors."""

from __future__ import annotations

from typing import Any, cast

from disco_client.core import DRef
from disco_client.errors import ConfigError

__all__ = ["check_function"]


def check_function(name: str, function: Any) -> str | DRef:
    """Returns a function of the workers, or its name.

    Args:
        name: What is called with it, for the message.
        function: A name, or what ``session.get_global_func`` or a module returned.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(function, DRef) or (isinstance(function, str) and function):
        return cast("str | DRef", function)
    raise ConfigError(
        f"{name}: expected a function of the workers, by its name or from session.get_global_func,"
        f" got {function!r}; disco_server.register_func gives a function a name, and"
        " session.load_source brings its file to the workers"
    )
