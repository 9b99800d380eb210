"""Disco: one program on many devices, driven from one place.

``connect`` opens a :class:`Session` on a cluster; every call of it runs on all
its workers at once. Names resolve when they are first used, so that a worker
process can share this package's language without loading gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from disco_client.version import __version__

if TYPE_CHECKING:
    from disco_client.capture import Program
    from disco_client.collectives import REDUCE_OPS
    from disco_client.connecting import connect
    from disco_client.errors import (
        BadArgument,
        BadFile,
        CaptureError,
        CclError,
        CollectiveAborted,
        CollectiveMismatch,
        ConfigError,
        ConnectionFailed,
        ControllerLost,
        DiscoError,
        EncodingError,
        ForeignReference,
        FunctionNotFound,
        NodeLost,
        NoSlots,
        NotAllowed,
        RemoteError,
        RemoteException,
        RemoteFailure,
        SessionClosed,
        SessionError,
        SessionLost,
        WeightsMismatch,
        WorkerLost,
    )
    from disco_client.handles import DModule, DPackedFunc, DRef
    from disco_client.session import Session
    from disco_client.weights.weight import Weight
    from disco_client.wire.splits import Split
    from disco_client.wire.values import Device, Opaque, Shape, cpu, cuda, rocm

__all__ = [
    "REDUCE_OPS",
    "BadArgument",
    "BadFile",
    "CaptureError",
    "CclError",
    "CollectiveAborted",
    "CollectiveMismatch",
    "ConfigError",
    "ConnectionFailed",
    "ControllerLost",
    "DModule",
    "DPackedFunc",
    "DRef",
    "Device",
    "DiscoError",
    "EncodingError",
    "ForeignReference",
    "FunctionNotFound",
    "NoSlots",
    "NodeLost",
    "NotAllowed",
    "Opaque",
    "Program",
    "RemoteError",
    "RemoteException",
    "RemoteFailure",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionLost",
    "Shape",
    "Split",
    "Weight",
    "WeightsMismatch",
    "WorkerLost",
    "__version__",
    "connect",
    "cpu",
    "cuda",
    "rocm",
]

_HOMES = {
    "capture": ("Program",),
    "collectives": ("REDUCE_OPS",),
    "connecting": ("connect",),
    "handles": ("DModule", "DPackedFunc", "DRef"),
    "session": ("Session",),
    "weights.weight": ("Weight",),
    "wire.splits": ("Split",),
    "wire.values": ("Device", "Opaque", "Shape", "cpu", "cuda", "rocm"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Sessions that run in the client's own process; they need the server's packages.
_EMBEDDED = {
    "SocketSession": "disco_server.embedded.socket",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _EMBEDDED:
        try:
            value = getattr(import_module(_EMBEDDED[name]), name)
        except ModuleNotFoundError as error:
            msg = (
                f"{name} needs {error.name!r}, which is not installed here; "
                "pip install 'disco-runtime[server]' brings it"
            )
            raise ImportError(msg) from error
        globals()[name] = value
        return value
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)

    module = import_module(f"{__name__}.{_HOME_OF.get(name, 'errors')}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
