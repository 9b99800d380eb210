"""Names by which TVM's C++ code and the modules that it compiles call collectives.

There are three kinds: names with a collective library in them, what TVM's pass for
allreduce between the GPUs of a machine writes into modules, and NVSHMEM's, which are not
served.
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
from disco_server.rank.worker import current_worker

__all__: list[str] = []

# The library is the session's, whichever of them a name says. The empty one is what TVM's
# own code asks for where it was compiled without any.
_LIBRARIES = ("", "nccl", "rccl", "mpi", "local")
_COLLECTIVES = (
    *("allreduce", "allgather", "broadcast_from_worker0", "scatter_from_worker0"),
    *("gather_to_worker0", "recv_from_worker0", "send_to_next_group", "recv_from_prev_group"),
    *("send_to_worker", "recv_from_worker"),
)

for _name in _COLLECTIVES:
    for _library in _LIBRARIES:
        register_func(f"{OWN_NAMES}{_library}.{_name}")(registry()[OWN_NAMES + _name])


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


# NVSHMEM ----------------------------------------------------------------------------------


_NVSHMEM = (
    *("runtime.disco.nvshmem.init_nvshmem_uid", "runtime.disco.nvshmem.init_nvshmem"),
    *("runtime.disco.nvshmem.init_nvshmem_wrapper", "runtime.disco.nvshmem.finalize_nvshmem"),
    *("runtime.disco.nvshmem.empty", "nvshmem.KVTransfer", "nvshmem.KVTransferPageToPage"),
)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        msg = (
            f"{name} is not served, as Disco has no NVSHMEM: allocate with session.empty(), and "
            "move arrays with its collectives or runtime.disco.send_to_worker and "
            "recv_from_worker, which NCCL carries between GPUs"
        )
        raise UnavailableError(msg)

    return refuse


for _name in _NVSHMEM:
    register_func(_name)(_refusal(_name))
