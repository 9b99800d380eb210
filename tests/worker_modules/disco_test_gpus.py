"""Functions for tests of workers on GPUs; nothing here loads cupy by itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import disco_server
from disco_server.collectives.types import ReduceOp
from disco_server.devices.base import on_device

NCCL_ID_BYTES = 128


def me() -> int:
    return disco_server.current_worker().worker_id


@disco_server.register_func("gpus.where")
def where(array: Any) -> str:
    """Where an array lies: the module of its class, and its device there."""
    module = type(array).__module__.partition(".")[0]
    return f"{module} {array.device.id}" if on_device(array) else module


@disco_server.register_func("gpus.loaded")
def loaded() -> list[str]:
    """What of cupy this process has loaded."""
    return sorted(name for name in sys.modules if name.partition(".")[0] == "cupy")


@disco_server.register_func("gpus.set_on")
def set_on(worker: int, name: str, value: str) -> None:
    """Sets a variable of the environment of one worker."""
    if me() == worker:
        os.environ[name] = value


@disco_server.register_func("gpus.hide_on")
def hide_on(worker: int, hide: bool) -> None:
    """Lets one worker have no cupy, or have it again."""
    if me() == worker and hide:
        sys.modules["cupy"] = None  # type: ignore[assignment]
    elif me() == worker:
        del sys.modules["cupy"]


@disco_server.register_func("gpus.rank_plus")
def rank_plus(array: Any) -> Any:
    """The array plus the worker's number, computed where the array lies."""
    return array + me()


@disco_server.register_func("gpus.strided")
def strided(array: Any) -> Any:
    """Every other element, as a view."""
    return array[..., ::2]


@disco_server.register_func("gpus.break_on")
def break_on(worker: int) -> None:
    """Asks the GPU of one worker for something that will fail there, some time later."""
    if me() != worker:
        return
    arrays = disco_server.current_worker().arrays
    target, source = arrays.xp.empty(1000), arrays.from_host(np.zeros(1000))
    runtime = arrays.xp.cuda.runtime
    runtime.memcpyAsync(
        target.data.ptr, source.data.ptr, 8000, runtime.memcpyDeviceToDevice, arrays.comm.ptr
    )
    # The target's memory is given back on another stream, which does not wait for that.


@disco_server.register_func("gpus.die_in_id")
def die_in_id(worker: int, how: str) -> None:
    """Ends or stops one worker, or lets its library fail, where it makes its next unique id."""
    if me() != worker:
        return
    import cupy.cuda.nccl as binding

    def give_up() -> bytes:
        if how != "fails":
            os.kill(os.getpid(), signal.SIGKILL if how == "dies" else signal.SIGSTOP)
        raise binding.NcclError(1)

    binding.get_unique_id = give_up


@disco_server.register_func("gpus.share_nccl_id")
def share_nccl_id(library: str, use: str) -> bytes:
    """A unique id that NCCL itself makes on worker 0, as the session brings it to each worker."""
    made = ctypes.create_string_buffer(NCCL_ID_BYTES)
    if me() == 0 and ctypes.CDLL(library).ncclGetUniqueId(made):
        msg = "NCCL made no unique id"
        raise RuntimeError(msg)
    ids = disco_server.current_worker().place._ids
    return ids.share(use, made.raw if me() == 0 else None, NCCL_ID_BYTES, None)


@disco_server.register_func("gpus.carriers")
def carriers() -> list[str]:
    """Which libraries of oneCCL this process has loaded."""
    maps = Path("/proc/self/maps").read_text()
    files = {line.rpartition("/")[2] for line in maps.splitlines()}
    return sorted(file for file in files if file.startswith("libccl"))


@disco_server.register_func("gpus.teams_of_two")
def teams_of_two(array: Any) -> Any:
    """The sum over teams of two workers each."""
    worker = disco_server.current_worker()
    pairs = [[at, at + 1] for at in range(0, worker.num_workers, 2)]
    team = worker.make_teams(pairs)
    out = worker.arrays.empty(array.shape, array.dtype)
    team.allreduce(array, out, ReduceOp.SUM)
    return out


@disco_server.register_func("gpus.under_way")
def under_way() -> bool:
    """Whether the GPU of this worker still has something to do."""
    arrays = disco_server.current_worker().arrays
    return any(len(stream_queue(stream)._pending) > 0 for stream in (arrays.compute, arrays.comm))


def stream_queue(stream: Any) -> Any:
    """The stand-in's list of what is to be done; asking it otherwise gets it going."""
    machine = sys.modules["cupy._machine.devices"].machine
    return machine.queue(stream.ptr)


@disco_server.register_func("gpus.fail_on")
def fail_on(worker: int, array: Any) -> Any:
    """Fails on one worker before its peers' collective; returns what that gives."""
    if me() == worker:
        msg = "told to fail"
        raise ValueError(msg)
    return disco_server.current_worker().allreduce(array, in_group=False)


@disco_server.register_func("gpus.mixed")
def mixed(worker: int, array: Any) -> Any:
    """An allreduce to which one worker brings a host array."""
    worker_here = disco_server.current_worker()
    if me() == worker:
        array = array.get()
    return worker_here.allreduce(array, in_group=False)
