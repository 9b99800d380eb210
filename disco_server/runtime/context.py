"""What one rank is: its place among the workers, its device, its communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_client.wire.values import Device
from disco_server.collectives.base import Communicator, ReduceOp, UnavailableError
from disco_server.modules.base import LoadRules

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
        device: Its default device.
        session_name: The name of its session.
        allow_modules: Patterns of the modules that its session may use.
        allow_read: Folders and files that its session may read.
        loading: What files its session may load modules from.
        position: The number of the command that runs; the executor sets it.
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
        device: Device | None = None,
        session_name: str = "",
        allow_modules: tuple[str, ...] = (),
        allow_read: tuple[str, ...] = (),
        loading: LoadRules | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.num_workers = num_workers
        self.num_groups = num_groups
        self.node = node
        self.device = device or Device("cpu", 0)
        self.session_name = session_name
        self.allow_modules = allow_modules
        self.allow_read = allow_read
        self.loading = loading or LoadRules()
        self._open = open_communicator
        self._ccl = ccl
        self._ordinary_ccl = ordinary_ccl
        self._comm: Communicator | None = None
        self.position = 0
        self._passed = 0

    @property
    def group_size(self) -> int:
        """How many workers a group has."""
        return self.num_workers // self.num_groups

    @property
    def ccl(self) -> str:
        """The name of the collective library: the one in use, else the one to come."""
        return self._comm.ccl if self._comm is not None else self._ccl or self._ordinary_ccl

    @property
    def comm(self) -> Communicator:
        """The communicator; the first use opens it, which needs every worker.

        To be taken anew in each command, because it learns which one runs.

        Raises:
            UnavailableError: The collective library is missing or did not start.
        """
        if self._comm is None:
            self._comm = self._open(self, self._ccl)
            if self._passed:
                self._comm.cannot_enter(self._passed)
        self._comm.position = self.position
        return self._comm

    def init_ccl(self, ccl: str) -> None:
        """Opens the communicator with this library.

        Raises:
            UnavailableError: It is missing or did not start, or another one runs.
        """
        if self._comm is None:
            wish, self._ccl = self._ccl, ccl
            try:
                _ = self.comm
            except BaseException:
                self._ccl = wish  # the ordinary one may work where this one does not
                raise
        used = self.comm.ccl
        if ccl != used:
            msg = f"this session uses {used!r} already, so {ccl!r} cannot start"
            raise UnavailableError(msg)

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
        out = np.empty_like(src) if dst is None else dst
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
        out = np.empty((size, *src.shape), src.dtype) if dst is None else dst
        self.comm.allgather(src, out, in_group=in_group)
        return out

    def barrier(self, *, in_group: bool = False) -> None:
        """Waits until every worker (of the group) is here."""
        self.comm.barrier(in_group=in_group)

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
