"""TVM's storage objects, made where no compiled module is at work."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import Device, Shape
from disco_server.modules.base import FileRefused
from disco_server.modules.tvm import runtime, start_machine, to_tvm

__all__ = ["alloc_storage", "clear_storage"]


# Only TVM's virtual machine makes such objects, by a builtin that gets the machine
# itself as its first argument. So a machine is started for the smallest program there is:
# one function that hands its four arguments to that builtin and returns the result. It is
# written here in the format of executables, a few numbers, because TVM's compiler, which
# writes them otherwise, takes seconds to load.


_NAME = "alloc_storage"
_BUILTIN = "vm.builtin.alloc_storage"
_FORMAT, _VERSION = 0xD225DE2F4214151D, "0.14"
_PACKED, _VM = 0, 1
_CALL, _RETURN = 1, 2
_MACHINE = (1 << 54) + 1
"""The register in which a function finds its machine."""

_ARGUMENTS = 4


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _numbers(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<Q{len(numbers)}q", len(numbers), *numbers)


def _function(kind: int, name: str, numbers: Iterable[int]) -> bytes:
    """An entry: its instructions from and to, its arguments, its registers; names of arguments."""
    return struct.pack("<i", kind) + _text(name) + struct.pack("<4q", *numbers) + _numbers(())


def _executable() -> bytes:
    result = _ARGUMENTS  # the register after those of the arguments
    call = [_CALL, result, 1, _ARGUMENTS + 1, _MACHINE, *range(_ARGUMENTS)]
    functions = [
        _function(_VM, _NAME, (0, 2, _ARGUMENTS, _ARGUMENTS + 1)),
        _function(_PACKED, _BUILTIN, (0, 0, -2, 0)),
    ]
    return b"".join(
        [
            struct.pack("<Q", _FORMAT),
            _text(_VERSION),
            struct.pack("<Q", len(functions)),
            *functions,
            _numbers(()),  # no constants
            _numbers((0, len(call))),
            _numbers((*call, _RETURN, result)),
        ]
    )


_lock = threading.Lock()
_machines: list[Any] = []
_SCOPE = "global"
_HOST = "cpu"


def _machine() -> Any:
    """The machine, which is started when it is first needed."""
    if not _machines:
        load = runtime().get_global_func("ffi.Module.load_from_bytes.relax.VMExecutable")
        try:
            _machines.append(start_machine(load(_executable())))
        except Exception as error:
            msg = f"this release of TVM cannot make storage without a compiled module: {error}"
            raise FileRefused(msg) from error
    return _machines[0]


def alloc_storage(shape: Shape, dtype: np.dtype[Any], device: Device) -> Any:
    """Allocates memory as an object of TVM's, for ``vm.builtin.alloc_tensor``.

    Args:
        shape: Of the array for which it suffices.
        dtype: That array's dtype, numpy's.
        device: Where; on the CPU.

    Raises:
        FileRefused: TVM is not installed here, or its release makes no such object, or the
            device is a GPU.
    """
    if device.kind != _HOST:
        msg = (
            f"TVM computes on CPUs here, and this worker on {device}: its collectives need no "
            "storage of TVM's, give them arrays of session.empty()"
        )
        raise FileRefused(msg)
    described = to_tvm(shape, []), 0, to_tvm(dtype, [])
    with _lock:  # a machine runs one function at a time
        return _machine().get_function(_NAME)(*described, _SCOPE)


def clear_storage() -> None:
    """Returns the memory to the system that TVM keeps for its next storage."""
    if _machines:
        runtime().get_global_func("vm.builtin.memory_manager.clear")()
