"""Programs that fork beside an open session; ``python -m fault_tools.forking KIND ADDRESS WHAT``.

Each prints what it found as one line of JSON, and ends with 0. The session has two workers.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import disco_client

__all__ = ["KINDS", "open_kind"]

KINDS = ("connect", "replay", "socket", "process", "threaded")
_ELEMENTS = 50_000
"""Of an array that travels beside the log."""

_CHILD_S = 60
"""No child of these lives longer: one that hangs is ended by SIGALRM, which its status says."""


def open_kind(kind: str, address: str, port: int = 0) -> disco_client.Session:
    """Opens a session of a kind."""
    match kind:
        case "connect":
            return disco_client.connect(address, num_workers=2, logs=False)
        case "replay":
            return disco_client.connect(address, num_workers=2, logs=False, recover="replay")
        case "socket":
            return disco_client.SocketSession(1, 2, 1, "localhost", port, logs=False)
        case "process":
            return disco_client.ProcessSession(2, logs=False)
        case _:
            return disco_client.ThreadedSession(2, logs=False)


def full(value: float) -> np.ndarray[Any, Any]:
    """A large array of one value."""
    return np.full(_ELEMENTS, value)


def forked(work: Callable[[], object]) -> tuple[int, object]:
    """Forks; returns the child's exit status and what its work returned there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(_CHILD_S)
        os.write(writing, json.dumps(work()).encode())
        os.close(writing)
        sys.exit(0)  # with all that the end of an interpreter does
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, json.loads(told) if told else None


def outcome(use: Callable[[], object]) -> str:
    """The type of what a use raised, or what it returned."""
    try:
        return repr(use())
    except Exception as error:  # noqa: BLE001  (told to the test)
        return type(error).__name__


def holds(session: disco_client.Session, value: float) -> bool:
    """Whether what is broadcast now is what each worker gets."""
    ref = session.broadcast(full(value))
    return all(bool((ref.numpy(worker) == value).all()) for worker in range(2))


class Uses:
    """Every way to use a session and what it made before the fork."""

    def __init__(self, session: disco_client.Session) -> None:
        self.session = session
        self.ref = session.broadcast(full(1.0))
        self.echo = session.get_global_func("numpy.abs")
        self.tensor = session.distribute(full(3.0).reshape(100, -1), placement="S[0]")
        with session.capture("both") as self.program:
            taken = self.program.input("x")
            self.program.output(self.echo(taken))
        session.sync_all()

    def capture(self) -> None:
        with self.session.capture("child") as program:
            program.output(self.echo(program.input("x")))

    def trace(self) -> None:
        with self.session.trace(os.devnull):
            pass

    def let_go(self) -> None:
        """Drops every reference, so that the garbage collector finds them."""
        del self.ref, self.echo, self.tensor, self.program
        gc.collect()

    def alive_in_both(self) -> None:
        """Uses in the parent what the child was refused."""
        into = np.empty(_ELEMENTS)
        self.session.copy_from_worker_0(into, self.ref)
        assert (into == 1.0).all()
        assert (self.program(self.ref).numpy(1) == 1.0).all()
        assert (self.tensor + 1.0).numpy()[0, 0] == 4.0

    def all(self) -> dict[str, str]:
        session, ref = self.session, self.ref
        uses: dict[str, Callable[[], object]] = {
            "call": lambda: self.echo(ref),
            "look up": lambda: session.get_global_func("numpy.sin"),
            "import": lambda: session.import_python_module("numpy"),
            "empty": lambda: session.empty((4,), "float32"),
            "broadcast": lambda: session.broadcast(full(666.0)),
            "scatter": lambda: session.scatter(full(666.0).reshape(2, -1), ref),
            "allreduce": lambda: session.allreduce(ref, ref),
            "copy to": lambda: session.copy_to_worker_0(full(666.0)),
            "copy over": lambda: session.copy_to_worker_0(full(666.0), ref),
            "copy from": lambda: session.copy_from_worker_0(np.empty(_ELEMENTS), ref),
            "set": lambda: ref.debug_copy_from(0, full(666.0)),
            "fetch": lambda: ref.debug_get_from_remote(1),
            "numpy": ref.numpy,
            "item": lambda: ref[0],
            "distribute": lambda: session.distribute(full(666.0)),
            "compute": lambda: self.tensor + 1.0,
            "gather": self.tensor.numpy,
            "run": lambda: self.program(ref),
            "capture": self.capture,
            "trace": self.trace,
            "publish": lambda: session.publish("child", ref),
            "published": lambda: session.published("child"),
            "list": session.list_published,
            "release": session.release_all,
            "detach": session.detach,
            "checkpoint": lambda: session.checkpoint(os.devnull),
            "diagnose": session.diagnose,
            "flight": session.flight,
            "sync": session.sync_all,
            "sync 0": session.sync_worker_0,
            "sync 1": lambda: session.sync_worker(1),
        }
        return {name: outcome(use) for name, use in uses.items()}


def refused(kind: str, address: str) -> dict[str, object]:
    """A child uses everything, lets go of it and ends; so does a child of the child."""
    with open_kind(kind, address) as session:
        uses = Uses(session)

        def use() -> object:
            told = uses.all()
            try:
                session.sync_all()
            except disco_client.SessionClosed as error:
                told["why"] = str(error)
            again = forked(lambda: outcome(session.sync_all))
            told["pickle"] = outcome(lambda: pickle.dumps(uses.ref))
            session.shutdown()
            uses.let_go()
            return told, again

        status, told = forked(use)
        sound = holds(session, 2.0)
        uses.alive_in_both()
        session.sync_all()
    return {"status": status, "told": told, "sound": sound}


def exits(kind: str, address: str) -> dict[str, object]:
    """Children end in every way; the parent's session is none the worse for it."""
    found: dict[str, object] = {}

    def leave_block() -> None:
        with contextlib.ExitStack() as block:
            block.push(session)  # the parent has entered it

    def leave_capture() -> None:
        with session.capture() as program:
            pids.append(os.fork())
            if not pids[-1]:
                signal.alarm(_CHILD_S)
                found["inside"] = outcome(lambda: program.input("x"))

    session = open_kind(kind, address)
    session.sync_all()
    found["block"] = forked(leave_block)[0]
    found["lambda"] = forked(lambda: None)[0]
    trace = session.trace(f"/proc/self/cwd/{kind}.json")
    with trace:
        found["traced"] = forked(lambda: trace.__exit__(None, None, None))[0]
        found["untouched"] = not trace.path.stat().st_size
    pids: list[int] = []
    caught = outcome(leave_capture)
    if not pids[0]:  # what leaving a capture raised, in the child
        os._exit(0 if (caught, found["inside"]) == ("SessionClosed", "SessionClosed") else 1)
    found["captured"] = os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1])
    for name, end in {
        "_exit": lambda: os._exit(7),
        "exit": lambda: sys.exit(7),
        "error": lambda: 1 / 0,
    }.items():
        sys.stderr.flush()
        process = multiprocessing.get_context("fork").Process(target=end)
        process.start()
        process.join()
        found[name] = process.exitcode
    pid = os.fork()
    if pid == 0:
        signal.alarm(_CHILD_S)
        return {}  # the interpreter ends as it does at the end of any program
    found["end"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found["sound"] = holds(session, 2.0)
    session.shutdown()
    return found


class Busy:
    """Threads that upload, fetch, sync and capture until they are stopped."""

    def __init__(self, session: disco_client.Session) -> None:
        self.session = session
        self.echo = session.get_global_func("numpy.abs")
        self.ref = session.broadcast(full(1.0))
        self.wrong: list[str] = []
        self.rounds = [0, 0, 0]
        self._over = threading.Event()
        works = (self.upload, self.sync, self.capture)
        self._threads = [
            threading.Thread(target=self._repeat, args=(place, work))
            for place, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def upload(self, number: int) -> None:
        if not holds(self.session, float(number)):
            self.wrong.append(f"upload {number}")

    def sync(self, number: int) -> None:
        self.echo(number)
        self.session.sync_all()

    def capture(self, number: int) -> None:
        with self.session.capture() as program:
            program.output(self.echo(program.input("x")))
        if (program(self.ref).numpy(number % 2) != 1.0).any():
            self.wrong.append(f"capture {number}")

    def _repeat(self, place: int, work: Callable[[int], None]) -> None:
        try:
            for number in itertools.count(2):
                if self._over.is_set():
                    return
                work(number)
                self.rounds[place] += 1
        except Exception as error:  # noqa: BLE001  (told to the test)
            self.wrong.append(repr(error))

    def stop(self) -> None:
        """Ends the threads, after each has gone on, and not only with what was under way."""
        wanted, deadline = [done + 2 for done in self.rounds], time.monotonic() + _CHILD_S
        while any(map(int.__lt__, self.rounds, wanted)) and not self.wrong:
            if time.monotonic() > deadline:
                self.wrong.append(f"expected {wanted} rounds, got {self.rounds}")
            time.sleep(0.01)
        self._over.set()
        for thread in self._threads:
            thread.join()

    def use_in_child(self) -> list[str]:
        """What a child gets of the session; it lets go of its copy."""
        session, ref = self.session, self.ref
        uses = (lambda: session.broadcast(full(666.0)), ref.numpy, session.sync_all)
        told = [outcome(use) for use in uses]
        del uses, ref, self.ref, self.echo
        session.shutdown()
        gc.collect()
        return told


def busy(kind: str, address: str) -> dict[str, object]:
    """Forks again and again while other threads use the session."""
    with open_kind(kind, address) as session:
        threads = Busy(session)
        children = [forked(threads.use_in_child) for _ in range(5)]
        threads.stop()
        sound = holds(session, 2.0)
    return {"children": children, "wrong": threads.wrong, "sound": sound}


def _in_child(session: disco_client.Session | None, kind: str, address: str, told: Any) -> None:
    """What a process of multiprocessing does; it ends as those do."""
    signal.alarm(_CHILD_S)
    if session is not None:
        told.put(outcome(session.sync_all))
        return
    with open_kind(kind, address) as own:
        told.put(holds(own, 5.0))


def methods(kind: str, address: str) -> dict[str, object]:
    """Children of multiprocessing: of each method, with a session and without."""
    found: dict[str, object] = {}
    with open_kind(kind, address) as session:
        session.sync_all()
        for method in ("fork", "forkserver", "spawn"):
            context = multiprocessing.get_context(method)
            told = context.SimpleQueue()
            given = session if method == "fork" else None
            child = context.Process(target=_in_child, args=(given, kind, address, told))
            child.start()
            child.join()
            found[method] = child.exitcode, None if told.empty() else told.get()
            if method != "fork":
                child = context.Process(target=_in_child, args=(session, kind, address, told))
                found[f"{method} given"] = outcome(child.start)
        found["sound"] = holds(session, 2.0)
    return found


def own(kind: str, address: str) -> dict[str, object]:
    """Children that open a session of their own: before the parent has one, and after."""

    def open_own(which: str) -> Callable[[], object]:
        def work() -> object:
            try:
                with open_kind(which, address) as mine:
                    return holds(mine, 5.0)
            except disco_client.DiscoError as error:
                return f"{type(error).__name__}: {error}"

        return work

    before = forked(open_own(kind))
    with open_kind(kind, address) as session:
        session.sync_all()
        after = {which: forked(open_own(which)) for which in (kind, "process", "threaded")}
        sound = holds(session, 2.0)
    return {"before": before, "after": after, "sound": sound}


def outlived(kind: str, address: str) -> dict[str, object]:
    """A child goes on while its parent ends the session and opens another one in its place."""
    with open_kind(kind, address) as session:
        session.sync_all()
        port = int(getattr(session, "address", ":0").rpartition(":")[2])
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            signal.alarm(_CHILD_S)
            os.read(reading, 1)  # until the parent closes its end
            sys.exit(0)
    with open_kind(kind, address, port) as session:
        sound = holds(session, 2.0)
    os.close(writing)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "sound": sound}


def garbage(kind: str, address: str) -> dict[str, object]:
    """A child collects what its parent's earlier sessions left, and has not collected."""
    gc.disable()
    for _ in range(3):
        with open_kind(kind, address) as session:
            session.sync_all()
        del session
    status, _ = forked(lambda: gc.collect() >= 0)
    with open_kind(kind, address) as session:
        sound = holds(session, 2.0)
    return {"status": status, "sound": sound}


if __name__ == "__main__":
    kinds_of_program = (refused, exits, busy, methods, own, outlived, garbage)
    programs = {each.__name__: each for each in kinds_of_program}
    asked_kind, where, what = sys.argv[1:]
    found_out = programs[what](asked_kind, where)
    if found_out:
        print(json.dumps(found_out))
