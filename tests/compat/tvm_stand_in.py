"""Disco in the place of TVM's, for tests of TVM's that are run as they are; a plugin of pytest.

What is changed for them is what a person changes who ports a program to CPUs: where
``disco`` is imported from, the name of the collective library, and the device. Beyond that
the names of session classes open sessions of the kind that is tested, with workers that
have the functions which the tests register in their own process.

Usage: ``pytest -p tvm_stand_in --disco-kind=threads|processes|sockets|cluster FILE...``
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm.testing
import tvm_ffi
from own_ports import own_port
from tvm.testing import env

import disco_client
from disco_server.cli.local import LocalCluster

HERE = Path(__file__).parent
RUNNER = "disco_server.embedded.entrypoint"
REMOTE = "tvm.exec.disco_remote_socket_session"
WORKER = "tvm.exec.disco_worker"
KINDS = ("threads", "processes", "sockets", "cluster")

# With which library TVM is said to be compiled; what is for NVIDIA's GPUs asks for nccl.
COMPILED = {"test_ccl": "mpi", "test_custom_allreduce": ["nccl"]}

# The module with the functions of a file, where workers are not threads of the tests' process.
FUNCTIONS = {"test_session": WORKER, "test_loader": "tvm_loader_functions"}


# What is changed --------------------------------------------------------------------------


def put_in_place(disco: Any) -> None:
    """Replaces TVM's Disco, and its GPUs by the CPU, in this process."""
    sys.modules["tvm.runtime.disco"] = tvm.runtime.disco = disco
    tvm.cuda = tvm.rocm = tvm.cpu
    env.has_nccl = env.has_multi_gpu = lambda *_: True
    tvm.testing.run_with_gpu_lock = lambda func, *args, **options: func(*args, **options)
    make = tvm.target.Target.__init__

    def on_cpu(self: Any, target: Any, host: Any = None) -> None:
        kind = target.get("kind") if isinstance(target, dict) else target
        make(self, "llvm" if kind == "cuda" else target, host)

    tvm.target.Target.__init__ = on_cpu


def say_compiled(library: Any) -> None:
    """Lets TVM say with which collective library it was compiled."""
    name = "runtime.disco.compiled_ccl"
    tvm_ffi.register_global_func(name, lambda: library, override=True)


class JoiningPopen(subprocess.Popen):
    """Starts TVM's program for the other nodes of a socket session so that it joins Disco's."""

    def __init__(self, args: Any, **options: Any) -> None:
        if isinstance(args, list) and args[1:3] == ["-m", REMOTE]:
            args = [args[0], "-m", RUNNER, *args[2:]]
            allowed = {f"DISCO_ALLOW_{what}": "*" for what in ("MODULES", "READ", "SAVE", "LOAD")}
            quiet = {"DISCO_HTTP": "off", "DISCO_LOG_LEVEL": "error"}
            options["env"] = {**os.environ, **allowed, **quiet}
        super().__init__(args, **options)


# Sessions of each kind --------------------------------------------------------------------


class Opener:
    """Opens sessions of one kind, and closes them.

    Args:
        kind: The kind.

    Attributes:
        file: Of which tests they are.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._address = ""
        self._cluster: LocalCluster | None = None
        self._ends: list[Callable[[], object]] = []
        self.file = ""

    def open(self, num_workers: int, num_groups: int = 1) -> disco_client.Session:
        """Opens a session; in the place of the classes for threads and processes."""
        if self._kind == "threads":
            session = disco_client.ThreadedSession(num_workers, num_groups)
        elif self._kind == "processes":
            session = self._processes(num_workers, num_groups)
        elif self._kind == "sockets":
            session = self._sockets(num_workers, num_groups)
        else:
            session = disco_client.connect(
                self._address, num_workers=num_workers, num_groups=num_groups
            )
        self._ends.append(session.shutdown)
        return self.prepared(session)

    def _processes(self, workers: int, groups: int) -> disco_client.Session:
        # The tests of sessions rely on the functions of the original's entrypoint.
        if self.file == "test_session":
            return disco_client.ProcessSession(workers, groups, entrypoint=WORKER)
        return disco_client.ProcessSession(workers, groups)

    def _sockets(self, workers: int, groups: int) -> disco_client.Session:
        port = own_port()
        half = workers // 2
        node = JoiningPopen([sys.executable, "-m", REMOTE, "localhost", str(port), str(half)])
        self._ends.append(lambda: node.wait(120))
        # Tests look for what is printed; that it waits for its nodes is not what they mean.
        with contextlib.redirect_stderr(io.StringIO()):
            return disco_client.SocketSession(2, half, groups, "localhost", port)

    def open_socket(self, *args: Any) -> disco_client.Session:
        """Opens a session whose other nodes the test starts; in the place of the class."""
        return self.prepared(disco_client.SocketSession(*args))

    def prepared(self, session: disco_client.Session) -> disco_client.Session:
        """Gives the workers of a session the functions of its tests."""
        if self._kind != "threads" and self.file in FUNCTIONS:
            session.import_python_module(FUNCTIONS[self.file])
        return session

    def start(self) -> None:
        """Starts what all sessions share."""
        if self._kind == "cluster":
            self._cluster = LocalCluster(2, 4, import_path=sys.path)
            self._cluster.start()
            self._address = self._cluster.address

    def end_all(self) -> None:
        """Ends the sessions of a test, and then what it started for them."""
        while self._ends:
            self._ends.pop()()

    def close(self) -> None:
        """Ends everything."""
        self.end_all()
        if self._cluster is not None:
            self._cluster.stop()


# The plugin -------------------------------------------------------------------------------


_opener: list[Opener] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Names the kind of sessions."""
    parser.addoption("--disco-kind", choices=KINDS, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Puts Disco in the place of TVM's before any test is read."""
    opener = Opener(config.option.disco_kind)
    config.add_cleanup(opener.close)
    opener.start()
    _opener.append(opener)
    disco: Any = types.ModuleType("tvm.runtime.disco")
    disco.__getattr__ = lambda name: getattr(disco_client, name)
    # Different ones, so that tests for both are told apart.
    disco.ThreadedSession, disco.ProcessSession = opener.open, functools.partial(opener.open)
    disco.SocketSession = opener.open_socket
    put_in_place(disco)
    subprocess.Popen = JoiningPopen
    init_ccl = disco_client.Session.init_ccl

    def on_cpus(self: Any, ccl: str, *device_ids: int) -> None:
        init_ccl(self, "mpi" if ccl == "nccl" else ccl, *device_ids)

    disco_client.Session.init_ccl = on_cpus


def pytest_collectstart(collector: Any) -> None:
    """Says what a file expects when it is imported."""
    if isinstance(collector, pytest.Module):
        say_compiled(COMPILED.get(collector.path.stem, "nccl"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one of each test's cases: their kinds of sessions are the one that is tested."""
    kept = [item for item in items if _is_of(config.option.disco_kind, item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _is_of(kind: str, item: Any) -> bool:
    case = getattr(item, "callspec", None)
    if case is None or "session_kind" not in case.params:
        return True
    opens = case.params["session_kind"]
    # One file has a way of its own to open sessions over sockets.
    if kind == "sockets" and item.path.stem == "test_session":
        return getattr(opens, "__name__", "") == "create_socket_session"
    return opens == _opener[0].open


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Notes whose session is opened next."""
    _opener[0].file = item.path.stem


def pytest_runtest_teardown() -> None:
    """Ends the sessions of a test, some of which leave that to the garbage collector."""
    _opener[0].end_all()
