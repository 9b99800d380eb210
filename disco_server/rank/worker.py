"""One rank: its number among the workers, its device, its process groups."""

from __future__ import annotations

import contextlib
import enum
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from disco_client.errors import EncodingError
from disco_client.wire.codec import EncodedValue, decode_args, is_of_bytes, is_shape, tickets_in
from disco_client.wire.dlpack import on_host
from disco_client.wire.record_parts import is_named
from disco_client.wire.records import make_record, parts_of
from disco_client.wire.values import MAX_DEPTH, ArrayPorter, Device, ReduceName, is_array, shown
from disco_server.collectives.collective_watch import say
from disco_server.collectives.loss import Loss
from disco_server.collectives.types import (
    CommunicatorLost,
    MismatchError,
    ReduceOp,
    UnavailableError,
)
from disco_server.collectives.validation import tag_problem
from disco_server.devices.base import Arrays, DeviceUnavailable, on_device
from disco_server.devices.foreign import between, is_foreign, library_of, native, of_library
from disco_server.devices.host import HostArrays, open_arrays
from disco_server.modules.base import LoadRules
from disco_server.observe.flight import FlightRecorder
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.interrupts import Interruption
from disco_server.rank.registers import RegisterFile, is_any_array
from disco_server.rank.signals import CallGuard
from disco_server.rank.torch_group import TorchRank, process_group
from disco_server.settings import DEBUG, GPU_LIBRARIES, MAX_REGISTERS

if TYPE_CHECKING:
    from disco_server.collectives.group import ProcessGroup
    from disco_server.collectives.nccl_watch import NcclWatch
    from disco_server.collectives.process_groups import ProcessGroups
    from disco_server.collectives.unique_ids import UniqueIds

__all__ = [
    "DevicePorter",
    "Worker",
    "WorkerDevice",
    "current_worker",
    "is_worker_thread",
    "set_current_worker",
]


# On which device a worker computes, and how its arrays take part in collectives.


class WorkerDevice:
    """The device of one worker, used by the worker's one thread.

    Args:
        device: Where it computes at first.
        local_rank: Its number among the session's workers on its machine.
        host: Identifies its machine.
        end_process: Ends the process of the worker where a collective library is
            lost; None where the process is not the worker's alone.
        end_session: Ends the session, for this reason, where such a library failed
            while it started, in which peers may stay for ever.
        ids: Shares the unique ids of such a library; None for a collective of host arrays.
        torch: Connects torch on the ranks; None where they are threads of one process.

    Attributes:
        arrays: What makes and copies its arrays.
        torch: As the argument.

    Raises:
        DeviceUnavailable: There is no such device, or something that it needs.
    """

    def __init__(
        self,
        device: Device,
        *,
        local_rank: int = 0,
        host: str = "",
        end_process: Callable[[], None] | None = None,
        end_session: Callable[[str], None] | None = None,
        ids: UniqueIds | None = None,
        torch: TorchRank | None = None,
    ) -> None:
        self._ids = ids
        self._local_rank = local_rank
        self._host = host
        self._end_process = end_process
        self._end_session = end_session
        self._watch: NcclWatch | None = None
        self.torch = torch
        self.arrays: Arrays = HostArrays(device) if device.kind == "cpu" else open_arrays(device)

    @property
    def device(self) -> Device:
        """The device."""
        return self.arrays.device

    @property
    def ccl(self) -> str:
        """The library for arrays of this device; empty on a CPU."""
        kind = self.device.kind
        return next((name for name, made_for in GPU_LIBRARIES.items() if made_for == kind), "")

    def choose(self, ccl: str, device_ids: Sequence[int]) -> None:
        """Moves a worker to the GPU that ``init_ccl`` names for it.

        A worker that has one already stays there, and no other may be named.

        Args:
            ccl: A library for GPUs.
            device_ids: The GPU of each worker of this machine, in the workers' order.

        Raises:
            ArgumentRefused: No GPU is named for this worker, or another than it has.
            DeviceUnavailable: There is no such device, or something that it needs.
        """
        kind, own = GPU_LIBRARIES[ccl], self.device
        if own.kind not in ("cpu", kind):
            msg = f"{ccl!r} moves arrays of {kind} devices, this worker computes on {own}"
            raise ArgumentRefused(msg)
        if not device_ids and own.kind == kind:
            return
        if len(device_ids) <= self._local_rank:
            msg = (
                f"expected the GPU of each worker on this machine, as in init_ccl({ccl!r}, 0, 1),"
                f" got {len(device_ids)} for this one at place {self._local_rank}"
            )
            raise ArgumentRefused(msg)
        wanted = Device(kind, device_ids[self._local_rank])
        if own.kind == kind:
            if wanted != own:
                msg = f"init_ccl names {wanted} for this worker, which computes on {own} already"
                raise ArgumentRefused(msg)
            return
        arrays = open_arrays(wanted)
        arrays.attach()
        self.arrays = arrays

    def start(self, groups: ProcessGroups, ccl: str) -> None:
        """Starts a library for GPUs; every worker does in the same command.

        Raises:
            UnavailableError: A worker lacks what it needs; no worker began.
            CommunicatorLost: The library failed while it started.
        """
        # Nothing of this is loaded where there is no GPU.
        from disco_server.collectives.nccl import NcclHooks, start_nccl
        from disco_server.collectives.nccl_watch import TimeLimits

        hooks = NcclHooks(say, TimeLimits.read(os.environ))
        try:
            self._watch = start_nccl(groups, self.arrays, ccl, self._host, hooks, self._ids)
        except CommunicatorLost as error:
            # Peers may be in a call that only ends with this process.
            self.end(str(error))
            raise

    def settle(self) -> None:
        """Waits until the device has done all that was enqueued.

        Raises:
            Exception: Some of it failed.
        """
        self.arrays.synchronize()
        if self._watch is not None:
            self._watch.settled()

    def close(self) -> None:
        """Ends what watches the device."""
        if self._watch is not None:
            self._watch.close()

    def lost(self, message: str) -> None:
        """Ends the process or the session after a collective library has failed.

        Args:
            message: What has failed; it is written to the worker's output.
        """
        say(message)
        if self._end_process is not None:
            self._end_process()
        elif self._watch is not None:
            self._watch.abort()

    def end(self, message: str) -> None:
        """Does the same where the library has failed to start, for which peers may wait."""
        self.lost(message)
        if self._end_session is not None:
            self._end_session(message)


Array = np.ndarray[Any, Any]
_local = threading.local()


class Worker:
    """One rank of a session; the interface for functions that run on it.

    Attributes:
        worker_id: Its number among the workers, from 0.
        num_workers: How many there are.
        num_groups: Into how many equal, consecutive groups they are divided.
        node: The name of the node it runs on.
        place: The device on which it computes.
        loss: Whether its collective library has failed in use.
        session_name: The name of its session.
        allow_modules: Patterns of the modules that its session may use as a whole.
        allow_functions: Patterns of functions of numpy and cupy that it may call besides
            those that every worker offers.
        allow_read: Folders and files that its session may read.
        allow_save: Folders in which its session may save.
        loading: What files its session may load modules from.
        flight: Where it records what it executes.
        guard: Whether it runs a call, or does work of its own, and of which command.
        interruption: What the program has interrupted.
        audit: Called with what it loaded or refused: its kind, its name, and why it was
            refused, if it was; by default does nothing.
        published: Values that outlive their registers, with what a client notes of each.
        registers: What its references name; the executor sets it.
        failed_imports: The last few modules that it could not import, each with a sentence
            that says why.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.mean")
        ... def mean(part):
        ...     worker = disco_server.current_worker()
        ...     return worker.allreduce(part, op="avg")
        >>> parts = session.scatter(np.arange(8.0).reshape(4, 2))
        >>> session.get_global_func("docs.mean")(parts).numpy(worker_id=3)
        array([3., 4.])
    """

    def __init__(  # noqa: PLR0913  (what an assignment contains)
        self,
        worker_id: int,
        num_workers: int,
        num_groups: int,
        *,
        open_groups: Callable[[Worker, str], ProcessGroups],
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
        self.loss = Loss(worker_id, self.place.lost)
        self._with_gpus = with_gpus
        self.session_name = session_name
        self.allow_modules = allow_modules
        self.allow_functions = allow_functions
        self.max_registers = max_registers or MAX_REGISTERS
        self.allow_read = allow_read
        self.allow_save = allow_save
        self.loading = loading or LoadRules()
        self.flight = flight or FlightRecorder()
        self.guard = CallGuard()
        self._open = open_groups
        self._ordinary_ccl = ordinary_ccl
        self._ccl = self._serving(ccl)
        self._groups: ProcessGroups | None = None
        self.interruption = Interruption(worker_id, node)
        self.published: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        self.registers = RegisterFile()
        self.failed_imports: dict[str, str] = {}
        self.audit: Callable[[str, str, str], object] = lambda _what, _name, _refused: None
        self._passed = 0
        self._chosen: frozenset[int] | None = None
        self._with_shapes = DEBUG.value()

    @property
    def position(self) -> int:
        """The number of the command that is executed, or was last."""
        return self.guard.position

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
        if self._groups is not None:
            return self._groups.ccl
        return self._ccl or self.place.ccl or self._ordinary_ccl

    @property
    def world(self) -> ProcessGroup:
        """All workers; the first use opens the process groups, which needs every worker.

        Raises:
            UnavailableError: The collective library is missing or did not start.
        """
        return self._usable().world

    @property
    def group(self) -> ProcessGroup:
        """The workers of its group, or all where they are not divided; opened as `world` is."""
        return self._usable().group

    @property
    def comm(self) -> NoReturn:
        """The former name of ``world`` and ``group``.

        Raises:
            AttributeError: Always; it says what to write.
        """
        msg = (
            "worker.comm is gone: call the collectives of worker.world, for all workers, or of"
            " worker.group, for its group; worker.world has send(array, worker) and recv too"
        )
        raise AttributeError(msg)

    def _usable(self) -> ProcessGroups:
        if self._ccl not in GPU_LIBRARIES or not self.place.arrays.on_host:
            return self._groups or self._open_groups()
        raise UnavailableError(
            f"{self._ccl!r} moves arrays on GPUs, this worker computes on {self.device}:"
            f" name a GPU for each with session.init_ccl({self._ccl!r}, 0, 1, ...)"
        )

    def meet(self) -> ProcessGroups:
        """The process groups; opens them if necessary, because a peer may wait for this rank.

        Raises:
            UnavailableError: The collective library is missing or did not start.
        """
        return self._groups or self._open_groups()

    def _open_groups(self) -> ProcessGroups:
        with self.guard:
            return self._open_guarded()

    def _open_guarded(self) -> ProcessGroups:
        # Where arrays are on GPUs, the ranks still agree on the host.
        host = self._ordinary_ccl if self._ccl in GPU_LIBRARIES else self._ccl
        self._groups = groups = self._open_recorded(host)
        groups.record(self.flight)
        groups.protect(self.guard)
        try:
            if self._with_gpus and (not self._ccl or self._ccl in GPU_LIBRARIES):
                self._start_first(groups)
            groups.compare_shapes(self._with_shapes)
            if self._passed:
                groups.cannot_enter(self._passed)
            groups.confine(self._chosen)
        finally:
            # Not before: the ranks open it in different commands, and start a library together.
            groups.follow(self.guard)
        return groups

    def _open_recorded(self, ccl: str) -> ProcessGroups:
        """Opens the process groups, which waits for every worker as a collective does."""
        flight = self.flight
        what = ccl or self._ordinary_ccl
        form = flight.describe(f"start of {what}", "", 0, range(self.num_workers), ())
        flight.enter(form, 1, self.position, 0)
        try:
            return self._open(self, ccl)
        except MemoryError:
            # Peers wait for this rank in the start of the library, or in their first collective.
            self.place.end(f"worker {self.worker_id} has no memory left to start {what}")
            raise
        finally:
            flight.leave()

    def _start_first(self, groups: ProcessGroups) -> None:
        """Starts the library for the GPUs of the session's slots, where one is no CPU.

        It happens when the process groups open, which every rank takes part in, whatever
        it does otherwise. Where it fails, collectives of arrays on GPUs say why.
        """
        ccl = self._ccl or self.place.ccl or "nccl"
        with contextlib.suppress(UnavailableError):
            self.place.start(groups, ccl)

    def init_ccl(self, ccl: str, device_ids: Sequence[int] = ()) -> None:
        """Opens the process groups with this library; where that fails, nothing has changed.

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
        ccl = self._serving(ccl)
        wish, self._ccl = self._ccl, ccl
        used = ""
        try:
            used = self.meet().ccl
        finally:
            if used != ccl:
                self._ccl = wish  # the ordinary one may work where this one does not
        self._check_used(used, ccl)

    def _serving(self, ccl: str) -> str:
        """The library that serves for a name: for "mpi" what moves arrays of the host here."""
        return self._ordinary_ccl if ccl == "mpi" else ccl

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
        """Waits until the device has done all that was enqueued.

        Raises:
            Exception: Some of it failed.
        """
        self.place.settle()

    @property
    def participants(self) -> tuple[int, ...]:
        """The workers that execute the call: all, or those for which the program chose it."""
        return tuple(range(self.num_workers) if self._chosen is None else sorted(self._chosen))

    @contextlib.contextmanager
    def only(self, workers: Iterable[int]) -> Generator[None]:
        """Refuses, while a block runs, collectives with workers other than these."""
        former = self._chosen
        self._confine(frozenset(workers))
        try:
            yield
        finally:
            self._confine(former)

    def _confine(self, chosen: frozenset[int] | None) -> None:
        self._chosen = chosen
        if self._groups is not None:
            self._groups.confine(chosen)

    def cannot_enter(self, seq: int) -> None:
        """Notifies the peers that this rank is past ``seq`` without its collectives."""
        self._passed = seq
        if self._groups is not None:
            self._groups.cannot_enter(seq)

    def failed(self, seq: int, why: str) -> None:
        """Notifies the peers that a command has failed here, also those that wait in torch."""
        self.cannot_enter(seq)
        if self.place.torch is not None and self.place.torch.watch is not None:
            self.place.torch.watch.leave(seq, why)

    def limit_passed(self, seq: int, seconds: float) -> None:
        """Notes that a command takes longer than its limit; in another thread."""
        if self.place.torch is not None and self.place.torch.watch is not None:
            self.place.torch.watch.limit_passed(seq, seconds)

    def cause_of(self, seq: int, error: BaseException) -> BaseException:
        """What to report of a command that raised: the same, or what it follows from in torch."""
        torch = self.place.torch
        return error if torch is None or torch.watch is None else torch.watch.explain(seq, error)

    def poll(self) -> bool:
        """Continues what :meth:`cannot_enter` began; whether to call it again soon."""
        if self._groups is None:
            return False
        return self._groups.poll()

    def close(self) -> None:
        """Closes the process groups without waiting for the peers."""
        self.place.close()
        if self._groups is not None:
            self._groups.close(orderly=False)

    # For functions that run on the worker --------------------------------------

    def allreduce(
        self,
        src: Array,
        dst: Array | None = None,
        op: ReduceName = "sum",
        *,
        in_group: bool = True,
        tag: str | None = None,
    ) -> Array:
        """Reduces the workers' arrays element by element; all get the result.

        Args:
            src: An array of the same size and dtype on every worker, of any library that
                speaks DLPack.
            dst: Where the result goes; may be ``src``; None makes a new array, of the same
                library as ``src``.
            op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``; sums and products of
                integers wrap, their average does not.
            in_group: Whether the reduction stays inside the worker's group.
            tag: The call's name, such as that of the tensor; equal on all workers.

        Returns:
            The result: ``dst`` where it is given.

        Raises:
            MismatchError: The workers brought different things, or other tags; no worker began.
            AbortedError: Another worker cannot enter; no worker began.
        """
        if is_foreign(src) or is_foreign(dst):
            return _as_native(partial(self.allreduce, op=op, in_group=in_group, tag=tag), src, dst)
        out = self.empty_like(src, src.shape) if dst is None else dst
        if self.group_size == 1 and (in_group or self.num_workers == 1):
            if tag is not None and (problem := tag_problem(tag)):
                raise MismatchError((self.worker_id,), problem)
            source, target = between(src, out)
            if out is not src:
                target[...] = source.reshape(target.shape)
            return out
        members = self.group if in_group else self.world
        members.allreduce(src, out, ReduceOp.from_name(op), tag=tag)
        return out

    def allgather(
        self,
        src: Array,
        dst: Array | None = None,
        *,
        in_group: bool = True,
        tag: str | None = None,
    ) -> Array:
        """Collects every worker's array on every worker, in rank order.

        Args:
            src: An array of the same size and dtype on every worker, of any library that
                speaks DLPack.
            dst: Where the result goes; None makes an array of shape
                ``(workers, *src.shape)``, of the same library.
            in_group: Whether the collection stays inside the worker's group.
            tag: The call's name, such as that of the tensor; equal on all workers.

        Returns:
            The result: ``dst`` where it is given.

        Raises:
            MismatchError: The workers brought different things, or other tags; no worker began.
            AbortedError: Another worker cannot enter; no worker began.
        """
        if is_foreign(src) or is_foreign(dst):
            return _as_native(partial(self.allgather, in_group=in_group, tag=tag), src, dst)
        size = self.group_size if in_group else self.num_workers
        out = self.empty_like(src, (size, *src.shape)) if dst is None else dst
        (self.group if in_group else self.world).allgather(src, out, tag=tag)
        return out

    def empty_like(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Makes an array of the dtype of another one, and where that one is."""
        xp: Any = self.xp if on_device(array) else np
        return xp.empty(shape, array.dtype)

    def barrier(self, *, in_group: bool = False, tag: str | None = None) -> None:
        """Waits until every worker (of the group) has entered it.

        Args:
            in_group: Whether only those of the group have to.
            tag: The call's name; equal on all workers.

        Raises:
            MismatchError: Another worker is in a different collective, or came with another tag.
            AbortedError: Another worker cannot enter.
        """
        (self.group if in_group else self.world).barrier(tag=tag)

    def make_teams(self, lines: Sequence[Sequence[int]]) -> ProcessGroup | None:
        """Makes teams: workers that do collectives of their own, as along an axis of a mesh.

        All workers of the session must call it, also those that are in no line. The
        same lines give the same team again, which lives as long as the session.

        Args:
            lines: The workers of each team in the order of their ranks there; no
                worker may be in two of them. Equal on all workers.

        Returns:
            The team that this worker is in; None if it is in no line.

        Raises:
            ConfigError: These cannot be lines of teams.
            MismatchError: The workers want different teams; nothing was made.
            AbortedError: Another worker cannot enter; nothing was made.
        """
        return self._usable().teams.make(lines)

    def torch_group(self, backend: str | None = None) -> Any:
        """The process group of torch whose ranks are all workers of the session, in their order.

        The first call makes it, by ``torch.distributed.init_process_group``, and puts what
        torchrun would put into ``os.environ`` there; all workers of the session must make it in
        the same command. It is torch's default group, so all of ``torch.distributed`` works from
        then on. It ends with the worker's process.

        Args:
            backend: As of ``init_process_group``; None for ``"gloo"`` where the worker computes
                on a CPU, and ``"cpu:gloo,cuda:nccl"`` on a GPU, which becomes torch's current one.

        Returns:
            ``torch.distributed.group.WORLD``.

        Raises:
            UnavailableError: The workers are threads of one process, torch is missing on one of
                them, they want different backends, or there is no address that all of them reach.
            AbortedError: Another worker cannot come.

        Examples:
            >>> import disco_server
            >>> @disco_server.register_func("docs.rank_in_torch")
            ... def rank_in_torch():
            ...     return disco_server.current_worker().torch_group().rank()
            >>> session.get_global_func("docs.rank_in_torch")().get_all()  # doctest: +SKIP
            [0, 1, 2, 3]
        """
        return process_group(self, backend)

    def compare_shapes(self, enabled: bool) -> None:
        """Makes collectives refuse arrays whose shapes differ, though they have as many elements.

        For debugging, and on from the start where ``DISCO_DEBUG`` is 1. All workers
        must call it in the same command.
        """
        self._with_shapes = enabled
        if self._groups is not None:
            self._groups.compare_shapes(enabled)

    @property
    def received_bytes(self) -> int:
        """How many bytes it has received from other workers in teams; see `ProcessGroup`."""
        return 0 if self._groups is None else self._groups.teams.received_bytes

    def __repr__(self) -> str:
        return (
            f"<Worker {self.worker_id} of {self.num_workers} on {self.node or 'this machine'}, "
            f"{self.device}>"
        )


def _as_native(collective: Callable[[Any, Any], Any], src: Any, dst: Any) -> Any:
    """Does a collective with arrays of other libraries; returns one of theirs."""
    if dst is not None:
        collective(*between(src, dst))
        return dst
    library = library_of(src)  # before any peer waits
    return of_library(library, collective(native(src), None))


def set_current_worker(worker: Worker | None) -> None:
    """Makes this thread a worker's."""
    _local.worker = worker


def is_worker_thread() -> bool:
    """Whether this thread is a worker's."""
    return getattr(_local, "worker", None) is not None


def current_worker() -> Worker:
    """The worker whose thread this is.

    Raises:
        ValueError: This thread is no worker's.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.whoami")
        ... def whoami():
        ...     return disco_server.current_worker().worker_id
        >>> session.get_global_func("docs.whoami")().get_all()
        [0, 1, 2, 3]
    """
    worker: Worker | None = getattr(_local, "worker", None)
    if worker is None:
        msg = (
            "the current thread is not a worker's; call this inside a function that a session runs"
        )
        raise ValueError(msg)
    return worker


# Copies arrays between commands and the device on which a worker computes.


_UNCHANGING = frozenset((type(None), bool, int, float, str, bytes))
"""Types of which a copy is the same."""


class DevicePorter(ArrayPorter):
    """Places arrays for a worker on its GPU, and reads the arrays it sends from there.

    Args:
        worker: The worker, whose device may change.
        inner: Carries host arrays.
    """

    def __init__(self, worker: Worker, inner: ArrayPorter) -> None:
        self._worker = worker
        self._inner = inner
        self._collected: set[int] = set()

    def knows(self, value: object) -> bool:
        """Whether it is an array on the worker's GPU."""
        return on_device(value)

    def from_device(self, value: Any) -> Any:
        """Returns an array of another library on a GPU as cupy's, or None."""
        return None if on_host(value) else native(value)

    def content(self, array: Any) -> bytes:
        """The bytes of a small array in C order; waits for it."""
        return array.tobytes() if is_array(array) else self._to_host(array).tobytes()

    def offer(self, array: Any) -> int:
        """Hands over an array and returns its ticket; waits for it."""
        if is_array(array):
            return self._inner.offer(np.ascontiguousarray(array))
        arrays = self._worker.arrays
        return self._inner.offer_pieces(array.nbytes, arrays.read_pieces(array))

    def withdraw(self) -> None:
        """Withdraws what was offered for a reply that is not sent."""
        self._inner.withdraw()

    def arrived(self, array: Array) -> Any:
        """Copies an array that was inside a command to the worker's device."""
        return self._worker.arrays.from_host(array)

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Returns the array that was offered under this ticket, on the worker's device."""
        arrays = self._worker.arrays
        if arrays.on_host:
            self._collected.add(ticket)
            return self._inner.collect(ticket, dtype, shape)
        out = arrays.empty(shape, dtype)
        self.collect_into(ticket, out)
        return out

    def collect_into(self, ticket: int, out: Any) -> None:
        """Fills an array with the one of its dtype and size under this ticket."""
        self._collected.add(ticket)
        if is_array(out):
            self._inner.collect_into(ticket, out)
            return
        with contextlib.closing(self._inner.collect_pieces(ticket, out.dtype, out.shape)) as pieces:
            self._worker.arrays.fill_pieces(out, pieces)

    def collect_on_host(self, value: EncodedValue, read: Callable[[int], Any]) -> Any:
        """Decodes a value whose arrays are to stay in the host's memory."""
        self._collected.update(tickets_in((value,)))
        return decode_args((value,), read, self._inner)[0]

    def begin(self) -> None:
        """Begins a command: from here on records which arrays it collects."""
        if self._collected:
            self._collected.clear()

    def let_go(self, values: Iterable[EncodedValue]) -> None:
        """Drops the arrays of a command that has not collected them, and will not."""
        for ticket in tickets_in(values):
            if ticket not in self._collected:
                self._inner.discard(ticket)

    def shared(self, value: Any) -> Any:
        """A value for a client in this process: the very object, and of the device's arrays copies.

        Raises:
            DlpackError: It is an array of another library that cannot be shared.
        """
        value = native(value) if is_foreign(value) else value
        return value if self._worker.arrays.on_host else self._host_form(value)

    def _host_form(self, value: Any) -> Any:
        """A value with numpy's arrays in place of the device's; waits for them."""
        if self.knows(value):
            return self._to_host(value)
        if type(value) is list:
            return [self._host_form(item) for item in cast("list[Any]", value)]
        if type(value) is tuple:
            return tuple(self._host_form(item) for item in cast("tuple[Any, ...]", value))
        if type(value) is dict:
            items = cast("dict[Any, Any]", value).items()
            return {key: self._host_form(item) for key, item in items}
        return value

    def copied(self, value: Any) -> Any:
        """What a client in this process gets of a value: what another one would, its own.

        Of what could not travel to another process arrays are copies, and everything else is
        the very object.

        Raises:
            ArrayRefused: An array in it would lose its meaning, or cannot be shared.
        """
        try:
            return self._copied(value, 0)
        except RecursionError:  # it nests deeper than what may travel
            return value

    def _copied(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise RecursionError
        if type(value) is np.ndarray or is_any_array(value):
            return self._copied_array(native(value))
        kind = cast("Any", type(value))
        if kind in _UNCHANGING or issubclass(kind, enum.Enum):
            return value
        if issubclass(kind, (list, tuple)) and not (is_shape(value) or is_named(value)):
            items: list[Any] = list(value)
            if not _UNCHANGING.issuperset(map(type, items)):
                items = [self._inside(item, number, depth) for number, item in enumerate(items)]
            return tuple(items) if issubclass(kind, tuple) else items
        if issubclass(kind, dict):
            pairs = cast("dict[Any, Any]", value).items()
            return {key: self._inside(item, key, depth) for key, item in pairs}
        if kind is memoryview and not is_of_bytes(value):
            return value  # which could not travel
        if kind in (bytearray, memoryview):
            return bytes(value)
        return self._copied_record(value, depth)

    def _copied_record(self, value: Any, depth: int) -> Any:
        try:
            parts = parts_of(value)
        except EncodingError:
            return value  # which could not travel
        if parts is None:
            return value
        items = [
            self._at(parts.step(number), item, depth) for number, item in enumerate(parts.items)
        ]
        return make_record(parts._replace(items=items))

    def _inside(self, value: Any, step: object, depth: int) -> Any:
        return self._at(f"[{shown(step)}]", value, depth)

    def _at(self, step: str, value: Any, depth: int) -> Any:
        try:
            return self._copied(value, depth + 1)
        except EncodingError as error:
            raise error.within(step) from error.__cause__

    def _copied_array(self, array: Any) -> Any:
        if not is_array(array):
            return self._to_host(array)
        if array.dtype.hasobject or array.dtype.names is not None:
            return array.copy()  # which could not travel
        plain = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        return np.array(plain, order="C")

    def _to_host(self, array: Any) -> Array:
        return self._worker.arrays.to_host(array)
