"""The Session: one program on many workers, as its client sees it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Self, SupportsIndex

from disco_client.arguments import check_worker, dims_of
from disco_client.arrays import Array, Downloads, Uploads, as_host_array, kind_of
from disco_client.capture import Capturing, StepLines
from disco_client.checkpointing import Checkpointing
from disco_client.collectives import Collectives
from disco_client.command_log import Fill
from disco_client.distributed.sessions import Distribution
from disco_client.errors import (
    EncodingError,
    ForeignReference,
    SessionClosed,
)
from disco_client.handles import Distributed, DPackedFunc, DRef
from disco_client.identity import Identity
from disco_client.inspecting import Inspecting
from disco_client.lasting import Lasting
from disco_client.modules import Modules
from disco_client.output import LogSink, drop_logs, print_logs
from disco_client.starting import close, start
from disco_client.telemetry import spans
from disco_client.telemetry.base import Span
from disco_client.transport.base import Interrupted, Live, Transport
from disco_client.waiting import AUTO
from disco_client.weights.loading import WeightLoading
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import (
    Action,
    EncodedCommand,
    EncodedValue,
    decode_value,
    encode_value,
)
from disco_client.wire.values import Device, Shape, dtype_from_name, is_array

__all__ = ["Session"]

_SMALLEST, _LARGEST = -(1 << 61), (1 << 61) - 1
"""Integers that still fit 64 bits when they are doubled."""


class Session(
    Identity,
    Checkpointing,
    Collectives,
    Capturing,
    Distribution,
    Inspecting,
    Modules,
    WeightLoading,
    Lasting,
):
    """One SPMD program: its workers, their registers, and its ordered command log.

    Calls are asynchronous: they return at once, and every worker executes them in
    the order in which they were issued. What goes wrong on a worker is raised by
    the next call that waits: :meth:`sync_worker_0`, :meth:`sync_worker`,
    :meth:`sync_all`, fetching a value or an array, or leaving the ``with`` block.

    Made by :func:`disco_client.connect`. A context manager; its methods may be
    called from several threads.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        num_groups: int = 1,
        ccl: str | None = None,
        log_sink: LogSink | None = print_logs,
        hang_report: float | None = AUTO,
        span: Span | None = None,
    ) -> None:
        welcome = transport.welcome
        self._span = span = span or spans.begin("disco.session")
        self._transport = transport
        self._num_groups = num_groups
        self._ccl = ccl
        self._log_sink = log_sink
        self._builtins: dict[str, DPackedFunc] = {}
        self._builtins_lock = threading.Lock()
        # Not those of a program that has used the session before.
        self._tickets = (welcome.first_seq - 1) << TICKETS_SHIFT
        self._closed = False
        self._recorders = {}
        self._step_lines = StepLines()
        # What the transport's threads call must not keep the session alive.
        self._log, self._inbox = start(
            transport, log_sink or drop_logs, self._step_lines.explain, hang_report, span
        )
        self._finalizer = weakref.finalize(self, close, self._log, transport, welcome.name, span)

    # What it is ----------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """Counts of this moment: commands issued and executed, registers in use."""
        return self._log.statistics()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        nodes = len({rank.node for rank in self._welcome.ranks})
        return f"<Session {self.name!r}: {self.num_workers} workers on {nodes} nodes, {state}>"

    # Functions -----------------------------------------------------------------

    def get_global_func(self, name: str) -> DPackedFunc:
        """Refers to a function by name; the workers look it up.

        Args:
            name: A registered name such as ``"runtime.disco.empty"``, or a dotted
                name such as ``"numpy.matmul"`` that the workers' allow-list covers.

        Returns:
            The function, at once; a missing one is an error of the next sync
            (:class:`~disco_client.FunctionNotFound`).
        """
        if not isinstance(name, str):
            msg = f"expected a function's name, got {name!r} of type {type(name).__name__}"
            raise TypeError(msg)
        return self._here()._look_up(name)

    def _look_up(self, name: str) -> DPackedFunc:
        def fill(command: EncodedCommand) -> int:
            command.args.add().str = name
            return 0

        _, reg = self._log.issue(Action.GET_GLOBAL_FUNC, fill)
        return DPackedFunc(DRef(reg, self), self)

    def call_packed(self, func: DRef, *args: object) -> DRef:
        """Calls a function on every worker; returns at once.

        Args:
            func: What :meth:`get_global_func` or a module returned.
            *args: None, bool, int of 64 bits, float, str, bytes, dtype, Device,
                Shape, arrays, references, and lists or string-keyed dicts of them.
                A reference becomes what each worker's register holds. An array
                is copied; a large one has been sent when this returns.

        Returns:
            The register that will hold each worker's result.

        Raises:
            TypeError: ``func`` is no reference.
            EncodingError: An argument is of a kind that cannot travel.
            ForeignReference: A reference belongs to another session.
            SessionError: The session is closed or lost.
        """
        if self._recorders and (here := self._here()) is not self:
            return here.call_packed(func, *args)
        if not isinstance(func, DRef):
            msg = (
                f"expected a function reference (from get_global_func or a module), got {func!r} "
                f"of type {type(func).__name__}"
            )
            raise TypeError(msg)
        function = self._check_ref(func)
        plain: list[int] = []
        for arg in args:
            if isinstance(arg, DRef):
                plain.append(self._check_ref(arg) * 2 + 1)
            elif type(arg) is int and _SMALLEST <= arg <= _LARGEST:
                plain.append(arg * 2)
            else:
                return self._call_with_values(function, args)
        return DRef(self._log.issue_call(function, plain), self)

    def _call_with_values(self, function: int, args: tuple[object, ...]) -> DRef:
        """Calls a function with arguments of any kind that may travel."""
        uploads = self._uploads()

        def fill(command: EncodedCommand) -> int:
            add = command.args.add
            for arg in args:
                encode_value(add(), arg, uploads, self._register_of)
            return command.ByteSize()

        with uploads:
            _, reg = self._log.issue(Action.CALL_PACKED, fill, func=function, beside=uploads.nbytes)
            out = DRef(reg, self)
            uploads.send()
        return out

    def _uploads(self, worker: int | None = None) -> Uploads:
        """Collects large arrays for a worker, or for all of them."""
        workers = range(self.num_workers) if worker is None else (worker,)
        return Uploads(self._take_ticket, self._carrier, workers, self._raise_if_lost, self._span)

    def import_python_module(self, name: str) -> None:
        """Imports a Python module on every worker, so that its functions register.

        Errors come at the next sync: :class:`~disco_client.NotAllowed` where a
        worker's allow-list does not cover it, :class:`~disco_client.FunctionNotFound`
        where there is no such module.
        """
        self._call_builtin("runtime.disco._import_python_module", name)

    def _builtin(self, name: str) -> DPackedFunc:
        func = self._builtins.get(name)
        if func is None:
            with self._builtins_lock:
                func = self._builtins.get(name)
                if func is None:
                    func = self._builtins[name] = self._look_up(name)
        return func

    def _call_builtin(self, name: str, *args: object) -> DRef:
        return self.call_packed(self._builtin(name), *args)

    def _call_now(self, name: str, *args: object) -> DRef:
        """Calls a function for this session, also in a thread that captures a program."""
        return self._call_with_values(self._builtin(name).reg_id, args)

    # Arrays ----------------------------------------------------------------------

    def empty(
        self,
        shape: Iterable[SupportsIndex],
        dtype: object,
        device: Device | str | None = None,
        worker0_only: bool = False,
        in_group: bool = True,
    ) -> DRef:
        """Allocates an uninitialised array on the workers.

        Args:
            shape: Its extents; ``()`` makes a 0-d array.
            dtype: A numpy dtype or its name, ``"bfloat16"`` included.
            device: A device such as ``"cuda:0"``; None means each worker's own.
            worker0_only: Allocate on worker 0 alone, or with ``in_group`` on the
                first worker of each group; the others hold None.
            in_group: See ``worker0_only``.

        Raises:
            ConfigError: A wrong dtype or device.
            TypeError, ValueError: A wrong shape.
        """
        where = Device.parse(device) if isinstance(device, str) else device
        return self._call_builtin(
            "runtime.disco.empty",
            Shape(dims_of(shape)),
            dtype_from_name(dtype),
            where,
            bool(worker0_only),
            bool(in_group),
        )

    def copy_to_worker_0(self, host_array: object, remote_array: DRef | None = None) -> DRef:
        """Copies a host array to worker 0.

        The array may be changed as soon as this returns.

        Args:
            host_array: An array, or what ``numpy.asarray`` makes one of.
            remote_array: Where to copy it: an array of the same dtype and number
                of elements. None allocates one on worker 0.

        Returns:
            The reference of the copy.

        Raises:
            EncodingError: The host array holds Python objects.
            SessionError: The session is closed or lost.
        """
        here = self._here()
        array = as_host_array(host_array)
        reg = here._send_array(Action.COPY_TO_WORKER0, remote_array, 0, array, answers=0)
        return DRef(reg, here) if remote_array is None else remote_array

    def copy_from_worker_0(self, host_array: Array, remote_array: DRef) -> None:
        """Fills a host array from worker 0; waits until it is filled.

        Args:
            host_array: A writable array of the remote one's dtype and number of
                elements, contiguous or not.
            remote_array: The array on worker 0.

        Raises:
            BadArgument: Size or dtype differ.
            EncodingError: The host array cannot be written.
            SessionError: The session is closed or lost.
        """
        if not is_array(host_array) or not host_array.flags.writeable:
            msg = f"expected a writable numpy array to copy into, got {kind_of(host_array)}"
            raise EncodingError(msg)

        def fill(command: EncodedCommand) -> int:
            encode_value(command.args.add(), Shape(host_array.shape))
            encode_value(command.args.add(), host_array.dtype)
            return 0

        here = self._here()
        asked = here._question(Action.COPY_FROM_WORKER0, remote_array, 0, fill)
        got = here._answered(asked, 0, into=host_array)
        if got is not host_array:
            host_array[...] = got.reshape(host_array.shape)

    def _get(self, ref: DRef, worker: int) -> Any:
        return self._get_all(ref, (self._check_worker(worker),))[0]

    def _get_all(self, ref: DRef, workers: Sequence[int], *, own: bool = False) -> list[Any]:
        """Fetches from several workers; ``own``: also between threads, arrays are copies."""
        here, action = self._here(), Action.DEBUG_GET_FROM_REMOTE
        asked = [(here._question(action, ref, worker), worker) for worker in workers]
        return [here._answered(seq, worker, own=own) for seq, worker in asked]

    def _fill(self, ref: DRef, worker: int, array: Array) -> None:
        """Copies into the array of one worker's register; errors come later."""
        self._here()._send_array(Action.COPY_TO_WORKER0, ref, worker, array, answers=0)

    def _set(self, ref: DRef, worker: int, value: object) -> None:
        array = as_host_array(value)
        self._here()._send_array(
            Action.DEBUG_SET_REGISTER, ref, self._check_worker(worker), array, answers=1
        )

    def _question(self, action: Action, ref: DRef, worker: int, fill: Fill | None = None) -> int:
        reg = self._check_ref(ref)
        return self._log.issue(action, fill, reg=reg, worker=worker, answers=1)[0]

    def _answered(
        self, seq: int, worker: int, into: Array | None = None, *, own: bool = False
    ) -> Any:
        try:
            value = self._read_answer(seq, worker, into, own=own)
            while isinstance(value, Interrupted):
                value = self._read_answer(seq, worker, into, own=own)
        finally:
            self._inbox.forget(seq)
        self._inbox.raise_pending()
        return value

    def _read_answer(self, seq: int, worker: int, into: Array | None, *, own: bool) -> Any:
        answer = self._inbox.look(seq, self._transport.check_alive)
        got: EncodedValue | Live = answer.values[worker]
        if isinstance(got, Live):
            return got.value.copy() if own else got.value
        try:
            # Decoded in any case: an array that is offered must be fetched.
            return decode_value(got, Downloads(self._carrier, worker, into, self._span))
        except Interrupted as lost:
            return lost

    def _send_array(
        self, action: Action, ref: DRef | None, worker: int, array: Array, *, answers: int
    ) -> int:
        """Issues a copy to a worker; returns the register, a new one without ``ref``."""
        uploads = self._uploads(worker)

        def fill(command: EncodedCommand) -> int:
            value = command.args.add()
            encode_value(value, array, uploads)
            command.args.add().bool = ref is None
            return value.ByteSize()

        reg = None if ref is None else self._check_ref(ref)
        with uploads:
            seq, reg = self._log.issue(
                action, fill, reg=reg, worker=worker, answers=answers, beside=uploads.nbytes
            )
            uploads.send()
        if answers:
            self._inbox.wait(seq, self._transport.check_alive)
        return reg

    def _bring(self, worker: int, array: Array) -> DRef:
        reg = self._send_array(Action.COPY_TO_WORKER0, None, worker, array, answers=0)
        return DRef(reg, self)

    def _take_ticket(self) -> int:
        self._tickets += 1  # under the log's lock
        return self._tickets

    # Waiting -----------------------------------------------------------------------

    def sync_worker(self, worker_id: int) -> None:
        """Waits until a worker has executed every command issued before.

        Raises:
            RemoteError: A command failed on some worker and no call has raised it.
            SessionError: The session is closed or lost.
        """
        self._sync(self._check_worker(worker_id))

    def sync_worker_0(self) -> None:
        """Waits until worker 0 has executed every command issued before.

        Raises:
            RemoteError: A command failed on some worker and no call has raised it.
            SessionError: The session is closed or lost.
        """
        self._sync(0)

    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before.

        Raises:
            RemoteError: A command failed on some worker and no call has raised it.
            SessionError: The session is closed or lost.
        """
        self._sync(None)

    def _sync(self, worker: int | None) -> None:
        if self._recorders and (here := self._here()) is not self:
            here._sync(worker)
        pump = self._inbox.pump
        if pump is None:
            self._await(self._mark(worker))
            return
        self._log.check_open()
        workers = range(self.num_workers) if worker is None else (worker,)
        self._inbox.reach(workers, pump, self._transport.check_alive)
        self._inbox.raise_pending()

    def _mark(self, worker: int | None = None) -> int:
        """Asks to be told when what was issued before is executed; :meth:`_await` waits."""
        answers = self.num_workers if worker is None else 1
        seq, _ = self._log.issue(Action.SYNC_WORKER, reg=0, worker=worker, answers=answers)
        return seq

    def _await(self, mark: int) -> None:
        self._inbox.wait(mark, self._transport.check_alive)
        self._inbox.raise_pending()

    _sync_worker = sync_worker
    _sync_all = sync_all

    # The end ------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends the session and frees its slots; idempotent.

        Errors that no call has raised are not raised here; leaving the ``with``
        block, or :meth:`sync_all` before, raises them.
        """
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        try:
            if kind is None and not self._closed:
                self._raise_unseen()
        finally:
            self.shutdown()

    def _raise_unseen(self) -> None:
        """Raises what no call has raised yet."""
        lost = self._log.closed
        if lost is None:
            self.sync_all()
        elif not (self._log.told or self._inbox.told):
            raise lost

    # Checks --------------------------------------------------------------------------

    def _release(self, register: int) -> None:
        self._log.release(register)

    def _here(self) -> Session:
        """This session, or what records for it in a thread that captures a program."""
        return self._recorders.get(threading.get_ident(), self) if self._recorders else self

    def _check_ref(self, ref: DRef) -> int:
        return ref.reg_id if ref.session is self else ref.session._lend(ref, self)

    def _lend(self, ref: DRef, to: Session) -> int:
        msg = (
            f"expected a reference of session {to.name!r}, got one of session {ref.session.name!r}"
        )
        raise ForeignReference(msg)

    def _register_of(self, value: object) -> int | None:
        if isinstance(value, DRef):
            return self._check_ref(value)
        return self._check_ref(value.ref) if isinstance(value, Distributed) else None

    def _check_worker(self, worker: int) -> int:
        return check_worker(worker, self.num_workers)

    def _raise_if_lost(self) -> None:
        error = self._log.closed
        if error is not None and not isinstance(error, SessionClosed):
            raise error
