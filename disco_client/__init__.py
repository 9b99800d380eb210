"""Disco: one program on many devices, driven from one place.

``connect`` opens a :class:`Session` on a cluster, ``ThreadedSession`` and
``ProcessSession`` open one on workers of their own; every call of it runs on all
its workers at once. Names resolve when they are first used, so that a worker
process can share this package's language without loading gRPC.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from disco_client.version import __version__

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    import warnings

    warnings.warn(
        "disco_client relies on the global interpreter lock, and this Python runs without it:"
        " sessions may hang or lose commands; set PYTHON_GIL=1, or use an ordinary build",
        RuntimeWarning,
        stacklevel=2,
    )

if TYPE_CHECKING:
    from disco_client import distributed as distributed
    from disco_client.collectives import REDUCE_OPS
    from disco_client.connection import aconnect, attach, connect
    from disco_client.core import DModule, DPackedFunc, DRef
    from disco_client.decorator import remote
    from disco_client.diagnosis import Diagnosis
    from disco_client.errors import (
        AccessDenied,
        AssignFailed,
        BadArgument,
        BadFile,
        CaptureError,
        CclError,
        ClusterError,
        CollectiveAborted,
        CollectiveMismatch,
        ConfigError,
        ConnectionFailed,
        ControllerLost,
        DiscoError,
        DiscoTimeout,
        DtypeError,
        EncodingError,
        ExtraMissing,
        ForeignReference,
        FunctionNotFound,
        Interrupted,
        JobEnded,
        JobPending,
        JobRefused,
        NodeLost,
        NoMemory,
        NoSlots,
        NoSuchCluster,
        NoSuchNode,
        NoSuchSession,
        NotAllowed,
        OutOfBounds,
        PoisonCommand,
        QuotaExceeded,
        Recovery,
        Reentered,
        RemoteError,
        RemoteException,
        RemoteFailure,
        SavingUnderWay,
        SessionClosed,
        SessionError,
        SessionExpired,
        SessionLost,
        StaleReference,
        TimeLimit,
        WeightsMismatch,
        WindowExceeded,
        WorkerLost,
        WorkersReplaced,
        WouldBlock,
    )
    from disco_client.failed_commands import Failures
    from disco_client.futures import RefFuture, as_completed
    from disco_client.notebook import WorkProgress
    from disco_client.objects import DObject
    from disco_client.program import Program
    from disco_client.saving import Saving
    from disco_client.session import Session
    from disco_client.streams import Stream
    from disco_client.tracing.rank_flights import RankFlight
    from disco_client.tracing.trace import Flight
    from disco_client.wire.values import Device, Opaque, Shape, cpu, cuda, rocm
    from disco_server.embedded.processes import ProcessSession as ProcessSession
    from disco_server.embedded.sockets import SocketSession as SocketSession
    from disco_server.embedded.threads import ThreadedSession as ThreadedSession

__all__ = [
    "REDUCE_OPS",
    "AccessDenied",
    "AssignFailed",
    "BadArgument",
    "BadFile",
    "CaptureError",
    "CclError",
    "ClusterError",
    "CollectiveAborted",
    "CollectiveMismatch",
    "ConfigError",
    "ConnectionFailed",
    "ControllerLost",
    "DModule",
    "DObject",
    "DPackedFunc",
    "DRef",
    "Device",
    "Diagnosis",
    "DiscoError",
    "DiscoTimeout",
    "DtypeError",
    "EncodingError",
    "ExtraMissing",
    "Failures",
    "Flight",
    "ForeignReference",
    "FunctionNotFound",
    "Interrupted",
    "JobEnded",
    "JobPending",
    "JobRefused",
    "NoMemory",
    "NoSlots",
    "NoSuchCluster",
    "NoSuchNode",
    "NoSuchSession",
    "NodeLost",
    "NotAllowed",
    "Opaque",
    "OutOfBounds",
    "PoisonCommand",
    "Program",
    "QuotaExceeded",
    "RankFlight",
    "Recovery",
    "Reentered",
    "RefFuture",
    "RemoteError",
    "RemoteException",
    "RemoteFailure",
    "Saving",
    "SavingUnderWay",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionExpired",
    "SessionLost",
    "Shape",
    "StaleReference",
    "Stream",
    "TimeLimit",
    "WeightsMismatch",
    "WindowExceeded",
    "WorkProgress",
    "WorkerLost",
    "WorkersReplaced",
    "WouldBlock",
    "__version__",
    "aconnect",
    "as_completed",
    "attach",
    "connect",
    "cpu",
    "cuda",
    "remote",
    "rocm",
]

_HOMES = {
    "collectives": ("REDUCE_OPS",),
    "connection": ("aconnect", "attach", "connect"),
    "decorator": ("remote",),
    "diagnosis": ("Diagnosis",),
    "tracing.rank_flights": ("RankFlight",),
    "tracing.trace": ("Flight",),
    "futures": ("RefFuture", "as_completed"),
    "core": ("DModule", "DPackedFunc", "DRef"),
    "notebook": ("WorkProgress",),
    "objects": ("DObject",),
    "program": ("Program",),
    "replies": ("Failures",),
    "saving": ("Saving",),
    "session": ("Session",),
    "streams": ("Stream",),
    "wire.values": ("Device", "Opaque", "Shape", "cpu", "cuda", "rocm"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# Sessions that bring their own workers need the server's code, which is loaded
# when one of them is first used; `from disco_client import *` leaves them out.
_EMBEDDED = {
    "ProcessSession": "processes",
    "SocketSession": "sockets",
    "ThreadedSession": "threads",
}

_OPENING = {*_HOMES["connection"], *_EMBEDDED}

# For one release: what load_weights took and returned, and what they are now.
_RENAMED = {"Split": "PlacementSpec.fused", "Weight": "DTensor"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        return _find_renamed(name)
    if name in _OPENING:
        from disco_client.tracebacks import show_few_frames

        show_few_frames()  # in programs alone: workers and daemons open no sessions
    if name in _EMBEDDED:
        value = _find_embedded(name)
    elif name == "distributed":
        from importlib import import_module

        value = import_module(f"{__name__}.distributed")
    elif name in __all__:
        from importlib import import_module

        module = import_module(f"{__name__}.{_HOME_OF.get(name, 'errors')}")
        value = getattr(module, name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def _find_renamed(name: str) -> Any:
    import warnings
    from operator import attrgetter

    from disco_client import distributed

    new = _RENAMED[name]
    warnings.warn(
        f"disco_client.{name} is disco_client.distributed.{new} and goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
    return attrgetter(new)(distributed)


def _find_embedded(name: str) -> Any:
    from importlib import import_module

    try:
        return getattr(import_module(f"disco_server.embedded.{_EMBEDDED[name]}"), name)
    except ModuleNotFoundError as error:
        from disco_client.errors import ExtraMissing

        msg = (
            f"{name} runs workers from this program, which needs the extra 'server' "
            f"(there is no module {error.name!r}): pip install 'disco-runtime[server]'"
        )
        raise ExtraMissing(msg, name=error.name) from None


def load_ipython_extension(shell: Any) -> None:
    """Registers ``%%disco``; IPython calls it for ``%load_ext disco_client``.

    Args:
        shell: The shell of IPython.
    """
    from disco_client.notebook_magic import register

    register(shell)


def __dir__() -> list[str]:
    return sorted((*__all__, *_EMBEDDED, "distributed"))
