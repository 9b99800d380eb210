"""Arrays of other libraries in a worker's registers: as numpy's or cupy's, and back.

A function may leave tensors of torch, JAX or TVM in a register, or pass them to a collective.
Collectives, copies and checkpoints know arrays of numpy and cupy alone; at their border the
functions here exchange the one for the other, of the same memory, by DLPack. No library is
imported for that: a function that has such an array has loaded it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_client.wire.array_likes import refuse_loss
from disco_client.wire.dlpack import (
    DlpackError,
    exported,
    library_name,
    on_host,
    refuse_hidden_state,
    speaks_dlpack,
    view,
)
from disco_client.wire.values import is_array
from disco_server.devices.base import on_device

__all__ = ["between", "destination", "is_foreign", "library_of", "native", "of_library"]


def is_foreign(value: object) -> bool:
    """Whether a value is an array of another library than numpy and cupy."""
    return type(value) is not np.ndarray and speaks_dlpack(value) and not on_device(value)


def native(value: Any) -> Any:
    """Returns an array of another library as numpy's or cupy's; everything else as it is.

    Raises:
        ArrayRefused: It cannot be shared, or would lose its meaning; the message says why.
    """
    if not is_foreign(value):
        if is_array(value):
            refuse_loss(value)
        return value
    if getattr(value, "is_cpu", False) is True or on_host(value):  # torch's own answer is cheaper
        return view(value)
    return _on_gpu(value)


def destination(value: Any) -> Any:
    """Does the same for an array that is to be overwritten.

    Raises:
        ArrayRefused: As for :func:`native`, or its library does not permit to write.
    """
    array = native(value)
    if array is value:
        return value
    if not on_device(array) and not array.flags.writeable:
        msg = (
            f"a {library_name(value)} cannot be overwritten, as its library does not permit it;"
            " use a result that is made anew, or an array of numpy's"
        )
        raise DlpackError(msg)
    return array


def between(source: Any, target: Any) -> tuple[Any, Any]:
    """Does both for a source and its destination, which may be one array."""
    into = destination(target)
    return (into if source is target else native(source)), into


def library_of(value: Any) -> str:
    """The name of the module that makes such arrays of others, for :func:`of_library`.

    Raises:
        DlpackError: There is none.
    """
    names: list[str] = []
    if hasattr(value, "__array_namespace__"):
        names.append(value.__array_namespace__().__name__)
    names += [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    for name in names:
        if hasattr(sys.modules.get(name), "from_dlpack"):
            return name
    msg = f"the library of a {library_name(value)} has no from_dlpack; give a destination"
    raise DlpackError(msg)


def of_library(name: str, array: Any) -> Any:
    """Returns an array of numpy or cupy as one of another library, of the same memory if it can be.

    Args:
        name: What :func:`library_of` returned.
        array: An array that nothing else writes into.

    Raises:
        DlpackError: The library is not loaded, or refuses such an array.
    """
    make: Callable[[Any], Any] | None = getattr(sys.modules.get(name), "from_dlpack", None)
    if make is None:
        msg = f"expected that {name} is loaded on this worker, for an array of that library"
        raise DlpackError(msg)
    try:
        return make(array if on_device(array) else exported(array))
    except Exception as error:
        msg = f"{name} has no array for {array.dtype}{list(array.shape)}: {error}"
        raise DlpackError(msg) from error


def _on_gpu(value: Any) -> Any:
    """The same for an array on a GPU, which a worker that computes there has loaded cupy for."""
    name = library_name(value)
    refuse_hidden_state(value)
    cupy = sys.modules.get("cupy")
    if cupy is None:
        msg = f"a {name} is on a GPU, and this worker computes on a CPU; copy it to the host first"
        raise DlpackError(msg)
    try:
        return cupy.from_dlpack(value)
    except Exception as error:
        msg = f"a {name} cannot be shared: {type(error).__name__}: {error}"
        raise DlpackError(msg) from error
