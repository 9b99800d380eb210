"""Names by which TVM's C++ code and the modules that it compiles call collectives.

There are three kinds: names with a collective library in them, what TVM's pass for
allreduce between the GPUs of a machine writes into modules, and those of kernels that write
into other GPUs' memory, which are not served. `tvm_table` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from disco_client.wire.values import Shape, checked_dtype
from disco_server.collectives.types import ReduceOp, UnavailableError
from disco_server.modules.tvm_storage import alloc_storage, clear_storage
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import OWN_NAMES, register_func, registry, writes_into
from disco_server.rank.tvm_table import COLLECTIVES, LIBRARIES, REFUSED
from disco_server.rank.worker import Worker, current_worker

__all__: list[str] = []

for _name in COLLECTIVES:
    for _library in LIBRARIES:
        register_func(f"{OWN_NAMES}{_library}.{_name}")(registry()[OWN_NAMES + _name])


def sync_worker() -> None:
    """Waits until this worker's device has done all that was enqueued."""
    current_worker().place.settle()


_GROUPS = 2
_TESTED = 4
"""The workers and groups for which the functions are made that TVM's tests call."""


def _tested_worker(name: str) -> Worker:
    worker = current_worker()
    if (worker.num_workers, worker.num_groups) != (_TESTED, _GROUPS):
        msg = (
            f"{name} is made for a session of {_TESTED} workers in {_GROUPS} groups, and this one "
            f"has {worker.num_workers} in {worker.num_groups}; call "
            "runtime.disco.send_to_worker and recv_from_worker in others"
        )
        raise ArgumentRefused(msg)
    return worker


def test_send_to_next_group_recv_from_prev_group(array: Array) -> None:
    """Sends an array from the first group to the second, as TVM's tests have it."""
    worker = _tested_worker("test_send_to_next_group_recv_from_prev_group")
    first = worker.worker_id < worker.group_size
    registry()[OWN_NAMES + ("send_to_next_group" if first else "recv_from_prev_group")](array)


def test_worker2_sends_to_worker0(array: Array) -> None:
    """Sends an array from worker 2 to worker 0, as TVM's tests have it."""
    worker = _tested_worker("test_worker2_sends_to_worker0")
    if worker.worker_id == _GROUPS:
        registry()["runtime.disco.send_to_worker"](array, 0)
    elif worker.worker_id == 0:
        registry()["runtime.disco.recv_from_worker"](array, 2)


for _func in (
    sync_worker,
    test_send_to_next_group_recv_from_prev_group,
    test_worker2_sends_to_worker0,
):
    for _library in LIBRARIES:
        register_func(f"{OWN_NAMES}{_library}.{_func.__name__}")(_func)


# Allreduce between the GPUs of a machine -------------------------------------------------


Array = np.ndarray[Any, Any]
_STRATEGIES = range(4)


@register_func("runtime.disco.cuda_ipc.alloc_storage")
def ipc_alloc_storage(shape: Any, dtype: Any) -> Any:
    """Allocates memory as an object of TVM's.

    Any array can take part in a collective here, so this memory has no special property.
    """
    return alloc_storage(Shape(shape), checked_dtype(shape, dtype), current_worker().device)


@register_func("runtime.disco.cuda_ipc.custom_allreduce")
@writes_into(2)
def custom_allreduce(send: Array, strategy: int, recv: Array) -> None:
    """Adds up ``send`` of all ranks in ``recv`` of all.

    Args:
        send: What this rank adds.
        strategy: How TVM would do it: 0 for a ring, 1 and 2 for one and two shots, 3 for what
            fits the size. The session's library decides that here.
        recv: The sum.

    Raises:
        ArgumentRefused: There is no such strategy, or the session has groups.
    """
    worker = current_worker()
    if isinstance(strategy, bool) or strategy not in _STRATEGIES:
        msg = f"expected a strategy from 0 (ring) to 3 (auto), got {strategy!r}"
        raise ArgumentRefused(msg)
    if worker.num_workers != worker.group_size:
        msg = (
            "custom_allreduce knows no groups, and this session has some; "
            "call runtime.disco.allreduce, which says whether it is in_group"
        )
        raise ArgumentRefused(msg)
    worker.world.allreduce(send, recv, ReduceOp.SUM)


@register_func("runtime.disco.cuda_ipc.cuda_ipc_memory_allocator_clear")
def ipc_clear() -> None:
    """Returns memory to the system that TVM keeps for its next storage."""
    clear_storage()


# What is refused --------------------------------------------------------------------------


def _refusal(name: str, why: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        msg = f"{name} is not served: {why.replace('`', '')}"
        raise UnavailableError(msg)

    return refuse


for _name, _why in REFUSED.items():
    register_func(_name)(_refusal(_name, _why))
