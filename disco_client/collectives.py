"""The collective operations of a session; every worker takes part in each.

With ``in_group=True`` an operation stays inside each group: ``num_groups`` equal,
consecutive slices of the workers, whose first worker takes worker 0's part. Only
element counts must fit, not shapes: data move as flat chunks in rank order. What
does not fit is refused on every worker before any of them enters the operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.values import Shape

if TYPE_CHECKING:
    from disco_client.handles import DRef

__all__ = ["CCL_NAMES", "REDUCE_OPS", "Collectives"]

REDUCE_OPS = ("sum", "prod", "min", "max", "avg")
"""Reductions in the order of their codes."""

CCL_NAMES = ("nccl", "rccl", "mpi", "local")
"""The collective libraries that a session can be asked for."""


class Collectives(ABC):
    """The part of a session that moves tensors between its workers."""

    @property
    @abstractmethod
    def num_workers(self) -> int:
        """How many workers the session has."""

    @property
    @abstractmethod
    def num_groups(self) -> int:
        """Into how many equal groups they are divided."""

    @abstractmethod
    def _call_builtin(self, name: str, *args: object) -> DRef: ...

    @abstractmethod
    def copy_to_worker_0(self, host_array: object, remote_array: DRef | None = None) -> DRef:
        """Copies a host array to worker 0."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: object) -> DRef:
        """Allocates an uninitialised array on every worker."""

    @abstractmethod
    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""

    def init_ccl(self, ccl: str, *device_ids: int) -> None:
        """Starts a collective library on all workers; waits until it runs.

        Not needed before the first collective, which starts one by itself.

        Args:
            ccl: ``"mpi"``, ``"nccl"``, ``"rccl"`` or ``"local"``.
            *device_ids: For a library of GPUs, the number of each worker's GPU on its
                machine, in the workers' order; the worker computes there from now on.
                Not needed where the workers' slots are GPUs.

        Raises:
            ConfigError: There is no library of that name, or a GPU has no number.
            CclError: It is missing on a worker, or could not start.
        """
        if ccl not in CCL_NAMES:
            msg = f"expected one of {', '.join(CCL_NAMES)}, got {ccl!r}"
            raise ConfigError(msg)
        try:
            devices = Shape(device_ids)
        except (TypeError, ValueError):
            msg = f"expected the numbers of GPUs, from 0, got {', '.join(map(repr, device_ids))}"
            raise ConfigError(msg) from None
        self._call_builtin("runtime.disco.init_ccl", ccl, devices)
        self.sync_all()

    def broadcast(
        self,
        src: object,
        dst: DRef | None = None,
        in_group: bool = True,
    ) -> DRef:
        """Copies a host array to every worker.

        Args:
            src: An array, or what ``numpy.asarray`` makes one of.
            dst: An array of the same size and dtype on every worker; None
                allocates one.
            in_group: Every worker receives ``src`` either way.

        Returns:
            The reference of the copies.
        """
        del in_group  # only worker 0 has the data, so it alone can be the source
        array = np.asarray(src)
        if dst is None:
            dst = self.empty(array.shape, array.dtype)
        self.broadcast_from_worker0(self.copy_to_worker_0(array), dst, in_group=False)
        return dst

    def broadcast_from_worker0(self, src: DRef, dst: DRef, in_group: bool = True) -> DRef:
        """Copies worker 0's array (each group's first worker's) to all workers.

        Args:
            src: The array on the source; the other workers' content is ignored.
            dst: An array of its size and dtype on every worker; may be ``src``.
            in_group: Whether each group has a source of its own.

        Returns:
            ``dst``.
        """
        self._call_builtin("runtime.disco.broadcast_from_worker0", src, bool(in_group), dst)
        return dst

    def scatter(
        self,
        src: object,
        dst: DRef | None = None,
        in_group: bool = True,
    ) -> DRef:
        """Gives each worker one slice of a host array along its first axis.

        Args:
            src: An array whose first axis has one entry for each worker.
            dst: An array of a slice's size and dtype on every worker; None
                allocates one of shape ``src.shape[1:]``.
            in_group: Worker w receives ``src[w]`` either way.

        Returns:
            The reference of the slices.

        Raises:
            ConfigError: The first axis does not fit.
        """
        del in_group  # only worker 0 has the data, so it alone can be the source
        array = np.asarray(src)
        if array.ndim == 0 or array.shape[0] != self.num_workers:
            msg = (
                f"expected an array with {self.num_workers} slices on its first axis, one for "
                f"each worker, got shape {array.shape}"
            )
            raise ConfigError(msg)
        if dst is None:
            dst = self.empty(array.shape[1:], array.dtype)
        self.scatter_from_worker0(self.copy_to_worker_0(array), dst, in_group=False)
        return dst

    def scatter_from_worker0(self, from_array: DRef, to_array: DRef, in_group: bool = True) -> DRef:
        """Gives each worker one equal flat chunk of worker 0's array.

        Args:
            from_array: The array on worker 0 (each group's first worker).
            to_array: An array of a chunk's size and dtype on every worker.
            in_group: Whether each group has a source of its own.

        Returns:
            ``to_array``.
        """
        self._call_builtin(
            "runtime.disco.scatter_from_worker0", from_array, bool(in_group), to_array
        )
        return to_array

    def gather_to_worker0(self, from_array: DRef, to_array: DRef, in_group: bool = True) -> DRef:
        """Collects every worker's array on worker 0, in rank order.

        Args:
            from_array: An array on every worker.
            to_array: On worker 0 (each group's first worker), an array with room
                for all of them.
            in_group: Whether each group has a destination of its own.

        Returns:
            ``to_array``.
        """
        self._call_builtin("runtime.disco.gather_to_worker0", from_array, bool(in_group), to_array)
        return to_array

    def allreduce(self, src: DRef, dst: DRef, op: str = "sum", in_group: bool = True) -> DRef:
        """Reduces the workers' arrays element by element; all get the result.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array of that size and dtype; may be ``src``.
            op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``. Integers
                wrap; ``avg`` of integers truncates toward zero.
            in_group: Whether the reduction stays inside each group.

        Returns:
            ``dst``.

        Raises:
            ConfigError: No such reduction.
        """
        self._call_builtin("runtime.disco.allreduce", src, _op_code(op), bool(in_group), dst)
        return dst

    def allgather(self, src: DRef, dst: DRef, in_group: bool = True) -> DRef:
        """Collects every worker's array on every worker, in rank order.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array with room for all of them.
            in_group: Whether the collection stays inside each group.

        Returns:
            ``dst``.
        """
        self._call_builtin("runtime.disco.allgather", src, bool(in_group), dst)
        return dst

    def reduce_scatter(self, src: DRef, dst: DRef, op: str = "sum", in_group: bool = True) -> DRef:
        """Reduces the workers' arrays; each worker gets one equal chunk of the result.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array of one chunk's size: ``src`` divided by the workers.
            op: As in :meth:`allreduce`.
            in_group: Whether the reduction stays inside each group.

        Returns:
            ``dst``.

        Raises:
            ConfigError: No such reduction.
        """
        self._call_builtin("runtime.disco.reduce_scatter", src, _op_code(op), bool(in_group), dst)
        return dst

    def compare_shapes(self, enabled: bool = True) -> None:
        """Makes collectives stricter, to find a mistake: shapes must be equal, too.

        Always refused is another operation, reduction, dtype or number of elements, and
        a collective of another command. With this, arrays of as many elements but
        another shape are refused as well. ``DISCO_DEBUG=1`` in the environment of
        :func:`connect`, or of a worker daemon, switches it on from the start.

        Args:
            enabled: Whether shapes are compared from here on.
        """
        self._call_builtin("runtime.disco._compare_shapes", bool(enabled))

    def all_to_all(self, src: DRef, dst: DRef, in_group: bool = True) -> DRef:
        """Sends one equal chunk of each worker's array to each worker.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array of that size: chunk ``i`` comes from worker ``i``.
            in_group: Whether the exchange stays inside each group.

        Returns:
            ``dst``.
        """
        self._call_builtin("runtime.disco.all_to_all", src, bool(in_group), dst)
        return dst


def _op_code(op: str) -> Shape:
    if op not in REDUCE_OPS:
        msg = f"expected one of {', '.join(REDUCE_OPS)}, got {op!r}"
        raise ConfigError(msg)
    return Shape((REDUCE_OPS.index(op),))
