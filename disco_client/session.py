"""The Session: one program on many workers, as its client sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, SupportsIndex, overload
from weakref import WeakValueDictionary

from disco_client import checkpointing, collectives, modules, objects, publishing
from disco_client.cancelling import Cancelling
from disco_client.core import SessionCore, core_of
from disco_client.diagnosis import look_at
from disco_client.errors import ConfigError
from disco_client.futures import await_room
from disco_client.interrupts import Interrupts
from disco_client.limits import LimitBlock
from disco_client.notebook import WorkProgress, WorkTable, facts_table
from disco_client.output import LogSink, print_logs
from disco_client.outside_interrupts import OnInterrupt, OutsideInterrupts
from disco_client.reentry import import_uninterrupted
from disco_client.scopes import Block, Scope
from disco_client.sources import described
from disco_client.text import many
from disco_client.threads import starting
from disco_client.type_variables import P, T
from disco_client.waiting import AUTO, Deadline

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import ModuleType

    from disco_client.core import DModule, DPackedFunc, DRef
    from disco_client.diagnosis import Diagnosis
    from disco_client.distributed.dispatch import Engine
    from disco_client.distributed.dtensor import DTensor
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.namespace import ArrayNamespace
    from disco_client.distributed.placement import Placement, PlacementSpec
    from disco_client.errors import Recovery
    from disco_client.failed_commands import Failures
    from disco_client.objects import DObject
    from disco_client.own_code import OwnCode
    from disco_client.program import Program
    from disco_client.saving import Saving
    from disco_client.telemetry.base import Span
    from disco_client.tracing.trace import Flight, Trace
    from disco_client.transport.base import Expiry, RankPlace, Transport
    from disco_client.wire.values import ReduceName

__all__ = ["Session", "open_sessions"]

_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()
"""All of this program, by their ids."""


def open_sessions() -> list[Session]:
    """The sessions of this program that are open, in the order in which they were opened."""
    # The references are listed at once, while other threads may open sessions.
    found = [reference() for reference in _sessions.valuerefs()]
    return [each for each in found if each and core_of(each).log.ending.refused is None]


class Session:
    """One SPMD program: its workers, their registers, and its ordered command log.

    Calls are asynchronous: they return at once, and every worker executes them in
    the order in which they were issued. An error on a worker is raised by the next
    call that waits in the same scope: :meth:`sync_worker_0`, :meth:`sync_worker`,
    :meth:`sync_all`, fetching a value or an array; an unseen error is raised by
    leaving the ``with`` block.

    Made by :func:`disco_client.connect`. A context manager; its methods may be
    called from several threads and asyncio tasks, which are scopes of their own, as
    are blocks of :meth:`scope`.

    Examples:
        >>> array = session.broadcast(np.arange(3.0))  # on every worker
        >>> double = session.get_global_func("numpy.multiply")(array, 2)
        >>> total = session.allreduce(double)
        >>> total.numpy()
        array([ 0.,  8., 16.])
    """

    def __init__(
        self,
        transport: Transport,
        *,
        log_sink: LogSink | None = print_logs,
        hang_report: float | None = AUTO,
        on_interrupt: OnInterrupt = "wait",
        span: Span | None = None,
    ) -> None:
        self._core = SessionCore.start(
            transport,
            log_sink=log_sink,
            hang_report=hang_report,
            span=span,
        )
        self._core.show_as(self)
        outside = OutsideInterrupts(self._core, on_interrupt)
        self._core.log.window.long_waits.on_interrupt = outside.pressed
        self._core.inbox.on_interrupt_asked = outside.asked
        _sessions[id(self)] = self

    @classmethod
    def _of(cls, core: SessionCore) -> Self:
        """Makes a session of an existing core."""
        face = cls.__new__(cls)
        face._core = core  # noqa: SLF001  (its own)
        core.show_as(face)
        return face

    # What it is ------------------------------------------------------------------

    @property
    def num_workers(self) -> int:
        """How many workers the session has.

        Examples:
            >>> session.num_workers
            4
        """
        return self._core.num_workers

    @property
    def num_groups(self) -> int:
        """Into how many equal groups the workers are divided.

        Examples:
            >>> session.num_groups
            1
        """
        return self._core.num_groups

    @property
    def name(self) -> str:
        """The session's name at the controller.

        Examples:
            >>> with disco_client.connect(num_workers=1, name="training") as cluster:
            ...     print(cluster.name)
            training
        """
        return self._core.name

    @property
    def session_id(self) -> str:
        """The session's id at the controller, in hexadecimal.

        Examples:
            >>> with disco_client.connect(num_workers=1) as cluster:
            ...     print(len(cluster.session_id))
            16
        """
        return self._core.session_id

    @property
    def workers(self) -> tuple[RankPlace, ...]:
        """Where each worker runs: node, process id, device.

        Examples:
            >>> [(each.worker, str(each.device)) for each in session.workers[:2]]
            [(0, 'cpu'), (1, 'cpu')]
        """
        return self._core.welcome.ranks

    @property
    def ccl(self) -> str:
        """The collective library in use, or the one that the first collective starts.

        What ``runtime.disco.compiled_ccl`` returns on worker 0: ``"mpi"``, ``"nccl"``,
        ``"rccl"`` or ``"local"``. Waits for it.

        Examples:
            >>> session.ccl
            'local'
        """
        self._core.check_may_wait("await asyncio.to_thread(getattr, session, 'ccl')")
        name: str = self._core.get(self._core.call_builtin("runtime.disco.compiled_ccl"), 0)
        return name

    @property
    def draining(self) -> tuple[str, ...]:
        """The names of this session's nodes that are about to go.

        They take no new sessions, and end when those that they have are over. A program
        may move by then: save what it needs and open another session.

        Examples:
            >>> session.draining
            ()
        """
        return self._core.transport.draining

    @property
    def expiry(self) -> Expiry | None:
        """When a quota of the cluster will end this session; None if none will soon.

        The session is warned a minute or so before, in the log of ``disco_client`` too. Until
        ``expiry.seconds_left`` are over, a program may save what it needs and open another one;
        where ``expiry.limit`` is ``"idle"``, any command prevents the end.

        Examples:
            >>> session.expiry is None
            True
        """
        return self._core.transport.expiry

    @property
    def room(self) -> int:
        """How many slots the cluster has free for workers like this session's.

        Asks the controller. A session never takes more by itself; one that was opened with
        ``num_workers=(2, 8)`` and recovers from a loss by a function takes what is free then.

        Raises:
            AccessDenied: The controller refuses these credentials.
            ConnectionFailed: It does not answer.
            SessionError: The session is closed or lost.
            WouldBlock: The call would wait in an event loop.

        Examples:
            >>> session.room
            0
        """
        self._core.check_may_wait("await asyncio.to_thread(getattr, session, 'room')")
        self._core.log.check_open()
        return self._core.transport.room()

    def progress(self) -> tuple[WorkProgress, ...]:
        """What takes long at this moment, and how far it is.

        Loads, saves, checkpoints, assigned tensors, modules and large arrays on their way,
        the oldest first, and at the end the commands that workers have not yet said to have
        executed, which a sync waits for. Asks nobody, so that another thread or task can
        call it while one waits::

            for work in session.progress():
                print(work)  # load_weights model.gguf: 1.2 GB of 3.4 GB, 35 %, 4 s

        What one command does counts as a whole, when it is done: a checkpoint's bytes once
        all are written, an array's once it has arrived.

        Examples:
            >>> session.sync_all()
            >>> session.progress()
            ()
        """
        found, log = self._core.part(WorkTable).all(), self._core.log
        issued, acked = log.last_call, log.acked
        # Nobody waits for commands that only free registers, so nobody asks how far they are.
        if issued <= acked:
            return found
        return (*found, WorkProgress("commands", "", acked, issued, "commands"))

    def statistics(self) -> dict[str, Any]:
        """Counts of this moment: commands issued and executed, registers in use.

        Examples:
            >>> session.sync_all()
            >>> session.statistics()["registers"]  # that this program refers to
            0
        """
        return self._core.log.statistics()

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        """The recoveries of the session with other workers, in order.

        Examples:
            >>> session.recoveries  # none was lost
            ()
        """
        return checkpointing.recoveries(self._core)

    def __reduce__(self) -> NoReturn:
        return self._core.__reduce__()

    def __repr__(self) -> str:
        return repr(self._core)

    def _repr_html_(self) -> str:
        import_uninterrupted("disco_client.distributed.pictures.model")
        from disco_client.distributed.pictures.model import ranges

        counts = self.statistics()
        facts = {
            "state": "closed" if self._core.closed else "open",
            "id": self.session_id,
            "workers": f"{self.num_workers} in {many(self.num_groups, 'group')}",
        }
        for node in dict.fromkeys(rank.node for rank in self.workers):
            here = [rank for rank in self.workers if rank.node == node]
            devices = ", ".join(dict.fromkeys(rank.device for rank in here))
            facts[f"node {node}"] = f"workers {ranges([rank.worker for rank in here])} on {devices}"
        facts["commands"] = f"{counts['issued']} issued, {counts['acked']} known to be executed"
        return facts_table(f"Session {self.name}", facts)

    # Functions and programs ------------------------------------------------------

    def get_global_func(self, name: str) -> DPackedFunc:
        """Refers to a function by name; the workers look it up.

        Args:
            name: A registered name such as ``"runtime.disco.empty"``, or a dotted
                name such as ``"numpy.matmul"`` that the workers' allow-list covers.

        Returns:
            The function, at once; a missing one is an error of the next sync
            (:class:`~disco_client.FunctionNotFound`).

        Raises:
            TypeError: It is no name.

        Examples:
            >>> norm = session.get_global_func("numpy.linalg.norm")
            >>> print(norm(session.broadcast(np.array([3.0, 4.0]))).get())
            5.0
        """
        if not isinstance(name, str):
            raise TypeError(f"expected a function's name, a str, got {described(name)}")
        return self._core.here().look_up(name)

    def call_packed(self, func: DRef, /, *args: object, **keywords: object) -> DRef:
        """Calls a function on every worker; returns at once.

        Args:
            func: What :meth:`get_global_func` or a module returned.
            *args: None, bool, signed int of 64 bits, float, str, bytes, dtype, Device,
                Shape, arrays, references, and lists, tuples, sets or dicts of them.
                Dtypes, devices and shapes may be TVM's, and arrays of any library
                that speaks DLPack, in the CPU's memory. A reference becomes what
                each worker's register holds. An array is copied; a large one has
                been sent when this returns.
            **keywords: Keyword arguments, of the same kinds.

        Returns:
            The register that will hold each worker's result.

        Raises:
            TypeError: ``func`` is no reference.
            EncodingError: An argument is of a kind that cannot travel.
            ForeignReference: A reference belongs to another session, or its register was freed.
            SessionError: The session is closed or lost.

        Examples:
            >>> add = session.get_global_func("numpy.add")
            >>> print(session.call_packed(add, 40, 2).get())
            42
        """
        if keywords:
            return self._core.call_with(func, args, keywords)
        return self._core.call(func, *args)

    @overload
    def function(self, func: Callable[P, Coroutine[Any, Any, T]], /) -> DPackedFunc[P, T]: ...

    @overload
    def function(self, func: Callable[P, T], /) -> DPackedFunc[P, T]: ...

    def function(self, func: Any, /) -> DPackedFunc[Any, Any]:
        """A function of the program, on the workers.

        They find it by its module and name, and it needs no registration. Of a module that is one
        file, the program's own among them, the session brings the file first, as
        :meth:`load_source` does, and waits for that; what stands below ``if __name__ ==
        "__main__":`` is not executed there. A function of an installed package is found if the
        workers have the package and their allow-list covers it. Of a notebook's cell they get the
        source, with the modules, constants and functions that it uses. Nothing is pickled.

        An ``async def`` function runs on an event loop of the worker's, and a call of it ends when
        it has returned.

        Args:
            func: A function that is defined at the top of its module or in a class.

        Raises:
            ConfigError: Workers cannot find it: it captures variables, is a lambda, or is defined
                inside of another function; or one of a notebook uses another kind of global.
            TypeError: It is no function.
            NotAllowed: A worker's settings do not let sessions load what clients bring.
            RemoteError: See above. What the import of the file raises on worker 0.
            SessionError: The session is closed or lost.

        Examples:
            >>> double = session.function(np.negative)
            >>> double(session.broadcast(np.arange(3))).numpy(worker_id=2)
            array([ 0, -1, -2])
        """
        name = self._own_code("function, func").name_of(func)
        found: DPackedFunc[Any, Any] = self._core.look_up(name)
        return found

    def _own_code(self, call: str) -> OwnCode:
        self._check_may_wait(call)
        import_uninterrupted("disco_client.own_code")
        from disco_client.own_code import OwnCode

        return self._core.part(OwnCode)

    @overload
    def create(self, cls: str, /, *args: object, **keywords: object) -> DObject: ...

    @overload
    def create(self, cls: Callable[P, T], /, *args: P.args, **keywords: P.kwargs) -> DObject[T]: ...

    @overload
    def create(
        self, cls: Callable[..., T], a: DRef | DTensor, /, *args: object, **keywords: object
    ) -> DObject[T]: ...

    @overload
    def create(
        self,
        cls: Callable[..., T],
        a: object,
        b: DRef | DTensor,
        /,
        *args: object,
        **keywords: object,
    ) -> DObject[T]: ...

    def create(self, cls: Any, /, *args: Any, **keywords: Any) -> DObject[Any]:
        """Makes an object on every worker; returns at once.

        Args:
            cls: A class of the program, which is brought as :meth:`function` brings a
                function; or the name under which a module registered its class, with
                ``@disco_server.register_class``, or the dotted name of a class in a module
                that the workers' allow-list covers.
            *args: What the class is called with, of the kinds that every call takes.
            **keywords: The same with names.

        Returns:
            The object, whose methods can be called and whose attributes can be read. What
            is wrong on a worker is raised by the next call that waits:
            :class:`~disco_client.FunctionNotFound` for a missing class,
            :class:`~disco_client.NotAllowed` for one that the worker's settings do not
            cover, or what the class raised.

        Raises:
            TypeError: That is no name and no class.
            ConfigError, NotAllowed, RemoteError: Of a class, as for :meth:`function`.
            EncodingError: An argument is of a kind that cannot travel.
            SessionError: The session is closed or lost.

        Examples:
            >>> import disco_server
            >>> @disco_server.register_class("docs.Store")
            ... class Store:
            ...     def __init__(self, value):
            ...         self.value = value
            >>> store = session.create("docs.Store", 42)
            >>> store.value.get(worker=3)
            42
        """
        name = self._own_code("create, cls").name_of(cls) if isinstance(cls, type) else cls
        return objects.create(self._core, name, args, keywords)

    def import_python_module(self, module_name: str) -> None:
        """Imports a Python module on every worker, so that its functions register.

        Errors come at the next sync: :class:`~disco_client.NotAllowed` where a
        worker's allow-list does not cover it, :class:`~disco_client.FunctionNotFound`
        where there is no such module.

        Examples:
            >>> session.import_python_module("json")
            >>> session.sync_all()
        """
        self._core.call_builtin("runtime.disco._import_python_module", module_name)

    def load_vm_module(self, path: str | os.PathLike[str], device: object = None) -> DModule:
        """Loads a module on every worker; ``module["name"]`` is one of its functions.

        A file that is at the client decides what is loaded: each node uses its own
        file of that path where the content is the same, and otherwise gets the
        client's, once, into its cache. This waits until each node has the file; a
        path that is not at the client is one of the workers, and nothing is waited
        for. Loading itself goes on behind the call, as every command does.

        Args:
            path: A library that TVM compiled (``.so``, ``.tar``), a Python file
                (``.py``: its public functions), or a file for which the workers
                have a loader of the entry-point group ``disco.module_loaders``.
            device: Where its functions run: a device of Disco, TVM or torch, or a
                text such as ``"cpu"``; None means each worker's own device.

        Returns:
            The module. What is wrong on a worker is raised by the next call that
            waits, or by this one: :class:`~disco_client.BadFile` for a file that is
            missing or of no known kind, :class:`~disco_client.NotAllowed` for one
            that the worker's settings do not let sessions load,
            :class:`~disco_client.FunctionNotFound` for a missing function.

        Raises:
            ConfigError: A wrong device.
            TypeError: The path is none.
            OSError: The file at the client cannot be read.
            RemoteError: See above.
            SessionError: The session is closed or lost.

        Examples:
            >>> from pathlib import Path
            >>> _ = Path("halving.py").write_text("def halve(x): return x / 2")
            >>> session.load_vm_module("halving.py")["halve"](84).get()
            42.0
        """
        self._check_may_wait("load_vm_module, path")
        return modules.load_vm_module(self._core, path, device)

    def load_source(self, source: str | Path | ModuleType) -> None:
        """Imports a Python file of the program on every worker, so that its functions register.

        ``session.load_source(__file__)`` brings the program itself: workers import it
        under the name of its file, so that what stands below ``if __name__ ==
        "__main__":`` is not executed there. Each node gets the file once, into its
        cache, where its settings (``--allow-load uploads``) permit it; this waits until it
        has it. A file that has changed is imported anew, and replaces the functions
        that it registered; one that has not is not imported again.

        The file comes alone: what it imports must be on the workers, or have been
        brought before, as by :meth:`include`.

        Args:
            source: The path of a ``.py`` file, or a module that is one. Workers know
                it by the name of the file without its suffix, or by the module's.

        Raises:
            ConfigError: It is no such file or module, or has the name of one of Python's
                own modules.
            TypeError: It is neither a path nor a module.
            OSError: The file cannot be read.
            NotAllowed: A worker's settings do not let sessions load what clients bring.
            RemoteError: See above. What goes wrong in the import itself is raised by the
                next call that waits: :class:`~disco_client.RemoteException` for what the
                file raises, a syntax error among it, :class:`~disco_client.BadFile` where
                something that it imports is not on the worker.
            SessionError: The session is closed or lost.

        Examples:
            >>> from pathlib import Path
            >>> source = '''
            ... import disco_server
            ... @disco_server.register_func("docs.sourced")
            ... def sourced():
            ...     return "from a file"
            ... '''
            >>> _ = Path("sourced.py").write_text(source)
            >>> session.load_source("sourced.py")
            >>> session.get_global_func("docs.sourced")().get()
            'from a file'
        """
        self._check_may_wait("load_source, source")
        modules.load_source(self._core, source)

    def include(self, package: str | Path | ModuleType) -> None:
        """Brings a package of the program to the workers, so that functions there can import it.

        All its Python and data files are sent, without bytecode and hidden files: once to each
        node, into its cache, where its settings (``--allow-load uploads``) permit it; this waits
        until the workers have them. Then ``import helpers`` works there, and
        ``session.function(helpers.scale)`` as well. Workers that are threads have the package of
        the program.

        Nothing is sent again while the files are the same. Where they have changed, the workers
        forget what they imported of the package, and import it anew when they need it; files of
        functions are brought anew by the next :meth:`function` or :meth:`create`. What holds a
        function of the former version keeps that.

        Args:
            package: The name of a package, or of a module of one file, that the program can
                import; the path of its folder or file; or the module.

        Raises:
            ConfigError: There is none; it is installed, a part of a package, or in several
                folders; it has the name of a module of Python's or Disco's own; it has more than
                64 MiB, extension modules, or links out of its folder.
            TypeError: It is neither a name, nor a path, nor a module.
            OSError: A file cannot be read.
            NotAllowed: A worker's settings do not let sessions load what clients bring.
            RemoteError: See above. :class:`~disco_client.BadFile` where a worker has another
                module of that name.
            SessionError: The session is closed or lost.

        Examples:
            >>> from pathlib import Path
            >>> Path("helping").mkdir()
            >>> _ = Path("helping/__init__.py").write_text("")
            >>> _ = Path("helping/scaling.py").write_text("def double(x): return 2 * x")
            >>> session.include("helping")
            >>> from helping.scaling import double
            >>> session.function(double)(4).get(worker=3)
            8
        """
        self._own_code("include, package").include(package)

    def capture(self, name: str | None = None) -> AbstractContextManager[Program]:
        """Records commands instead of running them.

        ::

            with session.capture() as program:
                x = program.input("x")
                program.output(step(x, weights))
            for _ in range(1000):
                x = program(x)

        Inside the block, what this asyncio task, or this thread, issues on this session is
        written down: calls, lookups of functions, allocations, collectives, and copies of
        arrays of up to 64 KiB to worker 0. Other tasks and threads run as usual. References
        made inside are of use inside only, except as outputs; those from outside are taken by
        reference: each run sees what their registers hold then, and in-place changes are seen
        outside. A run ends with its first failing step; see :class:`Program`.

        Args:
            name: What reports call the program.

        Returns:
            The program, to be entered with ``with``; a block that raises discards it.

        Raises:
            CaptureError: On entering: this task or thread captures already. Inside the block:
                a call that would have to wait, such as a sync.
            SessionError: The session is closed or lost.

        Examples:
            >>> add = session.get_global_func("numpy.add")
            >>> with session.capture("sum") as program:
            ...     program.output(session.allreduce(add(program.input("x"), 1)))
            >>> program(session.broadcast(np.ones(2))).numpy()
            array([8., 8.])
        """
        Capture = import_uninterrupted("disco_client.program").Capture  # noqa: N806  (a class)
        return Capture(self._core, name, Session._of)

    # Arrays ----------------------------------------------------------------------

    def empty(
        self,
        shape: Iterable[SupportsIndex],
        dtype: object,
        device: object = None,
        worker0_only: bool = False,
        in_group: bool = True,
    ) -> DRef:
        """Allocates an uninitialised array on the workers.

        Args:
            shape: Its extents; ``()`` makes a 0-d array.
            dtype: A numpy dtype or its name, ``"bfloat16"`` included.
            device: A device such as ``"cuda:0"``, also one of TVM's or torch's; None
                means each worker's own.
            worker0_only: Allocate on worker 0 alone, or with ``in_group`` on the
                first worker of each group; the others hold None.
            in_group: See ``worker0_only``.

        Raises:
            ConfigError: A wrong shape, dtype or device, or an array larger than any.

        Examples:
            >>> session.empty((2, 3), "float32").numpy().shape
            (2, 3)
        """
        return self._core.empty(shape, dtype, device, worker0_only, in_group)

    def copy_to_worker_0(self, host_array: object, remote_array: DRef | None = None) -> DRef:
        """Copies a host array to worker 0.

        The array may be changed as soon as this returns.

        Args:
            host_array: An array of numpy, of another library that speaks DLPack, in
                the CPU's memory, or what ``numpy.asarray`` makes one of.
            remote_array: Where to copy it: an array of the same dtype and number
                of elements. None allocates one on worker 0.

        Returns:
            The reference of the copy.

        Raises:
            EncodingError: The host array holds Python objects, lies on a GPU, or
                records gradients.
            SessionError: The session is closed or lost.

        Examples:
            >>> ref = session.copy_to_worker_0(np.ones(2))
            >>> ref.numpy()
            array([1., 1.])
        """
        return self._core.copy_to_worker_0(host_array, remote_array)

    def copy_from_worker_0(
        self, host_array: object, remote_array: DRef, *, timeout: float | None = None
    ) -> None:
        """Fills a host array from worker 0; waits until it is filled.

        Args:
            host_array: A writable array of the remote one's dtype and number of
                elements, contiguous or not: of numpy, or of another library that
                speaks DLPack, in the CPU's memory.
            remote_array: The array on worker 0.
            timeout: Seconds to wait for the answer. An array that has begun to arrive is
                waited for.

        Raises:
            BadArgument: Size or dtype differ.
            DiscoTimeout: There is no answer yet; the call may be repeated.
            EncodingError: The host array cannot be written.
            SessionError: The session is closed or lost.

        Examples:
            >>> here = np.empty(2)
            >>> session.copy_from_worker_0(here, session.broadcast(np.ones(2)))
            >>> here
            array([1., 1.])
        """
        self._core.copy_from_worker_0(host_array, remote_array, timeout)

    async def put(self, host_array: object) -> DRef:
        """Copies a host array of any size to worker 0; ``copy_to_worker_0`` for asyncio.

        The array may be changed as soon as this returns. If the await is cancelled, it is
        still sent.

        Args:
            host_array: An array, or what ``numpy.asarray`` makes one of.

        Returns:
            The reference of the copy.

        Raises:
            EncodingError: The host array holds Python objects.
            SessionError: The session is closed or lost.

        Examples:
            >>> import asyncio
            >>> async def main():
            ...     async with disco_client.aconnect(num_workers=2) as cluster:
            ...         ref = await cluster.put(np.ones(100_000))
            ...         return (await ref).shape
            >>> asyncio.run(main())
            (100000,)
        """
        return await self._core.put(host_array)

    def load_weights(
        self,
        path: str | os.PathLike[str],
        plan: Mapping[str, str | int | PlacementSpec | None],
        *,
        dtype: object = None,
        expect: Mapping[str, Sequence[int] | None] | None = None,
        strict: bool = True,
        in_group: bool = True,
        keep_blocks: Collection[str] = (),
        progress: bool | None = None,
    ) -> dict[str, DTensor]:
        """Loads a model's tensors; each worker reads its own parts from its own disk.

        Names, shapes and the plan are checked before any worker allocates
        anything, and everything that is wrong is in one error. Waits until all
        is loaded.

        Args:
            path: On the workers: a safetensors file, a safetensors index
                (``model.safetensors.index.json``), a GGUF file, a ``tensor-cache.json``,
                or a folder with such files; or the URL of one of these, such as
                ``s3://bucket/model``. A relative path is taken from the client's own
                folder. Tensors that GGUF stores in blocks become float32, except those
                of ``keep_blocks``; workers need the package ``gguf`` for them.
            plan: How each tensor is divided: names or patterns (``*`` matches dots
                too; the first match counts) with ``"R"`` or None (every worker has
                the whole), ``"S[0]"`` or 0 (split along that axis, whose extent the
                workers must divide), a `PlacementSpec` (``sharding`` for uneven
                extents, ``fused``, ``explicit``), or ``"skip"`` (not loaded, and need not be
                there). A tensor that a file names in its metadata alone, because it is
                another one as well (tied weights), goes by each of its names; one of
                them is enough.
            dtype: A floating-point dtype that tensors of floating-point numbers
                are converted to; None keeps what the files have.
            expect: Every tensor that the program needs, with its whole shape, or
                None for any shape.
            strict: Whether a pattern that matches nothing, and a tensor that no
                pattern matches or that is not expected, is an error. Otherwise
                they are ignored, and such tensors left out.
            in_group: Whether each group has a full copy among its workers;
                otherwise one copy is divided among all workers.
            keep_blocks: Formats of GGUF's blocks, such as ``("Q4_1", "Q8_0")``, whose tensors
                stay as they lie in the file: uint8 of [..., bytes of a row]. ``plan`` and
                ``expect`` count numbers all the same; a tensor of which they would cut a
                block becomes numbers.
            progress: Whether to show a progress bar on standard error; None shows
                it on a terminal.

        Returns:
            Distributed tensors by name, in the order of the files: on a mesh of all
            workers, or with groups, unless ``in_group`` is False, on one with a row for
            each group.

        Raises:
            ConfigError: The plan, ``expect`` or the dtype is none.
            WeightsMismatch: Files and plan do not fit; nothing was loaded.
            BadFile: A file is missing on a worker, malformed, or differs from
                worker 0's.
            NotAllowed: A worker's ``--allow-read`` does not cover a file.
            SessionError: The session is closed or lost.

        Examples:
            >>> from safetensors.numpy import save_file
            >>> save_file({"up": np.ones((8, 2), "float32")}, "model.safetensors")
            >>> weights = session.load_weights("model.safetensors", {"*": "S[0]"})
            >>> weights["up"].shape_on(3)
            (2, 2)
        """
        self._check_may_wait("load_weights, path, plan")
        import_uninterrupted("disco_client.weights")
        from disco_client import weights

        return weights.load_weights(
            self._core,
            path,
            plan,
            self._engine,
            dtype=dtype,
            expect=expect,
            strict=strict,
            in_group=in_group,
            keep_blocks=keep_blocks,
            progress=progress,
        )

    # Distributed tensors ---------------------------------------------------------

    def mesh(
        self, shape: Sequence[int] | int | None = None, names: Sequence[str] = ()
    ) -> DeviceMesh:
        """Makes a mesh of this session's first workers.

        Args:
            shape: How many workers along each axis; a number for so many in one row,
                None for all.
            names: A name for each axis, such as ``("dp", "tp")``.

        Raises:
            ConfigError: The session has fewer workers, or the names do not fit.

        Examples:
            >>> session.mesh((2, 2), ("dp", "tp")).shape
            Shape([2, 2])
        """
        import_uninterrupted("disco_client.distributed.dispatch")
        from disco_client.distributed.dispatch import make_mesh

        return make_mesh(self._core, shape, names)

    def distribute(
        self, array: object, mesh: DeviceMesh | None = None, placement: Placement | str = "R"
    ) -> DTensor:
        """Brings a host array to the workers of a mesh; each gets its own part.

        Parts may be of different sizes, and empty, where the mesh does not divide the
        tensor. The array may be changed as soon as this returns. Of a memory-mapped
        array (``numpy.load(..., mmap_mode="r")``) only what is sent is read, part by
        part; of a file the workers read their own parts, after this has waited for the
        file's header.

        Args:
            array: An array, or what ``numpy.asarray`` makes one of; or a file that the
                workers read: :func:`~disco_client.distributed.from_safetensors`,
                :func:`~disco_client.distributed.from_npy`.
            mesh: The mesh; None for all workers in one row.
            placement: Its placement there, such as ``"S[0], R"``: a spec for each
                axis of the mesh.

        Raises:
            ConfigError: The placement does not fit the array or the mesh.
            EncodingError: The array holds Python objects.
            BadFile: A worker's file is missing, malformed, or not what another has.
            NotAllowed: A worker's ``--allow-read`` does not cover the file.

        Examples:
            >>> x = session.distribute(np.arange(8.0).reshape(4, 2), placement="S[0]")
            >>> x.shard(3)
            array([[6., 7.]])
        """
        return self._engine.distribute(array, self.mesh() if mesh is None else mesh, placement)

    async def adistribute(
        self, array: object, mesh: DeviceMesh | None = None, placement: Placement | str = "R"
    ) -> DTensor:
        """Brings a host array of any size to a mesh; :meth:`distribute` for asyncio.

        A thread sends the parts, and its commands belong to the task's scope. The array must not
        be changed before this returns. If the await is cancelled, the thread goes on.

        Args:
            array: As for :meth:`distribute`, a file that the workers read among them.
            mesh: As for :meth:`distribute`.
            placement: As for :meth:`distribute`.

        Raises:
            ConfigError, EncodingError, BadFile, NotAllowed: As for :meth:`distribute`.
            ThreadRefused: The system starts no thread for it.

        Examples:
            >>> import asyncio
            >>> async def main():
            ...     async with disco_client.aconnect(num_workers=2) as cluster:
            ...         x = await cluster.adistribute(np.ones((2, 50_000)), placement="S[0]")
            ...         return await x.sum()
            >>> asyncio.run(main())
            array(100000.)
        """
        import asyncio

        with starting("session.adistribute"):
            return await asyncio.to_thread(self.distribute, array, mesh, placement)

    @property
    def numpy(self) -> ArrayNamespace:
        """Numpy's names, whose functions make tensors on the workers and compute there.

        What is made lies on all workers in one row, split along its first axis;
        ``session.numpy(mesh=mesh, placement="R, S[0]")`` is for other meshes and placements.

        Examples:
            >>> xp = session.numpy
            >>> x = xp.arange(8.0).reshape(4, 2)
            >>> xp.roll(x, 1, axis=0)[0].numpy(), xp.eye(4).shape_on(0)
            (array([6., 7.]), (1, 4))
        """
        return self._engine.namespace(self.mesh())

    def apply(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function of distributed tensors by its name; returns at once.

        Args:
            name: Of one of Disco's functions, or of a rule that was registered.
            *operands: Distributed tensors on one mesh, host arrays, and numbers.
            **options: The function's.

        Returns:
            The result; of ``"split"`` a list of them.

        Raises:
            ConfigError: There is no rule of that name, or the operands do not fit it.

        Examples:
            >>> x = session.distribute(np.zeros((4, 2)), placement="S[0]")
            >>> session.apply("softmax", x, axis=1).numpy()[0]
            array([0.5, 0.5])
        """
        return self._engine.call(name, *operands, **options)

    def assign(
        self,
        targets: Mapping[str, DTensor],
        sources: Mapping[str, DTensor],
        *,
        progress: bool | None = None,
    ) -> None:
        """Gives distributed tensors the values of others, which may be on other meshes.

        As for the parameters of a model that is trained on some workers and used on
        others. Workers send each other what they lack, as :meth:`DTensor.redistribute
        <disco_client.distributed.DTensor.redistribute>` does, in buckets: one command
        for some tensors of up to 32 MiB on a worker. Waits until all are assigned. The
        targets stay the same tensors, also for programs that have captured them, and
        their memory is written into where nothing else uses it.

        Args:
            targets: The tensors that get other values, by their names.
            sources: For each of them one of the same shape and dtype.
            progress: Whether to show a progress bar on standard error; None shows it
                on a terminal.

        Raises:
            ConfigError: Names, shapes or dtypes do not fit; nothing was assigned.
            ForeignReference: A tensor belongs to another session, or its register was freed.
            AssignFailed: A bucket failed; the error lists which tensors are new, which
                are old, and which are of that bucket and stand for this failure.
            RemoteError: Something had failed before; nothing was assigned.
            SessionError: The session is closed or lost.

        Examples:
            >>> source = session.distribute(np.ones(4), placement="S[0]")
            >>> target = session.distribute(np.zeros(4), placement="R")
            >>> session.assign({"weight": target}, {"weight": source})
            >>> target.numpy()
            array([1., 1., 1., 1.])
        """
        self._check_may_wait("assign, targets, sources")
        import_uninterrupted("disco_client.distributed.assign")
        from disco_client.distributed import assign

        assign.assign(self._core, self._engine, targets, sources, progress=progress)

    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, DTensor],
        *,
        format: str = "disco",
        wait: Literal[True] = True,
        progress: bool | None = None,
    ) -> None: ...

    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, DTensor],
        *,
        format: Literal["disco"] = "disco",
        wait: Literal[False],
        progress: bool | None = None,
    ) -> Saving: ...

    @overload
    def save(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, DTensor],
        *,
        format: str = "disco",
        wait: bool,
        progress: bool | None = None,
    ) -> Saving | None: ...

    def save(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, DTensor],
        *,
        format: str = "disco",  # noqa: A002  (as pandas and torch name it)
        wait: bool = True,
        progress: bool | None = None,
    ) -> Saving | None:
        """Saves distributed tensors; each worker writes its own parts.

        What is saved is what the commands before this one made of the tensors. Waits
        until everything is durable. However a save ends, the checkpoint that was at
        ``path`` before stays whole until the new one has taken its place.

        Args:
            path: A folder that all workers share; made where it is missing. A relative
                path is taken from the client's own folder. Or the URL of a place in an
                object store, such as ``s3://bucket/step-1``. For the formats ``"hdf5"`` and
                ``"netcdf"`` a file in such a folder.
            tensors: The tensors by their names. Of copies the first worker's is
                written; partial values are combined first.
            format: ``"disco"`` for a checkpoint, which :meth:`load` reads. ``"zarr"``,
                ``"hdf5"`` and ``"netcdf"`` (of version 4) make a store of arrays for other
                programs, whose names may lie in groups, as ``"run/w"``; see
                :func:`~disco_client.distributed.from_zarr` and its kind. To Zarr all workers
                write at once, to the others one after the other.
            wait: False returns as soon as each worker has copied its parts into its host's
                memory; a thread of each writes them while the session goes on. Only for
                checkpoints, one at a time. Leaving the session waits for it.
            progress: Whether to show a progress bar on standard error; None shows it
                on a terminal. With ``wait=False``, where a call waits for the end.

        Returns:
            With ``wait=False`` what says how far it is, and waits for the end. An error in
            the background is raised like that of a command which this line has issued.

        Raises:
            ConfigError: The path or a name is none, something is no distributed
                tensor, the format does not exist or have a tensor's dtype, or it is no
                checkpoint and ``wait`` is False.
            NoMemory: The workers have no room for the copies.
            SavingUnderWay: A save of before with ``wait=False`` has not ended.
            ForeignReference: A tensor belongs to another session, or its register was freed.
            BadFile: The folder or store cannot be written, has no room, is not shared by
                all workers, or another session saves there; or a worker lacks the format's
                library.
            NotAllowed: A worker's ``--allow-save`` does not cover the folder.
            RemoteError: A tensor could not be computed.
            SessionError: The session is closed or lost.

        Examples:
            >>> x = session.distribute(np.ones((4, 2)), placement="S[0]")
            >>> session.save("step-1", {"x": x})
            >>> sorted(session.load("step-1"))
            ['x']
        """
        self._check_may_wait("save, path, tensors")
        if format != "disco":
            if not wait:
                raise ConfigError(
                    f"expected wait=True for format {format!r}, whose workers write in turns;"
                    " checkpoints are saved in the background"
                )
            import_uninterrupted("disco_client.distributed.array_stores")
            from disco_client.distributed import array_stores

            array_stores.save_arrays(
                self._core, path, self._engine, tensors, format, progress=progress
            )
            return None
        import_uninterrupted("disco_client.distributed.storage")
        from disco_client.distributed import storage

        return storage.save(self._core, path, self._engine, tensors, wait=wait, progress=progress)

    def load(
        self,
        path: str | os.PathLike[str],
        mesh: DeviceMesh | None = None,
        placements: Placement | str | Mapping[str, Placement | str] | None = None,
        *,
        progress: bool | None = None,
    ) -> dict[str, DTensor]:
        """Loads the tensors that :meth:`save` wrote; each worker reads its own parts.

        They may be placed on another mesh, in another way, on more or fewer workers.
        Waits until all is loaded.

        Args:
            path: The checkpoint's folder, on all workers. A relative path is taken from
                the client's own folder. Or its URL, as of `save`.
            mesh: The mesh to place them on; None for the mesh on which each was
                saved.
            placements: Their placements: one for all, or by names and patterns
                (``*`` matches dots too; the first match counts). None, and tensors
                that no pattern matches, for as they were saved, which needs a mesh of
                the same shape.
            progress: Whether to show a progress bar on standard error; None shows it
                on a terminal.

        Returns:
            The tensors by name.

        Raises:
            ConfigError: Mesh and placements do not fit the tensors or the session.
            BadFile: A file is missing on a worker, was damaged or cut short, or is of
                another checkpoint.
            NotAllowed: A worker's ``--allow-read`` does not cover the folder.
            SessionError: The session is closed or lost.

        Examples:
            >>> x = session.distribute(np.ones((4, 2)), placement="S[0]")
            >>> session.save("step-1", {"x": x})
            >>> session.load("step-1", placements="R")["x"].shape_on(0)
            (4, 2)
        """
        self._check_may_wait("load, path")
        import_uninterrupted("disco_client.distributed.storage")
        from disco_client.distributed import storage

        return storage.load(self._core, path, self._engine, mesh, placements, progress=progress)

    @property
    def _engine(self) -> Engine:
        # Most programs use no distributed tensors, and do not load their code.
        return self._core.part(import_uninterrupted("disco_client.distributed.dispatch").Engine)

    # Collectives -----------------------------------------------------------------

    def init_ccl(self, ccl: str, *device_ids: int) -> None:
        """Starts a collective library on all workers; waits until it runs.

        Not needed before the first collective, which starts one by itself.

        Args:
            ccl: ``"mpi"``, ``"nccl"``, ``"rccl"`` or ``"local"``. Between the threads of
                a :class:`~disco_client.ThreadedSession`, ``"local"`` serves for
                ``"mpi"``; :attr:`ccl` says what is in use.
            *device_ids: For a library of GPUs, the number of each worker's GPU on its
                machine, in the workers' order; the worker computes there from now on.
                Not needed where the workers' slots are GPUs.

        Raises:
            ConfigError: There is no library of that name, or a GPU has no number.
            CclError: It is missing on a worker, or could not start.

        Examples:
            >>> session.init_ccl("local")
            >>> session.ccl
            'local'
        """
        self._check_may_wait("init_ccl, ccl")
        collectives.init_ccl(self._core, ccl, *device_ids)

    def broadcast(
        self,
        src: object,
        dst: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Copies a host array to every worker.

        Args:
            src: A host array as for :meth:`copy_to_worker_0`.
            dst: An array of the same size and dtype on every worker; None
                allocates one.
            in_group: Every worker receives ``src`` either way.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of the copies.

        Raises:
            ConfigError: The tag is no str.

        Examples:
            >>> session.broadcast(np.ones(2)).numpy(worker_id=3)
            array([1., 1.])
        """
        del in_group  # only worker 0 has the data, so it alone can be the source
        self._core.check_may_send(src, "await session.abroadcast(array)")
        return collectives.broadcast(self._core, src, dst, tag)

    async def abroadcast(
        self, src: object, dst: DRef | None = None, *, tag: str | None = None
    ) -> DRef:
        """Copies a host array of any size to every worker; :meth:`broadcast` for asyncio.

        Its commands have their place in the order of commands before the array is sent. The array
        may be changed as soon as this returns. If the await is cancelled, it is still sent.

        Args:
            src: As for :meth:`broadcast`.
            dst: As for :meth:`broadcast`.
            tag: As for :meth:`broadcast`.

        Returns:
            The reference of the copies.

        Raises:
            ConfigError: The tag is no str.
            EncodingError: The host array holds Python objects.
            SessionError: The session is closed or lost.

        Examples:
            >>> import asyncio
            >>> async def main():
            ...     async with disco_client.aconnect(num_workers=2) as cluster:
            ...         ref = await cluster.abroadcast(np.ones(100_000))
            ...         return (await ref.get(1)).shape
            >>> asyncio.run(main())
            (100000,)
        """
        return await collectives.abroadcast(self._core, src, dst, tag)

    def broadcast_from_worker0(
        self,
        src: DRef,
        dst: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Copies worker 0's array (each group's first worker's) to all workers.

        Args:
            src: The array on the source; the other workers' content is ignored.
            dst: An array of its size and dtype on every worker; may be ``src``; None
                makes one of its shape.
            in_group: Whether each group has a source of its own.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of the copies: ``dst`` where it is given.

        Raises:
            ConfigError: The tag is no str.

        Examples:
            >>> source = session.copy_to_worker_0(np.ones(2))
            >>> target = session.empty((2,), "float64")
            >>> _ = session.broadcast_from_worker0(source, target)
            >>> target.numpy(worker_id=3)
            array([1., 1.])
        """
        return collectives.move(self._core, "broadcast_from_worker0", src, dst, in_group, tag)

    def scatter(
        self,
        src: object,
        dst: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Gives each worker one slice of a host array along its first axis.

        Args:
            src: A host array as for :meth:`copy_to_worker_0`, whose first axis has one
                entry for each worker; :meth:`distribute` divides any number of rows.
            dst: An array of a slice's size and dtype on every worker; None
                allocates one of shape ``src.shape[1:]``.
            in_group: Worker w receives ``src[w]`` either way.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of the slices.

        Raises:
            ConfigError: The first axis does not fit, or the tag is no str.

        Examples:
            >>> session.scatter(np.arange(8.0).reshape(4, 2)).numpy(worker_id=3)
            array([6., 7.])
        """
        del in_group  # only worker 0 has the data, so it alone can be the source
        self._core.check_may_send(src, "await session.ascatter(array)")
        return collectives.scatter(self._core, src, dst, tag)

    async def ascatter(
        self, src: object, dst: DRef | None = None, *, tag: str | None = None
    ) -> DRef:
        """Gives each worker one slice of a host array of any size; :meth:`scatter` for asyncio.

        Order, the array and cancelled awaits are as for :meth:`abroadcast`.

        Args:
            src: As for :meth:`scatter`.
            dst: As for :meth:`scatter`.
            tag: As for :meth:`scatter`.

        Returns:
            The reference of the slices.

        Raises:
            ConfigError: The first axis does not fit, or the tag is no str.
            EncodingError: The host array holds Python objects.
            SessionError: The session is closed or lost.

        Examples:
            >>> import asyncio
            >>> async def main():
            ...     async with disco_client.aconnect(num_workers=2) as cluster:
            ...         return await (await cluster.ascatter(np.eye(2))).get(1)
            >>> asyncio.run(main())
            array([0., 1.])
        """
        return await collectives.ascatter(self._core, src, dst, tag)

    def scatter_from_worker0(
        self,
        from_array: DRef,
        to_array: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Gives each worker one equal flat chunk of worker 0's array.

        Args:
            from_array: The array on worker 0 (each group's first worker).
            to_array: An array of a chunk's size and dtype on every worker; None makes
                one of ``from_array``'s shape, with its first axis divided by the workers.
            in_group: Whether each group has a source of its own.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of the chunks: ``to_array`` where it is given.

        Raises:
            ConfigError: The tag is no str.

        Examples:
            >>> source = session.copy_to_worker_0(np.arange(8.0).reshape(4, 2))
            >>> target = session.empty((2,), "float64")
            >>> _ = session.scatter_from_worker0(source, target)
            >>> target.numpy(worker_id=1)
            array([2., 3.])
        """
        return collectives.move(
            self._core, "scatter_from_worker0", from_array, to_array, in_group, tag
        )

    def gather_to_worker0(
        self,
        from_array: DRef,
        to_array: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Collects every worker's array on worker 0, in rank order.

        Args:
            from_array: An array on every worker.
            to_array: On worker 0 (each group's first worker), an array with room
                for all of them; None makes one there of shape
                ``(workers, *from_array.shape)``, and gives the others None.
            in_group: Whether each group has a destination of its own.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of what was collected: ``to_array`` where it is given.

        Raises:
            ConfigError: The tag is no str.

        Examples:
            >>> source = session.scatter(np.arange(8.0).reshape(4, 2))
            >>> target = session.empty((4, 2), "float64", worker0_only=True)
            >>> _ = session.gather_to_worker0(source, target)
            >>> target.numpy()[3]
            array([6., 7.])
        """
        return collectives.move(
            self._core, "gather_to_worker0", from_array, to_array, in_group, tag
        )

    def allreduce(
        self,
        src: DRef,
        dst: DRef | None = None,
        op: ReduceName = "sum",
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Reduces the workers' arrays element by element; all get the result.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array of that size and dtype; may be ``src``; None makes one of the
                shape of ``src``.
            op: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``. Sums and
                products of integers wrap; their average does not, and is cut toward zero.
            in_group: Whether the reduction stays inside each group.
            tag: The call's name, such as that of the tensor. Workers whose calls have another
                one, or none, do not begin; the error says the tags of all.

        Returns:
            The reference of the result: ``dst`` where it is given.

        Raises:
            ConfigError: No such reduction, or the tag is no str.

        Examples:
            >>> session.allreduce(session.broadcast(np.ones(2)), op="sum").numpy()
            array([4., 4.])
        """
        return collectives.reduce(self._core, "allreduce", src, dst, op, in_group, tag)

    def allgather(
        self,
        src: DRef,
        dst: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Collects every worker's array on every worker, in rank order.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array with room for all of them; None makes one of shape
                ``(workers, *src.shape)``.
            in_group: Whether the collection stays inside each group.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of what was collected: ``dst`` where it is given.

        Raises:
            ConfigError: The tag is no str.

        Examples:
            >>> part = session.scatter(np.arange(4.0).reshape(4, 1))
            >>> session.allgather(part).numpy(worker_id=2).ravel()
            array([0., 1., 2., 3.])
        """
        return collectives.move(self._core, "allgather", src, dst, in_group, tag)

    def reduce_scatter(
        self,
        src: DRef,
        dst: DRef | None = None,
        op: ReduceName = "sum",
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Reduces the workers' arrays; each worker gets one equal chunk of the result.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array of one chunk's size: ``src`` divided by the workers. None makes
                one of the shape of ``src``, with its first axis divided by the workers.
            op: As in :meth:`allreduce`.
            in_group: Whether the reduction stays inside each group.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of the result: ``dst`` where it is given.

        Raises:
            ConfigError: No such reduction.

        Examples:
            >>> whole = session.broadcast(np.arange(4.0))
            >>> session.reduce_scatter(whole).numpy(worker_id=3)
            array([12.])
        """
        return collectives.reduce(self._core, "reduce_scatter", src, dst, op, in_group, tag)

    def all_to_all(
        self,
        src: DRef,
        dst: DRef | None = None,
        in_group: bool = True,
        *,
        tag: str | None = None,
    ) -> DRef:
        """Sends one equal chunk of each worker's array to each worker.

        Args:
            src: An array of the same size and dtype on every worker.
            dst: An array of that size: chunk ``i`` comes from worker ``i``. None makes
                one of the shape of ``src``.
            in_group: Whether the exchange stays inside each group.
            tag: The call's name, which errors show; see :meth:`allreduce`.

        Returns:
            The reference of what came: ``dst`` where it is given.

        Raises:
            ConfigError: The tag is no str.

        Examples:
            >>> session.all_to_all(session.broadcast(np.arange(4.0))).numpy(worker_id=3)
            array([3., 3., 3., 3.])
        """
        return collectives.move(self._core, "all_to_all", src, dst, in_group, tag)

    def compare_shapes(self, enabled: bool = True) -> None:
        """Makes collectives stricter, to find a mistake: shapes must be equal, too.

        Always refused is another operation, reduction, dtype or number of elements, and
        a collective of another command. With this, arrays of as many elements but
        another shape are refused as well. ``DISCO_DEBUG=1`` in the environment of
        :func:`connect`, or of a worker daemon, switches it on from the start.

        Args:
            enabled: Whether shapes are compared from here on.

        Examples:
            >>> session.compare_shapes(False)
            >>> session.compare_shapes(True)
        """
        self._core.call_builtin("runtime.disco._compare_shapes", bool(enabled))

    # Waiting ---------------------------------------------------------------------

    def sync_worker(self, worker_id: int, *, timeout: float | None = None) -> None:
        """Waits until a worker has executed every command issued before.

        Args:
            worker_id: The worker.
            timeout: Seconds to wait; None waits as long as the session lives.

        Raises:
            DiscoTimeout: It has not yet; the call may be repeated.
            RemoteError: A command of this scope failed on some worker and no call has
                raised it.
            SessionError: The session is closed or lost.

        Examples:
            >>> session.sync_worker(1)
        """
        self._core.sync(self._core.check_worker(worker_id), timeout)

    def sync_worker_0(self, *, timeout: float | None = None) -> None:
        """Waits until worker 0 has executed every command issued before.

        Args:
            timeout: As for :meth:`sync_worker`.

        Raises:
            DiscoTimeout: It has not yet; the call may be repeated.
            RemoteError: A command of this scope failed on some worker and no call has
                raised it.
            SessionError: The session is closed or lost.

        Examples:
            >>> session.sync_worker_0()
        """
        self._core.sync(0, timeout)

    def sync_all(self, *, timeout: float | None = None) -> None:
        """Waits until every worker has executed every command issued before.

        Args:
            timeout: As for :meth:`sync_worker`.

        Raises:
            DiscoTimeout: They have not yet; the call may be repeated.
            RemoteError: A command of this scope failed on some worker and no call has
                raised it.
            SessionError: The session is closed or lost.

        Examples:
            >>> session.sync_all(timeout=60)
        """
        self._core.sync(timeout=timeout)

    async def synced(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (as of all that waits)
        """Awaits that every worker has executed every command issued before.

        Args:
            timeout: As for :meth:`sync_worker`.

        Raises:
            DiscoTimeout, RemoteError, SessionError: As for :meth:`sync_all`.

        Examples:
            >>> import asyncio
            >>> async def main():
            ...     async with disco_client.aconnect(num_workers=1) as cluster:
            ...         cluster.broadcast(np.ones(2))
            ...         await cluster.synced()
            >>> asyncio.run(main())
        """
        await self._core.synced(Deadline.of(timeout))

    async def ready(self) -> None:
        """Awaits that a task can issue commands without waiting for workers.

        Returns at once while there is room; after a wait a quarter of what may be under way
        is free: some 16,000 commands, with 8 MiB in them and 64 MiB of arrays beside them.

        Raises:
            SessionError: The session is closed or lost.

        Examples:
            >>> import asyncio
            >>> async def main():
            ...     async with disco_client.aconnect(num_workers=1) as cluster:
            ...         await cluster.ready()
            ...         return await cluster.broadcast(np.ones(2))
            >>> asyncio.run(main())
            array([1., 1.])
        """
        await await_room(self._core.log)

    _sync_worker = sync_worker
    _sync_all = sync_all

    # Scopes of errors ------------------------------------------------------------

    def scope(self, *, cancel: bool = False) -> Block:
        """Makes a scope: what is issued in its ``with`` block raises its errors there.

        ::

            with session.scope():
                serve(session, request)

        Waits in the block raise the errors of commands in the block, and those outside of it
        do not. Without one, each asyncio task is a scope, also where it works in
        ``asyncio.to_thread``, and each thread. Tasks that are started in a block belong to
        it. Errors that the block has not seen when it ends stay with :meth:`failures`.

        Args:
            cancel: Whether an exception that leaves the block, such as that of a task which is
                cancelled or times out, cancels what was issued in it: what runs ends, as by
                :meth:`interrupt`, and what has not begun is left out. Nobody waits for that, and
                what others have issued is executed.

        Returns:
            The block, to be entered once with ``with``. Its ``cancel()`` cancels what was issued
            in it so far.

        Examples:
            >>> with session.scope():
            ...     total = session.allreduce(session.broadcast(np.ones(2)))
            ...     session.sync_all()  # raises what went wrong in this block
        """
        return Block(self._core.log, self._cancel_scope, cancels=cancel)

    def _cancel_scope(self, scope: Scope) -> None:
        self._core.part(Cancelling).cancel_scope(scope)

    def _cancel(self, ref: DRef) -> None:
        """Gives up the command whose result a reference is to be; see `DRef.cancel`."""
        self._core.part(Cancelling).cancel_result(self._core.check_ref(ref))

    def limit(self, seconds: float) -> LimitBlock:
        """Limits how long each command may take that is issued in a ``with`` block.

        ::

            with session.limit(60):
                loss = step(weights, batch)

        A worker ends a command that takes longer, as :meth:`interrupt` does: the command has
        failed, with the line where the worker was, and the session goes on. It counts from when
        the worker begins the command, so what waits before it costs nothing. A run of a captured
        program is one command. Of nested blocks the shortest limit counts.

        Args:
            seconds: The limit.

        Returns:
            The block, to be entered once with ``with``.

        Raises:
            ConfigError: That is no number of seconds.
            CaptureError: The caller captures a program, whose steps have no limits of their own.

        Examples:
            >>> with session.limit(30):
            ...     total = session.allreduce(session.broadcast(np.ones(2)))
        """
        return LimitBlock(self._core, seconds)

    def batch(self) -> AbstractContextManager[None]:
        """Lets what is issued in a ``with`` block leave together, as one message.

        ::

            with session.batch():
                y = step(x)
                value = y.future()

        Without it, commands that are issued right after one another mostly leave together,
        but the first may have left alone. It concerns this thread or asyncio task. A call that
        waits or asks for a value sends at once what was issued before it.

        Returns:
            The block.

        Examples:
            >>> add = session.get_global_func("numpy.add")
            >>> with session.batch():  # both calls leave as one message
            ...     three = add(1, 2)
            ...     four = add(three, 1)
            >>> print(four.get())
            4
        """
        return self._core.log.sender.batch()

    def interrupt(
        self,
        workers: Iterable[int] | None = None,
        *,
        grace: float = 5.0,
        force: bool = False,
    ) -> tuple[int, ...]:
        """Ends what the workers execute, and leaves out what was issued and has not begun.

        The session goes on with what is issued afterwards. A function that runs is ended between
        two instructions of Python, as by Ctrl-C; one that is inside a library, when that returns.
        A collective ends on all its workers. What one worker has not executed counts as
        interrupted on all: its result is missing everywhere, and each scope that issued such a
        command learns of it once. What else a function has changed until then stays so.

        Looking functions up, fetching and waiting are no commands that are interrupted: they see
        what was left. Other threads and tasks wait with their next command until this is over.

        Args:
            workers: Whose running command ends; None for all workers. The others end theirs by
                themselves, and leave out what follows.
            grace: Seconds to wait until all workers have reacted.
            force: Whether the processes are then ended of those that have not, as if they were
                lost. Threads cannot be ended.

        Returns:
            The workers that have not reacted, mostly because they are inside of a library that
            does not return: ``session.diagnose()`` shows where. They are interrupted as soon as
            they return; until then the session waits. Empty if all have.

        Raises:
            ConfigError: There is no such worker, or ``grace`` is no number of seconds.
            WorkerLost: It was ended by force, and the session does not recover from that.
            SessionError: The session is closed or lost.

        Examples:
            >>> import time
            >>> ref = session.get_global_func("time.sleep")(0.1)
            >>> late = session.interrupt()
        """
        return self._core.part(Interrupts).interrupt(workers, grace, force=force)

    def failures(self) -> Failures:
        """Errors that no call has raised, of threads, tasks and blocks that ended.

        Looking at it changes nothing: leaving the session still raises what is unseen.

        Returns:
            Their number since the session began, and the errors of the last 1,000.

        Examples:
            >>> session.failures().last
            ()
        """
        return self._core.inbox.failures()

    # What the ranks do -----------------------------------------------------------

    def diagnose(self) -> Diagnosis:
        """Finds out what every rank does, and what the session waits for.

        Nothing is asked of the ranks, so this works while they hang, from any thread,
        and within seconds: busy ranks are observed for most of a second, to tell those
        that stand still from those that are slow. A rank's stack is written by a
        signal handler, which may end a sleep in C code of a library early, as every
        signal does.

        Returns:
            A table of the ranks with their stacks, and a verdict; print it.

        Raises:
            SessionError: The controller does not answer.

        Examples:
            >>> print(session.diagnose().verdict)
            all ranks are idle...
        """
        self._check_may_wait("diagnose")
        return look_at(self._core.transport, self._core.log)

    def flight(self) -> Flight:
        """Fetches the last commands and collectives of every rank, with their times.

        Also of ranks that were killed: the records are in memory that outlives them,
        and over a controller they are kept for ten minutes after the session.

        Raises:
            SessionError: The controller does not answer, or has nothing any more.
            ValueError: A rank's records are damaged.

        Examples:
            >>> session.sync_all()
            >>> [rank.worker for rank in session.flight().ranks]
            [0, 1, 2, 3]
        """
        self._check_may_wait("flight")
        import_uninterrupted("disco_client.tracing.trace")
        from disco_client.tracing.trace import Flight

        return Flight.of(self._core.transport.inspect(stacks=False, flights=True))

    def trace(self, path: str | os.PathLike[str]) -> Trace:
        """Writes what the ranks and the program do during a ``with`` block, as a picture of time.

        The file is in Chrome's trace format; open it at https://ui.perfetto.dev. It has a
        process for each rank, with rows for its commands, its collectives (bytes, dtype,
        workers), its waits for other ranks and its copies; and one for the program: when
        commands were sent and which lines issued them, with arrows to where ranks began them,
        and what its threads waited for. Clocks of different machines are corrected;
        ``otherData`` in the file says by how much, how well that is known, and whether
        anything is missing, as where the ranks were faster than their records could be
        fetched.

        A block that ends without an error waits until all ranks have executed what was
        issued inside. A session can have one trace at a time::

            with session.trace("step.json"):
                step()

        Args:
            path: The file; one that exists is overwritten.

        Returns:
            A context manager.

        Raises:
            ConfigError: On entering: the session is traced already.
            OSError: On entering, the file cannot be written.
            SessionError: On entering: the session is closed or lost.

        Examples:
            >>> with session.trace("step.json"):
            ...     _ = session.allreduce(session.broadcast(np.ones(2)))
        """
        if self._core.must_not_wait:
            self._core.check_may_wait("a trace, which waits at its end, in another thread")
        import_uninterrupted("disco_client.tracing.trace")
        from disco_client.tracing.trace import Trace

        return Trace(self._core, path)

    # What outlives the workers, or the program -----------------------------------

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Saves what the workers hold, so that less must be replayed if they are lost.

        What was issued before is forgotten then, and makes room. Arrays and plain values
        of all live references are saved, distributed tensors among them, and published
        ones; each worker writes its own. Functions, modules and programs are made again
        by the commands that made them. References stay as they are. Waits until all is
        durable; other threads that issue commands wait meanwhile. However it ends, the
        checkpoint before stays of use until a new one has taken its place.

        Args:
            path: A folder that all workers share, future ones included; each
                checkpoint is a folder in it. A relative path is taken from the client's
                own folder. Or a URL, as of `save`.

        Raises:
            ConfigError: The path is none, or the session does not recover
                (``disco_client.connect(..., recover="replay")``).
            EncodingError: A reference stands for an object that can neither be saved nor
                made again without its history, or too much was issued before.
            BadFile: The folder cannot be written, has no room, or is not shared by all.
            NotAllowed: A worker's ``--allow-save`` or ``--allow-read`` does not cover it.
            RemoteError: A command failed on some worker and no call has raised it.
            SessionError: The session is closed or lost.

        Examples:
            >>> with disco_client.connect(num_workers=2, recover="replay") as cluster:
            ...     x = cluster.distribute(np.ones(4), placement="S[0]")
            ...     cluster.checkpoint("steps")
            ...     print((x + 1).numpy())
            [2. 2. 2. 2.]
        """
        self._check_may_wait("checkpoint, path")
        checkpointing.checkpoint(self._core, path)

    def publish(self, name: str, value: DRef | DTensor) -> None:
        """Keeps a value on the workers under a name, beyond the life of its references.

        Another program that attaches to the session finds it with :meth:`published`.
        What had the name before is replaced.

        Args:
            name: At most 256 characters.
            value: A reference of this session, or a distributed tensor.

        Raises:
            ConfigError: The name is empty or too long.
            ForeignReference: The value belongs to another session, or its register was freed.

        Examples:
            >>> with disco_client.connect(num_workers=2) as cluster:
            ...     cluster.publish("weights", cluster.broadcast(np.ones(2)))
            ...     print(cluster.list_published())
            ['weights']
        """
        publishing.publish(self._core, name, value)

    def published(self, name: str) -> DRef | DTensor:
        """Refers to a value that was published under a name; waits for the workers.

        Returns:
            A distributed tensor where one was published, else a reference.

        Raises:
            BadArgument: Nothing is published under this name; the error says what is.

        Examples:
            >>> with disco_client.connect(num_workers=2) as cluster:
            ...     cluster.publish("weights", cluster.broadcast(np.ones(2)))
            ...     print(cluster.published("weights").numpy())
            [1. 1.]
        """
        self._check_may_wait("published, name")
        return publishing.published(self._core, name)

    def list_published(self) -> list[str]:
        """The names under which values are published, in order; waits for worker 0.

        Examples:
            >>> session.list_published()
            []
        """
        self._check_may_wait("list_published")
        return publishing.list_published(self._core)

    def unpublish(self, name: str) -> None:
        """Forgets a name; what it stood for lives on as long as its references do.

        Examples:
            >>> session.publish("weights", session.broadcast(np.ones(2)))
            >>> session.unpublish("weights")
            >>> session.list_published()
            []
        """
        self._core.call_builtin("runtime.disco._unpublish", name)

    def release_all(self) -> None:
        """Empties every register of the workers, those of references that live included.

        Examples:
            >>> with disco_client.connect(num_workers=2) as cluster:
            ...     cluster.publish("weights", cluster.broadcast(np.ones(2)))
            ...     cluster.release_all()
            ...     print(cluster.list_published())
            ['weights']
        """
        self._core.release_all()

    def detach(self, lease: float = 3600.0) -> str:
        """Leaves the session as it is on its workers, for another program to attach to.

        Waits until everything that was issued is executed. References of this session
        are of no use afterwards; what should be found again is to be published first.

        Args:
            lease: Seconds that the session waits for a client to attach; at most a week.
                After that it ends.

        Returns:
            The session's id, for :func:`disco_client.attach`; its name serves as well.

        Raises:
            ConfigError: The session is no session of a controller daemon, which would
                keep it, or the lease is no number of seconds.
            RemoteError: A command failed on some worker and no call has raised it.

        Examples:
            >>> cluster = disco_client.connect(num_workers=2)
            >>> cluster.publish("weights", cluster.broadcast(np.ones(2)))
            >>> with disco_client.attach(cluster.detach(lease=60)) as again:
            ...     print(again.published("weights").numpy())
            [1. 1.]
        """
        return self._core.leave(lease)

    def _check_may_wait(self, call: str) -> None:
        self._core.check_may_wait(f"await asyncio.to_thread(session.{call})")

    # The end ---------------------------------------------------------------------

    def shutdown(self) -> None:
        """Ends the session; idempotent. Its slots are free once its workers have ended.

        Errors that no call has raised are not raised here; leaving the ``with``
        block, or :meth:`sync_all` before, raises them. In a process that was forked
        from the session's own it does nothing, as does leaving the block there. Every use
        afterwards is :class:`~disco_client.SessionClosed`, entering a block among them.

        Examples:
            >>> threads = disco_client.ThreadedSession(2)
            >>> threads.shutdown()
        """
        self._core.shutdown()

    async def __aenter__(self) -> Self:
        self.__enter__()
        # From now on calls that would wait refuse to, in any event loop.
        self._core.log.window.asynchronous = True
        return self

    async def __aexit__(self, kind: object, value: object, trace: object) -> None:
        import asyncio

        core = self._core
        try:
            for each in () if core.closed else core.companions():
                await each.settled()
            if kind is None and not core.closed:
                if core.log.closed is None:
                    await core.synced()
                core.raise_unseen(synced=True)
        finally:
            # In any case, also where this is cancelled.
            try:
                await asyncio.shield(asyncio.to_thread(core.shutdown))
            except RuntimeError:  # the system starts no thread for it
                core.shutdown()

    def __enter__(self) -> Self:
        if self._core.closed:
            self._core.log.check_open()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        try:
            if kind is None and not self._core.closed:
                self._core.raise_unseen()
        finally:
            self.shutdown()
