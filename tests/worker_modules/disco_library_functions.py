"""Functions that leave arrays of other libraries in registers, and that look at them."""

from __future__ import annotations

from importlib import import_module

import numpy as np

import disco_server
from disco_client.wire.dlpack import exported, view
from disco_client.wire.values import dtype_from_name
from disco_server.collectives.types import ReduceOp


@disco_server.register_func("library.make")
def make(library, values, dtype):
    """An array of a library, the values times the worker's number from 1."""
    scale = disco_server.current_worker().worker_id + 1
    array = (np.array(values) * scale).astype(dtype_from_name(dtype))
    if library == "torch":
        torch = import_module("torch")
        return torch.tensor(array.astype("float64")).to(getattr(torch, dtype))
    if library == "jax":
        return import_module("jax.numpy").asarray(array.astype("float32"), dtype)
    return import_module("tvm_ffi").from_dlpack(exported(array))


@disco_server.register_func("library.look")
def look(array):
    """The library of an array, and its numbers."""
    plain = array if isinstance(array, np.ndarray) else view(array)
    return [type(array).__module__.partition(".")[0], plain.astype("float64").tolist()]


@disco_server.register_func("library.requiring_grad")
def requiring_grad():
    """A tensor of torch whose computation is recorded."""
    return import_module("torch").ones(3, requires_grad=True)


@disco_server.register_func("library.allreduce")
def allreduce(source, *destination):
    """The worker's own allreduce; whether it returns the destination, and what it returns."""
    result = disco_server.current_worker().allreduce(source, *destination)
    return [bool(destination) and result is destination[0], *look(result)]


@disco_server.register_func("library.allgather")
def allgather(source):
    """The worker's own allgather."""
    return disco_server.current_worker().allgather(source)


@disco_server.register_func("library.line")
def line(source, destination):
    """Collectives of a team of both workers, there and back between two arrays of one length."""
    team = disco_server.current_worker().make_teams([[0, 1]])
    root = team.rank == 0
    whole, half = np.empty(8, "float32"), np.empty(2, "float32")
    team.all_to_all(source, destination)
    team.gather(destination, whole if root else None)
    team.scatter(whole if root else None, source)
    team.reduce_scatter(source, half, ReduceOp.SUM)
    team.broadcast(destination, destination, 0)
    if root:
        team.recv(destination, 1)
    else:
        team.send(source, 0)
    return [look(source)[1], look(destination)[1], half.tolist()]


class Unwilling:
    """Says that it speaks DLPack, and does not."""

    def __init__(self, device):
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_options):
        raise ValueError("not today")


@disco_server.register_func("library.unwilling")
def unwilling(device):
    """Something that says that it is an array, on a device of DLPack's numbers."""
    return Unwilling(tuple(device))
