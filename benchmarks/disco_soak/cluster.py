"""A cluster whose daemons and connections break in every way that one machine can make."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from disco_client import Session, connect
from disco_soak.program import FUNCTIONS
from fault_tools.proxy import Proxy

__all__ = ["FATAL", "Breakable"]

_READY_S = 60.0
_BENCHMARKS = str(Path(__file__).parents[1])
FATAL = ("rank killed", "daemon killed")
"""Faults that end the session, which the program then opens anew."""


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
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._stack = contextlib.ExitStack()
        self._port = _free_port()
        self._controller: _Daemon
        self._nodes: list[_Daemon] = []

    def __enter__(self) -> Self:
        address = f"127.0.0.1:{self._port}"
        self._controller = _Daemon("controller", "--listen", address)
        self._client_way = self._stack.enter_context(Proxy(address))
        self._node_way = self._stack.enter_context(Proxy(address))
        for number, way in enumerate((address, self._node_way.address)):
            options = ("--controller", way, "--name", f"n{number}", "--slots", "2")
            allow = ("--allow-module", FUNCTIONS, "--allow-module", "numpy", "--warm", "0")
            self._nodes.append(_Daemon("worker", *options, *allow))
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in (*self._nodes, self._controller):
            daemon.stop()
        self._stack.close()

    def connect(self) -> Session:
        """Opens a session on all its slots."""
        return connect(self._client_way.address, num_workers=4, logs=False)

    @property
    def daemons(self) -> list[psutil.Process]:
        """The daemons of this moment."""
        return [psutil.Process(d.process.pid) for d in (self._controller, *self._nodes)]

    # Faults --------------------------------------------------------------------------

    def choose(self) -> str:
        """Names the next fault."""
        names = list(self._faults)
        (name,) = self._random.choices(names, [1 if name in FATAL else 4 for name in names])
        return name

    def break_something(self, name: str, session: Session) -> None:
        """Makes a fault, and heals it where it is of the kind that heals."""
        self._faults[name](session)

    @property
    def _faults(self) -> dict[str, Callable[[Session], Any]]:
        return {
            "client cut": lambda _: self._cut(self._client_way),
            "node cut": lambda _: self._cut(self._node_way),
            "client silent": lambda _: self._silence(self._client_way),
            "node silent": lambda _: self._silence(self._node_way),
            "controller killed": lambda _: self._restart_controller(),
            "controller frozen": lambda _: self._freeze(self._controller),
            "daemon frozen": lambda _: self._freeze(self._random.choice(self._nodes)),
            "rank frozen": self._freeze_rank,
            "rank killed": self._kill_rank,
            "daemon killed": lambda _: self._restart_node(),
        }

    def _pause(self, longest: float) -> None:
        time.sleep(self._random.uniform(0.05, longest))

    def _cut(self, way: Proxy) -> None:
        way.cut()
        self._pause(0.5)
        way.heal()

    def _silence(self, way: Proxy) -> None:
        # What a proxy swallows no end sends again, so the connection has to break then.
        with way.black_hole():
            self._pause(1.5)
            way.cut()
        way.heal()

    def _freeze(self, daemon: _Daemon) -> None:
        daemon.process.send_signal(signal.SIGSTOP)
        self._pause(3.0)
        daemon.process.send_signal(signal.SIGCONT)

    def _freeze_rank(self, session: Session) -> None:
        pid = self._random.choice(session.workers).pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self._pause(1.0)
            os.kill(pid, signal.SIGCONT)

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


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
