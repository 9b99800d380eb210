"""Programs that lack a resource while they wait; ``python -m fault_tools.exhausting JSON``.

Each opens a session of two workers, goes through the waits of a session's life, and writes
what became of each as a line of JSON into the file that it is given. While some of the
waits last, a resource is exhausted, or is not what it is otherwise.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import itertools
import json
import os
import resource
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import disco_client
from fault_tools.clock import set_clock

__all__ = ["KINDS", "RESOURCES", "WAITS", "Case"]

KINDS = ("threads", "processes", "cluster", "replay")
WAITS = ("open", "issue", "wait", "upload", "capture", "run", "checkpoint", "leave")

_ELEMENTS = 300_000
"""Of an array that travels beside the log."""

_CALLS = 20
_LEASE_S = 10.0
"""Of a session that is left, and soon attached to."""

_YEARS = 10 * 365 * 86_400
_DRAINS = 12
"""More syncs than raise what a program's waits can have left."""


@dataclass(frozen=True)
class Case:
    """What is exhausted, and when.

    Attributes:
        kind: Of the session.
        what: The resource.
        left: How much is left of it: 0, 1 or 2, from nothing to some.
        first: The wait before which it is exhausted.
        last: The wait after which it is given back.
        back: Whether it is given back at all.
        again: Whether another session of the program's has gone through all waits before, so
            that modules, for one, are loaded.
        address: The controller; empty where there is none.
        disk: A folder on a small disk.
        report: The file for what became of the waits.
        give_up_s: After how many seconds the program says where it hangs.
    """

    kind: str
    what: str
    left: int
    first: str
    last: str
    back: bool
    again: bool
    address: str = ""
    disk: str = ""
    report: str = ""
    give_up_s: float = 45.0


class Resource(Protocol):
    """What can be taken away."""

    def take(self) -> None:
        """Takes it away."""
        ...

    def give_back(self) -> None:
        """Makes all as it was."""
        ...


class _Limited(ABC):
    """A resource of which a limit of this process lets less be used."""

    which = resource.RLIMIT_NOFILE

    def __init__(self, case: Case) -> None:
        self._left = case.left
        self._before = resource.getrlimit(self.which)

    @abstractmethod
    def used(self) -> int:
        """The limit that leaves as much as there is to be."""

    def take(self) -> None:
        """Lowers the limit."""
        limit = self.used()
        self._before = resource.getrlimit(self.which)
        resource.setrlimit(self.which, (limit, self._before[1]))

    def give_back(self) -> None:
        """Raises it again."""
        resource.setrlimit(self.which, self._before)


class _Descriptors(_Limited):
    def used(self) -> int:
        taken = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
        free = os.open(os.devnull, os.O_RDONLY)  # as the one was by which they were listed
        os.close(free)
        numbers = itertools.filterfalse((taken - {free}).__contains__, itertools.count())
        return next(itertools.islice(numbers, 3 * self._left, None))


class _Threads(_Limited):
    which = resource.RLIMIT_NPROC

    def used(self) -> int:
        mine = f"\nUid:\t{os.getuid()}\t"
        count = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                told = status.read_text()
                if mine in told:
                    count += int(told.partition("Threads:")[2].split()[0])
        return count + 2 * self._left


class _Memory(_Limited):
    which = resource.RLIMIT_AS

    def used(self) -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return pages * resource.getpagesize() + (1 << 20 << 2 * self._left)


class _Filled:
    """A file system of which a file takes nearly all."""

    def __init__(self, folder: str, left: int) -> None:
        self._folder, self._left = folder, 64 * left << 10
        self._file = Path(folder, "filled")

    def take(self) -> None:
        found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize - self._left
        with self._file.open("wb") as file:
            if free > 0:
                os.posix_fallocate(file.fileno(), 0, free)

    def give_back(self) -> None:
        self._file.unlink()


class _Stderr:
    """A standard error to which nobody listens, or which takes nothing."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._object, self._copy = sys.stderr, os.dup(2)
        self._kept: list[int] = []

    def take(self) -> None:
        if self._how == "none":
            sys.stderr = None
        elif self._how == "closed":
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  (closed at once)
            sys.stderr.close()
        elif self._how == "ascii":
            raw = open(2, "wb", closefd=False)  # noqa: SIM115  (standard error's)
            sys.stderr = io.TextIOWrapper(raw, "ascii", "strict", write_through=True)
        elif self._how == "full":
            self._put(os.open("/dev/full", os.O_WRONLY))
        else:
            reading, writing = os.pipe()
            if self._how == "broken":
                os.close(reading)
            else:
                self._kept.append(reading)
                fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(writing, bytes(1 << 16))
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(writing, b"\0")
                fcntl.fcntl(writing, fcntl.F_SETFL, 0)
            self._put(writing)

    def _put(self, descriptor: int) -> None:
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def give_back(self) -> None:
        os.dup2(self._copy, 2)
        for descriptor in self._kept:
            threading.Thread(target=_read_all, args=(descriptor,), daemon=True).start()
        sys.stderr = self._object


def _read_all(pipe: int) -> None:
    while os.read(pipe, 1 << 16):
        pass


class _Clock:
    """A wall clock that is wrong."""

    def __init__(self, how: str) -> None:
        self._told = Path(os.environ.get("CLOCK_OFFSET", os.devnull))
        self._how = how

    def take(self) -> None:
        ahead = {"frozen": 0, "ahead": _YEARS, "behind": -_YEARS}[self._how]
        set_clock(self._told, ahead, frozen=self._how == "frozen")

    def give_back(self) -> None:
        set_clock(self._told, 0)


RESOURCES: dict[str, Callable[[Case], Resource]] = {
    "descriptors": _Descriptors,
    "threads": _Threads,
    "memory": _Memory,
    "shared memory": lambda case: _Filled("/dev/shm", case.left),
    "disk": lambda case: _Filled(case.disk, case.left),
    **{
        f"stderr {how}": lambda _, how=how: _Stderr(how)
        for how in ("none", "closed", "broken", "full pipe", "full", "ascii")
    },
    **{f"clock {how}": lambda _, how=how: _Clock(how) for how in ("frozen", "ahead", "behind")},
}


class Wrong(Exception):
    """A wait has given something else than the right value."""


def _expect(right: bool, what: object) -> None:
    if not right:
        raise Wrong(repr(what)[:300])


class _Life:
    """The waits of a session's life; each says by `Wrong` what came wrong."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.session: Any = None
        self._issued: list[Any] = []
        self._program: Any = None
        self._detached = ""
        self._saved = 0

    def open(self) -> None:
        case = self._case
        if self._detached:
            self.session = disco_client.attach(self._detached, address=case.address)
            self._detached = ""
        elif case.kind == "threads":
            self.session = disco_client.ThreadedSession(2)
        elif case.kind == "processes":
            self.session = disco_client.ProcessSession(2)
        else:
            recover: Any = "replay" if case.kind == "replay" else None
            self.session = disco_client.connect(case.address, num_workers=2, recover=recover)

    def issue(self) -> None:
        session = self.session
        session.import_python_module("disco_test_functions")
        add, say = session.get_global_func("tests.add"), session.get_global_func("tests.say")
        say("a line of a worker: \N{SNOWMAN}\n")
        self._issued = [add(number, 1) for number in range(_CALLS)]

    def wait(self) -> None:
        issued, self._issued = self._issued, []
        if not issued:
            self.issue()
            issued, self._issued = self._issued, []
        self.session.sync_all()
        for worker in range(2):
            came = [each.debug_get_from_remote(worker) for each in issued]
            _expect(came == list(range(1, len(issued) + 1)), came)

    def upload(self) -> None:
        array = np.arange(_ELEMENTS) * 3
        there = self.session.copy_to_worker_0(array)
        everywhere = self.session.broadcast(array)
        for came in (there.numpy(), everywhere.numpy(1)):
            _expect(bool((came == array).all()), came)
        total = self.session.empty((_ELEMENTS,), "int64")
        self.session.allreduce(everywhere, total)
        came = total.numpy()
        _expect(bool((came == 2 * array).all()), came)

    def capture(self) -> None:
        session = self.session
        with session.capture("negates") as program:
            program.output(session.get_global_func("numpy.negative")(program.input("x")))
        self._program = program

    def run(self) -> None:
        if self._program is None:
            self.capture()
        array = np.arange(_ELEMENTS)
        came = self._program(self.session.broadcast(array)).numpy(1)
        _expect(bool((came == -array).all()), came)

    def checkpoint(self) -> None:
        session, self._saved = self.session, self._saved + 1
        folder = f"{self._case.disk}/saved-{self._saved}"
        array = np.arange(20_000.0)
        tensor = session.distribute(array, placement="S[0]")
        if self._case.kind == "replay":
            session.checkpoint(folder)
        else:
            session.save(folder, {"tensor": tensor})
            tensor = session.load(folder)["tensor"]
        came = tensor.numpy()
        _expect(bool((came == array).all()), came)

    def leave(self) -> None:
        if self._case.kind == "cluster":
            name = self.session.name
            self.session.detach(lease=_LEASE_S)
            self._detached = name
        else:
            self.session.shutdown()
        self._forget()

    def end(self) -> None:
        """Leaves nothing, whatever has become of the session."""
        if self._detached:
            self.open()
        if self.session is not None:
            self.session.shutdown()
        self._forget()

    def _forget(self) -> None:
        self.session, self._program, self._issued = None, None, []

    def drain(self) -> None:
        """Raises what the workers still have to report."""
        self.session.sync_all()


class _Report:
    """What became of the waits, for the test to judge.

    Attributes:
        short: Whether a resource is exhausted now.
    """

    def __init__(self, case: Case) -> None:
        self.short = False
        self._file = os.open(case.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def tell(self, wait: str, use: Callable[[], object]) -> BaseException | None:
        """Does something, and writes down and returns what it raised."""
        error: BaseException | None = None
        try:
            use()
        except Exception as raised:  # noqa: BLE001  (judged by the test)
            error = raised
        told = json.dumps({"wait": wait, "short": self.short, "errors": _causes(error)})
        os.write(self._file, told.encode() + b"\n")
        return error


def _causes(error: BaseException | None) -> list[tuple[list[str], str]]:
    """The classes and the text of an error, and of those that it was raised from."""
    found: list[tuple[list[str], str]] = []
    while error is not None:
        found.append(([each.__name__ for each in type(error).__mro__], str(error)))
        error = error.__cause__ or error.__context__
    return found


def _go_on(life: _Life, report: _Report) -> None:
    """Shows that a session works on or, where it was lost, that another one does."""
    for _ in range(_DRAINS if life.session is not None else 0):
        error = report.tell("drain", life.drain)
        if error is None:
            break
        if isinstance(error, disco_client.SessionLost):
            report.tell("end of a lost one", life.end)
            break
    if life.session is None:
        report.tell("open again", life.open)
    for wait in WAITS[1:-1]:
        if life.session is not None:
            report.tell(f"{wait} again", getattr(life, wait))


def main() -> None:
    case = Case(**json.loads(sys.argv[1]))
    life, report, thing = _Life(case), _Report(case), RESOURCES[case.what](case)
    with Path(f"{case.report}.trace").open("w") as trace:
        faulthandler.dump_traceback_later(case.give_up_s, file=trace)
        if case.again:
            for wait in WAITS:
                report.tell(f"{wait} before", getattr(life, wait))
            report.tell("end before", life.end)
        for wait in WAITS:
            if wait == case.first:
                report.short = True
                thing.take()
            if wait == "open" or life.session is not None:
                report.tell(wait, getattr(life, wait))
            if wait == case.last and case.back:
                thing.give_back()
                report.short = False
                _go_on(life, report)
        report.tell("end", life.end)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
