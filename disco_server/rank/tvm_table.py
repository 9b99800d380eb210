"""Every name that TVM has for Disco in its registry, and what becomes of it here.

docs/coming-from-tvm.md shows this table, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

__all__ = ["COLLECTIVES", "INSTEAD", "LIBRARIES", "OF_LIBRARIES", "REFUSED", "SERVED"]

_PREFIX: Final = "runtime.disco."

LIBRARIES: Final = ("", "nccl", "rccl", "mpi", "local")
"""The libraries with which a name may be called: the session's does it, whichever the name says.

The empty one is what TVM's own code asks for where it was compiled without any.
"""

COLLECTIVES: Final = (
    *("allreduce", "allgather", "broadcast_from_worker0", "scatter_from_worker0"),
    *("gather_to_worker0", "recv_from_worker0", "send_to_next_group", "recv_from_prev_group"),
    *("send_to_worker", "recv_from_worker"),
)
"""What has a name with a library in it beside the one without."""

OF_LIBRARIES: Final = (
    *("sync_worker", "test_send_to_next_group_recv_from_prev_group"),
    "test_worker2_sends_to_worker0",
)
"""What has only names with a library in them."""


def _named(library: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{_PREFIX}{library}.{name}" for name in names)


_SERVED_ALONE: Final = (
    *("load_vm_module", "empty", "worker_id", "worker_rank", "world_size", "device"),
    *("bind_worker_to_cpu_core", "compiled_ccl", "_import_python_module"),
    *("ShardLoader", "ShardLoaderLoad", "ShardLoaderLoadAll", "ShardLoaderLoadPresharded"),
    *("ShardLoaderLoadAllPresharded", "ShardLoaderLoadParamOnWorker0"),
    *("cuda_ipc.alloc_storage", "cuda_ipc.custom_allreduce"),
    "cuda_ipc.cuda_ipc_memory_allocator_clear",
)

SERVED: Final = (
    *(_PREFIX + name for name in (*_SERVED_ALONE, *COLLECTIVES)),
    *chain.from_iterable(_named(each, (*COLLECTIVES, *OF_LIBRARIES)) for each in LIBRARIES),
)
"""What sessions call, and modules that TVM compiled."""

_NO_NVSHMEM: Final = (
    "Disco has no NVSHMEM: allocate with `Session.empty`, and move arrays with collectives or "
    "`runtime.disco.send_to_worker` and `runtime.disco.recv_from_worker`"
)
_NO_PEERS: Final = (
    "Disco has no memory that GPUs share: move arrays with collectives or "
    "`runtime.disco.send_to_worker` and `runtime.disco.recv_from_worker`"
)
_NO_STREAMS: Final = "Disco orders what GPUs do: use `Session.sync_worker`"
_STARTED: Final = "call `Session.init_ccl`"

REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *(f"{_PREFIX}nvshmem.{name}" for name in ("init_nvshmem_uid", "init_nvshmem")),
            *(f"{_PREFIX}nvshmem.{name}" for name in ("init_nvshmem_wrapper", "empty")),
            *(f"{_PREFIX}nvshmem.{name}" for name in ("finalize_nvshmem", "barrier_all_on_stream")),
            f"{_PREFIX}nvshmem.barrier_all_on_current_stream",
            *("nvshmem.KVTransfer", "nvshmem.KVTransferPageToPage"),
        ),
        _NO_NVSHMEM,
    ),
    **dict.fromkeys(
        (
            *(_PREFIX + name for name in ("copy_to_peer", "transfer_to_peers_reduce_scatter")),
            f"{_PREFIX}transfer_to_peers_all_gather",
        ),
        _NO_PEERS,
    ),
    **dict.fromkeys(
        (
            *(_PREFIX + name for name in ("stream_create", "stream_sync", "set_streaming_policy")),
            f"{_PREFIX}cu_stream_wait_value64",
        ),
        _NO_STREAMS,
    ),
    **dict.fromkeys(
        chain.from_iterable(
            _named(each, ("init_ccl", "init_ccl_per_worker")) for each in LIBRARIES
        ),
        _STARTED,
    ),
}
"""What is found, so that a module that may call it starts, and refused when it is called: why."""

_ITS_METHODS: Final = "call the methods of `Session` and `DRef`"
_ITS_CLASSES: Final = (
    "open a `ThreadedSession`, a `ProcessSession`, a `SocketSession`, or `connect` to a cluster"
)
_ITS_START: Final = "Disco starts its workers in another way"

INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *(f"{_PREFIX}Session{name}" for name in ("CallPacked", "GetGlobalFunc", "Shutdown")),
            *(f"{_PREFIX}Session{name}" for name in ("GetNumWorkers", "InitCCL", "SyncWorker")),
            *(f"{_PREFIX}Session{name}" for name in ("CopyFromWorker0", "CopyToWorker0")),
            *(f"{_PREFIX}DRefDebug{name}" for name in ("GetFromRemote", "CopyFrom")),
        ),
        _ITS_METHODS,
    ),
    **dict.fromkeys(
        (_PREFIX + name for name in ("SessionThreaded", "SessionProcess", "SocketSession")),
        _ITS_CLASSES,
    ),
    **dict.fromkeys(
        (
            *(_PREFIX + name for name in ("create_process_pool", "socket_session_init_workers")),
            f"{_PREFIX}create_socket_session_local_workers",
        ),
        _ITS_START,
    ),
    **dict.fromkeys(
        (_PREFIX + name for name in ("WorkerProcess", "RemoteSocketSession")),
        "entrypoints call it, and sessions do not",
    ),
    f"{_PREFIX}_configure_structlog": (
        "what workers print comes to the program; configure logging in a module, and import that "
        "with `Session.import_python_module`"
    ),
    "runtime.nvshmem.cumodule_init": (
        "TVM calls it for modules with NVSHMEM's kernels, which Disco does not run"
    ),
}
"""What sessions do not find, and with it what to do instead.

These are TVM's own sessions, in whose way a worker does not get, and a name whose mere presence
changes what TVM does.
"""
