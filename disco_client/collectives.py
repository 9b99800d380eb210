"""The collective operations of a session; every worker takes part in each.

With ``in_group=True`` an operation stays inside each group: ``num_groups`` equal,
consecutive slices of the workers, whose first worker takes worker 0's part. Only
element counts must match, not shapes: data move as flat chunks in rank order. A
mismatch is refused on every worker before any of them enters the operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from disco_client.arguments import CCL_NAMES
from disco_client.errors import ConfigError
from disco_client.wire.host_arrays import as_host_array
from disco_client.wire.values import ReduceName, Shape

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore

__all__ = ["REDUCE_OPS", "broadcast", "init_ccl", "move", "reduce", "scatter"]

REDUCE_OPS: tuple[ReduceName, ...] = get_args(ReduceName)
"""Reductions in the order of their codes.

Examples:
    >>> disco_client.REDUCE_OPS
    ('sum', 'prod', 'min', 'max', 'avg')
"""


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
    array = as_host_array(src)
    if dst is None:
        dst = core.empty(array.shape, array.dtype)
    return move(core, "broadcast_from_worker0", core.copy_to_worker_0(array), dst, in_group=False)


def scatter(core: SessionCore, src: object, dst: DRef | None) -> DRef:
    """Gives each worker one slice of a host array; see ``Session.scatter``."""
    array = as_host_array(src)
    if array.ndim == 0 or array.shape[0] != core.num_workers:
        msg = (
            f"expected an array with {core.num_workers} slices on its first axis, one for "
            f"each worker, got shape {array.shape}"
        )
        raise ConfigError(msg)
    if dst is None:
        dst = core.empty(array.shape[1:], array.dtype)
    return move(core, "scatter_from_worker0", core.copy_to_worker_0(array), dst, in_group=False)


def move(core: SessionCore, operation: str, src: DRef, dst: DRef | None, in_group: bool) -> DRef:
    """Moves arrays between the workers; see the method of ``Session`` of that name.

    Returns:
        ``dst``; the reference of new arrays where it is None.
    """
    return _call(core, operation, dst, src, bool(in_group))


def reduce(
    core: SessionCore, operation: str, src: DRef, dst: DRef | None, op: ReduceName, in_group: bool
) -> DRef:
    """Moves and reduces arrays; see the method of ``Session`` of that name.

    Returns:
        ``dst``; the reference of new arrays where it is None.

    Raises:
        ConfigError: No such reduction.
    """
    if op not in REDUCE_OPS:
        msg = f"expected one of {', '.join(REDUCE_OPS)}, got {op!r}"
        raise ConfigError(msg)
    return _call(core, operation, dst, src, Shape((REDUCE_OPS.index(op),)), bool(in_group))


def _call(core: SessionCore, operation: str, dst: DRef | None, *args: object) -> DRef:
    if dst is None:
        return core.call_builtin(f"runtime.disco.{operation}", *args)
    core.call_builtin(f"runtime.disco.{operation}", *args, dst)
    return dst
