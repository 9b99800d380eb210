"""The core of a session: its log, its inbox and its transport, and references to registers.

What works with a session (weights, modules, programs, collectives, distributed tensors)
takes a core; :class:`~disco_client.Session` is its public face. The core ends the session
when it is collected, and every reference keeps it: a program that keeps nothing but a
reference keeps the session open.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar, cast

from disco_client.arguments import check_worker, dims_of
from disco_client.arrays.host_tensor import with_tensors
from disco_client.arrays.transfer import Downloads, Uploads
from disco_client.command_log import CommandLog, StepLines
from disco_client.diagnosis import look_at
from disco_client.errors import (
    ConfigError,
    EncodingError,
    ForeignReference,
    RemoteFailure,
    SessionClosed,
    SessionError,
)
from disco_client.forks import disown_in_children, leak, not_here
from disco_client.output import LogSink, drop_logs
from disco_client.replies import AUTO, Inbox, LongWaits, read_hang_report
from disco_client.scopes import current_scope
from disco_client.telemetry import spans
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.transport.base import (
    Events,
    ForeignTransport,
    Interrupted,
    Live,
    Transport,
    Welcome,
)
from disco_client.transport.sent_log import SentLog
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import (
    Action,
    EncodedCommand,
    EncodedValue,
    decode_value,
    encode_value,
    tickets_in,
)
from disco_client.wire.host_arrays import Array, as_destination, as_host_array
from disco_client.wire.values import Shape, device_of, dtype_from_name

if TYPE_CHECKING:
    import numpy as np

    from disco_client.command_log import Fill

__all__ = ["DModule", "DPackedFunc", "DRef", "Distributed", "SessionCore", "core_of"]

_CLOSE_TIMEOUT_S = 10.0
_SMALLEST, _LARGEST = -(1 << 61), (1 << 61) - 1
"""Integers that still fit 64 bits when they are doubled."""

_Part = TypeVar("_Part")


class DRef:
    """A register, the same one on every worker; when it dies, they empty it.

    Attributes:
        reg_id: The register.
        session: The session it belongs to; inside a capture, what records for it.
    """

    __slots__ = ("__weakref__", "_core", "_owner", "reg_id", "session")

    def __init__(self, reg_id: int, session: Any, owner: DRef | None = None) -> None:
        """Made by a session, never by a program.

        Args:
            reg_id: The register.
            session: The session it belongs to.
            owner: The reference that frees the register, where this one does not.
        """
        self.reg_id = reg_id
        self.session = session
        self._core: SessionCore = session._core  # noqa: SLF001  (a session and its core are one)
        self._owner = owner

    def __del__(self) -> None:
        # Attributes are missing where __init__ raised.
        if getattr(self, "_owner", self) is None:
            self._core.release(self.reg_id)

    def debug_get_from_remote(self, worker_id: int) -> Any:
        """Fetches what one worker's register holds; waits for it.

        Returns:
            The value; an :class:`~disco_client.Opaque` for an object that cannot
            travel, such as a function. Arrays, also those in lists and maps, are numpy
            arrays that have the methods of a ``tvm.runtime.Tensor`` as well: ``numpy()``
            returns a plain copy, ``copyfrom()`` and ``copyto()`` copy, and ``device``
            equals both ``"cpu"`` and ``tvm.cpu(0)``. Slices and results are plain
            arrays, as what :meth:`numpy` returns is.

        Raises:
            RemoteError: The register is poisoned by an earlier failure.
            SessionError: The session is closed or lost.
        """
        return with_tensors(self._core.get(self, worker_id))

    def debug_copy_from(self, worker_id: int, value: object) -> None:
        """Copies an array into one worker's register; waits until it is there.

        Args:
            worker_id: The worker.
            value: A host array as for ``Session.copy_to_worker_0``. Where the
                register already holds an array of that size and dtype, it is
                overwritten in place, so that other registers with the same array
                see it; otherwise the register is replaced.

        Raises:
            BadArgument: The register holds an array of another size or dtype.
            EncodingError: The value is no array of plain numbers.
            SessionError: The session is closed or lost.
        """
        self._core.set(self, worker_id, value)

    def numpy(self, worker_id: int = 0) -> np.ndarray[Any, Any]:
        """Fetches the array that one worker's register holds.

        Raises:
            TypeError: The register holds something else.
            RemoteError: The register is poisoned by an earlier failure.
            SessionError: The session is closed or lost.
        """
        import numpy as np

        value = self._core.get(self, worker_id)
        if isinstance(value, (np.ndarray, bool, int, float)):
            return np.asarray(value)
        msg = f"expected an array in register {self.reg_id} of worker {worker_id}, got {value!r}"
        raise TypeError(msg)

    def __getitem__(self, key: Any, /) -> DRef:
        """Takes one item out of what the register holds, on every worker; returns at once.

        Args:
            key: A position in a list or along an array's first axis, or a map's key.

        Returns:
            The item's own reference; a missing one is an error of the next sync
            (:class:`~disco_client.BadArgument`).
        """
        return self._core.call_builtin("runtime.disco.get_item", self, key)

    # How many items there are is known to the workers alone.
    __iter__ = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(reg_id={self.reg_id}, session={self.session.name!r})"

    def _repr_html_(self) -> str:
        from disco_client.notebook import facts_table

        facts = {
            "session": self.session.name,
            "register": f"{self.reg_id} on each of {self.session.num_workers} workers",
        }
        return facts_table(type(self).__name__, facts)


class Distributed(ABC):
    """A whole of which a register holds each worker's part; a distributed tensor is one.

    As an argument of a call it stands for its reference.

    Attributes:
        ref: The reference.
    """

    __slots__ = ()

    ref: DRef

    @abstractmethod
    def held_by(self, ref: DRef) -> Distributed:
        """The same kind of whole, with the same layout, in another register."""

    @abstractmethod
    def refuse_unlike(self, value: object, name: str) -> None:
        """Makes sure that something has the same layout as this one.

        Args:
            value: Anything.
            name: What it was given as.

        Raises:
            TypeError: It is no such whole.
            ConfigError: It has another layout.
        """


class DPackedFunc(DRef):
    """A reference to a function; calling it calls the function on every worker."""

    __slots__ = ()

    def __init__(self, dref: DRef, session: Any) -> None:
        """Takes a reference whose register holds a function.

        Raises:
            ForeignReference: The reference belongs to another session.
        """
        super().__init__(core_of(session).check_ref(dref), dref.session, owner=dref)

    def __call__(self, *args: object) -> DRef:
        """Calls the function on every worker; returns at once.

        Returns:
            The register that will hold each worker's result.
        """
        return self._core.call(self, *args)


class DModule(DRef):
    """A reference to a module; ``module["name"]`` is one of its functions."""

    __slots__ = ()

    def __init__(self, dref: DRef, session: Any) -> None:
        """Takes a reference whose register holds a module.

        Raises:
            ForeignReference: The reference belongs to another session.
        """
        super().__init__(core_of(session).check_ref(dref), dref.session, owner=dref)

    def __getitem__(self, name: str, /) -> DPackedFunc:
        """Looks a function up on every worker; a missing one is an error of the next sync."""
        getter = self._core.builtin("ffi.ModuleGetFunction")
        return DPackedFunc(getter(self, name), self.session)

    def __contains__(self, name: object, /) -> bool:
        """Whether the module has a function of that name; waits for worker 0."""
        if not isinstance(name, str):
            return False
        found = self._core.call_builtin("ffi.ModuleGetFunction", self, name, True)
        return self._core.get(found, 0) is not None

    def names(self) -> list[str]:
        """The names of the module's functions, sorted; waits for worker 0.

        Compiled modules and those of other loaders may have functions besides.
        """
        names = self._core.get(self._core.call_builtin("runtime.disco._module_names", self), 0)
        return [str(name) for name in names]


def core_of(thing: Any) -> SessionCore:
    """The core of a session, or of the session that a reference belongs to.

    Args:
        thing: A session, or a reference.
    """
    return thing._core  # noqa: SLF001  (the same)


class SessionCore:
    """What other modules need of a session: issuing, looking up, asking, waiting.

    Args:
        log: Numbers the commands.
        inbox: Gets the answers.
        transport: Carries both, and large arrays.
        num_groups: Into how many equal groups the workers are divided.
        span: Of the session's life.
        step_lines: Where the steps of its programs were captured.

    Attributes:
        carrier: What carries large arrays: the transport; while the session is traced,
            with notes of it.
        closed: Whether the program has ended the session, or left it.
        face: Returns the session that programs hold. It is made once, and lives as long
            as it, or any reference, is held; the core alone does not keep it.
        recorders: The active captures, by the thread that captures.
    """

    def __init__(
        self,
        log: CommandLog,
        inbox: Inbox,
        transport: Transport,
        *,
        num_groups: int = 1,
        span: Span = NO_SPAN,
        step_lines: StepLines | None = None,
    ) -> None:
        self.log = log
        self.inbox = inbox
        self.transport = transport
        self.carrier = transport
        self.span = span
        self.num_groups = num_groups
        self.step_lines = step_lines or StepLines()
        self.recorders: dict[int, SessionCore] = {}
        self.closed = False
        self.face: Callable[[], Any] = lambda: None
        self._builtins: dict[str, DPackedFunc] = {}
        self._builtins_lock = threading.Lock()
        self._parts: dict[object, Any] = {}
        # Not those of a program that has used the session before.
        self._tickets = (transport.welcome.first_seq - 1) << TICKETS_SHIFT
        self._finalizer: weakref.finalize[..., Any] | None = None

    @classmethod
    def start(
        cls,
        transport: Transport,
        *,
        num_groups: int = 1,
        log_sink: LogSink | None = None,
        hang_report: float | None = AUTO,
        span: Span | None = None,
    ) -> SessionCore:
        """Makes the core of a session, which ends the session when it has no references any more.

        Args:
            transport: Opened, and not yet started.
            num_groups: Into how many equal groups the workers are divided.
            log_sink: Gets what workers print; None discards it.
            hang_report: After how many seconds a wait says what it waits for; see
                :func:`~disco_client.replies.read_hang_report`.
            span: Of the session's life; it fails when the session is lost.

        Raises:
            ConfigError: ``hang_report`` is no such number.
        """
        span = span or spans.begin("disco.session")
        lines = StepLines()
        # What the transport's threads call must not keep the session alive.
        log, inbox = _start(transport, log_sink or drop_logs, lines.explain, hang_report, span)
        core = cls(log, inbox, transport, num_groups=num_groups, span=span, step_lines=lines)
        name = transport.welcome.name
        core._finalizer = weakref.finalize(core, _close, log, transport, name, span)
        disown_in_children(core)
        return core

    # What it is ----------------------------------------------------------------

    @property
    def welcome(self) -> Welcome:
        """Which session it is, and where its workers run."""
        # A session that recovers has other workers, and another id, afterwards.
        return self.transport.welcome

    @property
    def num_workers(self) -> int:
        """How many workers the session has."""
        return len(self.welcome.ranks)

    @property
    def name(self) -> str:
        """The session's name at the controller."""
        return self.welcome.name

    @property
    def session_id(self) -> str:
        """The session's id at the controller, in hexadecimal."""
        return f"{self.welcome.session:016x}"

    def show_as(self, face: object) -> None:
        """Notes the session that programs hold."""
        self.face = weakref.ref(face)

    def part(self, make: Callable[[SessionCore], _Part]) -> _Part:
        """What belongs to the session and works with it: made at its first use, and kept.

        Args:
            make: Makes it, mostly its class.
        """
        found = self._parts.get(make)
        # Of two threads that made one, the first one's counts.
        return self._parts.setdefault(make, make(self)) if found is None else found

    def __reduce__(self) -> NoReturn:
        msg = (
            f"session {self.name!r} and its references are of use in this process alone; open a"
            " session in the other one, or hand data over as arrays (.numpy())"
        )
        raise EncodingError(msg)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        nodes = len({rank.node for rank in self.welcome.ranks})
        return f"<Session {self.name!r}: {self.num_workers} workers on {nodes} nodes, {state}>"

    # Functions -----------------------------------------------------------------

    def look_up(self, name: str) -> DPackedFunc:
        """Refers to a function by name, on every worker."""

        def fill(command: EncodedCommand) -> int:
            command.args.add().str = name
            return 0

        _, reg = self.log.issue(Action.GET_GLOBAL_FUNC, fill)
        face = self.face()
        return DPackedFunc(DRef(reg, face), face)

    def call(self, func: DRef, *args: object) -> DRef:
        """Calls a function on every worker; see ``Session.call_packed``."""
        if self.recorders and (here := self.here()) is not self:
            return here.call(func, *args)
        if not isinstance(func, DRef):
            msg = (
                f"expected a function reference (from get_global_func or a module), got {func!r} "
                f"of type {type(func).__name__}"
            )
            raise TypeError(msg)
        function = self.check_ref(func)
        plain: list[int] = []
        for arg in args:
            if isinstance(arg, DRef):
                plain.append(self.check_ref(arg) * 2 + 1)
            elif type(arg) is int and _SMALLEST <= arg <= _LARGEST:
                plain.append(arg * 2)
            else:
                return self._call_with_values(function, args)
        return DRef(self.log.issue_call(function, plain), self.face())

    def _call_with_values(self, function: int, args: tuple[object, ...]) -> DRef:
        """Calls a function with arguments of any kind that may travel."""
        uploads = self.uploads()

        def fill(command: EncodedCommand) -> int:
            add = command.args.add
            for arg in args:
                encode_value(add(), arg, uploads, self.register_of)
            return command.ByteSize()

        with uploads:
            _, reg = self.log.issue(Action.CALL_PACKED, fill, func=function, beside=uploads.nbytes)
            out = DRef(reg, self.face())
            uploads.send()
        return out

    def uploads(self, worker: int | None = None) -> Uploads:
        """Collects large arrays for a worker, or for all of them."""
        workers = range(self.num_workers) if worker is None else (worker,)
        return Uploads(self.take_ticket, self.carrier, workers, self._raise_if_lost, self.span)

    def builtin(self, name: str) -> DPackedFunc:
        """A function that every worker has, looked up once."""
        func = self._builtins.get(name)
        if func is None:
            with self._builtins_lock:
                func = self._builtins.get(name)
                if func is None:
                    func = self._builtins[name] = self.look_up(name)
        return func

    def is_builtin(self, func: DRef, name: str) -> bool:
        """Whether a function is that one, which every worker has."""
        return func is self._builtins.get(name)

    def call_builtin(self, name: str, *args: object) -> DRef:
        """Calls a function that every worker has."""
        return self.call(self.builtin(name), *args)

    def call_now(self, name: str, *args: object) -> DRef:
        """Calls a function for this session, also in a thread that captures a program."""
        return self._call_with_values(self.builtin(name).reg_id, args)

    # Arrays --------------------------------------------------------------------

    def empty(
        self,
        shape: Iterable[SupportsIndex],
        dtype: object,
        device: object = None,
        worker0_only: bool = False,
        in_group: bool = True,
    ) -> DRef:
        """Allocates an uninitialised array on the workers; see ``Session.empty``."""
        return self.call_builtin(
            "runtime.disco.empty",
            Shape(dims_of(shape)),
            dtype_from_name(dtype),
            device_of(device),
            bool(worker0_only),
            bool(in_group),
        )

    def copy_to_worker_0(self, host_array: object, remote_array: DRef | None = None) -> DRef:
        """Copies a host array to worker 0; see ``Session.copy_to_worker_0``."""
        here = self.here()
        array = as_host_array(host_array)
        reg = here.send_array(Action.COPY_TO_WORKER0, remote_array, 0, array, answers=0)
        return DRef(reg, here.face()) if remote_array is None else remote_array

    def copy_from_worker_0(self, host_array: object, remote_array: DRef) -> None:
        """Fills a host array from worker 0; see ``Session.copy_from_worker_0``."""
        out = as_destination(host_array)

        def fill(command: EncodedCommand) -> int:
            encode_value(command.args.add(), Shape(out.shape))
            encode_value(command.args.add(), out.dtype)
            return 0

        here = self.here()
        asked = here.question(Action.COPY_FROM_WORKER0, remote_array, 0, fill)
        got = here.answered(asked, 0, into=out)
        if got is not out:
            out[...] = got.reshape(out.shape)

    def get(self, ref: DRef, worker: int) -> Any:
        """Fetches what one worker's register holds."""
        return self.get_all(ref, (self.check_worker(worker),))[0]

    def get_all(self, ref: DRef, workers: Sequence[int], *, own: bool = False) -> list[Any]:
        """Fetches from several workers; ``own``: also between threads, arrays are copies."""
        here, action = self.here(), Action.DEBUG_GET_FROM_REMOTE
        asked = [(here.question(action, ref, worker), worker) for worker in workers]
        return [here.answered(seq, worker, own=own) for seq, worker in asked]

    def fill(self, ref: DRef, worker: int, array: Array) -> None:
        """Copies into the array of one worker's register; errors come later."""
        self.here().send_array(Action.COPY_TO_WORKER0, ref, worker, array, answers=0)

    def set(self, ref: DRef, worker: int, value: object) -> None:
        """Copies an array into one worker's register; waits until it is there."""
        array = as_host_array(value)
        self.here().send_array(
            Action.DEBUG_SET_REGISTER, ref, self.check_worker(worker), array, answers=1
        )

    def question(self, action: Action, ref: DRef, worker: int, fill: Fill | None = None) -> int:
        """Asks a worker something about a register; :meth:`answered` waits for the answer."""
        reg = self.check_ref(ref)
        return self.log.issue(action, fill, reg=reg, worker=worker, answers=1)[0]

    def answered(
        self, seq: int, worker: int, into: Array | None = None, *, own: bool = False
    ) -> Any:
        """Waits for a worker's answer, and raises what went wrong before it."""
        try:
            value = self._read_answer(seq, worker, into, own=own)
            while isinstance(value, Interrupted):
                value = self._read_answer(seq, worker, into, own=own)
        finally:
            self.inbox.forget(seq)
        self.inbox.raise_pending()
        return value

    def _read_answer(self, seq: int, worker: int, into: Array | None, *, own: bool) -> Any:
        answer = self.inbox.look(seq, self.transport.check_alive)
        got: EncodedValue | Live = answer.values[worker]
        if isinstance(got, Live):
            return got.value.copy() if own else got.value
        downloads = Downloads(self.carrier, worker, into, self.span)
        try:
            # Decoded in any case: an array that is offered must be fetched.
            return decode_value(got, downloads)
        except Interrupted as lost:
            return lost
        except BaseException:
            downloads.decline(list(tickets_in((got,))))
            raise

    def send_array(
        self, action: Action, ref: DRef | None, worker: int, array: Array, *, answers: int
    ) -> int:
        """Issues a copy to a worker; returns the register, a new one without ``ref``."""
        uploads = self.uploads(worker)

        def fill(command: EncodedCommand) -> int:
            value = command.args.add()
            encode_value(value, array, uploads)
            command.args.add().bool = ref is None
            return value.ByteSize()

        reg = None if ref is None else self.check_ref(ref)
        with uploads:
            seq, reg = self.log.issue(
                action, fill, reg=reg, worker=worker, answers=answers, beside=uploads.nbytes
            )
            try:
                uploads.send()
            except BaseException:
                self.inbox.forget(seq, told=True)
                raise
        if answers:
            self.inbox.wait(seq, self.transport.check_alive)
        return reg

    def bring(self, worker: int, array: Array) -> DRef:
        """Copies an array into a new register of one worker."""
        reg = self.send_array(Action.COPY_TO_WORKER0, None, worker, array, answers=0)
        return DRef(reg, self.face())

    def take_ticket(self) -> int:
        """The number under which the next large array travels."""
        self._tickets += 1  # under the log's lock
        return self._tickets

    # Waiting -------------------------------------------------------------------

    def sync(self, worker: int | None = None) -> None:
        """Waits until a worker, or every one, has executed what was issued before.

        Raises:
            RemoteError: A command of this scope failed and no call has raised it.
            SessionError: The session is closed or lost.
        """
        if self.recorders and (here := self.here()) is not self:
            here.sync(worker)
        pump = self.inbox.pump
        if pump is None:
            self.await_mark(self.mark(worker))
            return
        self.log.check_open()
        workers = range(self.num_workers) if worker is None else (worker,)
        self.inbox.reach(workers, pump, self.transport.check_alive)
        self.inbox.raise_pending(sync=True)

    def mark(self, worker: int | None = None) -> int:
        """Issues a mark that workers answer after all commands before; :meth:`await_mark` waits."""
        answers = self.num_workers if worker is None else 1
        seq, _ = self.log.issue(Action.SYNC_WORKER, reg=0, worker=worker, answers=answers)
        return seq

    def await_mark(self, mark: int) -> None:
        """Waits for what was issued before a mark, and raises what went wrong."""
        self.inbox.wait(mark, self.transport.check_alive)
        self.inbox.raise_pending(sync=True)

    # The end -------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends the session and frees its slots; see ``Session.shutdown``."""
        self.closed = True
        if self._finalizer is not None:
            self._finalizer()

    def release_all(self) -> None:
        """Empties every register of the workers; see ``Session.release_all``."""
        self.log.issue(Action.KILL_REG, _everything, reg=0)

    def leave(self, lease: float) -> str:
        """Leaves the session as it is on its workers; see ``Session.detach``."""
        if isinstance(lease, bool) or not isinstance(lease, int | float) or not lease > 0:
            msg = f"expected a lease of more than 0 seconds, got {lease!r}"
            raise ConfigError(msg)
        self.transport.check_detachable()
        self.sync()
        self.inbox.raise_left()
        self.transport.detach(lease)
        left = SessionClosed(
            f"this program has detached from session {self.name!r};"
            f" disco_client.attach({self.session_id!r}) goes on with it"
        )
        self.log.close(left, drop=False)
        self.shutdown()
        return self.session_id

    def disown(self) -> None:
        """Leaves the session to the process that forked this one."""
        transport, why = self.transport, not_here(self.name)
        self.closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        leak(transport)
        self.transport = cast("Transport", ForeignTransport(transport.welcome, why))
        self.carrier = self.transport
        self.log.disown(why)
        self.inbox.disown(why)
        self._builtins_lock = threading.Lock()
        self.recorders = {}
        transport.disown()

    def raise_unseen(self) -> None:
        """Raises what no call has raised yet."""
        lost = self.log.closed
        if lost is None:
            self.sync()
            self.inbox.raise_left()
        elif not (self.log.told or self.inbox.told):
            raise lost

    # Checks --------------------------------------------------------------------------

    def release(self, register: int) -> None:
        """Notes that a reference died; safe inside the garbage collector."""
        self.log.release(register)

    def here(self) -> SessionCore:
        """This session, or what records for it in a thread that captures a program."""
        return self.recorders.get(threading.get_ident(), self) if self.recorders else self

    def check_ref(self, ref: DRef) -> int:
        """The register of a reference; an error where it is of another session."""
        return ref.reg_id if ref._core is self else ref._core.lend(ref, self)  # noqa: SLF001

    def lend(self, ref: DRef, to: SessionCore) -> int:
        """Called when another session is given a reference of this one: raises an error."""
        msg = (
            f"expected a reference of session {to.name!r}, got one of session {ref.session.name!r}"
        )
        raise ForeignReference(msg)

    def register_of(self, value: object) -> int | None:
        """The register that an argument stands for, if it is a reference."""
        if isinstance(value, DRef):
            return self.check_ref(value)
        return self.check_ref(value.ref) if isinstance(value, Distributed) else None

    def check_worker(self, worker: int) -> int:
        """The number of a worker; an error where there is none."""
        return check_worker(worker, self.num_workers)

    def _raise_if_lost(self) -> None:
        error = self.log.closed
        if error is not None and not isinstance(error, SessionClosed):
            raise error


def _everything(command: EncodedCommand) -> int:
    command.args.add().bool = True
    return 0


def _start(
    transport: Transport,
    sink: LogSink,
    explain: Callable[[RemoteFailure], RemoteFailure],
    hang_report: float | None,
    span: Span,
) -> tuple[CommandLog, Inbox]:
    """Makes log and inbox of a session and starts its transport with them."""
    after = read_hang_report(hang_report)
    welcome = transport.welcome
    log = CommandLog(welcome.session, len(welcome.ranks), welcome.first_seq)
    inbox = Inbox(
        log.acknowledge,
        lambda: log.acked,
        log.origin,
        lambda: current_scope(log),
        explain,
        welcome.first_seq,
    )
    log.on_expect = inbox.expect

    def describe() -> tuple[str, bool]:
        found = look_at(transport, log)
        return str(found), found.goes_on

    log.long_waits = inbox.long_waits = LongWaits(after, describe)

    def lost(error: SessionError) -> None:
        if not isinstance(error, SessionClosed):
            span.fail(error)
        log.close(error, drop=True)
        inbox.lose(error)

    span.note(
        {
            "disco.session.id": f"{welcome.session:016x}",
            "disco.session.name": welcome.name,
            "disco.num_workers": len(welcome.ranks),
            "disco.nodes": sorted({rank.node for rank in welcome.ranks}),
        }
    )
    # A thread that waits may send and receive by itself.
    inbox.pump = transport.pump
    log.direct = inbox.pump is not None
    sent = SentLog(welcome.session, log.take_batch, lambda: log.acked)
    transport.start(
        Events(
            await_commands=log.await_commands,
            nudge=log.nudge,
            acked=lambda: log.acked,
            take_batch=log.take_batch,
            reply=inbox.receive,
            live=inbox.receive_live,
            acknowledge=log.acknowledge,
            log=sink,
            lost=lost,
            send=sent.send,
            resend=sent.rewind,
            reopen=inbox.reopen,
            is_open=inbox.is_open,
            mark=log.mark,
            issued=lambda: log.last_seq,
        )
    )
    return log, inbox


def _close(log: CommandLog, transport: Transport, name: str, span: Span) -> None:
    """Ends a session; also run when it is collected, and at interpreter exit."""
    log.close(SessionClosed(f"session {name!r} was shut down"), drop=False)
    try:
        transport.close(_CLOSE_TIMEOUT_S)
    finally:
        span.note({"disco.commands": log.last_seq})
        span.end()
