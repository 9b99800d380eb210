"""Every error that Disco raises to its users.

docs/errors.md draws the tree, and says where each error is raised.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

__all__ = [
    "AccessDenied",
    "AssignFailed",
    "BadArgument",
    "BadFile",
    "CaptureError",
    "CclError",
    "ClusterError",
    "CollectiveAborted",
    "CollectiveMismatch",
    "ConfigError",
    "ConnectionFailed",
    "ControllerLost",
    "DiscoError",
    "DiscoTimeout",
    "DtypeError",
    "EncodingError",
    "ExtraMissing",
    "ForeignReference",
    "FunctionNotFound",
    "Interrupted",
    "IssuedAt",
    "JobEnded",
    "JobPending",
    "JobRefused",
    "NoMemory",
    "NoSlots",
    "NoSuchCluster",
    "NoSuchNode",
    "NoSuchSession",
    "NodeLost",
    "NotAllowed",
    "OutOfBounds",
    "PoisonCommand",
    "QuotaExceeded",
    "Recovery",
    "Reentered",
    "RemoteError",
    "RemoteException",
    "RemoteFailure",
    "SavingUnderWay",
    "SessionClosed",
    "SessionError",
    "SessionExpired",
    "SessionLost",
    "StaleReference",
    "TimeLimit",
    "WeightsMismatch",
    "WindowExceeded",
    "WorkerLost",
    "WorkersReplaced",
    "WouldBlock",
    "describe_exit",
    "describe_session_end",
    "describe_worker_end",
    "why_ended",
    "worker_lost",
]


_REENTERED = (
    "a signal handler or a finalizer asks for a value, waits or sends a large array in the middle"
    " of a call that issues a command, sends or reads, for which it would wait for ever; set a"
    " flag there, and do it after the call (commands without an answer may be issued)"
)


class DiscoError(Exception):
    """The base of every error of this library.

    Examples:
        >>> try:
        ...     session.get_global_func("numpy.no_such")(1).get()
        ... except disco_client.DiscoError as error:
        ...     print(type(error).__name__)
        FunctionNotFound
    """

    def __reduce__(self) -> tuple[Callable[..., Exception], tuple[object, ...]]:
        # Programs pass errors to other processes of theirs; fields must be kept.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[DiscoError], args: tuple[object, ...], fields: dict[str, object]
) -> DiscoError:
    error = kind.__new__(kind, *args)
    error.args = args  # a class that is also an OSError takes them in __init__ only
    error.__dict__.update(fields)
    return error


class ConfigError(DiscoError, ValueError):
    """A setting or argument is wrong; the message names what was expected.

    Examples:
        >>> disco_client.ThreadedSession(0)
        Traceback (most recent call last):
            ...
        disco_client.errors.ConfigError: ...
    """


class DtypeError(ConfigError, TypeError):
    """Operands, an axis or a shape are of a type that is not taken; numpy raises a TypeError there.

    Examples:
        >>> days = session.distribute(np.array(["2026-01-01", "2026-01-03"], "datetime64[D]"))
        >>> days.var()
        Traceback (most recent call last):
            ...
        disco_client.errors.DtypeError: ...
    """


class OutOfBounds(ConfigError, IndexError):
    """A position is beyond an axis of a distributed tensor, or there is no such axis.

    Where positions lie on the workers, it is a `RemoteException` of their IndexError instead.

    Examples:
        >>> session.distribute(np.ones((4, 2)), placement="S[0]").take([0, 4], axis=0)
        Traceback (most recent call last):
            ...
        disco_client.errors.OutOfBounds: ...
    """


class WeightsMismatch(ConfigError):
    """Files do not match what a program expects of them; nothing was loaded.

    Attributes:
        problems: One sentence for each thing that is wrong, all of them.

    Examples:
        >>> from safetensors.numpy import save_file
        >>> save_file({"up": np.ones((4, 2), "float32")}, "model.safetensors")
        >>> session.load_weights("model.safetensors", {"down": "R"})
        Traceback (most recent call last):
            ...
        disco_client.errors.WeightsMismatch: ...
    """

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems: tuple[str, ...] = tuple(problems)


class ConnectionFailed(DiscoError, ConnectionError):
    """The controller cannot be reached or does not speak this protocol.

    Examples:
        >>> disco_client.connect("127.0.0.1:1", num_workers=1, timeout=0.5)
        Traceback (most recent call last):
            ...
        disco_client.errors.ConnectionFailed: ...
    """


class AccessDenied(ConnectionFailed, PermissionError):
    """One side refuses the other: its certificate, its token, or its permission for a request.

    Examples:
        >>> try:
        ...     with disco_client.connect(num_workers=1) as cluster:
        ...         print(cluster.num_workers)
        ... except disco_client.AccessDenied as error:
        ...     print("show a token or a certificate:", error)
        1
    """


class ExtraMissing(DiscoError, ImportError):
    """A part of Disco that is not installed; the message says how to install it.

    Examples:
        >>> try:
        ...     kind = disco_client.ProcessSession
        ... except disco_client.ExtraMissing as error:
        ...     print(error)  # pip install 'disco-runtime[server]'
    """


class EncodingError(DiscoError, TypeError):
    """A value is not of a kind that may travel; nothing was sent.

    Examples:
        >>> session.get_global_func("numpy.add")({"a": [1, object()]}, 1)
        Traceback (most recent call last):
            ...
        disco_client.errors.EncodingError: argument 0 at ['a'][1]: a value of type ...
    """

    path: str = ""
    """Where the value is inside the one that was given, such as ``"[0]['loss']"``."""

    argument: str | int | None = None
    """As which argument of a call that was given: its name, or its number from 0."""

    def within(self, step: str) -> EncodingError:
        """The same error of the value that surrounds this one.

        Args:
            step: Where the value is in it: ``"[0]"`` of a list, ``"['loss']"`` of a dict,
                ``" in its set"``.
        """
        message = str(self).removeprefix(_place(self.path))
        path = step + self.path
        error = type(self)(f"{_place(path)}{message}")
        error.path = path
        return error

    def of(self, argument: str | int) -> EncodingError:
        """The same error of an argument of a call.

        Args:
            argument: Its name, or its number from 0.
        """
        error = type(self)(f"argument {argument!r}{' ' if self.path else ': '}{self}")
        error.path = self.path
        error.argument = argument
        return error


def _place(path: str) -> str:
    """What an error about a value inside another one begins with."""
    return f"{path.lstrip()}: " if path.startswith(" ") else f"at {path}: "


class DiscoTimeout(DiscoError, TimeoutError):
    """A wait took longer than its ``timeout``; nothing is lost, and it may be repeated.

    Examples:
        >>> ref = session.get_global_func("time.sleep")(0.5)
        >>> ref.get(timeout=0.01)
        Traceback (most recent call last):
            ...
        disco_client.errors.DiscoTimeout: no answer within timeout=0.01 s...
        >>> ref.get()  # nothing is lost
    """


class SessionError(DiscoError):
    """A session cannot do what was requested.

    Examples:
        >>> try:
        ...     session.init_ccl("no such library")
        ... except (disco_client.SessionError, disco_client.ConfigError) as error:
        ...     print(type(error).__name__)
        ConfigError
    """


class SessionClosed(SessionError):
    """The session was shut down before this call, or is that of a process that forked this one.

    Examples:
        >>> closed = disco_client.ThreadedSession(1)
        >>> closed.shutdown()
        >>> closed.sync_all()
        Traceback (most recent call last):
            ...
        disco_client.errors.SessionClosed: ...
    """


class CaptureError(SessionError):
    """A call that cannot be captured in a program, or a reference used outside of its own.

    Examples:
        >>> with session.capture() as program:
        ...     session.sync_all()
        Traceback (most recent call last):
            ...
        disco_client.errors.CaptureError: ...
    """


class WouldBlock(SessionError):
    """A call that would stop an event loop until workers answer; nothing was issued.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with disco_client.aconnect(num_workers=1) as cluster:
        ...         cluster.get_global_func("numpy.arange")(3).numpy()
        >>> asyncio.run(main())
        Traceback (most recent call last):
            ...
        disco_client.errors.WouldBlock: ...
    """


class Reentered(SessionError):
    """A wait of a signal handler or a finalizer that runs in the middle of another call.

    Python runs them between any two steps of a thread. In a call that waits they may use the
    session like any code. In a call that issues a command, sends or reads, they may issue
    commands, which come after that call's; a wait there, also one for room because too many
    commands are under way, would wait for the call that it interrupts. Set a flag in the
    handler, and do it after the call. The same holds in the threads that serve a session,
    where a finalizer may run too.

    Examples:
        >>> asked = []
        >>> def on_signal(number, frame):
        ...     try:
        ...         session.sync_all()
        ...     except disco_client.Reentered:
        ...         asked.append(number)  # for the program to look at after its call
        >>> on_signal(10, None)
        >>> asked
        []
    """

    def __init__(self, text: str = _REENTERED) -> None:
        super().__init__(text)


class SavingUnderWay(SessionError):
    """The session is saving a checkpoint already, by ``session.save(..., wait=False)``.

    Attributes:
        path: Where that one is saved.

    Examples:
        >>> x = session.distribute(np.ones((4, 2)), placement="S[0]")
        >>> saving = session.save("step-1", {"x": x}, wait=False)
        >>> try:
        ...     session.save("step-2", {"x": x})
        ... except disco_client.SavingUnderWay as error:
        ...     saving.wait()
        ...     session.save("step-2", {"x": x})
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path: str = path


class NoMemory(SessionError, MemoryError):
    """The workers have no memory for the copies that ``session.save(..., wait=False)`` makes.

    Attributes:
        needed: How many bytes are needed, on a worker or on all of a node.
        available: How many there are.

    Examples:
        >>> x = session.distribute(np.ones((4, 2)), placement="S[0]")
        >>> try:
        ...     session.save("step-1", {"x": x}, wait=False).wait()
        ... except disco_client.NoMemory:
        ...     session.save("step-1", {"x": x})
    """

    def __init__(self, message: str, *, needed: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.needed: int = needed
        self.available: int = available


class NoSlots(SessionError, TimeoutError):
    """The cluster had no room for the session in time.

    Attributes:
        total_slots: Slots of all registered nodes.
        free_slots: Those of them that no session holds.

    Examples:
        >>> disco_client.connect(num_workers=100, timeout=1)
        Traceback (most recent call last):
            ...
        disco_client.errors.NoSlots: ...
    """

    def __init__(self, message: str, *, total_slots: int = 0, free_slots: int = 0) -> None:
        super().__init__(message)
        self.total_slots = total_slots
        self.free_slots = free_slots


class QuotaExceeded(NoSlots):
    """The owner of the session may not have it, though the cluster might have room.

    A session that merely waits for its turn gets it only when it has waited for its ``timeout``.

    Attributes:
        quota: ``"sessions"``, ``"slots"`` or ``"priority"``.
        limit: How many the owner may have; 0 for the priority.
        used: How many the owner has.
        sessions: The names of the owner's sessions that use them.

    Examples:
        >>> try:
        ...     with disco_client.connect(num_workers=1) as cluster:
        ...         print(cluster.num_workers)
        ... except disco_client.QuotaExceeded as error:
        ...     print(f"I have {error.used} of {error.limit} {error.quota}: {error.sessions}")
        1
    """

    def __init__(
        self,
        message: str,
        *,
        quota: str,
        limit: int = 0,
        used: int = 0,
        sessions: Sequence[str] = (),
        total_slots: int = 0,
        free_slots: int = 0,
    ) -> None:
        super().__init__(message, total_slots=total_slots, free_slots=free_slots)
        self.quota = quota
        self.limit = limit
        self.used = used
        self.sessions: tuple[str, ...] = tuple(sessions)


class NoSuchSession(SessionError, LookupError):
    """The controller knows no session of that name or id, or none that is this caller's.

    Examples:
        >>> issubclass(disco_client.NoSuchSession, disco_client.SessionError)
        True
    """


class NoSuchNode(DiscoError, LookupError):
    """The controller knows no node of that name, or several whose names begin so.

    Examples:
        >>> issubclass(disco_client.NoSuchNode, LookupError)
        True
    """


class ClusterError(DiscoError):
    """A cluster of a batch system cannot be started, reached or changed.

    Examples:
        >>> from disco_server.clusters import SlurmCluster
        >>> try:
        ...     cluster = SlurmCluster.attach("training")
        ... except disco_client.ClusterError as error:
        ...     print(type(error).__name__)
        NoSuchCluster
    """


class NoSuchCluster(ClusterError, LookupError):
    """There is no cluster of that name, or it has ended.

    Examples:
        >>> from disco_server.clusters import SlurmCluster
        >>> SlurmCluster.attach("training")
        Traceback (most recent call last):
            ...
        disco_client.errors.NoSuchCluster: ...
    """


class JobRefused(ClusterError):
    """The batch system refused a job: its partition, account, size or time.

    Examples:
        >>> issubclass(disco_client.JobRefused, disco_client.ClusterError)
        True
    """


class JobPending(ClusterError, TimeoutError):
    """A job was still in the queue when the time to wait for it was over.

    Attributes:
        job: Its number.
        reason: Why it waits, in the batch system's word, such as ``"Resources"``.

    Examples:
        >>> issubclass(disco_client.JobPending, TimeoutError)
        True
    """

    def __init__(self, message: str, *, job: str, reason: str) -> None:
        super().__init__(message)
        self.job = job
        self.reason = reason


class JobEnded(ClusterError):
    """The job of a cluster has ended although nobody asked for that here.

    Attributes:
        job: Its number.
        state: How it ended, in the batch system's word, such as ``"CANCELLED"``, ``"TIMEOUT"``
            or ``"NODE_FAIL"``.
        nodes: The nodes that went away, as far as that is known.

    Examples:
        >>> issubclass(disco_client.JobEnded, disco_client.ClusterError)
        True
    """

    def __init__(self, message: str, *, job: str, state: str, nodes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.job = job
        self.state = state
        self.nodes: tuple[str, ...] = tuple(nodes)


class ForeignReference(SessionError, ValueError):
    """A reference belongs to another session, or its register was freed.

    The latter where the garbage collector has ended the reference as part of a cycle of objects,
    some of which use it afterwards: in ``__del__``, or in ``finally`` of a generator.

    Examples:
        >>> with disco_client.ThreadedSession(1) as other:
        ...     session.allreduce(other.broadcast(np.ones(2)))
        Traceback (most recent call last):
            ...
        disco_client.errors.ForeignReference: ...
    """


class WorkersReplaced(SessionError):
    """What was issued before is gone with the workers; the session goes on with other ones.

    A session of ``connect(..., recover=rebuild)`` raises it, when ``rebuild`` has made the
    state anew on the new workers: issue again what is still wanted.

    Attributes:
        recovery: What happened; None where only a reference tells of it.
        commands_lost: Whether commands of the thread, task or block that gets it are lost,
            which were not known to be executed; otherwise only its references.

    Examples:
        >>> import os, signal
        >>> def rebuild(cluster):
        ...     cluster.publish("weights", cluster.broadcast(np.ones(2)))
        >>> with disco_client.connect(num_workers=2, recover=rebuild) as cluster:
        ...     os.kill(cluster.workers[1].pid, signal.SIGKILL)
        ...     try:
        ...         while True:
        ...             cluster.broadcast(np.ones(2)).numpy(worker_id=1)
        ...     except disco_client.WorkersReplaced:
        ...         print(cluster.allreduce(cluster.published("weights")).numpy())
        [2. 2.]
    """

    def __init__(
        self, message: str, *, recovery: Recovery | None = None, commands_lost: bool = False
    ) -> None:
        super().__init__(message)
        self.recovery = recovery
        self.commands_lost = commands_lost


class SessionLost(SessionError):
    """The session ended by itself; no command will be executed any more.

    Examples:
        >>> import os, signal
        >>> processes = disco_client.ProcessSession(2)
        >>> os.kill(processes.workers[1].pid, signal.SIGKILL)
        >>> try:
        ...     processes.sync_all()
        ... except disco_client.SessionLost as error:
        ...     print(type(error).__name__)
        WorkerLost
    """


class WorkerLost(SessionLost):
    """A worker process ended, and its session with it.

    Attributes:
        worker: The worker_id of the rank that ended first.
        node: The name of the node it ran on.
        exit_status: Its exit code, or the negative of a signal's number.
        output: Its last lines of output.

    Examples:
        >>> import os, signal
        >>> processes = disco_client.ProcessSession(2)
        >>> os.kill(processes.workers[1].pid, signal.SIGKILL)
        >>> try:
        ...     processes.sync_all()
        ... except disco_client.WorkerLost as error:
        ...     print(error.worker, error.exit_status)
        1 -9
    """

    def __init__(
        self, message: str, *, worker: int, node: str, exit_status: int, output: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.node = node
        self.exit_status = exit_status
        self.output: tuple[str, ...] = tuple(output)


def worker_lost(
    message: str, *, worker: int, node: str, exit_status: int, output: Iterable[str]
) -> WorkerLost:
    """Makes the error of a worker's end, with its last output in the message."""
    lines = tuple(output)
    if lines:
        message += "\nits last output:\n" + "\n".join(f"  {line}" for line in lines)
    return WorkerLost(message, worker=worker, node=node, exit_status=exit_status, output=lines)


class NodeLost(SessionLost):
    """A worker daemon went away, and the sessions on it with it.

    Attributes:
        node: The name of the node.

    Examples:
        >>> try:
        ...     with disco_client.connect(num_workers=4) as cluster:
        ...         print(cluster.num_workers)
        ... except disco_client.NodeLost as error:
        ...     print("look at", error.node)
        4
    """

    def __init__(self, message: str, *, node: str) -> None:
        super().__init__(message)
        self.node = node


class SessionExpired(SessionLost):
    """The controller ended the session, because of its length or because the client did nothing.

    Attributes:
        limit: ``"length"`` or ``"idle"``.
        limit_s: The limit, in seconds.

    Examples:
        >>> try:
        ...     session.sync_all()
        ... except disco_client.SessionExpired as error:
        ...     print(f"a session may take {error.limit_s} s")
    """

    def __init__(self, message: str, *, limit: str, limit_s: float) -> None:
        super().__init__(message)
        self.limit = limit
        self.limit_s = limit_s


class WindowExceeded(SessionLost):
    """The controller ended the session, because its client did not wait at its window.

    Clients of Disco wait by themselves; one of another release, or changed, may not.

    Examples:
        >>> try:
        ...     session.sync_all()
        ... except disco_client.WindowExceeded as error:
        ...     print(error)
    """


class ControllerLost(SessionLost, ConnectionError):
    """The controller went away or is leaving.

    Examples:
        >>> try:
        ...     with disco_client.connect(num_workers=4) as cluster:
        ...         print(cluster.num_workers)
        ... except disco_client.ControllerLost as error:
        ...     print("start again when there is a controller:", error)
        4
    """


class PoisonCommand(SessionLost):
    """A session that recovers lost its workers at the same command each time.

    Attributes:
        seq: The number of the command.
        function: The name of the function that it called, or what it did; may be empty.
        deaths: The errors of the losses, in order.

    Examples:
        >>> from pathlib import Path
        >>> source = '''
        ... import os
        ... import disco_server
        ... disco_server.register_func("docs.end")(os.abort)
        ... '''
        >>> _ = Path("ending.py").write_text(source)
        >>> with disco_client.connect(num_workers=1, recover="replay") as cluster:
        ...     cluster.load_source("ending.py")
        ...     cluster.get_global_func("docs.end")().get()
        Traceback (most recent call last):
            ...
        disco_client.errors.PoisonCommand: ...
    """

    def __init__(
        self, message: str, *, seq: int, function: str = "", deaths: Sequence[SessionLost] = ()
    ) -> None:
        super().__init__(message)
        self.seq = seq
        self.function = function
        self.deaths: tuple[SessionLost, ...] = tuple(deaths)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery of a session with other workers.

    Attributes:
        lost: Why the former ones were lost.
        commands: How many commands the new ones were given again; 0 where the program
            made its state anew.
        seconds: From when the loss was noticed until the new workers had executed these
            commands, or that state was made; while they execute them, or where they were
            lost too, until those had been sent.

    Examples:
        >>> import os, signal
        >>> with disco_client.connect(num_workers=2, recover="replay") as recovering:
        ...     ones = recovering.broadcast(np.ones(2))
        ...     recovering.sync_all()
        ...     os.kill(recovering.workers[1].pid, signal.SIGKILL)
        ...     print(ones.numpy(worker_id=1), len(recovering.recoveries))
        [1. 1.] 1
    """

    lost: SessionLost
    commands: int
    seconds: float


@dataclass(frozen=True, slots=True)
class IssuedAt:
    """The line of the client's program that issued a command."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.filename}", line {self.line}, in {self.function}'


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """What went wrong on one worker.

    Attributes:
        worker: The rank it happened on.
        node: The name of that rank's node.
        seq: The number of the command in the session's log.
        function: The name of the called function, or of the action.
        exception: The qualified name of the exception's type on the worker.
        message: The exception's text.
        traceback: The remote traceback, ready to print; may be empty.
        issued_at: The client's line that issued the command, where known.
        program: The number of the command that defined the program in which it
            happened; 0 outside of programs.
        step: The number of the step of that program, from 1.
        program_name: The name of the program, where known.
        captured_at: The client's line that captured the step, where known.
        missing: What was missing there, where that is what went wrong: the name that is
            registered for no function or class; or of a module that a brought file imports,
            the path that it would have here beside that file.

    Examples:
        >>> ref = session.get_global_func("numpy.reshape")(np.ones(2), (3,))
        >>> try:
        ...     ref.numpy()
        ... except disco_client.RemoteError as error:
        ...     failure = error.failures[0]
        ...     print(failure.worker, failure.message)
        0 cannot reshape array of size 2 into shape (3,)
    """

    worker: int
    seq: int
    message: str
    node: str = ""
    function: str = ""
    exception: str = ""
    traceback: str = field(default="", repr=False)
    issued_at: IssuedAt | None = None
    program: int = 0
    step: int = 0
    program_name: str = ""
    captured_at: IssuedAt | None = None
    missing: str = ""


class RemoteError(DiscoError):
    """A command failed on one worker or more; the session works on.

    Attributes:
        failures: One entry for each worker that failed in the same command,
            in the order of their ranks.
        worker: The worker of the first entry; the next ones are of that entry, too.
        node: Its node.
        seq: The number of the command.
        function: What the command called.
        exception: The name of the exception's type.
        remote_traceback: The traceback on that worker.
        issued_at: The line that issued the command, where known.
        step: The step of a captured program, or 0.
        captured_at: The line that captured that step.

    Examples:
        >>> ref = session.get_global_func("numpy.reshape")(np.ones(2), (3,))
        >>> try:
        ...     ref.numpy()
        ... except disco_client.RemoteError as error:
        ...     print(error.exception, "on", len(error.failures), "workers, in", error.function)
        ValueError on ... workers, in numpy.reshape
    """

    def __init__(self, failures: Sequence[RemoteFailure]) -> None:
        self.failures: tuple[RemoteFailure, ...] = tuple(failures)
        first = self.failures[0]
        self.worker: int = first.worker
        self.node: str = first.node
        self.seq: int = first.seq
        self.function: str = first.function
        self.exception: str = first.exception
        self.remote_traceback: str = first.traceback
        self.issued_at: IssuedAt | None = first.issued_at
        self.step: int = first.step
        self.captured_at: IssuedAt | None = first.captured_at
        super().__init__(_describe(self.failures))


class RemoteException(RemoteError):
    """A function called on a worker raised.

    Examples:
        >>> session.get_global_func("numpy.reshape")(np.ones(2), (3,)).numpy()
        Traceback (most recent call last):
            ...
        disco_client.errors.RemoteException: ValueError: cannot reshape array of size 2...
    """


class Interrupted(RemoteError):
    """The command was interrupted or left out, mostly by the program; see ``Session.interrupt``.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.count_for_ever")
        ... def count_for_ever():
        ...     number = 0
        ...     while True:
        ...         number += 1
        >>> endless = session.get_global_func("docs.count_for_ever")()
        >>> session.interrupt()
        ()
        >>> endless.get()
        Traceback (most recent call last):
        disco_client.errors.Interrupted: this command was interrupted ...
    """


class TimeLimit(Interrupted):
    """The command took longer than its limit; see ``Session.limit``.

    The limit is the program's, or one that the operator of the cluster has set, as the message
    then says. The report of the worker says where it was then.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.count_too_long")
        ... def count_too_long():
        ...     number = 0
        ...     while True:
        ...         number += 1
        >>> with session.limit(0.1):
        ...     session.get_global_func("docs.count_too_long")().get()
        Traceback (most recent call last):
        disco_client.errors.TimeLimit: the command took longer than its limit of 0.1 s...
    """


class AssignFailed(RemoteError):
    """``session.assign`` failed in the middle; the message lists what has become of the tensors.

    Attributes:
        new: The names of the tensors that have their new values.
        poisoned: Those of the bucket that was under way: they stand for this failure until they are
            assigned again.
        old: Those that are as they were.

    Examples:
        >>> source = session.distribute(np.ones(4), placement="S[0]")
        >>> target = session.distribute(np.zeros(4), placement="R")
        >>> try:
        ...     session.assign({"weight": target}, {"weight": source})
        ...     session.sync_all()
        ... except disco_client.AssignFailed as error:
        ...     print("not known any more:", error.poisoned)
        >>> target.numpy()
        array([1., 1., 1., 1.])
    """

    def __init__(
        self,
        failures: Sequence[RemoteFailure],
        *,
        new: Sequence[str] = (),
        poisoned: Sequence[str] = (),
        old: Sequence[str] = (),
    ) -> None:
        super().__init__(failures)
        self.new: tuple[str, ...] = tuple(new)
        self.poisoned: tuple[str, ...] = tuple(poisoned)
        self.old: tuple[str, ...] = tuple(old)
        lists = {"new": new, "poisoned": poisoned, "old": old}
        lines = (f"  {what}: {', '.join(names) or 'none'}" for what, names in lists.items())
        self.args = ("\n".join([f"{self}\nof the tensors that were assigned", *lines]),)


class FunctionNotFound(RemoteError, LookupError):
    """A worker knows no function or module of that name.

    Examples:
        >>> session.get_global_func("no.such.function")(1).get()
        Traceback (most recent call last):
            ...
        disco_client.errors.FunctionNotFound: ...
    """


class NotAllowed(RemoteError, PermissionError):
    """A worker's allow-list does not contain what was requested.

    Examples:
        >>> try:
        ...     session.import_python_module("json")
        ...     session.sync_all()
        ... except disco_client.NotAllowed as error:
        ...     print("allow it with --allow-module:", error)
    """


class BadArgument(RemoteError, ValueError):
    """A worker was given an argument that the called function refuses.

    Examples:
        >>> no_module = disco_client.DModule(session.broadcast(np.ones(2)), session)
        >>> no_module["function"].get()
        Traceback (most recent call last):
            ...
        disco_client.errors.BadArgument: ...
    """


class CollectiveMismatch(RemoteError, ValueError):
    """Ranks entered one collective with different operations, shapes or dtypes.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.unlike")
        ... def unlike():
        ...     worker = disco_server.current_worker()
        ...     return worker.allreduce(np.ones(worker.worker_id + 1))
        >>> session.get_global_func("docs.unlike")().get()
        Traceback (most recent call last):
            ...
        disco_client.errors.CollectiveMismatch: ...
    """


class CollectiveAborted(RemoteError):
    """A collective ended because another rank could not enter it.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_func("docs.reduce")
        ... def reduce():
        ...     return disco_server.current_worker().allreduce(np.ones(2))
        >>> session.get_global_func("docs.reduce").on(worker=1)().get(worker=1)
        Traceback (most recent call last):
            ...
        disco_client.errors.CollectiveAborted: ...
    """


class CclError(RemoteError):
    """The collective library is missing on a worker, did not start, or failed at work.

    Examples:
        >>> try:
        ...     session.init_ccl("local")
        ...     session.sync_all()
        ... except disco_client.CclError as error:
        ...     print("disco doctor says what is missing:", error)
    """


class BadFile(RemoteError, OSError):
    """A file on a worker is missing, cannot be read, or is not what it should be.

    Examples:
        >>> session.load_weights("no-such-file.safetensors", {"*": "R"})
        Traceback (most recent call last):
            ...
        disco_client.errors.BadFile: ...
    """


class StaleReference(RemoteError, WorkersReplaced):
    """A command reads a reference of before the session's workers were replaced.

    Examples:
        >>> issubclass(disco_client.StaleReference, disco_client.WorkersReplaced)
        True
    """


def describe_exit(status: int) -> str:
    """Says how a process ended, from an exit code or a negative signal number."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"died of signal {-status}"
    return f"died of {number.name} (signal {-status}, {signal.strsignal(number)})"


def describe_worker_end(
    worker: int, how: str, session: str, node: str | None = None, *, at_start: bool = False
) -> str:
    """Says that a worker's end has ended its session.

    Args:
        worker: Which.
        how: How it ended, such as what `describe_exit` says.
        session: The session's name.
        node: Where it ran, if that is to be said.
        at_start: Whether its session had not begun.
    """
    where = "" if node is None else f" on node {node!r}"
    if at_start:
        return f"worker {worker} could not be started{where}: it {how}"
    return describe_session_end(f"worker {worker}{where} {how}", session)


def describe_session_end(why: str, session: str) -> str:
    """Says that something has ended a session."""
    return f"{why}{_SESSION}{session!r} is over"


def why_ended(error: SessionLost) -> str:
    """Why a session ended, in a line that does not repeat that it did."""
    return str(error).partition("\n")[0].partition(_SESSION)[0]


_SESSION = "; session "


def _ranks(failures: Sequence[RemoteFailure]) -> str:
    where = [f"{f.worker} ({f.node})" if f.node else str(f.worker) for f in failures]
    if len(where) == 1:
        return f"worker {where[0]}"
    return f"workers {', '.join(where[:-1])} and {where[-1]}"


def _step(failure: RemoteFailure) -> str:
    if not failure.program:
        return ""
    name = repr(failure.program_name) if failure.program_name else f"of command #{failure.program}"
    return f", step {failure.step} of program {name}" if failure.step else f", program {name}"


def _describe(failures: Sequence[RemoteFailure]) -> str:
    first = failures[0]
    called = f" in {first.function}" if first.function else ""
    head = f"{first.exception}: {first.message}" if first.exception else first.message
    lines = [f"{head}\n  on {_ranks(failures)}, command #{first.seq}{_step(first)}{called}"]
    if first.captured_at is not None:
        lines.append(f"  captured at {first.captured_at}")
    if first.issued_at is not None:
        lines.append(f"  issued at {first.issued_at}")
    for other in failures[1:]:
        if (other.exception, other.message) != (first.exception, first.message):
            said = f"{other.exception}: {other.message}" if other.exception else other.message
            lines.append(f"  worker {other.worker} says: {said}")
    if first.traceback:
        lines.append(f"traceback on worker {first.worker}:")
        lines.extend(f"  {line}" for line in first.traceback.rstrip().splitlines())
    return "\n".join(lines)
