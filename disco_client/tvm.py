"""Runs programs that were written for TVM's Disco on Disco, without a change in them.

``python -m disco_client.tvm [-m MODULE | PROGRAM] [ARGUMENT]...`` runs one as Python does. A
program may also say ``import disco_client.tvm`` before it imports TVM, and pytest takes
``-p disco_client.tvm``. From then on ``tvm.runtime.disco`` is Disco, in this process and in the
Python programs that it starts.

Where ``DISCO_ADDRESS`` names a cluster, a ``ProcessSession`` is a session on it.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import disco_client
from disco_client.collectives import REDUCE_OPS
from disco_client.errors import ConfigError, DiscoError, ExtraMissing
from disco_client.output import logger_of
from disco_client.reentry import import_uninterrupted

__all__ = ["TvmDiscoFinder", "install", "main", "prepare", "pytest_configure"]

MARK: Final = "DISCO_TVM"
"""The variable in which the programs that a program starts find the number of its process."""

_PACKAGE: Final = "tvm.runtime.disco"
_WORKER: Final = "tvm.exec.disco_worker"
_MODULES: Final = (_PACKAGE, f"{_PACKAGE}.session")
_SESSIONS: Final = ("ProcessSession", "SocketSession", "ThreadedSession")
_NAMES: Final = ("DModule", "DPackedFunc", "DRef", "Session", *_SESSIONS)
_OF_GPUS: Final = {"cuda": "nccl", "rocm": "rccl"}
_ORDINARY: Final = "mpi"
_USAGE: Final = "usage: python -m disco_client.tvm [-m MODULE | PROGRAM] [ARGUMENT]..."
_USAGE_STATUS: Final = 2

_logger = logger_of(__name__)


# The module tvm.runtime.disco ------------------------------------------------------------


class TvmDiscoFinder:
    """Finds ``tvm.runtime.disco`` before Python finds TVM's own; it is also its loader."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds the module of that name, if it is one of Disco's."""
        del path, target
        if name not in _MODULES:
            return None
        loader: Any = self
        return spec_from_loader(name, loader, origin=__file__, is_package=name == _PACKAGE)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leaves it to Python to make the module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its names, each of which is loaded when it is first used."""
        fill(module)


def fill(module: ModuleType) -> None:
    """Makes a module TVM's Disco, which is Disco.

    Args:
        module: An empty one.
    """
    space = vars(module)
    space["__all__"] = list(_NAMES)
    space["__getattr__"] = partial(_find, module)
    if module.__name__ == _PACKAGE:
        _mark_children()
        _offer()
    else:
        space["REDUCE_OPS"] = {name: code for code, name in enumerate(REDUCE_OPS)}


def _find(module: ModuleType, name: str) -> Any:
    if name not in _NAMES:
        msg = f"module {module.__name__!r}, which is Disco here, has no attribute {name!r}"
        raise AttributeError(msg)
    found = _session_class(name) if name in _SESSIONS else getattr(disco_client, name)
    setattr(module, name, found)
    return found


def install() -> None:
    """Makes ``tvm.runtime.disco`` Disco in this process; TVM may be imported or not."""
    if not any(isinstance(each, TvmDiscoFinder) for each in sys.meta_path):
        finder: Any = TvmDiscoFinder()
        sys.meta_path.insert(0, finder)
    runtime = sys.modules.get("tvm.runtime")
    if runtime is None or getattr(runtime.__spec__, "_initializing", False):
        return
    here = sys.modules.get(_PACKAGE)
    if getattr(here, "__file__", None) != __file__:
        for name in [each for each in sys.modules if each.startswith(_PACKAGE)]:
            del sys.modules[name]
        vars(runtime)["disco"] = import_uninterrupted("tvm.runtime.disco")


def _offer() -> None:
    """Puts what TVM's programs look up in its registry there."""
    try:
        offer = import_uninterrupted("disco_server.embedded.entrypoint").offer
    except ModuleNotFoundError:  # the extra of the server, whose workers these functions are for
        offer = None
    if offer is not None:
        offer()
    register = import_uninterrupted("tvm_ffi").register_global_func
    register("runtime.disco.compiled_ccl", _compiled_ccl, override=True)


def _compiled_ccl() -> str:
    """The library of this thread's worker, or the one that this machine's sessions take."""
    builtins = sys.modules.get("disco_server.rank.builtins.core")
    return builtins.compiled_ccl() if builtins is not None else _library_here()


def _library_here() -> str:
    try:
        name: str = import_uninterrupted("disco_server.settings").machine_library()
    except ModuleNotFoundError:
        return _ORDINARY
    return name


def _mark_children() -> None:
    """Lets the Python programs that this one starts find Disco too."""
    folder = str(Path(__file__).with_name("tvm_children"))
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([folder, *filter(None, path)]))
    os.environ.setdefault(MARK, str(os.getpid()))


# Sessions --------------------------------------------------------------------------------


@cache
def _session_class(name: str) -> type:
    """A class of sessions, with TVM's arguments and their defaults."""
    on_cluster = name == "ProcessSession" and bool(os.environ.get("DISCO_ADDRESS"))
    base: Any = disco_client.Session if on_cluster else getattr(disco_client, name)
    space = {"__doc__": base.__doc__, "__module__": _PACKAGE, "init_ccl": _init_ccl(base)}
    if on_cluster:
        space |= {"__new__": _connect, "__init__": lambda *_args, **_named: None}
    elif name == "ProcessSession":
        space["__init__"] = _start_processes(base)
    elif name == "SocketSession":
        space["__init__"] = _start_nodes(base)
    return type(name, (base,), space)


def _end_forgotten() -> None:
    """Ends sessions that the program has no reference to any more.

    TVM's programs leave that to the end of the last reference. Disco's session is in a cycle with
    references of its own, so that only the collector ends it, and until then it holds slots.
    """
    gc.collect()


def _start_processes(base: Any) -> Callable[..., None]:
    def start(self: Any, num_workers: int, num_groups: int = 1, entrypoint: str = _WORKER) -> None:
        _end_forgotten()
        base.__init__(self, num_workers, num_groups, entrypoint)

    return start


def _connect(kind: Any, num_workers: int, num_groups: int = 1, entrypoint: str = _WORKER) -> Any:
    """A session on the cluster, whose workers have imported what processes would run."""
    _end_forgotten()
    session: Any = disco_client.connect(num_workers=num_workers, num_groups=num_groups)
    session.__class__ = kind
    session.import_python_module(entrypoint)
    return session


def _start_nodes(base: Any) -> Callable[..., None]:
    def start(
        self: Any,
        num_nodes: int,
        num_workers_per_node: int,
        num_groups: int,
        host: str,
        port: int,
    ) -> None:
        base.__init__(self, num_nodes, num_workers_per_node, num_groups, host, port)
        self.import_python_module(_WORKER)

    return start


def _init_ccl(base: Any) -> Callable[..., None]:
    def init_ccl(self: Any, ccl: str, *device_ids: int) -> None:
        kind = str(self.workers[0].device).partition(":")[0]
        if kind in _OF_GPUS:  # a cluster's, which has chosen them
            base.init_ccl(self, _OF_GPUS[kind])
        elif ccl in _OF_GPUS.values() and _library_here() != ccl:
            _logger.warning(
                "init_ccl(%r) starts %r, because the workers compute on CPUs", ccl, _ORDINARY
            )
            base.init_ccl(self, _ORDINARY)
        else:
            base.init_ccl(self, ccl, *device_ids)

    return init_ccl


# The command, and the plugin -------------------------------------------------------------


def _check_tvm() -> None:
    if find_spec("tvm") is None:
        msg = (
            "programs that were written for TVM's Disco import TVM, which is not installed here: "
            "pip install 'disco-runtime[server,tvm]'"
        )
        raise ExtraMissing(msg, name="tvm")


def prepare(arguments: Sequence[str]) -> Callable[[], object]:
    """Prepares to run a program or a module as the main one.

    Args:
        arguments: ``-m`` and the name of a module, or the path of a program; what follows are its
            own arguments.

    Returns:
        A function that runs it, for once, in the place of the main program.

    Raises:
        ConfigError: Nothing to run is named, or there is no such program or module.
        ExtraMissing: TVM is not installed.
    """
    is_module = arguments[:1] == ["-m"]
    name, *own = arguments[is_module:] or [""]
    if not name or name.startswith("-"):
        msg = f"expected a program, or -m and a module, got {' '.join(arguments) or 'nothing'}"
        raise ConfigError(f"{msg}; {_USAGE}")
    _check_tvm()
    if not is_module:
        if not Path(name).exists():
            raise ConfigError(f"expected the file of a program, and there is no {name!r}; {_USAGE}")
        return partial(_run_program, name, own)
    try:
        found = find_spec(name) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        msg = f"expected a module that can be run, and there is none named {name!r} on {sys.path}"
        raise ConfigError(msg)
    return partial(_run_module, name, own)


def _run_program(path: str, own: Sequence[str]) -> None:
    sys.argv = [path, *own]
    if not sys.flags.safe_path:  # in the place of the current folder, as Python does
        sys.path[0] = str(Path(path).resolve().parent)
    _mark_children()
    runpy.run_path(path, run_name="__main__")


def _run_module(name: str, own: Sequence[str]) -> None:
    sys.argv = [name, *own]
    _mark_children()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def main() -> None:
    """Runs what the command line names."""
    try:
        run = prepare(sys.argv[1:])
    except DiscoError as error:
        sys.stderr.write(f"disco_client.tvm: {error}\n")
        sys.exit(_USAGE_STATUS)
    run()


def pytest_configure(config: Any) -> None:
    """Refuses to run tests without TVM; pytest calls it for ``-p disco_client.tvm``.

    Args:
        config: Of pytest; not used.
    """
    del config
    try:
        _check_tvm()
    except ExtraMissing as error:
        raise import_uninterrupted("pytest").UsageError(str(error)) from None
    _mark_children()


if __name__ == "__main__":
    # The module itself, which programs may import, and not this copy of it.
    import_uninterrupted("disco_client.tvm").main()
else:
    install()
