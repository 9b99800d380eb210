"""numpy's functions that the client answers: by dtypes and shapes, or as text of the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from disco_client.distributed.composites import Composite
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.errors import ConfigError

__all__ = ["FACTS"]


def _stand_in(value: Any) -> Any:
    """An array of the shape and the dtype of a tensor that takes no memory."""
    if isinstance(value, DTensor):
        return np.broadcast_to(np.zeros((), value.dtype), tuple(value.shape))
    return value


def _by_kind(name: str) -> Composite:
    """What depends on the shapes and dtypes of operands alone."""

    def answer(_engine: Computing, *args: Any, **options: Any) -> Any:
        return getattr(np, name)(*map(_stand_in, args), **options)

    return answer


def _min_scalar_type(_engine: Computing, a: DTensor, /) -> np.dtype[Any]:
    """Of an array with axes its dtype; of a number it would follow from the value."""
    if not a.ndim:
        raise ConfigError("numpy.min_scalar_type of a number follows from it: fetch it by .item()")
    return a.dtype


def _as_text(name: str) -> Composite:
    """What says the values: they are fetched."""

    def text(_engine: Computing, a: DTensor, *args: Any, **options: Any) -> str:
        return getattr(np, name)(a.numpy(), *args, **options)

    return text


def _apply_over_axes(
    _engine: Computing, func: Callable[[Any, Any], Any], a: DTensor, axes: Any
) -> Any:
    """A function of a tensor and an axis, such as ``numpy.sum``, over one axis after the other."""
    out: Any = a
    for axis in several(axes):
        place = axis + a.ndim if axis < 0 else axis
        found = func(out, place)
        if found.ndim == out.ndim - 1:
            found = np.expand_dims(found, place)
        if found.ndim != out.ndim:
            raise ConfigError(
                f"apply_over_axes: expected a result of {out.ndim} or {out.ndim - 1} axes, got"
                f" {found.ndim}"
            )
        out = cast("Any", found)
    return out


FACTS: dict[str, Composite] = {
    **{
        name: _by_kind(name)
        for name in (
            *("common_type", "iscomplexobj", "isrealobj"),
            *("einsum_path",),
        )
    },
    "min_scalar_type": _min_scalar_type,
    **{name: _as_text(name) for name in ("array2string", "array_repr", "array_str")},
    "apply_over_axes": _apply_over_axes,
}
"""By numpy's names."""
