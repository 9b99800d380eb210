"""What one rank is: its place among the workers, its device, its communicator."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import Device
from disco_server.collectives.base import Communicator, ReduceOp, UnavailableError
from disco_server.collectives.team import Team
from disco_server.devices.base import Arrays, DeviceUnavailable, on_device
from disco_server.limits import MAX_REGISTERS
from disco_server.modules.base import LoadRules
from disco_server.observe.flight import FlightRecorder
from disco_server.runtime.register_file import RegisterFile
from disco_server.runtime.worker_device import WorkerDevice
from disco_server.settings import GPU_LIBRARIES, flag_in

__all__ = ["Worker", "current_worker", "set_current_worker"]

Array = np.ndarray[Any, Any]
_local = threading.local()


class Worker:
    """One rank of a session, as the functions that run on it see it.

    Attributes:
        worker_id: Its number among the workers, from 0.
        num_workers: How many there are.
        num_groups: Into how many equal, consecutive groups they are divided.
        node: The name of the node it runs on.
        place: The device on which it computes.
        session_name: The name of its session.
        allow_modules: Patterns of the modules that its session may use.
        allow_functions: Patterns of functions that it may call although they do more
            than compute.
        allow_read: Folders and files that its session may read.
        allow_save: Folders in which its session may save.
        loading: What files its session may load modules from.
        flight: Where it writes down what it executes.
        position: The number of the command that runs; the executor sets it.
        audit: Tells whoever runs it what it loaded or refused: what kind of thing, its name,
            and why it was refused, if it was; nothing is told where nobody asks for it.
        published: Values that outlive their registers, with what a client notes of each.
        registers: What its references stand for; the executor sets it.
    """

    def __init__(  # noqa: PLR0913  (what a rank is told when it is assigned)
        self,
        worker_id: int,
        num_workers: int,
        num_groups: int,
        *,
        open_communicator: Callable[[Worker, str], Communicator],
        ccl: str = "",
        ordinary_ccl: str = "mpi",
        node: str = "",
        place: WorkerDevice | None = None,
        with_gpus: bool = False,
        session_name: str = "",
        allow_modules: tuple[str, ...] = (),
        allow_functions: tuple[str, ...] = (),
        max_registers: int = MAX_REGISTERS,
        allow_read: tuple[str, ...] = (),
        allow_save: tuple[str, ...] = (),
        loading: LoadRules | None = None,
        flight: FlightRecorder | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.num_workers = num_workers
        self.num_groups = num_groups
        self.node = node
        self.place = place or WorkerDevice(Device("cpu", 0))
        self._with_gpus = with_gpus
        self.session_name = session_name
        self.allow_modules = allow_modules
        self.allow_functions = allow_functions
        self.max_registers = max_registers or MAX_REGISTERS
        self.allow_read = allow_read
        self.allow_save = allow_save
        self.loading = loading or LoadRules()
        self.flight = flight or FlightRecorder()
        self._open = open_communicator
        self._ccl = ccl
        self._ordinary_ccl = ordinary_ccl
        self._comm: Communicator | None = None
        self.position = 0
        self.published: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        self.registers = RegisterFile()
        self.audit: Callable[[str, str, str], object] = lambda _what, _name, _refused: None
        self._passed = 0
        self._with_shapes = flag_in(os.environ, "DISCO_DEBUG")

    @property
    def group_size(self) -> int:
        """How many workers a group has."""
        return self.num_workers // self.num_groups

    @property
    def device(self) -> Device:
        """Its default device."""
        return self.place.device

    @property
    def arrays(self) -> Arrays:
        """What makes and copies arrays of its device."""
        return self.place.arrays

    @property
    def xp(self) -> Any:
        """The module of its arrays, numpy or cupy, for functions that run on both."""
        return self.place.arrays.xp

    @property
    def ccl(self) -> str:
        """The name of the collective library: the one in use, else the one to come."""
        if self._comm is not None:
            return self._comm.ccl
        return self._ccl or self.place.ccl or self._ordinary_ccl

    @property
    def comm(self) -> Communicator:
        """The communicator; the first use opens it, which needs every worker.

        To be taken anew in each command, because it learns which one runs.

        Raises:
            UnavailableError: The collective library is missing or did not start.
        """
        if self._ccl in GPU_LIBRARIES and self.place.arrays.on_host:
            raise UnavailableError(
                f"{self._ccl!r} moves arrays on GPUs, this worker computes on {self.device}:"
                f" name a GPU for each with session.init_ccl({self._ccl!r}, 0, 1, ...)"
            )
        return self.meet()

    def meet(self) -> Communicator:
        """The communicator; opens it if need be, because a peer may wait for this rank.

        Raises:
            UnavailableError: The collective library is missing or did not start.
        """
        if self._comm is None:
            # Where arrays are on GPUs, the ranks still meet on the host.
            host = self._ordinary_ccl if self._ccl in GPU_LIBRARIES else self._ccl
            self._comm = self._open_recorded(host)
            self._comm.record(self.flight)
            if self._with_gpus and (not self._ccl or self._ccl in GPU_LIBRARIES):
                self._start_first(self._comm)
            self._comm.compare_shapes(self._with_shapes)
            if self._passed:
                self._comm.cannot_enter(self._passed)
        self._comm.position = self.position
        return self._comm

    def _open_recorded(self, ccl: str) -> Communicator:
        """Opens the communicator, which waits for every worker as a collective does."""
        flight = self.flight
        what = f"start of {ccl or self._ordinary_ccl}"
        flight.enter(flight.describe(what, "", 0, range(self.num_workers), ()), 1, self.position, 0)
        try:
            return self._open(self, ccl)
        finally:
            flight.leave()

    def _start_first(self, comm: Communicator) -> None:
        """Starts the library for the GPUs of the session's slots, where one is no CPU.

        It happens when the communicator opens, to which every rank comes, whatever
        it does otherwise. Where it fails, collectives of arrays on GPUs say why.
        """
        ccl = self._ccl or self.place.ccl or "nccl"
        with contextlib.suppress(UnavailableError):
            self.place.start(comm, ccl)

    def init_ccl(self, ccl: str, device_ids: Sequence[int] = ()) -> None:
        """Opens the communicator with this library; where that fails, nothing has changed.

        Args:
            ccl: Its name.
            device_ids: For a library of GPUs, the GPU of each worker of this machine;
                none where the workers' slots are GPUs.

        Raises:
            UnavailableError: It is missing or did not start, or another one runs.
            ArgumentRefused: The GPUs do not fit the workers.
        """
        if ccl in GPU_LIBRARIES:
            arrays = self.place.arrays
            try:
                self._init_gpus(ccl, device_ids)
            except BaseException:
                self.place.arrays = arrays
                raise
            return
        wish, self._ccl = self._ccl, ccl
        used = ""
        try:
            used = self.meet().ccl
        finally:
            if used != ccl:
                self._ccl = wish  # the ordinary one may work where this one does not
        self._check_used(used, ccl)

    def _init_gpus(self, ccl: str, device_ids: Sequence[int]) -> None:
        try:
            self.place.choose(ccl, device_ids)
        except DeviceUnavailable as error:
            raise UnavailableError(f"{ccl!r} cannot start: {error}") from None
        used = self.meet().ccl
        if used in GPU_LIBRARIES:
            self._check_used(used, ccl)
        else:
            self.place.start(self.meet(), ccl)

    def _check_used(self, used: str, wanted: str) -> None:
        if used != wanted:
            msg = f"this session uses {used!r} already, so {wanted!r} cannot start"
            raise UnavailableError(msg)

    def settle(self) -> None:
        """Waits until the device has done all that was asked of it.

        Raises:
            Exception: Some of it failed.
        """
        self.place.settle()

    def cannot_enter(self, seq: int) -> None:
        """Tells the peers that this rank is past ``seq`` without its collectives."""
        self._passed = seq
        if self._comm is not None:
            self._comm.cannot_enter(seq)

    def poll(self) -> bool:
        """Carries on what :meth:`cannot_enter` began; whether to call it again soon."""
        if self._comm is None:
            return False
        self._comm.position = self.position
        return self._comm.poll()

    def close(self) -> None:
        """Lets go of the communicator without waiting for anybody."""
        self.place.close()
        if self._comm is not None:
            self._comm.close(orderly=False)

    # For functions that run on the worker --------------------------------------

    def allreduce(
        self, src: Array, dst: Array | None = None, op: str = "sum", *, in_group: bool = True
    ) -> Array:
        """Reduces the workers' arrays element by element; all get the result.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: Where the result goes; may be ``src``; None makes a new array.
            op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``.
            in_group: Whether the reduction stays inside the worker's group.

        Returns:
            The result: ``dst`` where it is given.

        Raises:
            MismatchError: The workers brought different things; nobody began.
            AbortedError: Another worker cannot come; nobody began.
        """
        out = self._like(src, src.shape) if dst is None else dst
        if self.group_size == 1 and (in_group or self.num_workers == 1):
            if out is not src:
                out[...] = src.reshape(out.shape)
            return out
        self.comm.allreduce(src, out, ReduceOp.from_name(op), in_group=in_group)
        return out

    def allgather(self, src: Array, dst: Array | None = None, *, in_group: bool = True) -> Array:
        """Collects every worker's array on every worker, in rank order.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: Where the result goes; None makes an array of shape
                ``(workers, *src.shape)``.
            in_group: Whether the collection stays inside the worker's group.

        Returns:
            The result: ``dst`` where it is given.
        """
        size = self.group_size if in_group else self.num_workers
        out = self._like(src, (size, *src.shape)) if dst is None else dst
        self.comm.allgather(src, out, in_group=in_group)
        return out

    def _like(self, array: Array, shape: tuple[int, ...]) -> Array:
        xp: Any = self.xp if on_device(array) else np
        return xp.empty(shape, array.dtype)

    def barrier(self, *, in_group: bool = False) -> None:
        """Waits until every worker (of the group) is here."""
        self.comm.barrier(in_group=in_group)

    def make_teams(self, lines: Sequence[Sequence[int]]) -> Team | None:
        """Lets some workers do collectives of their own, as along an axis of a mesh.

        All workers of the session must call it, those that are in no line too. The
        same lines give the same team again, which lives as long as the session.

        Args:
            lines: The workers of each team in the order of their ranks there; no
                worker may be in two of them. Equal on all workers.

        Returns:
            The team that this worker is in; None if it is in no line.

        Raises:
            ConfigError: These cannot be lines of teams.
            MismatchError: The workers want different teams; nothing was made.
            AbortedError: Another worker cannot come; nothing was made.
        """
        comm = self.comm
        comm.follow(lambda: self.position)
        return comm.make_teams(lines)

    def compare_shapes(self, enabled: bool) -> None:
        """Lets collectives refuse arrays whose shapes differ, though they have as many elements.

        For debugging, and on from the start where ``DISCO_DEBUG`` is 1. All workers
        must call it in the same command.
        """
        self._with_shapes = enabled
        if self._comm is not None:
            self._comm.compare_shapes(enabled)

    @property
    def received_bytes(self) -> int:
        """How many bytes of other workers its teams have brought; see `Team`."""
        return 0 if self._comm is None else self._comm.received_bytes

    def __repr__(self) -> str:
        return (
            f"<Worker {self.worker_id} of {self.num_workers} on {self.node or 'this machine'}, "
            f"{self.device}>"
        )


def set_current_worker(worker: Worker | None) -> None:
    """Makes this thread a worker's."""
    _local.worker = worker


def current_worker() -> Worker:
    """The worker whose thread this is.

    Raises:
        ValueError: This thread is no worker's.
    """
    worker: Worker | None = getattr(_local, "worker", None)
    if worker is None:
        msg = (
            "the current thread is not a worker's; call this inside a function that a session runs"
        )
        raise ValueError(msg)
    return worker
