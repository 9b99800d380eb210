"""Functions of the workers that are called with parts and their halos, as stencils need them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from disco_client.distributed.composites import Steps
from disco_client.distributed.dtensor import Computing, DTensor, Origin
from disco_client.distributed.halos import Halo, Overlap, split_once
from disco_client.distributed.ops import as_index, normal_axis
from disco_client.distributed.own_functions import check_function
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    TensorStructInfo,
)
from disco_client.distributed.storage import lying
from disco_client.errors import ConfigError, DtypeError
from disco_client.wire.values import dtype_from_name

__all__ = ["map_overlap"]


_BOUNDARIES = ("none", "reflect", "nearest", "periodic")
_OF_THE_WHOLE = ("reflect", "periodic")
"""Those that are made of as many indices of the whole as a halo has."""


def map_overlap(
    engine: Computing,
    function: Any,
    x: DTensor,
    depth: Any,
    boundary: Any,
    *,
    trim: bool,
    dtype: object,
    options: Mapping[str, Any],
) -> DTensor:
    """Calls a function with the part of each worker and its halos.

    See ``ArrayNamespace.map_overlap``.
    """
    called = check_function("map_overlap", function)
    kind = x.dtype if dtype is None else dtype_from_name(dtype)
    halos = _halos(x, depth, boundary)
    if not trim and any(halo.boundary == "none" for halo in halos):
        raise ConfigError(
            "map_overlap: with trim=False expected a boundary that all parts have, got 'none', with"
            " which the first and the last part have a halo on one side only"
        )
    steps = Steps(engine)
    combined = x.placement.combined()
    whole = x if combined == x.placement else steps.keep(x.redistribute(combined))
    result = TensorStructInfo(x.shape, kind)
    work, placement = _prepared(whole.info, halos, bool(trim), result.dtype_name)
    seen = DTensor(engine, work.info, whole.ref, _SEEN)
    parts = steps.keep(lying(seen, placement))
    info = DTensorStructInfo(result, whole.mesh, whole.placement)
    steps.keep(DTensor(engine, info, engine.map_blocks(called, parts, work, options), _SEEN))
    return steps.result("map_overlap")


_SEEN = Origin("map_overlap")


@functools.lru_cache(maxsize=4096)
def _prepared(
    info: DTensorStructInfo, halos: tuple[Halo, ...], trim: bool, dtype_name: str
) -> tuple[Overlap, Placement]:
    work = Overlap(split_once(info), halos, trim, dtype_name)
    return work, work.placement


# Arguments.


def _halos(x: DTensor, depth: Any, boundary: Any) -> tuple[Halo, ...]:
    """Of the axes that have some, as arguments say."""
    depths = _by_axis("depth", depth, x.ndim, 0)
    boundaries = _by_axis("boundary", boundary, x.ndim, "none")
    found: list[Halo] = []
    for axis, (given, beyond) in enumerate(zip(depths, boundaries, strict=True)):
        count = as_index(given)
        if count is None or count < 0:
            raise ConfigError(
                f"map_overlap: expected a depth from 0 for axis {axis}, got {given!r}"
            )
        kind = _boundary(beyond, x.dtype)
        extent = x.shape[axis]
        if count > extent and kind in _OF_THE_WHOLE:
            raise ConfigError(
                f"map_overlap: expected a depth of at most {extent} for axis {axis} with boundary"
                f" {kind!r}, got {count}"
            )
        if count:
            found.append(Halo(axis, count, kind))
    return tuple(found)


def _by_axis(name: str, given: Any, ndim: int, missing: Any) -> list[Any]:
    """One value for each axis, of one for all, of several in order, or by axes."""
    if isinstance(given, Mapping):
        found = [missing] * ndim
        for axis, value in cast("Mapping[Any, Any]", given).items():
            found[normal_axis(axis, ndim)] = value
        return found
    if isinstance(given, (tuple, list)):
        values = list(cast("Sequence[Any]", given))
        if len(values) != ndim:
            raise ConfigError(
                f"map_overlap: expected a {name} for each of {ndim} axes, got {len(values)}"
            )
        return values
    return [given] * ndim


def _boundary(given: Any, dtype: np.dtype[Any]) -> str | bytes:
    """A boundary by its name, or the bytes of a number in the dtype of the tensor."""
    if given is None:
        return "none"
    if isinstance(given, str):
        if given not in _BOUNDARIES:
            names = ", ".join(map(repr, _BOUNDARIES))
            raise ConfigError(f"map_overlap: expected {names} or a number, got {given!r}")
        return given
    value = np.asarray(given)
    if value.ndim or value.dtype.kind not in "biufcmM":
        raise ConfigError(
            f"map_overlap: expected the name of a boundary or a number, got {given!r}"
        )
    whole = dtype.kind in "biu"
    if np.can_cast(value.dtype, dtype, "same_kind") or (whole and value.dtype.kind in "biuf"):
        with np.errstate(all="ignore"):
            there = value.astype(dtype)
        if not whole or there == value:
            return there.tobytes()
    raise DtypeError(f"map_overlap: {dtype} has no boundary {given!r}")
