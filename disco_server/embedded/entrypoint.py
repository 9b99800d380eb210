"""Runs a module that was written for TVM's Disco as a worker process of this one.

A `ProcessSession` starts ``python -m disco_server.embedded.entrypoint MODULE ARGUMENTS...``,
which runs a module as ``python -m`` does, after it has put two functions into TVM's registry:

- ``runtime.disco.WorkerProcess``, by which an entrypoint of a `ProcessSession` becomes a
  worker, such as ``tvm.exec.disco_worker``;
- ``runtime.disco.RemoteSocketSession``, by which the other machines of a `SocketSession`
  join it, such as ``tvm.exec.disco_remote_socket_session``.

Programs have both by `disco_client.tvm`.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn

from disco_server.modules import tvm
from disco_server.modules.base import FileRefused
from disco_server.observe.lifetime import die_with_parent_in
from disco_server.settings import OFF

__all__ = ["main", "offer"]

_PREFIX = "runtime.disco."
_ALLOWED = ("MODULES", "READ", "SAVE", "LOAD")

MARK = "DISCO_TVM"
"""In programs that one of `disco_client.tvm` starts, the number of that one's process."""


def _worker_process(_id: int, _workers: int, _groups: int, reader: int, _writer: int) -> NoReturn:
    """Is the worker whose socket has these descriptors; the process ends with it."""
    from disco_server.rank import process

    process.run(reader)


def _remote_socket_session(host: str, port: int, num_workers: int) -> NoReturn:
    """Becomes a worker daemon that serves one session and leaves with it."""
    if os.environ.get(MARK, str(os.getpid())) != str(os.getpid()):
        # The session's program may have started this one, and runs what it likes here anyway.
        for what in _ALLOWED:
            os.environ.setdefault(f"DISCO_ALLOW_{what}", "*")
        os.environ.setdefault("DISCO_HTTP", OFF)
        os.environ.setdefault("DISCO_LOG_LEVEL", "warning")
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Several of them may run on one machine.
    name = f"{socket.gethostname()}-{os.getpid()}"
    options = ["--controller", where, "--slots", str(num_workers), "--name", name, "--once"]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "disco_server.cli.worker", *options])  # noqa: S606


def _last_call(func: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
    """A function that TVM may call: no exception passes TVM, which would end in a text."""

    def call(*args: Any) -> NoReturn:
        try:
            func(*args)
        except BaseException:  # noqa: BLE001  (whatever it was, the process ends)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    return call


def offer() -> None:
    """Puts the functions into TVM's registry, where there is one."""
    # If the library has functions of these names, they are registered when it is loaded.
    with contextlib.suppress(FileRefused, OSError):
        tvm.runtime()
    with contextlib.suppress(ImportError):
        register: Any = import_module("tvm_ffi").register_global_func
        for name, func in (
            ("WorkerProcess", _worker_process),
            ("RemoteSocketSession", _remote_socket_session),
        ):
            register(_PREFIX + name, _last_call(func), override=True)


def main() -> None:
    """Runs the module that the command line names, with the rest of it as its own."""
    die_with_parent_in(os.environ, signal.SIGKILL)
    del sys.argv[0]
    if not sys.argv:
        sys.exit("usage: python -m disco_server.embedded.entrypoint MODULE [ARGUMENT]...")
    module = sys.argv[0]
    offer()
    if MARK in os.environ:  # for modules that import TVM's Disco, as the program does
        import_module("disco_client.tvm")
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit(
        f"disco: {module} has ended without becoming a worker: it has to call "
        f"disco_server.rank.process.main(), or, as TVM's entrypoints do, get_global_func("
        f"'{_PREFIX}WorkerProcess') with the five arguments of its command line"
    )


if __name__ == "__main__":
    main()
