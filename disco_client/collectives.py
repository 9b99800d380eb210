"""The collective operations of a session; every worker takes part in each.

With ``in_group=True`` an operation stays inside each group: ``num_groups`` equal,
consecutive slices of the workers, whose first worker takes worker 0's part. Only
element counts must match, not shapes: data move as flat chunks in rank order. A
mismatch is refused on every worker before any of them enters the operation. A ``tag``
is a name of the call that the workers compare too, and that their errors show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from disco_client.arguments import CCL_NAMES
from disco_client.errors import ConfigError
from disco_client.wire.host_arrays import Array, as_host_array
from disco_client.wire.values import ReduceName, Shape, extents_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from disco_client.core import DRef, SessionCore

__all__ = [
    "REDUCE_OPS",
    "abroadcast",
    "ascatter",
    "broadcast",
    "init_ccl",
    "move",
    "reduce",
    "scatter",
]

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
        devices = extents_of(device_ids)
    except (TypeError, ValueError):
        msg = f"expected the numbers of GPUs, from 0, got {', '.join(map(repr, device_ids))}"
        raise ConfigError(msg) from None
    core.call_builtin("runtime.disco.init_ccl", ccl, devices)
    core.sync()


def broadcast(core: SessionCore, src: object, dst: DRef | None, tag: str | None) -> DRef:
    """Copies a host array to every worker; see ``Session.broadcast``."""
    array, spread = _broadcasting(core, src, dst, tag)
    return spread(core.copy_to_worker_0(array))


async def abroadcast(core: SessionCore, src: object, dst: DRef | None, tag: str | None) -> DRef:
    """Does the same without stopping the event loop; see ``Session.abroadcast``."""
    array, spread = _broadcasting(core, src, dst, tag)
    return await core.put(array, spread)


def _broadcasting(
    core: SessionCore, src: object, dst: DRef | None, tag: str | None
) -> tuple[Array, Callable[[DRef], DRef]]:
    """The array for worker 0, and what passes it on from there."""
    named = _named(tag)
    array = as_host_array(src)

    def spread(held: DRef) -> DRef:
        made = core.empty(array.shape, array.dtype) if dst is None else dst
        return _call(core, "broadcast_from_worker0", made, named, held, False)

    return array, spread


def scatter(core: SessionCore, src: object, dst: DRef | None, tag: str | None) -> DRef:
    """Gives each worker one slice of a host array; see ``Session.scatter``."""
    array, spread = _scattering(core, src, dst, tag)
    return spread(core.copy_to_worker_0(array))


async def ascatter(core: SessionCore, src: object, dst: DRef | None, tag: str | None) -> DRef:
    """Does the same without stopping the event loop; see ``Session.ascatter``."""
    array, spread = _scattering(core, src, dst, tag)
    return await core.put(array, spread)


def _scattering(
    core: SessionCore, src: object, dst: DRef | None, tag: str | None
) -> tuple[Array, Callable[[DRef], DRef]]:
    """The array for worker 0, and what passes it on from there.

    Raises:
        ConfigError: It does not have a slice for each worker.
    """
    named = _named(tag)
    array = as_host_array(src)
    if array.ndim == 0 or array.shape[0] != core.num_workers:
        msg = (
            f"expected an array with {core.num_workers} slices on its first axis, one for "
            f"each worker, got shape {array.shape}; session.distribute(array, placement='S[0]') "
            "gives each worker its part of any number"
        )
        raise ConfigError(msg)

    def spread(held: DRef) -> DRef:
        made = core.empty(array.shape[1:], array.dtype) if dst is None else dst
        return _call(core, "scatter_from_worker0", made, named, held, False)

    return array, spread


def move(
    core: SessionCore,
    operation: str,
    src: DRef,
    dst: DRef | None,
    in_group: bool,
    tag: str | None,
) -> DRef:
    """Moves arrays between the workers; see the method of ``Session`` of that name.

    Returns:
        ``dst``; the reference of new arrays where it is None.

    Raises:
        ConfigError: The tag is no str.
    """
    return _call(core, operation, dst, _named(tag), src, bool(in_group))


def reduce(
    core: SessionCore,
    operation: str,
    src: DRef,
    dst: DRef | None,
    op: ReduceName,
    in_group: bool,
    tag: str | None,
) -> DRef:
    """Moves and reduces arrays; see the method of ``Session`` of that name.

    Returns:
        ``dst``; the reference of new arrays where it is None.

    Raises:
        ConfigError: No such reduction, or the tag is no str.
    """
    if op not in REDUCE_OPS:
        msg = f"expected one of {', '.join(REDUCE_OPS)}, got {op!r}"
        raise ConfigError(msg)
    kind = Shape((REDUCE_OPS.index(op),))
    return _call(core, operation, dst, _named(tag), src, kind, bool(in_group))


def _named(tag: str | None) -> dict[str, str]:
    """The keywords that bring a tag to the workers: none where there is none.

    Raises:
        ConfigError: It is no str.
    """
    if tag is None:
        return {}
    if not isinstance(tag, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        msg = f"expected tag to be a str, got {tag!r}"
        raise ConfigError(msg)
    return {"tag": tag}


def _call(
    core: SessionCore, operation: str, dst: DRef | None, named: dict[str, str], *args: object
) -> DRef:
    if dst is None:
        return core.call_builtin(f"runtime.disco.{operation}", *args, **named)
    core.call_builtin(f"runtime.disco.{operation}", *args, dst, **named)
    return dst
