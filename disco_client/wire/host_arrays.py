"""Host arrays at the client: what is taken as one, of numpy and of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from disco_client.errors import EncodingError
from disco_client.wire.array_likes import Array, ArrayRefused, plain_array
from disco_client.wire.dlpack import (
    DlpackError,
    library_name,
    refuse_hidden_state,
    speaks_dlpack,
    view,
)
from disco_client.wire.values import is_array, is_int64, shown

__all__ = ["Array", "as_destination", "as_host_array", "as_numbers"]


def as_host_array(value: object) -> Array:
    """Makes an array of a program's argument; of the same memory where it is an array.

    Args:
        value: An array of numpy, of another library in the CPU's memory, or what
            ``numpy.asarray`` makes one of.

    Raises:
        EncodingError: It is no array of numbers, lies on a GPU, records gradients, or would
            lose its meaning: its mask, its unit, or what a column lacks.
    """
    if hasattr(value, "reg_id"):
        msg = (
            "expected a host array, got a reference to an array on the workers; its numpy() makes"
            " a host array of it"
        )
        raise EncodingError(msg)
    if speaks_dlpack(value):
        return _shared(value)
    array = plain_array(value)
    if array.dtype.kind in "SU":
        msg = f"expected an array of numbers, got {type(value).__name__}: {shown(value)}"
        raise EncodingError(msg)
    return array


def as_destination(value: object) -> Array:
    """An array of the same memory as one that is to be filled.

    Raises:
        EncodingError: It is no array, cannot be written, lies on a GPU, records gradients, or
            has a mask or a unit.
    """
    kind = f"a value of type {type(value).__name__}"
    if is_array(value) or speaks_dlpack(value):
        array = as_host_array(value)
        if array.flags.writeable:
            return array
        kind = "a read-only one"
    msg = f"expected a writable array to copy into, got {kind}"
    raise EncodingError(msg)


def as_numbers(value: object) -> Array | None:
    """What a register holds as an array of numbers; None where it is none, nor a number.

    Args:
        value: A plain array, a number of Python's or a scalar of numpy's, as they travel.
    """
    if isinstance(value, int) and not is_int64(value):
        return None
    scalar = issubclass(type(value), np.generic) and not isinstance(value, (str, bytes, np.void))
    if not (scalar or is_array(value) or isinstance(value, (bool, int, float))):
        return None
    array: Array = np.asarray(value)
    return None if array.dtype.hasobject or array.dtype.names is not None else array


def _shared(value: Any) -> Array:
    """The memory of an array of another library; a copy, if it cannot pass that."""
    refuse_hidden_state(value)
    try:
        return view(value)
    except DlpackError as error:
        if not hasattr(value, "__array__"):
            raise
        why = error
    # Such as one that lies in several pieces.
    try:
        copied: Array = np.array(plain_array(value))
    except ArrayRefused:
        raise
    except Exception as error:  # noqa: BLE001  (any library's)
        msg = f"a {library_name(value)} cannot be read as an array of the host's memory: {error}"
        raise EncodingError(msg) from why
    copied.flags.writeable = False  # what is written there would be lost
    return copied
