"""The collective operations of a session; every worker takes part in each.

With ``in_group=True`` an operation stays inside each group: ``num_groups`` equal,
consecutive slices of the workers, whose first worker takes worker 0's part. Only
element counts must fit, not shapes: data move as flat chunks in rank order. What
does not fit is refused on every worker before any of them enters the operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from disco_client.arguments import CCL_NAMES
from disco_client.errors import ConfigError
from disco_client.wire.values import Shape

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore

__all__ = [
    "REDUCE_OPS",
    "all_to_all",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_from_worker0",
    "gather_to_worker0",
    "init_ccl",
    "reduce_scatter",
    "scatter",
    "scatter_from_worker0",
]

REDUCE_OPS = ("sum", "prod", "min", "max", "avg")
"""Reductions in the order of their codes."""


def init_ccl(core: SessionCore, ccl: str, *device_ids: int) -> None:
    """Starts a collective library on all workers; see ``Session.init_ccl``."""
    if ccl not in CCL_NAMES:
        msg = f"expected one of {', '.join(CCL_NAMES)}, got {ccl!r}"
        raise ConfigError(msg)
    try:
        devices = Shape(device_ids)
    except (TypeError, ValueError):
        msg = f"expected the numbers of GPUs, from 0, got {', '.join(map(repr, device_ids))}"
        raise ConfigError(msg) from None
    core.call_builtin("runtime.disco.init_ccl", ccl, devices)
    core.sync()


def broadcast(core: SessionCore, src: object, dst: DRef | None) -> DRef:
    """Copies a host array to every worker; see ``Session.broadcast``."""
    array = np.asarray(src)
    if dst is None:
        dst = core.empty(array.shape, array.dtype)
    return broadcast_from_worker0(core, core.copy_to_worker_0(array), dst, in_group=False)


def broadcast_from_worker0(core: SessionCore, src: DRef, dst: DRef, in_group: bool) -> DRef:
    """Copies worker 0's array to all; see ``Session.broadcast_from_worker0``."""
    core.call_builtin("runtime.disco.broadcast_from_worker0", src, bool(in_group), dst)
    return dst


def scatter(core: SessionCore, src: object, dst: DRef | None) -> DRef:
    """Gives each worker one slice of a host array; see ``Session.scatter``."""
    array = np.asarray(src)
    if array.ndim == 0 or array.shape[0] != core.num_workers:
        msg = (
            f"expected an array with {core.num_workers} slices on its first axis, one for "
            f"each worker, got shape {array.shape}"
        )
        raise ConfigError(msg)
    if dst is None:
        dst = core.empty(array.shape[1:], array.dtype)
    return scatter_from_worker0(core, core.copy_to_worker_0(array), dst, in_group=False)


def scatter_from_worker0(core: SessionCore, src: DRef, dst: DRef, in_group: bool) -> DRef:
    """Gives each worker one chunk of worker 0's array; see ``Session.scatter_from_worker0``."""
    core.call_builtin("runtime.disco.scatter_from_worker0", src, bool(in_group), dst)
    return dst


def gather_to_worker0(core: SessionCore, src: DRef, dst: DRef, in_group: bool) -> DRef:
    """Collects every worker's array on worker 0; see ``Session.gather_to_worker0``."""
    core.call_builtin("runtime.disco.gather_to_worker0", src, bool(in_group), dst)
    return dst


def allreduce(core: SessionCore, src: DRef, dst: DRef, op: str, in_group: bool) -> DRef:
    """Reduces the workers' arrays; all get the result; see ``Session.allreduce``."""
    core.call_builtin("runtime.disco.allreduce", src, _op_code(op), bool(in_group), dst)
    return dst


def allgather(core: SessionCore, src: DRef, dst: DRef, in_group: bool) -> DRef:
    """Collects every worker's array on every worker; see ``Session.allgather``."""
    core.call_builtin("runtime.disco.allgather", src, bool(in_group), dst)
    return dst


def reduce_scatter(core: SessionCore, src: DRef, dst: DRef, op: str, in_group: bool) -> DRef:
    """Reduces the workers' arrays; each gets one chunk; see ``Session.reduce_scatter``."""
    core.call_builtin("runtime.disco.reduce_scatter", src, _op_code(op), bool(in_group), dst)
    return dst


def all_to_all(core: SessionCore, src: DRef, dst: DRef, in_group: bool) -> DRef:
    """Sends one chunk of each worker's array to each; see ``Session.all_to_all``."""
    core.call_builtin("runtime.disco.all_to_all", src, bool(in_group), dst)
    return dst


def _op_code(op: str) -> Shape:
    if op not in REDUCE_OPS:
        msg = f"expected one of {', '.join(REDUCE_OPS)}, got {op!r}"
        raise ConfigError(msg)
    return Shape((REDUCE_OPS.index(op),))
