"""The core of a session: its log, its inbox and its transport, and references to registers.

What works with a session (weights, modules, programs, collectives, distributed tensors)
takes a core; :class:`~disco_client.Session` is its public face. The core ends the session
when it is collected, and every reference keeps it: a program that keeps nothing but a
reference keeps the session open.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from disco_client.arguments import WorkerGrid, check_chosen, check_worker, dims_of
from disco_client.arrays.host_tensor import with_tensors
from disco_client.arrays.transfer import Downloads, Uploads, UploadsUnderWay
from disco_client.command_log import CommandLog
from disco_client.conversation import Conversation
from disco_client.copies import Handle, copy_fields
from disco_client.diagnosis import look_at
from disco_client.errors import (
    ConfigError,
    EncodingError,
    ForeignReference,
    Reentered,
    RemoteError,
    RemoteFailure,
    SessionClosed,
    SessionError,
    WorkersReplaced,
    WouldBlock,
)
from disco_client.forks import leak, leave_in_children, not_here
from disco_client.futures import Background, RefFuture, await_all, await_room, send_soon
from disco_client.limits import LimitBlock
from disco_client.locks import make_lock
from disco_client.no_operand import NoOperand
from disco_client.notebook import WorkTable, facts_table
from disco_client.output import LogSink, PrintedLines
from disco_client.reentry import import_uninterrupted
from disco_client.replies import Inbox
from disco_client.scopes import Scope, current_owner, in_event_loop
from disco_client.sources import described
from disco_client.step_lines import StepLines
from disco_client.streams import Stream, check_ahead
from disco_client.telemetry import spans
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.text import many
from disco_client.threads import is_helper
from disco_client.transport.base import AnswerLost, ForeignTransport, Live, Transport, Welcome
from disco_client.type_variables import P, T_co
from disco_client.waiting import AUTO, Deadline, LongWaits, read_hang_report
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import (
    Action,
    EncodedCommand,
    EncodedValue,
    decode_value,
    encode_names,
    encode_value,
    tickets_in,
)
from disco_client.wire.host_arrays import Array, as_destination, as_host_array, as_numbers
from disco_client.wire.values import (
    INLINE_ARRAY_BYTES,
    Shape,
    checked_dtype,
    device_of,
    extents_of,
)

if TYPE_CHECKING:
    import numpy as np

    from disco_client.call_sites import Site
    from disco_client.command_log import Abandoned, Fill
    from disco_client.recovery.replay import Replaying
    from disco_client.window import Bar

__all__ = [
    "ChosenFunction",
    "Companion",
    "DModule",
    "DPackedFunc",
    "DRef",
    "Distributed",
    "LimitedFunction",
    "Renewable",
    "SessionCore",
    "core_of",
    "holding",
]

_CLOSE_TIMEOUT_S = 10.0
_SMALLEST, _LARGEST = -(1 << 61), (1 << 61) - 1
"""Integers that still fit 64 bits when they are doubled."""

_Remote: TypeAlias = "DRef | Distributed"
_Part = TypeVar("_Part")
_Ref = TypeVar("_Ref", bound="DRef")
_Item = TypeVar("_Item")


class _Ended:
    """Takes the place of the core in a reference that has ended; refuses every use.

    The garbage collector ends all references of a cycle before its other objects are gone, so
    that these can still use them: in ``__del__``, in ``finally`` of a generator. No check
    looks for that: a session refuses a reference whose core is not its own.
    """

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        raise ForeignReference(_FREED)


_FREED = (
    "this reference has ended and its register was freed, where another value may be by now;"
    " the garbage collector ends the references of a cycle of objects before some of these"
    " objects' __del__ and finally run. Use it before, or keep a reference outside of the cycle"
)
_ENDED: Any = _Ended()
_NOT_KNOWN: dict[str, Any] = {}


class DRef(Handle, NoOperand, Generic[T_co]):
    """A register, the same one on every worker; when it dies, they empty it.

    For type checkers it is a ``DRef[T]``, where it is known that the value is a ``T``.

    ``copy.copy`` makes another reference to the register, which lives as long as any of them;
    pickle and ``copy.deepcopy`` are an :class:`~disco_client.EncodingError`.

    It is no operand: ``bool(ref)``, ``ref == array`` and numpy's functions are a
    :class:`TypeError` that says how to fetch the value. References are equal if they are the
    same object.

    Attributes:
        reg_id: The register.
        session: The session it belongs to; inside a capture, what records for it.

    Examples:
        >>> ref = session.get_global_func("numpy.arange")(3)
        >>> ref.numpy(worker_id=2)
        array([0, 1, 2])
        >>> len(ref.get_all())
        4
    """

    __slots__ = ("__weakref__", "_core", "_holds", "reg_id", "session")

    _instead: ClassVar[str] = (
        "copy.copy(ref) is another reference to the register, and ref.get() or ref.numpy()"
        " fetches what a worker's holds"
    )
    _holds: dict[str, Any]

    def __init__(self, reg_id: int, session: Any, owner: DRef | None = None) -> None:
        """Made by a session, never by a program.

        Args:
            reg_id: The register.
            session: The session it belongs to.
            owner: Another reference to the register, if there is one; the last one frees it.
        """
        self.reg_id: int = reg_id
        self.session: Any = session
        if owner is not None:
            owner._core.share(reg_id)  # noqa: SLF001  (of the same class)
        self._core: SessionCore = session._core  # noqa: SLF001  (a session and its core are one)

    def __del__(self) -> None:
        # Others may use it afterwards: what the garbage collector ends is not gone at once.
        # The attribute is missing where __init__ raised.
        core = getattr(self, "_core", _ENDED)
        if core is not _ENDED:
            self._core = _ENDED
            core.log.release(self.reg_id)

    def __copy__(self) -> Self:
        core = self._core
        made = copy_fields(self, without="_core")
        core.share(self.reg_id)  # before it can end
        made._core = core  # noqa: SLF001  (of the same class)
        return made

    def get(self, worker: int = 0, timeout: float | None = None) -> T_co:
        """Fetches what one worker's register holds; waits for it.

        In the event loop of a session that was entered by ``async with`` it does not wait,
        but returns something to await: ``await ref.get(worker)``.

        Args:
            worker: The worker.
            timeout: Seconds to wait for the answer; None waits as long as the session
                lives. An array that has begun to arrive is waited for.

        Returns:
            The value: an array, a number, text, a list and so on; an
            :class:`~disco_client.Opaque` for an object that cannot travel, such as a
            function.

        Raises:
            BadArgument: Something inside the value cannot travel, or it is too large.
            DiscoTimeout: There is no answer yet; the call may be repeated.
            RemoteError: The register is poisoned by an earlier failure, or a command of
                this scope failed and no call has raised it.
            SessionError: The session is closed or lost.
        """
        core = self._core
        if core.must_not_wait:
            awaitable: Any = core.fetch(self, core.check_worker(worker), Deadline.of(timeout))
            return awaitable
        return core.get(self, worker, timeout)

    def get_all(self, timeout: float | None = None) -> list[T_co]:
        """Fetches what each worker's register holds, in a list; see :meth:`get`."""
        core, workers = self._core, range(self._core.num_workers)
        if core.must_not_wait:
            awaitable: Any = core.fetch_all(self, workers, Deadline.of(timeout))
            return awaitable
        return core.get_all(self, workers, timeout=timeout)

    def __await__(self) -> Generator[Any, None, T_co]:
        """Awaits the value of worker 0; ``await ref.get(worker)`` that of another one."""
        return self._core.fetch(self, 0).__await__()

    def future(self, worker: int = 0) -> RefFuture:
        """Asks for what one worker's register holds; returns at once.

        The question has its place among the commands here: what is issued afterwards
        does not delay it.

        Args:
            worker: The worker.

        Returns:
            A ``concurrent.futures.Future`` of the value, which may also be awaited.
            Waiting for it raises what :meth:`get` would, called here.

        Raises:
            SessionError: The session is closed or lost.
        """
        future = self._core.ask(self, self._core.check_worker(worker))
        future.ref, future.give_up = self, partial(DRef.cancel, self)
        return future

    @overload
    def stream(
        self: DRef[Iterator[_Item]], worker: int = 0, *, ahead: int = 2
    ) -> Stream[_Item]: ...

    @overload
    def stream(
        self: DRef[AsyncIterator[_Item]], worker: int = 0, *, ahead: int = 2
    ) -> Stream[_Item]: ...

    def stream(self, worker: int = 0, *, ahead: int = 2) -> Stream[Any]:
        """Goes through what a generator yields that a call returned, as soon as it comes.

        For each item all workers execute one command, in which each continues its own generator
        until that yields; so generators may call collectives. ``async for`` does the same in a
        task. What the generator returns at its end is ignored.

        Args:
            worker: Whose items these are.
            ahead: How many further items the workers make while the program uses one.

        Returns:
            An iterator. It raises what :meth:`get` would, such as an error of the generator, and
            :class:`~disco_client.BadArgument` where the worker's register holds no generator, or
            one that has a stream. Where the loop is left, the workers close their generators.

        Raises:
            CaptureError: The caller captures a program.
            ConfigError: There is no such worker, or ``ahead`` is no number of items.
            SessionError: The session is closed or lost.

        Examples:
            >>> import disco_server
            >>> @disco_server.register_func("docs.words")
            ... def words(text):
            ...     yield from text.split()
            >>> for word in session.get_global_func("docs.words")("one two").stream():
            ...     print(word)
            one
            two
        """
        return self._core.stream(self, worker, check_ahead(ahead))

    def cancel(self) -> None:
        """Gives up the command whose result this is to be; returns at once.

        If a worker executes it, it ends there, as by :meth:`Session.interrupt
        <disco_client.Session.interrupt>`; if none has begun, it is left out. All other commands
        are executed; those that read this result fail. Reading it raises
        :class:`~disco_client.Interrupted`, unless all workers had executed it by then. The scope
        that issued it does not learn of it otherwise. The run of a program ends as a whole; outputs
        of steps that are done stay.

        Raises:
            CaptureError: It was made inside a capture, where nothing runs.

        Examples:
            >>> ref = session.get_global_func("time.sleep")(600)
            >>> ref.cancel()
            >>> session.sync_all(timeout=60)
        """
        why = "nothing runs that could be cancelled; cancel what a run returns"
        self._core.check_executes(why)
        self.session._cancel(self)  # noqa: SLF001  (what a reference can, is the session's)

    async def get_into(
        self,
        host_array: Array,
        timeout: float | None = None,  # noqa: ASYNC109  (as of all that waits)
    ) -> None:
        """Fills a host array from worker 0's; ``copy_from_worker_0`` for asyncio.

        Where the await is cancelled, what the host array holds is not defined, and an array
        that has begun to arrive is still written there.

        Args:
            host_array: A writable array of the remote one's dtype and number of
                elements, contiguous or not.
            timeout: As for :meth:`get`.

        Raises:
            BadArgument: Size or dtype differ.
            EncodingError: The host array cannot be written.
            DiscoTimeout, RemoteError, SessionError: As for :meth:`get`.
        """
        await self._core.fetch_into(self, host_array, Deadline.of(timeout))

    def debug_get_from_remote(self, worker_id: int, *, timeout: float | None = None) -> Any:
        """Fetches what one worker's register holds; waits for it.

        Where the workers are threads of this process, it is the register's own content: the
        very object, and of an array the very memory.

        Args:
            worker_id: The worker.
            timeout: As for :meth:`get`.

        Returns:
            The value; an :class:`~disco_client.Opaque` for an object that cannot
            travel, such as a function. Arrays, also those in lists and maps, are numpy
            arrays that have the methods of a ``tvm.runtime.Tensor`` as well: ``numpy()``
            returns a plain copy, ``copyfrom()`` and ``copyto()`` copy, and ``device``
            equals both ``"cpu"`` and ``tvm.cpu(0)``. Slices and results are plain
            arrays, as what :meth:`numpy` returns is.

        Raises:
            DiscoTimeout: There is no answer yet; the call may be repeated.
            RemoteError: The register is poisoned by an earlier failure.
            SessionError: The session is closed or lost.
        """
        return with_tensors(self._core.get(self, worker_id, timeout, itself=True))

    def debug_copy_from(
        self, worker_id: int, value: object, *, timeout: float | None = None
    ) -> None:
        """Copies an array into one worker's register; waits until it is there.

        Args:
            worker_id: The worker.
            value: A host array as for ``Session.copy_to_worker_0``. Where the
                register already holds an array of that size and dtype, it is
                overwritten in place, so that other registers with the same array
                see it; otherwise the register is replaced.
            timeout: Seconds to wait until it is there; the copy is made in any case.

        Raises:
            BadArgument: The register holds an array of another size or dtype.
            DiscoTimeout: It is not there yet.
            EncodingError: The value is no array of plain numbers.
            SessionError: The session is closed or lost.
        """
        self._core.set(self, worker_id, value, timeout)

    def numpy(self, worker_id: int = 0, *, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Fetches the array that one worker's register holds; a copy, and a plain one of numpy's.

        A number is an array without axes, of its own dtype where it is one of numpy's.

        Args:
            worker_id: The worker.
            timeout: As for :meth:`get`.

        Raises:
            DiscoTimeout: There is no answer yet; the call may be repeated.
            TypeError: The register holds something else.
            BadArgument: It is an array that would lose its mask or its unit.
            RemoteError: The register is poisoned by an earlier failure.
            SessionError: The session is closed or lost.
        """
        value = self._core.get(self, worker_id, timeout)
        array = as_numbers(value)
        if array is not None:
            return array
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

    @property
    def shape(self) -> Shape:
        """The shape of the array that the session made, by ``empty``, ``broadcast`` and the like.

        Raises:
            AttributeError: The workers alone know what the register holds.
        """
        return Shape(self._made("shape"))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of that array.

        Raises:
            AttributeError: As for :attr:`shape`.
        """
        return self._made("dtype")

    def _made(self, name: str) -> Any:
        known = getattr(self, "_holds", _NOT_KNOWN)
        if name not in known:
            msg = (
                f"the {name} of what register {self.reg_id} holds is known to the workers alone;"
                f" ref.numpy().{name} asks one of them"
            )
            raise AttributeError(msg, name=name, obj=self)
        return known[name]

    def _known(self) -> dict[str, str]:
        """What the session knows of its value, to be shown: an array's shape, a function's name."""
        known = getattr(self, "_holds", _NOT_KNOWN)
        return {key: repr(str(v) if key == "dtype" else v) for key, v in known.items()}

    def __repr__(self) -> str:
        facts = {"reg_id": self.reg_id, "session": repr(self.session.name), **self._known()}
        if self._core is _ENDED:
            facts["freed"] = True
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in facts.items())})"

    def _repr_html_(self) -> str:
        known = self._known()
        facts = {
            "session": self.session.name,
            "register": f"{self.reg_id} on each of {many(self.session.num_workers, 'worker')}",
            **({"array": f"{known['dtype'][1:-1]} {known['shape']}"} if "dtype" in known else {}),
            **({"name": known["name"][1:-1]} if "name" in known else {}),
        }
        return facts_table(type(self).__name__, facts)


def holding(ref: _Ref, **facts: Any) -> _Ref:
    """Notes for people what a register is to hold: the name, or the shape and dtype."""
    # Only what the session itself makes has it, so that no other reference costs more.
    ref._holds = facts  # noqa: SLF001  (of the same module)
    return ref


class Distributed(ABC):
    """A whole of which a register holds each worker's part; a distributed tensor is one.

    As an argument of a call it stands for its reference.

    Attributes:
        ref: The reference.
    """

    __slots__ = ()

    ref: DRef

    @abstractmethod
    def _held_by(self, ref: DRef) -> Distributed:
        """The same kind of whole, with the same layout, in another register."""

    @abstractmethod
    def _refuse_unlike(self, value: object, name: str) -> None:
        """Makes sure that something has the same layout as this one.

        Args:
            value: Anything.
            name: What it was given as.

        Raises:
            TypeError: It is no such whole.
            ConfigError: It has another layout.
        """


class DPackedFunc(DRef[Any], Generic[P, T_co]):
    """A reference to a function; calling it calls the function on every worker.

    For type checkers it is a ``DPackedFunc[P, T]`` of the function's parameters and result. They
    check a call by these, unless one of its first two arguments is a reference or a tensor.

    Examples:
        >>> add = session.get_global_func("numpy.add")
        >>> print(add(1, 2).get())
        3
        >>> print(add.on(worker=1)(1, 2).get(), add.on(worker=1)(1, 2).get(worker=1))
        None 3
    """

    __slots__ = ()

    _instead: ClassVar[str] = (
        "look the function up elsewhere, by session.get_global_func(name) or in its module;"
        " copy.copy(f) is another reference to it"
    )

    def __init__(self, dref: DRef, session: Any) -> None:
        """Takes a reference whose register holds a function.

        Raises:
            ForeignReference: The reference belongs to another session, or its register was freed.
        """
        super().__init__(core_of(session).check_ref(dref), dref.session, owner=dref)

    @overload
    def __call__(self, /, *args: P.args, **keywords: P.kwargs) -> DRef[T_co]: ...

    @overload
    def __call__(self, a: _Remote, /, *args: object, **keywords: object) -> DRef[T_co]: ...

    @overload
    def __call__(
        self, a: object, b: _Remote, /, *args: object, **keywords: object
    ) -> DRef[T_co]: ...

    def __call__(self, /, *args: Any, **keywords: Any) -> DRef[T_co]:
        """Calls the function on every worker; returns at once.

        Args:
            *args: Arguments; see :meth:`Session.call_packed <disco_client.Session.call_packed>`.
            **keywords: Keyword arguments, of the same kinds.

        Returns:
            The register that will hold each worker's result.
        """
        if keywords:
            return self._core.call_with(self, args, keywords)
        return self._core.call(self, *args)

    def on(
        self, workers: Iterable[int] | WorkerGrid | None = None, *, worker: int | None = None
    ) -> ChosenFunction[P, T_co]:
        """Chooses workers: what it returns calls the function on these alone.

        The others skip the call: their register of the result holds None, and what the
        call would overwrite stays as it is. A collective in the call may take place among
        the chosen workers, in a group or a team that has no others; any other one is
        :class:`~disco_client.CollectiveAborted` at once, and the error names the workers
        that do not take part.

        Args:
            workers: The workers, or a mesh, which stands for all its workers.
            worker: One worker.

        Raises:
            TypeError: Neither or both are given, or something is no worker's number.
            ConfigError: There is no such worker, one is given twice, or there are none.
        """
        return ChosenFunction(self, check_chosen(workers, worker, self._core.num_workers))

    def limit(self, seconds: float) -> LimitedFunction[P, T_co]:
        """Limits how long a call may take, as :meth:`Session.limit <disco_client.Session.limit>`.

        Args:
            seconds: The limit.

        Returns:
            What calls the function: ``func.limit(5)(x)``, ``func.limit(5).on(worker=1)(x)``.

        Raises:
            ConfigError: That is no number of seconds.
            CaptureError: The caller captures a program.
        """
        return LimitedFunction(self._core, self, seconds)


class ChosenFunction(Handle, Generic[P, T_co]):
    """A function whose calls only some workers execute; see :meth:`DPackedFunc.on`.

    Attributes:
        func: The function.
        workers: The workers, in ascending order.
    """

    __slots__ = ("func", "workers")

    _instead: ClassVar[str] = "look the function up elsewhere, by session.get_global_func(name)"

    def __init__(self, func: DPackedFunc[P, T_co], workers: tuple[int, ...]) -> None:
        """Made by a function, never by a program."""
        self.func: DPackedFunc[P, T_co] = func
        self.workers: tuple[int, ...] = workers

    @overload
    def __call__(self, /, *args: P.args, **keywords: P.kwargs) -> DRef[T_co]: ...

    @overload
    def __call__(self, a: _Remote, /, *args: object, **keywords: object) -> DRef[T_co]: ...

    @overload
    def __call__(
        self, a: object, b: _Remote, /, *args: object, **keywords: object
    ) -> DRef[T_co]: ...

    def __call__(self, /, *args: Any, **keywords: Any) -> DRef[T_co]:
        """Calls the function on the chosen workers; returns at once.

        Args:
            *args: Arguments; see :meth:`Session.call_packed <disco_client.Session.call_packed>`.
            **keywords: Keyword arguments, of the same kinds.

        Returns:
            The register that will hold the results, and None on the other workers.
        """
        return core_of(self.func).call_with(self.func, args, keywords, self.workers)

    def limit(self, seconds: float) -> LimitedFunction[P, T_co]:
        """Limits how long a call may take; see :meth:`DPackedFunc.limit`."""
        return LimitedFunction(core_of(self.func), self, seconds)

    def __repr__(self) -> str:
        return f"{self.func!r}.on({list(self.workers)})"


class LimitedFunction(Handle, Generic[P, T_co]):
    """A function whose calls may take so long; made by :meth:`DPackedFunc.limit`.

    Attributes:
        func: The function.
        seconds: The limit.
    """

    __slots__ = ("_core", "func", "seconds")

    _instead: ClassVar[str] = "look the function up elsewhere, by session.get_global_func(name)"

    def __init__(self, core: SessionCore, func: Callable[..., Any], seconds: float) -> None:
        """Made by a function, never by a program."""
        LimitBlock(core, seconds)  # says now what is wrong with it
        self._core = core
        self.func: Callable[..., Any] = func
        self.seconds: float = seconds

    @overload
    def __call__(self, /, *args: P.args, **keywords: P.kwargs) -> DRef[T_co]: ...

    @overload
    def __call__(self, a: _Remote, /, *args: object, **keywords: object) -> DRef[T_co]: ...

    @overload
    def __call__(
        self, a: object, b: _Remote, /, *args: object, **keywords: object
    ) -> DRef[T_co]: ...

    def __call__(self, /, *args: Any, **keywords: Any) -> DRef[T_co]:
        """Calls the function; returns at once.

        Args:
            *args: As of the function.
            **keywords: As of the function.

        Returns:
            The register that will hold the results.
        """
        with LimitBlock(self._core, self.seconds):
            return self.func(*args, **keywords)

    def on(
        self, workers: Iterable[int] | WorkerGrid | None = None, *, worker: int | None = None
    ) -> LimitedFunction[P, T_co]:
        """Chooses workers; see :meth:`DPackedFunc.on`."""
        func: Any = self.func
        return LimitedFunction(self._core, func.on(workers, worker=worker), self.seconds)

    def __repr__(self) -> str:
        return f"{self.func!r}.limit({self.seconds:g})"


class DModule(DRef):
    """A reference to a module; ``module["name"]`` is one of its functions.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("scaling.py").write_text("def double(x): return x * 2")
        >>> module = session.load_vm_module("scaling.py")
        >>> module.names()
        ['double']
        >>> module["double"](21).get()
        42
    """

    __slots__ = ()

    _instead: ClassVar[str] = (
        "load the module elsewhere, by session.load_vm_module(path); copy.copy(module) is another"
        " reference to it"
    )

    def __init__(self, dref: DRef, session: Any) -> None:
        """Takes a reference whose register holds a module.

        Raises:
            ForeignReference: The reference belongs to another session, or its register was freed.
        """
        super().__init__(core_of(session).check_ref(dref), dref.session, owner=dref)

    def __getitem__(self, name: str, /) -> DPackedFunc:
        """Looks a function up on every worker; a missing one is an error of the next sync."""
        getter = self._core.builtin("ffi.ModuleGetFunction")
        return holding(DPackedFunc(getter(self, name), self.session), name=name)

    def __contains__(self, name: object, /) -> bool:
        """Whether the module has a function of that name; waits for worker 0."""
        if not isinstance(name, str):
            return False
        self._core.check_may_wait("await asyncio.to_thread(module.__contains__, name)")
        found = self._core.call_builtin("ffi.ModuleGetFunction", self, name, True)
        return self._core.get(found, 0) is not None

    def names(self) -> list[str]:
        """The names of the module's functions, sorted; waits for worker 0.

        Compiled modules and those of other loaders may have functions besides.
        """
        self._core.check_may_wait("await asyncio.to_thread(module.names)")
        names = self._core.get(self._core.call_builtin("runtime.disco._module_names", self), 0)
        return [str(name) for name in names]


def core_of(thing: Any) -> SessionCore:
    """The core of a session, or of the session that a reference belongs to.

    Args:
        thing: A session, or a reference.
    """
    return thing._core  # noqa: SLF001  (the same)


class Renewable(ABC):
    """A part of a session that keeps references of its own."""

    @abstractmethod
    def renew(self) -> None:
        """Forgets them, because workers may not hold what they stand for any more."""


class Companion(ABC):
    """A part of a session that does something on the workers while the session goes on."""

    @abstractmethod
    def look(self) -> object:
        """Finds out in passing how far it is; never waits."""

    @abstractmethod
    def settle(self, *, tell: bool, patience: float | None = None) -> None:
        """Waits for its end, because the session's own comes; what interrupts that loses it.

        Args:
            tell: Whether to print what went wrong, as nothing raises it.
            patience: How many seconds to wait for an answer; None for as long as it takes.
        """

    @abstractmethod
    async def settled(self) -> None:
        """Awaits its end; see :meth:`settle`."""


class SessionCore:
    """What other modules need of a session: issuing, looking up, asking, waiting.

    Args:
        log: Numbers the commands.
        inbox: Gets the answers.
        transport: Carries both, and large arrays.
        span: Of the session's life.
        step_lines: Where the steps of its programs were captured.

    Attributes:
        array_transport: What moves large arrays: the transport; while the session is traced,
            with notes of it.
        closed: Whether the program has ended the session, or left it.
        face: Returns the session that programs hold. It is made once, and lives as long
            as it, or any reference, is held; the core alone does not keep it.
        recorders: The active captures, by the task or thread that captures.
        background: Reads answers and sends arrays, for calls that do not wait.
        callbacks: Runs functions of the program, which may wait for anything.
    """

    def __init__(
        self,
        log: CommandLog,
        inbox: Inbox,
        transport: Transport,
        *,
        span: Span = NO_SPAN,
        step_lines: StepLines | None = None,
    ) -> None:
        self.log = log
        self.inbox = inbox
        self.transport: Transport = transport
        self.array_transport: Transport = transport
        self.span = span
        self.step_lines: StepLines = step_lines or StepLines()
        self.recorders: dict[Scope, SessionCore] = {}
        self.background: Background = Background("disco-results", Background.RESULTS)
        self.callbacks: Background = Background("disco-callbacks", Background.CALLBACKS)
        self.closed: bool = False
        self.face: Callable[[], Any] = lambda: None
        self._builtins: dict[str, DPackedFunc] = {}
        self._parts: dict[object, Any] = {}
        self._finalizer: weakref.finalize[..., Any] | None = None
        # Not with tickets of a program that has used the session before.
        self._uploads = UploadsUnderWay(((transport.welcome.first_seq - 1) << TICKETS_SHIFT) + 1)

    @classmethod
    def start(
        cls,
        transport: Transport,
        *,
        log_sink: LogSink | None = None,
        hang_report: float | None = AUTO,
        span: Span | None = None,
    ) -> SessionCore:
        """Makes the core of a session, which ends the session when it has no references any more.

        Args:
            transport: Opened, and not yet started.
            log_sink: Gets what workers print; None discards it.
            hang_report: After how many seconds a wait says what it waits for; see
                :func:`~disco_client.waiting.read_hang_report`.
            span: Of the session's life; it fails when the session is lost.

        Raises:
            ConfigError: ``hang_report`` is no such number.
        """
        span = span or spans.begin("disco.session")
        lines = StepLines()
        # What the transport's threads call must not keep the session alive.
        printed = PrintedLines(sink=log_sink)
        made = _converse(transport, printed, lines.explain, hang_report, span)
        log = made.log
        core = cls(log, made.inbox, transport, span=span, step_lines=lines)
        core._parts[PrintedLines] = printed
        name = transport.welcome.name
        core._finalizer = weakref.finalize(
            core, _close, log, transport, name, span, (core.background, core.callbacks)
        )
        leave_in_children(core, SessionCore.disown)
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
    def num_groups(self) -> int:
        """Into how many equal groups the workers are divided."""
        return self.welcome.num_groups

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
            f"session {self.name!r} can be neither copied nor pickled, because there is one of it,"
            " in this process; pass the session itself here, or open another one elsewhere and"
            " hand data over as arrays (.numpy())"
        )
        raise EncodingError(msg)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        nodes = many(len({rank.node for rank in self.welcome.ranks}), "node")
        return f"<Session {self.name!r}: {many(self.num_workers, 'worker')} on {nodes}, {state}>"

    def restart(self, bar: Bar) -> Abandoned:
        """Forgets what was issued, and what it knows of workers that others replace.

        Args:
            bar: See :class:`~disco_client.window.Window`.
        """
        self._builtins = {}
        self.renew_parts()
        return self.log.restart(bar, self.num_workers)

    @property
    def replaying(self) -> Replaying | None:
        """Its transport, where it continues with other workers by itself."""
        kind: type[Replaying] = import_uninterrupted("disco_client.recovery.replay").Replaying
        return self.transport if isinstance(self.transport, kind) else None

    def renew_parts(self) -> None:
        """Lets parts forget the references that they keep, which may stand for failures."""
        for part in self._parts.values():
            if isinstance(part, Renewable):
                part.renew()

    # Functions -----------------------------------------------------------------

    def check_executes(self, why: str) -> None:
        """Makes sure that commands are executed, and not recorded; raises nothing here.

        Args:
            why: What the error says.
        """

    def look_up(self, name: str, deadline: Deadline | None = None) -> DPackedFunc:
        """Refers to a function by name, on every worker; see `CommandLog.issue`."""

        def fill(command: EncodedCommand) -> int:
            command.args.add().str = name
            return 0

        look_up = Action.GET_GLOBAL_FUNC
        _, ref = self.log.issue(look_up, fill, reg=self.refer, deadline=deadline)
        return holding(DPackedFunc(ref, self.face()), name=name)

    def call(self, func: DRef, *args: object) -> DRef:
        """Calls a function on every worker; see ``Session.call_packed``."""
        if self.recorders and (here := self.here()) is not self:
            return here.call(func, *args)
        if not isinstance(func, DRef):
            _refuse_function(func)
        function = self.check_ref(func)
        plain: list[int] = []
        for arg in args:
            if isinstance(arg, DRef):
                plain.append(self.check_ref(arg) * 2 + 1)  # pyright: ignore[reportUnknownArgumentType]
            elif type(arg) is int and _SMALLEST <= arg <= _LARGEST:
                plain.append(arg * 2)
            else:
                return self._call_with_values(function, args)
        return self.log.issue_call(function, plain, self.refer)

    def refer(self, register: int) -> DRef:
        """Makes the reference of a new register."""
        return DRef(register, self.face())

    def call_with(
        self,
        func: DRef,
        args: tuple[object, ...],
        keywords: Mapping[str, object],
        workers: Sequence[int] = (),
        added: int = 0,
    ) -> DRef:
        """Calls a function with keyword arguments, or on some workers alone.

        Args:
            func: The function.
            args: The arguments without names.
            keywords: Those with names.
            workers: The workers that execute it; none means all.
            added: How many of the first arguments are not the program's.
        """
        if self.recorders and (here := self.here()) is not self:
            return here.call_with(func, args, keywords, workers, added)
        if workers:
            self.check_worker(workers[-1])  # there were more when they were chosen
        if not isinstance(func, DRef):
            _refuse_function(func)
        return self._call_with_values(self.check_ref(func), args, keywords, workers, added)

    def _call_with_values(
        self,
        function: int,
        args: tuple[object, ...],
        keywords: Mapping[str, object] | None = None,
        workers: Sequence[int] = (),
        added: int = 0,
    ) -> DRef:
        """Calls a function with arguments of any kind that may travel."""
        uploads = self.uploads(workers)

        def fill(command: EncodedCommand) -> int:
            self.encode_arguments(command, enumerate(args, -added), uploads)
            if keywords:
                self.encode_arguments(command, keywords.items(), uploads)
                encode_names(command, keywords)
            return command.ByteSize()

        with uploads:
            _, out = self.log.issue(
                Action.CALL_PACKED,
                fill,
                func=function,
                reg=self.refer,
                workers=workers,
                beside=uploads.begin,
            )
            uploads.send()
        return out

    def encode_arguments(
        self, command: EncodedCommand, args: Iterable[tuple[str | int, object]], uploads: Uploads
    ) -> None:
        """Writes arguments into a command.

        Args:
            command: The command.
            args: What the error for one that may not travel calls it, and the argument.
            uploads: Takes large arrays.

        Raises:
            EncodingError: One may not travel.
        """
        for name, arg in args:
            try:
                encode_value(command.args.add(), arg, uploads, self.register_of)
            except EncodingError as error:
                raise error.of(name) from error.__cause__

    def uploads(
        self, workers: Sequence[int] = (), take_ticket: Callable[[], int] | None = None
    ) -> Uploads:
        """Collects large arrays for some workers; without any, for all of them."""
        receivers = workers or range(self.num_workers)
        take_ticket = take_ticket or self.take_ticket
        lost, works = self._raise_if_lost, self.part(WorkTable)
        made = Uploads(take_ticket, self.array_transport, receivers, lost, self.span, works)
        self._uploads.add(made)
        return made

    def builtin(self, name: str, deadline: Deadline | None = None) -> DPackedFunc:
        """A function that every worker has, looked up once."""
        known = self._builtins
        func = known.get(name)
        # No lock, because looking up may wait. Of two threads that do, the first one's counts;
        # and in what is known of workers that were replaced meanwhile, nothing more does.
        return known.setdefault(name, self.look_up(name, deadline)) if func is None else func

    def is_builtin(self, func: DRef, name: str) -> bool:
        """Whether a function is that one, which every worker has."""
        return func is self._builtins.get(name)

    def call_builtin(self, name: str, *args: object, **keywords: object) -> DRef:
        """Calls a function that every worker has."""
        if keywords:
            return self.call_with(self.builtin(name), args, keywords)
        return self.call(self.builtin(name), *args)

    def call_now(self, name: str, *args: object) -> DRef:
        """Calls a function for this session, also in a thread that captures a program."""
        return self._call_with_values(self.check_ref(self.builtin(name)), args)

    def call_for(self, site: Site, name: str, *args: object) -> DRef:
        """Calls a function, without arrays, for a line of before, whose scope gets its failure."""

        def fill(command: EncodedCommand) -> int:
            for arg in args:
                encode_value(command.args.add(), arg, register_of=self.register_of)
            return 0

        func = self.check_ref(self.builtin(name))
        made: DRef
        _, made = self.log.issue(Action.CALL_PACKED, fill, func=func, reg=self.refer, site=site)
        return made

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
        extents = extents_of(dims_of(shape))
        kind = checked_dtype(extents, dtype)
        where = device_of(device), bool(worker0_only), bool(in_group)
        made = self.call_builtin("runtime.disco.empty", extents, kind, *where)
        return holding(made, shape=tuple(extents), dtype=kind)

    def copy_to_worker_0(self, host_array: object, remote_array: DRef | None = None) -> DRef:
        """Copies a host array to worker 0; see ``Session.copy_to_worker_0``."""
        here = self.here()
        array = as_host_array(host_array)
        if here is self and remote_array is not None:
            self.check_may_send(
                array, "await asyncio.to_thread(session.copy_to_worker_0, array, ref)"
            )
        elif here is self and self.must_not_wait and array.nbytes > INLINE_ARRAY_BYTES:
            self.check_may_wait("await session.put(array)")
        ref = here.send_array(Action.COPY_TO_WORKER0, remote_array, 0, array, answers=0)
        return (
            ref if remote_array is not None else holding(ref, shape=array.shape, dtype=array.dtype)
        )

    def copy_from_worker_0(
        self, host_array: object, remote_array: DRef, timeout: float | None = None
    ) -> None:
        """Fills a host array from worker 0; see ``Session.copy_from_worker_0``."""
        self.check_may_wait("await ref.get_into(array)")
        here, out, deadline = self.here(), as_destination(host_array), Deadline.of(timeout)
        asked = here.ask_for_array(remote_array, out, deadline)
        here.read_into(asked, out, deadline=deadline)

    def ask_for_array(self, ref: DRef, out: Array, deadline: Deadline | None = None) -> int:
        """Asks worker 0 for what fits a host array."""

        def fill(command: EncodedCommand) -> int:
            encode_value(command.args.add(), Shape(out.shape))
            encode_value(command.args.add(), out.dtype)
            return 0

        return self.question(Action.COPY_FROM_WORKER0, ref, 0, fill, deadline)

    def read_into(self, asked: int, out: Array, **options: Any) -> None:
        """Waits for the answer to :meth:`ask_for_array`; options are those of `answered`."""
        got = self.answered(asked, 0, into=out, **options)
        if got is not out:
            out[...] = got.reshape(out.shape)

    def get(
        self, ref: DRef, worker: int, timeout: float | None = None, *, itself: bool = False
    ) -> Any:
        """Fetches what one worker's register holds; see :meth:`get_all`."""
        return self.get_all(ref, (self.check_worker(worker),), timeout, itself=itself)[0]

    def get_all(
        self,
        ref: DRef,
        workers: Sequence[int],
        timeout: float | None = None,
        *,
        itself: bool = False,
    ) -> list[Any]:
        """Fetches from several workers: copies, or with ``itself`` what threads themselves hold."""
        self.check_may_wait("await ref.get(worker) or await ref.get_all()")
        self.look_at_companions()
        here, action, deadline = self.here(), Action.DEBUG_GET_FROM_REMOTE, Deadline.of(timeout)
        fill = _itself if itself else None
        asked: list[tuple[int, int]] = []
        try:
            # One by one, so that those are known that were put before an error.
            asked.extend(
                (here.question(action, ref, worker, fill, deadline), worker) for worker in workers
            )
            return [here.answered(seq, worker, deadline=deadline) for seq, worker in asked]
        except BaseException as error:
            # What other workers answer later is the same failure, which the caller knows.
            told = isinstance(error, RemoteError)
            for seq, _ in asked:
                here.inbox.forget(seq, told=told)
            raise

    def fill(self, ref: DRef, worker: int, array: Array) -> None:
        """Copies into the array of one worker's register; errors come later."""
        self.here().send_array(Action.COPY_TO_WORKER0, ref, worker, array, answers=0)

    def set(self, ref: DRef, worker: int, value: object, timeout: float | None = None) -> None:
        """Copies an array into one worker's register; waits until it is there."""
        self.check_may_wait("await asyncio.to_thread(ref.debug_copy_from, worker, array)")
        array, worker = as_host_array(value), self.check_worker(worker)
        # One worker's may be another one from now on; copies of the reference know it, too.
        getattr(ref, "_holds", _NOT_KNOWN).clear()
        self.here().send_array(
            Action.DEBUG_SET_REGISTER, ref, worker, array, answers=1, timeout=timeout
        )

    def question(
        self,
        action: Action,
        ref: DRef,
        worker: int,
        fill: Fill | None = None,
        deadline: Deadline | None = None,
    ) -> int:
        """Asks a worker something about a register; :meth:`answered` waits for the answer."""
        self.check_worker(worker)  # there may have been more when a tensor was made
        reg = self.check_ref(ref)
        return self.log.issue(
            action, fill, reg=reg, workers=(worker,), answers=1, deadline=deadline
        )[0]

    def answered(
        self,
        seq: int,
        worker: int,
        into: Array | None = None,
        *,
        deadline: Deadline | None = None,
        scope: Scope | None = None,
        forget: bool = True,
    ) -> Any:
        """Waits for a worker's answer, and raises what went wrong before it.

        Args:
            seq: The question.
            worker: Whom it was put to.
            into: Where to put an array, if it fits.
            deadline: When to end the wait; the answer is discarded then.
            scope: Who asked, where that is not the caller.
            forget: Whether the answer is discarded in any case; else the caller does that, and
                may read one without arrays once more.
        """
        try:
            value = _read_whole(partial(self._read_answer, seq, worker, into, deadline, scope))
        finally:
            if forget:
                self.inbox.forget(seq)
        self.inbox.raise_pending(scope=scope, before=None if scope is None else seq)
        return value

    def _read_answer(
        self,
        seq: int,
        worker: int,
        into: Array | None,
        deadline: Deadline | None,
        scope: Scope | None,
    ) -> Any:
        answer = self.inbox.look(seq, self.transport.check_alive, deadline, scope)
        got: EncodedValue | Live = answer.values[worker]
        if isinstance(got, Live):
            return got.value
        downloads = Downloads(self.array_transport, worker, into, self.span, self.part(WorkTable))
        try:
            # Decoded in any case: an array that is offered must be fetched.
            value = decode_value(got, downloads)
        except AnswerLost as lost:
            value = lost
        except BaseException:
            arrays = list(tickets_in((got,)))
            if arrays:
                answer.values.pop(worker, None)
                downloads.decline(arrays)
            raise
        answer.values.pop(worker, None)
        return value

    def send_array(
        self,
        action: Action,
        ref: DRef | None,
        worker: int,
        array: Array,
        *,
        answers: int,
        timeout: float | None = None,
    ) -> DRef:
        """Issues a copy to a worker; returns the reference, a new one without ``ref``."""
        uploads, deadline = self.uploads((worker,)), Deadline.of(timeout)
        with uploads:
            seq, made = self.issue_array(action, ref, array, uploads, answers, deadline)
            try:
                uploads.send()
            except BaseException:
                self.inbox.forget(seq, told=True)
                raise
        if answers:
            self.inbox.wait(seq, self.transport.check_alive, deadline)
        return made

    def issue_array(
        self,
        action: Action,
        ref: DRef | None,
        array: Array,
        uploads: Uploads,
        answers: int = 0,
        deadline: Deadline | None = None,
    ) -> tuple[int, DRef]:
        """Issues a copy to the worker of ``uploads``, which are still to be sent.

        Returns:
            The number of the command, and the reference, a new one without ``ref``.
        """
        (worker,) = uploads.workers

        def fill(command: EncodedCommand) -> int:
            value = command.args.add()
            encode_value(value, array, uploads)
            command.args.add().bool = ref is None
            return value.ByteSize()

        seq, made = self.log.issue(
            action,
            fill,
            reg=self.refer if ref is None else self.check_ref(ref),
            workers=(worker,),
            answers=answers,
            beside=uploads.begin,
            deadline=deadline,
        )
        return seq, made if ref is None else ref

    def bring(self, worker: int, array: Array) -> DRef:
        """Copies an array into a new register of one worker."""
        return self.send_array(Action.COPY_TO_WORKER0, None, worker, array, answers=0)

    def take_ticket(self) -> int:
        """The number under which the next large array travels."""
        self.check_may_wait("ref = await session.abroadcast(array); give that as the argument")
        return self.next_ticket()

    def next_ticket(self) -> int:
        """The same, for an array that is sent without waiting."""
        return self._uploads.next_ticket()

    # Waiting -------------------------------------------------------------------

    def sync(self, worker: int | None = None, timeout: float | None = None) -> None:
        """Waits until a worker, or every one, has executed what was issued before.

        Raises:
            DiscoTimeout: It has not within so many seconds.
            RemoteError: A command of this scope failed and no call has raised it.
            SessionError: The session is closed or lost.
        """
        if self.recorders and (here := self.here()) is not self:
            here.sync(worker)
        self.check_may_wait("await session.synced()")
        self.look_at_companions()
        pump, deadline = self.transport.progress, Deadline.of(timeout)
        if pump is None:
            self.await_mark(self.mark(worker, deadline), deadline)
            return
        self.log.check_open()
        workers = range(self.num_workers) if worker is None else (worker,)
        self.inbox.reach(workers, pump, self.transport.check_alive, deadline)
        self.inbox.raise_pending(sync=True)

    def mark(self, worker: int | None = None, deadline: Deadline | None = None) -> int:
        """Issues a mark that workers answer after all commands before; :meth:`await_mark` waits."""
        asked = () if worker is None else (worker,)
        answers = len(asked) or self.num_workers
        return self.log.issue(
            Action.SYNC_WORKER, reg=0, workers=asked, answers=answers, deadline=deadline
        )[0]

    def await_mark(
        self, mark: int, deadline: Deadline | None = None, scope: Scope | None = None
    ) -> None:
        """Waits for what was issued before a mark, and raises what went wrong."""
        self.inbox.wait(mark, self.transport.check_alive, deadline)
        before = None if scope is None else mark
        self.inbox.raise_pending(sync=True, scope=scope, before=before)

    def companions(self) -> list[Companion]:
        """What may be under way beside the session's commands."""
        return [part for part in (*self._parts.values(),) if isinstance(part, Companion)]

    def look_at_companions(self) -> None:
        """Finds out in passing whether something beside has failed; never waits."""
        for each in self.companions():
            each.look()

    # Without waiting -------------------------------------------------------------------

    @property
    def must_not_wait(self) -> bool:
        """Whether this is the event loop of a program that has asked not to stop it."""
        return self.log.window.asynchronous and in_event_loop()

    def check_may_wait(self, instead: str) -> None:
        """Makes sure that a call may wait for workers.

        Args:
            instead: What to do where it must not.

        Raises:
            WouldBlock: It must not.
            Reentered: This thread is in the middle of another call of the session.
        """
        self.check_entered()
        if self.must_not_wait:
            msg = f"this would stop the event loop until workers answer; instead: {instead}"
            raise WouldBlock(msg)

    def check_entered(self) -> None:
        """Makes sure that this thread is not in the middle of a call that it would wait for.

        Raises:
            Reentered: It is.
        """
        if (
            is_helper()
            or self.log.entered()
            or self.inbox.entered()
            or self.transport.entered
            or self._uploads.of_this_thread()
        ):
            raise Reentered

    def check_may_send(self, array: object, instead: str) -> None:
        """Makes sure that a method of the session may send a host array.

        Args:
            array: It.
            instead: What to do where it must not.

        Raises:
            WouldBlock: It must not, because of the array's size.
        """
        if self.must_not_wait and as_host_array(array).nbytes > INLINE_ARRAY_BYTES:
            self.check_may_wait(instead)

    def ask(self, ref: DRef, worker: int, *, soon: bool = False) -> RefFuture:
        """Asks what one worker's register holds; see `attend` for ``soon``."""
        here, scope = self.here(), self.log.scope()
        seq = here.question(Action.DEBUG_GET_FROM_REMOTE, ref, worker)
        return here.attend_value(seq, worker, scope, soon=soon)

    def attend_value(self, seq: int, worker: int, scope: Scope, *, soon: bool = False) -> RefFuture:
        """Makes the future of a question that was put to a worker; see `attend`."""
        read = partial(self.answered, seq, worker, scope=scope, forget=False)
        return self.attend(seq, scope, read, soon=soon)

    def stream(self, ref: DRef, worker: int, ahead: int) -> Stream[Any]:
        """Goes through the items of a generator; see ``DRef.stream``."""
        why = (
            "the items of a stream are not known before a run; make the generator an output, and"
            " go through it after the run"
        )
        self.here().check_executes(why)
        number = self.check_worker(worker)
        # With the last reference to its register the workers close the generator.
        opened = self.call_with(self.builtin("runtime.disco._open_stream"), (ref, number), {})

        def step(soon: bool) -> RefFuture:
            self.here().check_executes(why)
            return self.ask(self.call(opened), number, soon=soon)

        check = partial(self.check_may_wait, "async for item in ref.stream()")
        return Stream(step, self.log, check, ahead)

    def attend(self, seq: int, scope: Scope, read: Callable[[], Any], *, soon: bool) -> RefFuture:
        """Makes the future of a command that was issued, and sends it.

        Args:
            seq: The command.
            scope: Who asks.
            read: Reads the answer, once that is there.
            soon: Whether it may leave together with what other tasks of the running loop issue.
        """
        check, alive = partial(self.check_may_wait, "await the future"), self.transport.check_alive
        future = RefFuture(
            self.inbox, self.background, self.callbacks, seq, scope, read, check, alive
        )
        self.inbox.call_when_answered(seq, future.arrived, alive)
        pump = self.inbox.pump
        if pump is not None and soon:
            send_soon(pump)
        elif pump is not None:
            pump.send()
        return future

    async def fetch(self, ref: DRef, worker: int, deadline: Deadline | None = None) -> Any:
        """Awaits what one worker's register holds."""
        return (await self.fetch_all(ref, (worker,), deadline))[0]

    async def fetch_all(
        self,
        ref: DRef,
        workers: Sequence[int],
        deadline: Deadline | None = None,
    ) -> list[Any]:
        """Awaits what the registers of several workers hold."""
        self.look_at_companions()
        return await await_all(
            self.log,
            lambda: [self.ask(ref, worker, soon=True) for worker in workers],
            deadline,
        )

    async def fetch_into(
        self, ref: DRef, host_array: object, deadline: Deadline | None = None
    ) -> None:
        """Fills a host array from worker 0; see ``DRef.get_into``."""
        out = as_destination(host_array)

        def ask() -> list[RefFuture]:
            here, scope = self.here(), self.log.scope()
            seq = here.ask_for_array(ref, out)
            read = partial(here.read_into, seq, out, scope=scope)
            return [here.attend(seq, scope, read, soon=True)]

        await await_all(self.log, ask, deadline)

    async def synced(self, deadline: Deadline | None = None) -> None:
        """Awaits that every worker has executed what was issued before; see ``Session.synced``."""
        self.look_at_companions()

        def ask() -> list[RefFuture]:
            here, scope = self.here(), self.log.scope()
            mark = here.mark()
            read = partial(here.await_mark, mark, scope=scope)
            return [here.attend(mark, scope, read, soon=True)]

        await await_all(self.log, ask, deadline)

    async def put(self, host_array: object, then: Callable[[DRef], DRef] | None = None) -> DRef:
        """Copies a host array to worker 0; see ``Session.put``.

        Args:
            host_array: It.
            then: Issues what follows the copy, and returns what is returned. The workers begin
                with that when the array is there, for which this waits.
        """
        array = as_host_array(host_array)
        await await_room(self.log)
        here = self.here()
        if array.nbytes > INLINE_ARRAY_BYTES:
            here.background.prepare()  # else the worker would wait for what is never sent
        uploads = here.uploads((0,), here.next_ticket)
        with uploads:
            _, made = here.issue_array(Action.COPY_TO_WORKER0, None, array, uploads)
        ref = holding(made, shape=array.shape, dtype=array.dtype)
        try:
            return ref if then is None else then(ref)
        finally:  # worker 0 waits for it also where something else is refused
            if uploads.offered:
                await here.background.call(partial(_send, uploads))

    # The end -------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends the session and frees its slots; see ``Session.shutdown``."""
        for each in () if self.closed else self.companions():
            each.settle(tell=True, patience=_CLOSE_TIMEOUT_S)
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
        self.check_may_wait("await asyncio.to_thread(session.detach)")
        for each in self.companions():
            each.settle(tell=False)
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
        self.array_transport = self.transport
        self.background.disown()
        self.callbacks.disown()
        lock = make_lock("session")
        self.log.disown(why, lock)
        self.inbox.disown(why, lock)
        self.recorders = {}

    def raise_unseen(self, *, synced: bool = False) -> None:
        """Raises what no call has raised yet; ``synced``: all commands have been executed."""
        for each in () if synced else self.companions():
            each.settle(tell=False)
        lost = self.log.closed
        if lost is None:
            if not synced:
                try:
                    self.sync()
                except WorkersReplaced as replaced:
                    if replaced.commands_lost:
                        raise
                    self.sync()  # what references stood for is not wanted any more
            self.inbox.raise_left()
        elif not self.log.ending.told:
            raise lost

    # Checks --------------------------------------------------------------------------

    def share(self, register: int) -> None:
        """Notes one more reference to a register, which the last one that dies frees."""
        self.log.registers.owners.add(register)

    def here(self) -> SessionCore:
        """This session, or what records for it in a task or thread that captures a program."""
        return self.recorders.get(current_owner(), self) if self.recorders else self

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
            return self.check_ref(cast("DRef", value))
        return self.check_ref(value.ref) if isinstance(value, Distributed) else None

    def check_worker(self, worker: int) -> int:
        """The number of a worker; an error where there is none."""
        return check_worker(worker, self.num_workers)

    def _raise_if_lost(self) -> None:
        error = self.log.closed
        if error is not None and not isinstance(error, SessionClosed):
            raise error


def _refuse_function(func: object) -> NoReturn:
    msg = f"expected a function reference (from get_global_func or a module), got {described(func)}"
    raise TypeError(msg)


def _read_whole(read: Callable[[], Any]) -> Any:
    """Reads an answer again where its arrays were gone, and other workers answer again."""
    while isinstance(value := read(), AnswerLost):
        pass
    return value


def _send(uploads: Uploads) -> None:
    with uploads:
        uploads.send()


def _itself(command: EncodedCommand) -> int:
    """Asks for what a register holds, rather than for a copy, where threads can give it."""
    command.args.add().bool = True
    return 0


def _everything(command: EncodedCommand) -> int:
    command.args.add().bool = True
    return 0


def _converse(
    transport: Transport,
    sink: LogSink,
    explain: Callable[[RemoteFailure], RemoteFailure],
    hang_report: float | None,
    span: Span,
) -> Conversation:
    """Makes the client's end of a session, and starts its transport with it."""
    after = read_hang_report(hang_report)
    welcome = transport.welcome

    def on_lost(error: SessionError) -> None:
        if not isinstance(error, SessionClosed):
            span.fail(error)

    def describe() -> tuple[str, str, bool]:
        found = look_at(transport, made.log)
        return str(found), found.verdict, found.goes_on

    made = Conversation(
        welcome,
        explain=explain,
        print_lines=sink,
        on_lost=on_lost,
        long_waits=LongWaits(after, describe),
    )
    span.note(
        {
            "disco.session.id": f"{welcome.session:016x}",
            "disco.session.name": welcome.name,
            "disco.num_workers": len(welcome.ranks),
            "disco.nodes": sorted({rank.node for rank in welcome.ranks}),
        }
    )
    try:
        made.start(transport)
    except BaseException:
        transport.close(_CLOSE_TIMEOUT_S)
        raise
    return made


def _close(
    log: CommandLog, transport: Transport, name: str, span: Span, pools: Sequence[Background]
) -> None:
    """Ends a session; also run when it is collected, and at interpreter exit."""
    log.close(SessionClosed(f"session {name!r} was shut down"), drop=False)
    try:
        transport.close(_CLOSE_TIMEOUT_S)
    finally:
        for pool in pools:
            pool.close()
        span.note({"disco.commands": log.last_seq})
        span.end()
