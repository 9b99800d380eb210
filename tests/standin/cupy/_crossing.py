"""From arrays of the device to the numpy arrays that play them, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._dtypes import supported
from cupy._machine import races
from cupy._machine.devices import machine
from cupy._machine.memory_map import DEVICE, blocks
from cupy.cuda import memory

__all__ = ["Hidden", "adopt", "call", "compute", "is_array", "wrap"]

_classes: list[type] = []


_WRITERS = ("assign", "at", "copyto", "put", "sort_in_place")
"""Functions that write their first argument."""


class Hidden:
    """Something that goes to numpy as it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


def adopt(array_class: type) -> type:
    """Makes the class of device arrays known here; it is defined by means of this module."""
    _classes.append(array_class)
    return array_class


def is_array(value: object) -> bool:
    """Whether a value is an array of the device."""
    return isinstance(value, _classes[0])


def wrap(result: Any) -> Any:
    """What numpy returned, with arrays of the device for its arrays and scalars."""
    if isinstance(result, np.ndarray | np.generic):
        return _wrap_array(np.asarray(result))
    if isinstance(result, tuple):
        made = [wrap(item) for item in result]
        return type(result)(*made) if hasattr(result, "_fields") else tuple(made)
    if isinstance(result, list):
        return [wrap(item) for item in result]
    return result


def _wrap_array(host: np.ndarray) -> Any:
    address = DEVICE + host.__array_interface__["data"][0]
    block = blocks.find(address, 1) if host.size else None
    if block is not None and block.device >= 0:
        return _classes[0]._over(host, memory.MemoryPointer(block.owner(), address - block.address))
    supported(host.dtype)
    order = "F" if host.flags.fnc else "C"
    made = _classes[0](host.shape, host.dtype, order=order)
    made._host[...] = host
    return made


def _unwrap(value: Any, current: int, known: dict[int, Any]) -> Any:
    if is_array(value):
        if value.data.device_id != current:
            raise ValueError(
                f"The device where the array resides ({value.data.device_id}) is different"
                f" from the current device ({current})."
                " Peer access is unavailable between these devices."
            )
        supported(value.dtype)  # a view may have another, and no kernel takes it
        known[id(value._host)] = value
        return value._host
    if isinstance(value, Hidden):
        return value.value
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(_unwrap(item, current, known) for item in value)
    if isinstance(value, dict):
        return {key: _unwrap(item, current, known) for key, item in value.items()}
    return value


def _note(queue: Any, function: Any, args: Any, kwargs: Any, known: dict[int, Any]) -> None:
    """Tells `races` what is read and written."""
    name = getattr(function, "__name__", "")
    outs_at = function.nargs - function.nout if isinstance(function, np.ufunc) else len(args)
    written = [kwargs.get("out"), *args[outs_at:], *(args[:1] if name in _WRITERS else ())]
    for array in known.values():
        block = blocks.find(array.data.ptr, 1) if array.size else None
        if block is not None:
            writes = any(array is one for one in written)
            races.access(queue, block, name or "a computation", writes=writes)


def compute(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, dict[int, Any]]:
    """Calls a function of numpy with the arrays that play those of the device.

    Returns:
        What it returned, and the arrays of the device that went in, by the ids of those
        that play them.

    Raises:
        TypeError: There is an array of numpy among the arguments.
        ValueError: There is an array of another device among them.
    """
    queue = machine.catch_up()
    known: dict[int, Any] = {}
    current = machine.current.index
    plain_args = _unwrap(tuple(args), current, known)
    plain_kwargs = _unwrap(dict(kwargs), current, known)
    _note(queue, function, args, kwargs, known)
    with np.errstate(all="ignore"):
        return function(*plain_args, **plain_kwargs), known


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function of numpy with arrays of the device, and gives its result to the device."""
    result, known = compute(function, args, kwargs)
    if isinstance(result, np.ndarray) and id(result) in known:
        return known[id(result)]
    return wrap(result)
