"""A cluster in jobs of a batch system: what is the same for all of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time as clock
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, Self

from disco_client.clock import monotonic
from disco_client.errors import (
    ClusterError,
    ConfigError,
    ConnectionFailed,
    ControllerLost,
    DiscoError,
    JobEnded,
    JobPending,
)
from disco_client.notebook import StatusLine
from disco_client.output import say
from disco_client.text import many, some
from disco_server.clusters.cluster_folder import ClusterFolder, ClusterRecord
from disco_server.clusters.job_status import GONE, JobStatus

if TYPE_CHECKING:
    from disco_client import Session
    from disco_client.transport.channel import ReloadingChannel

__all__ = ["JobCluster", "JobQueue"]

_READY_S = 120.0
"""How long the daemons of a job that runs have to start."""
_STOP_S = 60.0
_PATIENCE_S = 10.0
"""How long Slurm has to notice that a job has ended whose controller is gone."""
_FREE_S = 5.0
_LOOK_S = 0.2
_LONGEST_LOOK_S = 5.0

_ENDINGS: Final[Mapping[str, str]] = {
    "CANCELLED": "was cancelled, by its user or an administrator",
    "COMPLETED": "has ended",
    "DEADLINE": "was ended at its deadline",
    "FAILED": "ended",
    "NODE_FAIL": "ended because a node went away",
    "OUT_OF_MEMORY": "ended because it needed more memory than it had asked for",
    "PREEMPTED": "had to make room for another job",
    "TIMEOUT": "has reached its time limit",
    GONE: "has ended; the queue does not know it any more",
}


class JobQueue(Protocol):
    """A batch system as a cluster sees it."""

    def status(self, job: str) -> JobStatus:
        """What has become of a job.

        Raises:
            ClusterError: The batch system does not answer.
        """
        ...

    def cancel(self, *jobs: str) -> None:
        """Cancels jobs; it is no error if they have ended.

        Raises:
            ClusterError: The batch system refuses, or does not answer.
        """
        ...

    def lost_nodes(self, nodes: str) -> list[str]:
        """Which of a job's nodes are gone; empty where the batch system does not say.

        Raises:
            ClusterError: The batch system does not answer.
        """
        ...

    def exit_status(self, job: str) -> int:
        """With which status the script of a job ended; 0 if the batch system does not say.

        Raises:
            ClusterError: The batch system does not answer.
        """
        ...


class JobCluster(ABC):
    """A controller and worker daemons in jobs of a batch system; a context manager.

    The first job has the controller and the first nodes; further jobs join it.

    Args:
        queue: The batch system.
        files: The folder of this cluster.
        record: What it asks for.
        each: How many nodes a further job has.
        timeout: How many seconds to wait in the queue; None for as long as it takes.
        detach: Whether the cluster goes on when the block, or the program, ends.

    Attributes:
        name: Its name.
        folder: The folder of its files.
        address: Where the controller listens; empty until it is started.

    Raises:
        ConfigError: The timeout is none.
    """

    def __init__(
        self,
        queue: JobQueue,
        files: ClusterFolder,
        record: ClusterRecord,
        *,
        each: int = 1,
        timeout: float | None = None,
        detach: bool = False,
    ) -> None:
        if timeout is not None and not timeout >= 0:
            raise ConfigError(f"timeout: expected seconds from 0 up, or None, got {timeout!r}")
        self._queue, self._files, self._record = queue, files, record
        self._each = each
        self._timeout = timeout
        self._detached = detach
        self._keeps_logs = False
        self._process = os.getpid()
        self.address = ""

    @abstractmethod
    def _submit(self, *, joins: bool) -> str:
        """Submits a job, the first one or one that joins it; its number.

        Raises:
            JobRefused: The batch system refuses it.
        """

    def _ends_named(self, job: str) -> str:
        """How the names of the nodes of a further job end."""
        return f"-{job}"

    @property
    def name(self) -> str:
        """The name by which other programs attach."""
        return self._files.name

    @property
    def folder(self) -> Path:
        """Where its certificates and logs are."""
        return self._files.path

    @property
    def job(self) -> str:
        """The number of its first job; empty until it is submitted."""
        return self._record.job

    @property
    def jobs(self) -> tuple[str, ...]:
        """The numbers of all its jobs, the first one first."""
        return (self.job, *self._record.joined) if self.job else ()

    @property
    def nodes(self) -> int:
        """How many nodes it has, or is to have."""
        return self._record.nodes + self._each * len(self._record.joined)

    @property
    def tls(self) -> dict[str, str]:
        """The files with which a program connects, as `disco_client.connect` takes them."""
        return self._files.files_of("client")

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which other programs and commands find the cluster."""
        files = {f"DISCO_{argument.upper()}": file for argument, file in self.tls.items()}
        return {"DISCO_ADDRESS": self.address, **files}

    def __repr__(self) -> str:
        where = f" at {self.address}" if self.address else ""
        size = f"{many(self.nodes, 'node')} with {many(self._record.slots, 'slot')} each"
        kind, job = type(self).__name__, self.job or "none"
        return f"<{kind} {self.name!r}, job {job}: {size}{where}>"

    def start(self) -> None:
        """Submits the job and waits until all of its nodes are ready.

        Raises:
            ClusterError: The batch system or the controller does not answer, or the cluster was
                started.
            ConfigError: The folder cannot be made.
            JobEnded: The job was cancelled in the queue, or its daemons did not start.
            JobPending: It was still in the queue after `timeout` seconds.
            JobRefused: The batch system refuses it.
        """
        if self.job:
            raise ClusterError(f"cluster {self.name!r} was started before; make another one")
        self._files.create()
        try:
            job = self._submit(joins=False)
        except BaseException:
            self._files.remove(logs=True)
            raise
        try:
            self._note(job=job)
            if not self._detached:
                _opened(self._at_exit)
            self.wait_ready(self._timeout)
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, timeout: float | None = None) -> None:
        """Waits until the first job runs, its controller listens, and all nodes are ready.

        Args:
            timeout: How many seconds to wait in the queue; None for as long as it takes.

        Raises:
            ClusterError: The batch system or the controller does not answer.
            JobEnded: The job has ended.
            JobPending: It is still in the queue.
        """
        with _status_line() as line:
            self._await_running(self.job, timeout, line)
            self._until(lambda: bool(self._files.address), "the controller")
            self.address = self._files.address
            self._await_nodes()

    def connect(self, num_workers: int | None = None, **options: Any) -> Session:
        """Opens a session on the cluster.

        Args:
            num_workers: How many workers; None for one on each slot.
            **options: Of `disco_client.connect`.

        Raises:
            DiscoError: As `disco_client.connect` does.
            JobEnded: The cluster has ended.
        """
        from disco_client import connect

        self.check()
        wanted: dict[str, Any] = {**self.tls, **options}
        try:
            return connect(
                self.address, num_workers=num_workers or self.nodes * self._record.slots, **wanted
            )
        except DiscoError as error:
            if (ended := self._ended(_patience(error))) is not None:
                raise ended from error
            raise

    def check(self) -> None:
        """Does nothing if the cluster runs; nodes that have left it are reported, and forgotten.

        Raises:
            ClusterError: The cluster was not started, or the batch system does not answer.
            JobEnded: It has ended; the message says why.
        """
        if not self.address:
            raise ClusterError(f"cluster {self.name!r} does not run; start it, or attach to it")
        if (ended := self._ended()) is not None:
            raise ended

    def scale(self, nodes: int, *, timeout: float | None = None) -> None:
        """Submits further jobs that join the cluster, or ends such jobs.

        Args:
            nodes: How many nodes there are to be; no fewer than those of the first job.
            timeout: How many seconds to wait in the queue; None for as long as it takes. After
                it, those that wait are taken out of the queue, and the others stay.

        Raises:
            ClusterError: Sessions use the nodes that would go, or the batch system does not answer.
            ConfigError: It is no such number.
            JobEnded: The cluster has ended, or a further job did.
            JobPending: A further job was still in the queue.
            JobRefused: The batch system refuses one.
        """
        least, each = self._record.nodes, self._each
        if not isinstance(nodes, int) or nodes < least:
            msg = f"nodes: expected {least} at least, which the first job has, got {nodes!r}"
            raise ConfigError(msg)
        if (nodes - least) % each:
            msg = f"nodes: expected {least} and a multiple of {each}, as each job has, got {nodes}"
            raise ConfigError(msg)
        self.check()
        if nodes < self.nodes:
            self._leave((self.nodes - nodes) // each)
        elif nodes > self.nodes:
            self._join((nodes - self.nodes) // each, timeout)

    def stop(self) -> None:
        """Ends all jobs of the cluster, waits for their end, and removes its files; idempotent.

        Logs stay if the cluster ended by a fault of its own.

        Raises:
            ClusterError: The batch system does not answer.
        """
        _closed(self._at_exit)
        self.address = ""
        if not (jobs := self.jobs):
            return
        self._queue.cancel(*jobs)
        # Also before the wait, which who ends this program may not grant: a notebook's server
        # kills a kernel that does not end within seconds.
        self._files.remove(logs=not self._keeps_logs)
        self._await_end(jobs)
        self._files.remove(logs=not self._keeps_logs)
        self._record = replace(self._record, job="", joined=())

    def _let_go(self) -> None:
        """Lets the cluster go on when the block, or the program, ends."""
        self._detached = True
        _closed(self._at_exit)

    def __enter__(self) -> Self:
        if not self.address:
            self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, DiscoError) and not isinstance(error, ClusterError):
                with contextlib.suppress(ClusterError):
                    if (ended := self._ended(_patience(error))) is not None:
                        error.add_note(str(ended))
        finally:
            if not self._detached:
                self.stop()

    def _at_exit(self) -> None:
        if os.getpid() == self._process:  # not in a child that was forked
            self.stop()

    def _last_lines(self) -> str:
        """What its jobs and daemons said last, in one line."""
        return self._files.last_lines()

    # Jobs --------------------------------------------------------------------------------------

    def _note(self, **changed: Any) -> None:
        """Keeps what has changed."""
        self._record = replace(self._record, **changed)

    def _await_running(self, job: str, timeout: float | None, line: StatusLine) -> None:
        began, said = monotonic(), ""
        for pause in _pauses():
            status = self._queue.status(job)
            text = f"job {job} of cluster {self.name!r} waits in the queue: {status.why}"
            if status.runs:
                text = f"job {job} of cluster {self.name!r} runs on {status.nodes}"
            elif not status.waits:
                raise self._told(status)
            elif timeout is not None and monotonic() - began >= timeout:
                msg = f"after {timeout:g} s {text}; wait longer, or ask for less"
                raise JobPending(msg, job=job, reason=status.reason)
            if text != said:
                line.say(text)
                said = text
            if status.runs:
                return
            clock.sleep(pause)

    def _await_nodes(self) -> None:
        """Waits until as many nodes are ready as there are to be."""
        from disco_client.transport.admin import list_cluster

        with self._dialled() as line:

            def all_there() -> bool:
                found = [each for each in list_cluster(line).nodes if each.state == "ready"]
                return len(found) >= self.nodes

            self._until(all_there, f"{many(self.nodes, 'node')} at {self.address}")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for the daemons of jobs that run."""
        deadline, why = monotonic() + _READY_S, ""
        for pause in _pauses():
            try:
                if condition():
                    return
            except ConnectionFailed as error:  # a controller that only starts, or ends
                why = f" ({error})"
            if (ended := self._ended()) is not None:
                raise ended
            if monotonic() > deadline:
                self._keeps_logs = True
                msg = (
                    f"job {self.job} runs, but within {_READY_S:g} s there was no sign of {what}"
                    f"{why}; its last lines: {self._last_lines()}; logs are in {self.folder}"
                )
                raise ClusterError(msg)
            clock.sleep(pause)

    def _await_end(self, jobs: Sequence[str]) -> None:
        deadline = monotonic() + _STOP_S
        for job in jobs:
            for pause in _pauses():
                status = self._queue.status(job)
                if not (status.waits or status.runs):
                    break
                if monotonic() > deadline:
                    msg = f"job {job} did not end within {_STOP_S:g} s; it is {status.state}"
                    raise ClusterError(msg)
                clock.sleep(pause)

    def _ended(self, patience: float = 0.0) -> JobEnded | None:
        """Why the cluster has ended; None if it runs. Reports further jobs that have ended."""
        began = monotonic()
        for pause in _pauses():
            status = self._queue.status(self.job)
            ends = status.state == "COMPLETING"  # how it ended is known afterwards
            late = monotonic() - began >= (_STOP_S if ends else patience)
            if not (status.waits or status.runs) or (ends and late):
                return self._told(status)
            if late:
                break
            clock.sleep(pause)
        for job in self._record.joined:
            status = self._queue.status(job)
            if not (status.waits or status.runs):
                self._note(joined=tuple(each for each in self._record.joined if each != job))
                say(f"disco: {self._told(status)}; {many(self.nodes, 'node')} left")
        return None

    def _told(self, status: JobStatus) -> JobEnded:
        """The error of a job that has ended."""
        state, lost, more = status.state, list[str](), ""
        if state == "FAILED":
            code = self._queue.exit_status(status.job)
            self._keeps_logs = True
            with_status = f" with status {code}" if code else ""
            more = f"{with_status}: {self._last_lines()}; logs are in {self.folder}"
        elif state == "NODE_FAIL":
            lost = self._queue.lost_nodes(status.nodes)
            more = f": {some(lost)}" if lost else f", one of {status.nodes}"
        how = _ENDINGS.get(state, f"ended, {state}")
        msg = f"job {status.job} of cluster {self.name!r} {how}{more}"
        return JobEnded(msg, job=status.job, state=state, nodes=lost)

    # Further nodes ---------------------------------------------------------------------------

    def _join(self, count: int, timeout: float | None) -> None:
        began, submitted = monotonic(), list[str]()
        try:
            with _status_line() as line:
                for _ in range(count):
                    submitted.append(self._submit(joins=True))
                    self._note(joined=(*self._record.joined, submitted[-1]))
                for job in submitted:
                    left = None if timeout is None else max(0.0, timeout + began - monotonic())
                    self._await_running(job, left, line)
                self._await_nodes()
        except BaseException:
            waiting = [job for job in submitted if not self._queue.status(job).runs]
            self._end_joined(waiting)
            raise

    def _leave(self, count: int) -> None:
        from disco_client.transport.admin import drain_node, list_cluster

        with self._dialled() as line:

            def held() -> dict[str, dict[str, int]]:
                """The nodes of each further job, with their slots in use; none while it waits."""
                found = {each.name: each.held_slots for each in list_cluster(line).nodes}
                return {
                    job: {
                        name: used
                        for name, used in found.items()
                        if name.endswith(self._ends_named(job))
                    }
                    for job in reversed(self._record.joined)
                }

            before = held()
            leaving = sorted(before, key=lambda job: (any(before[job].values()), len(before[job])))
            leaving = leaving[:count]
            nodes = [name for job in leaving for name in before[job]]
            for node in nodes:  # no session may come to it from now on
                drain_node(line, node, reason="scaled down")
            if used := self._left_in_use(leaving, held):
                for node in nodes:
                    drain_node(line, node, undo=True)
                self._refuse_to_leave(used)
        self._end_joined(leaving)

    def _left_in_use(
        self, leaving: Sequence[str], held: Callable[[], dict[str, dict[str, int]]]
    ) -> list[str]:
        """The nodes that sessions still use after a moment: one that ended has slots for that."""
        deadline = monotonic() + _FREE_S
        for pause in _pauses():
            now = held()
            used = [name for job in leaving for name, slots in now[job].items() if slots]
            if not used or monotonic() >= deadline:
                return used
            clock.sleep(pause)
        return []

    def _refuse_to_leave(self, used: list[str]) -> NoReturn:
        msg = (
            f"sessions use slots of {some(used)}, so that {many(self.nodes, 'node')} stay; end "
            "those sessions first (disco sessions)"
        )
        raise ClusterError(msg)

    def _end_joined(self, jobs: Sequence[str]) -> None:
        if not jobs:
            return
        self._queue.cancel(*jobs)
        self._note(joined=tuple(each for each in self._record.joined if each not in jobs))
        self._await_end(jobs)

    @contextlib.contextmanager
    def _dialled(self) -> Generator[ReloadingChannel]:
        from disco_client.transport.channel import ReloadingChannel

        line = ReloadingChannel(self.address, self._files.credentials())
        with contextlib.closing(line):
            yield line


def _patience(error: DiscoError) -> float:
    """How long to wait for Slurm to notice what this error tells of."""
    return _PATIENCE_S if isinstance(error, (ConnectionFailed, ControllerLost)) else 0.0


def _pauses() -> Generator[float]:
    """The seconds between looks at a queue, which are many users'."""
    pause = _LOOK_S
    while True:
        yield pause
        pause = min(pause * 1.5, _LONGEST_LOOK_S)


@contextlib.contextmanager
def _status_line() -> Generator[StatusLine]:
    line = StatusLine()
    with contextlib.closing(line):
        yield line


# Clusters that end with the program: at its exit, and so that there is one also by SIGTERM ------

_open = set[Callable[[], None]]()


def _opened(end: Callable[[], None]) -> None:
    _open.add(end)
    atexit.register(end)
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave_program)


def _closed(end: Callable[[], None]) -> None:
    _open.discard(end)
    atexit.unregister(end)
    main = threading.current_thread() is threading.main_thread()
    if main and not _open and signal.getsignal(signal.SIGTERM) is _leave_program:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave_program(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
