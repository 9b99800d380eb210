"""Whether what a register holds can be called, or copied into or out of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import is_array
from disco_server.devices.base import on_device
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.register_file import Poison, Poisoned

__all__ = ["check_call", "check_fits", "is_any_array"]


def is_any_array(value: object) -> bool:
    """Whether this is an array, on the host or on a device."""
    return is_array(value) or on_device(value)


def check_fits(held: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuses a copy between arrays of other sizes or dtypes; shapes may differ.

    Args:
        held: What the register holds.
        shape: Of the host array.
        dtype: Of the host array.

    Raises:
        ArgumentRefused: The register holds no array, or another size or dtype.
    """
    if not is_any_array(held):
        msg = f"expected an array in the register, got {type(held).__name__}"
        raise ArgumentRefused(msg)
    if held.size != math.prod(shape) or held.dtype != dtype:
        msg = (
            f"the host array is {dtype}{list(shape)}, the worker's is "
            f"{held.dtype}{list(held.shape)}; sizes and dtypes must be the same"
        )
        raise ArgumentRefused(msg)


def check_call(register: int, function: Any, args: Iterable[Any] = ()) -> None:
    """Makes sure that a call can be made.

    Args:
        register: Where the function is.
        function: What is there.
        args: What it is called with.

    Raises:
        Poisoned: It reads the result of a command that failed; the first of them.
        ArgumentRefused: That is no function.
    """
    for value in (function, *args):
        if isinstance(value, Poison):
            raise Poisoned(value)
    if not callable(function):
        msg = f"expected a function in register {register}, got {function!r}"
        raise ArgumentRefused(msg)
