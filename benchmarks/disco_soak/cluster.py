"""A cluster whose daemons and connections break in every way that one machine can make."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import psutil

from disco_client import Session, connect, errors
from disco_soak.program import FUNCTIONS
from disco_soak.ways import Ways

__all__ = ["BREAKER", "FATAL", "LOSSES", "Breakable"]

_READY_S = 60.0
_BENCHMARKS = str(Path(__file__).parents[1])
FATAL = ("rank killed", "daemon killed")
"""Faults that end the session, which the program then opens anew."""

BREAKER = "soak: breaks the cluster"
"""The name of the thread that breaks and mends it: its finalizers must not wait for a session."""

LOSSES = ("daemon stalled beyond its lease",)
"""Faults that are made only where the session recovers from them."""

_CLIENT, _NODE = range(2)
"""The ways of client and node."""

_STALL_S = 12.0
"""Beyond the lease of nodes."""

_BRIEF_STALL_S = 8.0
"""Below it."""

_FAR_S = 0.15
"""How long each byte is on its way over a slow link."""

_RARE = ("stalled", "killed")
"""What takes so long, or costs so much, that it is made less often."""

_CHILD_S = 20.0
"""How long a forked child may take to find that the session is not its own, and to end."""

_FLOOD_LINES = 100_000


class _Daemon:
    """One daemon, started again as often as needed."""

    def __init__(self, what: str, *options: str) -> None:
        self._command = [sys.executable, "-m", f"disco_server.cli.{what}", *options]
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        path = os.pathsep.join(filter(None, (_BENCHMARKS, os.environ.get("PYTHONPATH"))))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("DISCO_")}
        self.process = subprocess.Popen(
            [*self._command, "--log-level", "error"],
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "DISCO_HTTP": "off"},
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self._collect()

    def stop(self) -> None:
        self.process.terminate()
        self._collect()

    def _collect(self) -> None:
        self.process.wait(_READY_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Breakable:
    """A controller and two nodes; the client and one node reach it through proxies.

    Args:
        seed: Decides which faults there are.
        frames: Whether the controller takes frames; else gRPC carries all streams.
        tls: Whether connections are encrypted, and everybody shows a certificate.
    """

    def __init__(self, seed: int, *, frames: bool = True, tls: bool = False) -> None:
        self._frames, self._tls = frames, tls
        self._credentials: dict[str, Path] = {}
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._stack = contextlib.ExitStack()
        self._port = _free_port()
        self._controller: _Daemon
        self._nodes: list[_Daemon] = []

    def __enter__(self) -> Self:
        address = f"127.0.0.1:{self._port}"
        flags = self._certificates() if self._tls else {"controller": (), "worker": ()}
        port = _free_port() if self._frames else 0
        frames = ("--frames-port", str(port)) if port else ("--frames", "off")
        options = ("--listen", address, *frames, *flags["controller"])
        self._controller = _Daemon("controller", *options)
        self._ways = self._stack.enter_context(Ways(address, 2, port))
        for number, way in enumerate((address, self._ways.addresses[_NODE])):
            options = ("--controller", way, "--name", f"n{number}", "--slots", "2")
            allow = ("--allow-module", FUNCTIONS, "--allow-module", "numpy")
            self._nodes.append(_Daemon("worker", *options, *flags["worker"], *allow))
        return self

    def _certificates(self) -> dict[str, tuple[str, ...]]:
        """Makes certificates for the run; returns the options of each daemon."""
        from fault_tools.certificates import Pki

        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        pki = Pki.make(Path(folder))
        self._credentials = pki.files("client")
        return {
            "controller": (*pki.flags("controller"), "--require-client-cert"),
            "worker": tuple(pki.flags("worker")),
        }

    def __exit__(self, *_: object) -> None:
        for daemon in (*self._nodes, self._controller):
            daemon.stop()
        self._stack.close()

    def connect(self, recover: Literal["replay"] | None = None, *, logs: bool = False) -> Session:
        """Opens a session on all its slots."""
        where = self._ways.addresses[_CLIENT]
        files: dict[str, Any] = {**self._credentials}
        return connect(where, num_workers=4, logs=logs, recover=recover, **files)

    @property
    def daemons(self) -> list[psutil.Process]:
        """The daemons of this moment."""
        return [psutil.Process(d.process.pid) for d in (self._controller, *self._nodes)]

    # Faults --------------------------------------------------------------------------

    def choose(self, *, recovers: bool = False) -> str:
        """Names the next fault, for a session that recovers from losses or one that does not."""
        names = [name for name in self._faults if recovers or name not in LOSSES]
        weights = [1 if any(word in name for word in _RARE) else 3 for name in names]
        (name,) = self._random.choices(names, weights)
        return name

    def break_something(self, name: str, session: Session) -> None:
        """Makes a fault, and heals it where it is of the kind that heals."""
        self._faults[name](session)

    @property
    def _faults(self) -> dict[str, Callable[[Session], Any]]:
        return {
            "client cut": lambda _: self._cut(_CLIENT),
            "node cut": lambda _: self._cut(_NODE),
            "client silent": lambda _: self._silence(_CLIENT),
            "node silent": lambda _: self._silence(_NODE),
            "client far away": lambda _: self._slow_down(_CLIENT),
            "node far away": lambda _: self._slow_down(_NODE),
            "controller killed": lambda _: self._restart_controller(),
            "controller stalled": lambda _: _stall(self._controller.process.pid, _STALL_S),
            "client stalled": lambda _: _stand_still(_STALL_S),
            "rank stalled": lambda session: self._stall_rank(session, _STALL_S),
            "daemon stalled": lambda _: self._stall_node(_BRIEF_STALL_S),
            "daemon stalled beyond its lease": lambda _: self._stall_node(_STALL_S),
            "rank killed": self._kill_rank,
            "daemon killed": lambda _: self._restart_node(),
            "fork": _fork,
            "flood of output": lambda session: session.get_global_func("soak.print")(_FLOOD_LINES),
        }

    def _pause(self, longest: float) -> None:
        time.sleep(self._random.uniform(0.05, longest))

    def _cut(self, way: int) -> None:
        self._ways.tell(way, "cut")
        self._pause(0.5)
        self._ways.tell(way, "heal")

    def _silence(self, way: int) -> None:
        # Neither end sends again what a proxy swallows, so the connection has to break then.
        self._ways.tell(way, "swallow", 1)
        self._pause(1.5)
        self._ways.tell(way, "cut")
        self._ways.tell(way, "swallow", 0)
        self._ways.tell(way, "heal")

    def _slow_down(self, way: int) -> None:
        self._ways.tell(way, "delay", _FAR_S)
        self._pause(3.0)
        self._ways.tell(way, "cut")  # so that the next connections go over the slow link
        self._ways.tell(way, "heal")
        self._pause(3.0)
        self._ways.tell(way, "delay", 0)

    def _stall_node(self, seconds: float) -> None:
        _stall(self._random.choice(self._nodes).process.pid, seconds)

    def _stall_rank(self, session: Session, seconds: float) -> None:
        _stall(self._random.choice(session.workers).pid, seconds)

    def _restart_controller(self) -> None:
        self._controller.kill()
        self._pause(1.0)
        self._controller.start()

    def _kill_rank(self, session: Session) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(session.workers).pid, signal.SIGKILL)

    def _restart_node(self) -> None:
        node = self._random.choice(self._nodes)
        node.kill()
        node.start()


def _stall(pid: int, seconds: float) -> None:
    """Lets a process stand still."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def _stand_still(seconds: float) -> None:
    """Lets this process stand still, with all its threads."""
    program = "import os, signal, sys, time; time.sleep(float(sys.argv[1]))"
    program += "; os.kill(os.getppid(), signal.SIGCONT)"
    with subprocess.Popen([sys.executable, "-S", "-c", program, str(seconds)]):
        os.kill(os.getpid(), signal.SIGSTOP)


def _fork(session: Session) -> None:
    """Forks, lets the child try to use the session, and waits for its end."""
    child = multiprocessing.get_context("fork").Process(target=_use_the_parents, args=(session,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child.start()
    child.join(_CHILD_S)
    if child.exitcode is None:
        child.kill()
        child.join()
    if child.exitcode != 0:
        msg = f"a forked child ended with {child.exitcode}, not with 0"
        raise AssertionError(msg)


def _use_the_parents(session: Session) -> None:
    """What a forked child does: every use must be refused, and its end is quick."""
    for use in (partial(session.broadcast, np.full(40_000, 666.0)), session.sync_all):
        try:
            use()
        except errors.SessionClosed:
            continue
        sys.exit(1)
    gc.collect()


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
