"""What ``debug_get_from_remote`` returns for an array: numpy's, with methods of TVM's tensors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any, Self, cast

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.host_arrays import Array, as_destination, as_host_array
from disco_client.wire.values import Device, Shape, as_device, device_of, ffi_shape

__all__ = ["HostDevice", "HostTensor", "with_tensors"]


class HostDevice(str):
    """Where a host array lies: numpy's name of it, which equals every library's CPU too."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        try:
            return as_device(other) == Device("cpu", 0)
        except ConfigError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)


_CPU = HostDevice("cpu")


class HostTensor(np.ndarray[Any, Any]):
    """An array that also answers as a ``tvm.runtime.Tensor`` of the CPU does.

    What is made of it, by slicing, methods and functions, is a plain array.
    """

    __slots__ = ()
    # Below an array's own, so that numpy makes plain arrays of this and others.
    __array_priority__ = -1.0  # type: ignore[assignment]  (of numpy's stub, a property)

    @property
    def device(self) -> HostDevice:  # type: ignore[override]
        """``"cpu"``; also equal to ``tvm.cpu(0)`` and to ``disco_client.cpu(0)``."""
        return _CPU

    def numpy(self) -> Array:
        """A copy as a plain array."""
        return _plain(self).copy()

    def copyfrom(self, source_array: object) -> Self:
        """Fills this array from another of its shape, whatever its dtype; returns this one.

        Raises:
            ValueError: The shapes differ.
            EncodingError: It is no host array.
        """
        _fill(_plain(self), as_host_array(source_array))
        return self

    def copyto(self, target: Any) -> Any:
        """Copies to another array of this shape, in place, or to a device.

        Args:
            target: A writable host array of any library, or the CPU.

        Returns:
            The array, or a new one for a device.

        Raises:
            ConfigError: The device is no CPU.
            EncodingError: It is neither a device nor a writable host array.
            ValueError: The shapes differ.
        """
        device = device_of(target) if isinstance(target, str) else as_device(target)
        if device is None:
            _fill(as_destination(target), _plain(self))
            return target
        if device != Device("cpu", 0):
            msg = f"expected the CPU, where a program's arrays are, got {device}"
            raise ConfigError(msg)
        return self.numpy().view(HostTensor)

    # What is made of it is plain --------------------------------------------------

    def __getitem__(self, key: Any, /) -> Any:
        return _plain(self)[key]

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:  # of an operation in place
            return self
        out = _plain(array)
        return out[()] if return_scalar and not out.ndim else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        out = super().__array_function__(func, types, args, kwargs)
        return _plain(out) if type(out) is HostTensor else out

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return repr(_plain(self))


def _plain(array: Array) -> Array:
    return np.ndarray.view(array, np.ndarray)


def _method(name: str) -> Any:
    @functools.wraps(getattr(np.ndarray, name))
    def method(self: HostTensor, *args: Any, **options: Any) -> Any:
        return getattr(_plain(self), name)(*args, **options)

    return method


def _attribute(name: str) -> Any:
    def put(self: HostTensor, value: object) -> None:
        setattr(_plain(self), name, value)

    return property(lambda self: getattr(_plain(self), name), put)


def _of_plain_arrays() -> Iterator[tuple[str, Any]]:
    """The methods and attributes of a plain array, which give plain ones."""
    for name in dir(np.ndarray):
        if name in ("T", "mT", "real", "imag", "flat"):
            yield name, _attribute(name)
        elif not name.startswith("_") and callable(getattr(np.ndarray, name)):
            yield name, _method(name)


for _name, _member in _of_plain_arrays():
    if _name not in (*vars(HostTensor), "resize", "setflags"):  # these change the array itself
        setattr(HostTensor, _name, _member)


def _fill(out: Array, array: Array) -> None:
    if out.shape != array.shape:
        msg = f"expected an array of shape {out.shape}, got {array.shape}"
        raise ValueError(msg)
    out[...] = array


def with_tensors(value: Any) -> Any:
    """What a worker's register holds, as ``debug_get_from_remote`` returns it.

    Arrays, also in lists and maps, become :class:`HostTensor` of the same memory, and
    shapes are also TVM's where the program uses that. Everything else stays as it is.
    """
    kind = cast("Any", type(value))
    if kind is np.ndarray:
        return value.view(HostTensor)
    if kind is Shape:
        foreign = ffi_shape()
        return value if foreign is None else _shape_class(foreign)(value)
    if kind is list or kind is tuple:
        return _replaced(value, kind(map(with_tensors, value)))
    if kind is dict:
        made = {key: with_tensors(item) for key, item in value.items()}
        same = all(made[key] is item for key, item in value.items())
        return value if same else made
    return value


def _replaced(given: Any, made: Any) -> Any:
    """The list that a worker holds, where nothing in it is replaced."""
    return given if all(map(operator.is_, given, made)) else made


@functools.cache
def _shape_class(foreign: type[tuple[int, ...]]) -> type[Shape]:
    """A class of shapes that are also another library's."""

    def reduce(self: Shape) -> Any:
        return Shape, (tuple(self),)

    members = {"__slots__": (), "__module__": Shape.__module__, "__reduce__": reduce}
    return cast("type[Shape]", type("Shape", (Shape, foreign), members))
