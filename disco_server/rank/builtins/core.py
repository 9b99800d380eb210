"""The functions that every rank offers, under the original's names.

Each takes what the original's takes, in the same order; ``in_group`` may be a bool
or an integer, a reduction its code in a one-element shape, its code or its name.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.errors import RemoteFailure
from disco_client.wire.arrays import empty_array
from disco_client.wire.codec import FailureKind, type_name
from disco_client.wire.values import Device, Shape, checked_dtype, dtype_from_name
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import find_kind
from disco_server.devices.base import on_device
from disco_server.devices.foreign import is_foreign, library_of, native, of_library
from disco_server.modules.base import LoadNotAllowed
from disco_server.rank.errors import ArgumentRefused, ModuleNotAllowed
from disco_server.rank.functions import (
    import_allowed,
    meet_tvm,
    register_func,
    uninterrupted,
    writes_into,
)
from disco_server.rank.registers import Poison, is_any_array
from disco_server.rank.signals import CALL_ENDS
from disco_server.rank.worker import Worker, current_worker, is_worker_thread
from disco_server.settings import machine_library

if TYPE_CHECKING:
    from disco_server.collectives.group import ProcessGroup

Array = np.ndarray[Any, Any]
_HOST = Device("cpu", 0)
_FAILED_IMPORTS = 4
_IMPORT_TEXT = 512
"""How many imports that failed are kept for later messages, and how much of each."""

__all__: list[str] = []


# To make a member of an enum of its number is a call, which counts where calls take microseconds.
_OPS: dict[Any, ReduceOp] = dict(enumerate(ReduceOp)) | {op.name.lower(): op for op in ReduceOp}


def _op(value: Any) -> ReduceOp:
    code = value[0] if isinstance(value, Shape) and value else value
    try:
        return _OPS[code]
    except (KeyError, TypeError):
        if isinstance(code, str):
            return ReduceOp.from_name(code)
        msg = f"expected a reduction from 0 (sum) to 4 (avg), got {value!r}"
        raise ArgumentRefused(msg) from None


def _is_root(in_group: Any) -> bool:
    """Whether this rank is the first of its group, or of all."""
    worker = current_worker()
    return worker.worker_id % (worker.group_size if in_group else worker.num_workers) == 0


# Where am I ----------------------------------------------------------------------


@register_func("runtime.disco.worker_id")
def worker_id() -> Shape:
    """This rank's number, in a shape of one."""
    return Shape((current_worker().worker_id,))


@register_func("runtime.disco.worker_rank")
def worker_rank() -> int:
    """This rank's number."""
    return current_worker().worker_id


@register_func("runtime.disco.world_size")
def world_size() -> int:
    """How many workers the session has."""
    return current_worker().num_workers


@register_func("runtime.disco.device")
def device() -> Device:
    """This rank's default device."""
    return current_worker().device


@register_func("runtime.disco.bind_worker_to_cpu_core")
def bind_worker_to_cpu_core(cores: Sequence[int]) -> None:
    """Pins this rank to a core.

    Args:
        cores: One core for each worker.

    Raises:
        ArgumentRefused: Too few cores, or one that this machine does not have.
    """
    worker = current_worker()
    if len(cores) <= worker.worker_id:
        msg = f"expected a core for each of {worker.num_workers} workers, got {len(cores)}"
        raise ArgumentRefused(msg)
    core = cores[worker.worker_id]
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, AttributeError, OverflowError, TypeError, ValueError) as error:
        msg = f"cannot bind worker {worker.worker_id} to core {core}: {error}"
        raise ArgumentRefused(msg) from None


# Arrays and modules ----------------------------------------------------------------


@register_func("runtime.disco.empty")
def empty(
    shape: Sequence[int], dtype: Any, where: Any, worker0_only: Any, in_group: Any
) -> Array | None:
    """Allocates an uninitialised array, or returns None where it is not for this rank.

    Raises:
        ArgumentRefused: The device is neither this worker's nor the CPU.
        ConfigError: There can be no such array.
    """
    worker = current_worker()
    if isinstance(where, str):
        where = Device.parse(where)
    on_host = where == _HOST
    if where not in (None, _HOST, worker.device):
        msg = f"expected this worker's device {worker.device} or the CPU, got {where}"
        raise ArgumentRefused(msg)
    if worker0_only and not _is_root(in_group):
        return None
    kind = checked_dtype(shape, dtype)
    return empty_array(tuple(shape), kind) if on_host else worker.arrays.empty(shape, kind)


@register_func("runtime.disco._import_python_module")
def import_python_module(name: str) -> None:
    """Imports a module, so that it registers its functions."""
    if not isinstance(name, str):
        msg = f"expected a module's name, got {name!r}"
        raise ArgumentRefused(msg)
    worker = current_worker()
    with noting_failure(worker, "import_python_module", name):
        import_allowed(name, worker.allow_modules)
    if "tvm_ffi" in sys.modules:
        meet_tvm()
    worker.audit("module imported", name, "")


@contextlib.contextmanager
def noting_failure(worker: Worker, how: str, name: str) -> Generator[None]:
    """Notes why a module could not be imported, as the cause of what is missing later.

    Args:
        worker: This rank.
        how: The call by which a session asked for it.
        name: The module's.
    """
    failed, key = worker.failed_imports, name[:_IMPORT_TEXT]
    failed.pop(key, None)
    try:
        yield
    except CALL_ENDS:
        raise
    except BaseException as error:
        refused = isinstance(error, (ModuleNotAllowed, LoadNotAllowed))
        went = "was refused" if refused else "failed"
        failed[key] = f"{how}({name!r}) {went} on this worker: {error}"[:_IMPORT_TEXT]
        if len(failed) > _FAILED_IMPORTS:
            failed.pop(next(iter(failed)))
        raise


@register_func("runtime.disco._poison_registers")
def poison_registers(registers: Sequence[int], why: str, stale: bool) -> None:
    """Makes commands fail that read registers of which nobody knows what they hold.

    Args:
        registers: Their numbers.
        why: What these commands say.
        stale: Whether what they held was on workers before these: each command that reads
            one then fails by itself. Otherwise one that was being overwritten keeps its array,
            for the next command that overwrites all of it.
    """
    worker = current_worker()
    failure = RemoteFailure(worker.worker_id, max(worker.position, 0), why, node=worker.node)
    kind = FailureKind.STALE if stale else FailureKind.EXCEPTION
    for register in registers:
        worker.registers.spoil(int(register), Poison(failure, kind, lost=stale))


@register_func("runtime.disco._tell_interrupted")
@uninterrupted
def tell_interrupted(after: int, until: int) -> Mapping[str, Any]:
    """Tells what this rank has left out or ended of interrupted commands, which are over.

    Args:
        after: The command before the first of them.
        until: The last of them.

    Returns:
        See `Interruption.tell`.
    """
    worker = current_worker()
    # A rank may wait for this one in one of them, though this one has gone past it.
    worker.cannot_enter(until)
    return worker.interruption.tell(after, until, worker.registers)


@register_func("runtime.disco._interrupt_registers")
@uninterrupted
def interrupt_registers(pairs: Any) -> None:
    """Makes commands fail that read what other ranks have left out.

    Args:
        pairs: Registers, each with the command whose result it stands for, one behind the other.
    """
    worker = current_worker()
    rows = ((int(register), int(seq)) for register, seq in pairs.reshape(-1, 2))
    worker.interruption.spoil(worker.registers, rows)


# Collectives --------------------------------------------------------------------------


@register_func("runtime.disco.init_ccl")
def init_ccl(ccl: str, device_ids: Sequence[int] = ()) -> None:
    """Starts a collective library."""
    current_worker().init_ccl(ccl, device_ids)
    if "tvm_ffi" in sys.modules:
        meet_tvm()  # which has told TVM another device and library before


@register_func("runtime.disco.compiled_ccl")
def compiled_ccl() -> str:
    """The name of the collective library that this session uses, or would.

    In a thread that is no worker's, of a program of TVM's, that of the sessions to come.
    """
    return current_worker().ccl if is_worker_thread() else machine_library()


# Each collective writes into its last argument. Where a call has none, it makes an array for
# the result, of the source's dtype and on its device, and returns that. The ranks compare its tag,
# which only a keyword gives: the original has none.


_NEW: Any = object()
_DESCRIBED = 256
"""Bytes of the description of a root's array: 64 dimensions, of which few are long."""

MakeShape = Callable[[Sequence[int], int], Sequence[int]]
"""From the shape of a source, and how many workers take part, to that of a result."""


def _same(shape: Sequence[int], size: int) -> Sequence[int]:
    del size
    return shape


def _stacked(shape: Sequence[int], size: int) -> Sequence[int]:
    return (size, *shape)


def _divided(shape: Sequence[int], size: int) -> Sequence[int]:
    if not shape or shape[0] % size:
        msg = (
            f"expected an array whose first axis {size} workers divide, got shape {tuple(shape)}; "
            "give a destination to have a flat chunk"
        )
        raise ArgumentRefused(msg)
    return (shape[0] // size, *shape[1:])


def _members(in_group: Any) -> ProcessGroup:
    worker = current_worker()
    return worker.group if in_group else worker.world


def _new(send: Any, in_group: Any, make_shape: MakeShape) -> Array:
    """An array of numpy's or cupy's for what a collective makes of ``send``."""
    if not is_any_array(send):
        msg = f"the source must be an array, not {type_name(send)}"
        raise ArgumentRefused(msg)
    if is_foreign(send):
        library_of(send)  # which has to take the result, before any peer waits
    array, worker = native(send), current_worker()
    size = worker.group_size if in_group else worker.num_workers
    return worker.empty_like(array, tuple(make_shape(array.shape, size)))


def _made(send: Any, out: Any) -> Any:
    """A result without a destination of its own: of the library of this rank's source."""
    if out is None or not is_foreign(send):
        return out
    return of_library(library_of(send), out)


def _new_from_root(send: Any, in_group: Any, make_shape: MakeShape, tag: Any) -> Array:
    """The same for what all get of the first rank's ``send``, which tells them what it is."""
    worker = current_worker()
    head = np.zeros(_DESCRIBED, np.uint8)
    made = None
    if _is_root(in_group):
        made = _new(send, in_group, make_shape)
        if find_kind(made.dtype) is None:
            msg = f"the source must have a dtype that collectives move, not {made.dtype}"
            raise ArgumentRefused(msg)
        facts = [made.dtype.name, on_device(made), made.shape]
        text = json.dumps(facts, separators=(",", ":")).encode()
        head[: len(text)] = np.frombuffer(text, np.uint8)
    _members(in_group).broadcast(head, head, tag=tag)
    if made is not None:
        return made
    name, there, shape = json.loads(head.tobytes().rstrip(b"\0"))
    kind = dtype_from_name(name)
    return worker.arrays.empty(shape, kind) if there else empty_array(shape, kind)


@register_func("runtime.disco.allreduce")
@writes_into(3)
def allreduce(
    send: Array, kind: Any, in_group: Any, recv: Any = _NEW, *, tag: Any = None
) -> Array | None:
    """Reduces ``send`` of all ranks into ``recv`` of all."""
    out = _new(send, in_group, _same) if recv is _NEW else recv
    _members(in_group).allreduce(send, out, _op(kind), tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.allgather")
@writes_into(2)
def allgather(send: Array, in_group: Any, recv: Any = _NEW, *, tag: Any = None) -> Array | None:
    """Collects ``send`` of all ranks in ``recv`` of all."""
    out = _new(send, in_group, _stacked) if recv is _NEW else recv
    _members(in_group).allgather(send, out, tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.broadcast_from_worker0")
@writes_into(2)
def broadcast_from_worker0(
    send: Array | None, in_group: Any, recv: Any = _NEW, *, tag: Any = None
) -> Array | None:
    """Copies ``send`` of the first rank into ``recv`` of all."""
    out = _new_from_root(send, in_group, _same, tag) if recv is _NEW else recv
    _members(in_group).broadcast(send, out, tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.scatter_from_worker0")
@writes_into(2)
def scatter_from_worker0(
    send: Array | None, in_group: Any, recv: Any = _NEW, *, tag: Any = None
) -> Array | None:
    """Gives each rank one chunk of the first rank's ``send``."""
    out = _new_from_root(send, in_group, _divided, tag) if recv is _NEW else recv
    _members(in_group).scatter(send, out, tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.gather_to_worker0")
@writes_into(2)
def gather_to_worker0(
    send: Array, in_group: Any, recv: Any = _NEW, *, tag: Any = None
) -> Array | None:
    """Collects ``send`` of all ranks in ``recv`` of the first."""
    out = None if recv is _NEW else recv
    if recv is _NEW and _is_root(in_group):
        out = _new(send, in_group, _stacked)
    _members(in_group).gather(send, out, tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.reduce_scatter")
@writes_into(3)
def reduce_scatter(
    send: Array, kind: Any, in_group: Any, recv: Any = _NEW, *, tag: Any = None
) -> Array | None:
    """Reduces ``send`` of all ranks and gives each one chunk of the result."""
    out = _new(send, in_group, _divided) if recv is _NEW else recv
    _members(in_group).reduce_scatter(send, out, _op(kind), tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.all_to_all")
@writes_into(2)
def all_to_all(send: Array, in_group: Any, recv: Any = _NEW, *, tag: Any = None) -> Array | None:
    """Sends one chunk of each rank's ``send`` to each rank's ``recv``."""
    out = _new(send, in_group, _same) if recv is _NEW else recv
    _members(in_group).all_to_all(send, out, tag=tag)
    return _made(send, out) if recv is _NEW else None


@register_func("runtime.disco.barrier")
def barrier(in_group: Any = False, *, tag: Any = None) -> None:
    """Waits until every rank has entered it."""
    _members(in_group).barrier(tag=tag)


@register_func("runtime.disco._compare_shapes")
def compare_shapes(enabled: bool) -> None:
    """Makes collectives refuse arrays whose shapes differ, or accept them again."""
    current_worker().compare_shapes(bool(enabled))


@register_func("runtime.disco._make_teams")
def make_teams(lines: Sequence[Sequence[int]]) -> ProcessGroup | None:
    """Makes teams of workers; this rank's stays in a register, None where it is in none.

    Args:
        lines: The workers of each team, in the order of their ranks there.
    """
    return current_worker().make_teams(lines)


@register_func("runtime.disco._received_bytes")
def received_bytes() -> int:
    """How many bytes this rank has received from other workers in its teams so far."""
    return current_worker().received_bytes


# Point to point -------------------------------------------------------------------------


def _all_with(other: int) -> ProcessGroup:
    """All workers, of which a number must name one."""
    worker = current_worker()
    if other not in range(worker.num_workers):
        msg = f"expected one of {worker.num_workers} workers, got worker {other!r}"
        raise ArgumentRefused(msg)
    return worker.world


@register_func("runtime.disco.send_to_worker")
def send_to_worker(buffer: Array, receiver: int, *, tag: Any = None) -> None:
    """Sends an array to one worker, by its global id.

    Raises:
        ArgumentRefused: There is no such worker.
    """
    _all_with(receiver).send(buffer, receiver, tag=tag)


@register_func("runtime.disco.recv_from_worker")
@writes_into(0)
def recv_from_worker(buffer: Array, sender: int, *, tag: Any = None) -> None:
    """Receives an array from one worker, by its global id.

    Raises:
        ArgumentRefused: There is no such worker.
    """
    _all_with(sender).recv(buffer, sender, tag=tag)


@register_func("runtime.disco.recv_from_worker0")
@writes_into(0)
def recv_from_worker0(buffer: Array, *, tag: Any = None) -> None:
    """Receives an array from worker 0, which sends it with ``send_to_worker``.

    Raises:
        ArgumentRefused: This is worker 0.
    """
    if current_worker().worker_id == 0:
        msg = "worker 0 cannot receive from itself"
        raise ArgumentRefused(msg)
    current_worker().world.recv(buffer, 0, tag=tag)


@register_func("runtime.disco.send_to_next_group")
def send_to_next_group(buffer: Array, *, tag: Any = None) -> None:
    """Sends an array to the worker of the same rank in the next group.

    Raises:
        ArgumentRefused: This is the last group.
    """
    worker = current_worker()
    receiver = worker.worker_id + worker.group_size
    if receiver >= worker.num_workers:
        msg = f"worker {worker.worker_id} is in the last group, there is no next one"
        raise ArgumentRefused(msg)
    worker.world.send(buffer, receiver, tag=tag)


@register_func("runtime.disco.recv_from_prev_group")
@writes_into(0)
def recv_from_prev_group(buffer: Array, *, tag: Any = None) -> None:
    """Receives an array from the worker of the same rank in the previous group.

    Raises:
        ArgumentRefused: This is the first group.
    """
    worker = current_worker()
    sender = worker.worker_id - worker.group_size
    if sender < 0:
        msg = f"worker {worker.worker_id} is in the first group, there is no previous one"
        raise ArgumentRefused(msg)
    worker.world.recv(buffer, sender, tag=tag)


# Values that workers keep under a name, beyond the life of the registers they were in.


_MOST = 10_000
_SHOWN = 10


@register_func("runtime.disco._publish")
def publish(name: str, value: Any, facts: Mapping[str, Any]) -> None:
    """Keeps a value.

    Args:
        name: The name.
        value: What this worker's register holds.
        facts: What the client wants to look up later.
    """
    published = current_worker().published
    if name not in published and len(published) >= _MOST:
        msg = f"expected at most {_MOST} published values; unpublish some"
        raise ArgumentRefused(msg)
    published[name] = value, facts


@register_func("runtime.disco._published")
def find_published(name: str) -> Any:
    """The value under a name."""
    return _find(name)[0]


@register_func("runtime.disco._published_facts")
def find_facts(name: str) -> Mapping[str, Any]:
    """What the client noted about the value under a name."""
    return _find(name)[1]


@register_func("runtime.disco._list_published")
def list_published() -> list[str]:
    """All names, in order."""
    return sorted(current_worker().published)


@register_func("runtime.disco._unpublish")
def unpublish(name: str) -> None:
    """Forgets a name."""
    _find(name)
    del current_worker().published[name]


def _find(name: str) -> tuple[Any, Mapping[str, Any]]:
    published = current_worker().published
    if name not in published:
        names = ", ".join(map(repr, sorted(published)[:_SHOWN])) or "nothing is"
        more = f" and {len(published) - _SHOWN} more" if len(published) > _SHOWN else ""
        msg = f"nothing is published as {name!r} in this session; published: {names}{more}"
        raise ArgumentRefused(msg)
    return published[name]
