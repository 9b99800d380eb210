"""The session kinds of the conformance suite, and how its tests get sessions.

Every test that asks for ``session`` (shared, to be left as it was found) or for
``open_session`` (of its own, to be ended as the test likes) runs for every kind.
``@pytest.mark.layouts((workers, groups), ...)`` names the layouts of ``session``;
without it there are two workers in one group. Tests of one kind and one layout run
one after the other, in one process, on one shared session.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from own_ports import own_port

import disco_client as di
from disco_server.cli.local import LocalCluster

_HERE = Path(__file__).parent
WORKER_MODULES = _HERE.parent / "worker_modules"
STANDIN = _HERE.parent / "standin"

# How long the sessions of a program that was killed go on; ten seconds are long in a test.
_LEASE_S = "2"
FUNCTIONS = "disco_conformance_functions"
DEFAULT_LAYOUTS = ((2, 1),)
_OWN_WORKERS = 4
"""How many workers the sessions of one test have at most, beside the shared one."""

_CLUSTERS = {
    "address": "conformance_cluster",
    "grpc": "grpc_cluster",
    "gpus": "standin_gpu_cluster",
    "oneccl": "oneccl_gpu_cluster",
    "real": "real_gpu_cluster",
}
"""The fixtures that start what a program's expression names."""


_OF_ONECCL = re.compile(r"\|CCL_(WARN|ERROR)\|")


@dataclass(frozen=True)
class Kind:
    """One kind of session, and in what it differs from the others.

    Attributes:
        name: Of the tests' parameter.
        program: The expression that opens a session; ``di`` is disco_client,
            ``{address}`` a cluster of two nodes, and ``{grpc}`` one that takes no frames.
        processes: Workers are processes of their own, which can be killed, and
            what cannot travel stays with them; otherwise they are threads of this
            process, and a fetched object is the very object.
        ccl: The collective library that it has.
        gpus: Workers compute on GPUs, of a stand-in unless they are real.
        real: The GPUs are those of this machine; what needs more of them is skipped.
        nodes: How many nodes a shared session of several workers spreads over.
    """

    name: str
    program: str
    processes: bool = True
    ccl: str = "mpi"
    gpus: bool = False
    real: bool = False
    nodes: int = 1


KINDS = (
    Kind("threaded", "di.ThreadedSession({workers}, {groups})", processes=False, ccl="local"),
    Kind("process", "di.ProcessSession({workers}, {groups})"),
    Kind("connect", "di.connect({address!r}, num_workers={workers}, num_groups={groups})"),
    Kind("connect-grpc", "di.connect({grpc!r}, num_workers={workers}, num_groups={groups})"),
    Kind(
        "connect-standin-gpus",
        "di.connect({gpus!r}, num_workers={workers}, num_groups={groups})",
        ccl="nccl",
        gpus=True,
    ),
    Kind(
        "connect-oneccl-gpus",
        "di.connect({oneccl!r}, num_workers={workers}, num_groups={groups})",
        ccl="nccl",
        gpus=True,
    ),
    Kind(
        "connect-gpus",
        "di.connect({real!r}, num_workers={workers}, num_groups={groups})",
        ccl="nccl",
        gpus=True,
        real=True,
    ),
    Kind("socket", "di.SocketSession(1, {workers}, {groups}, 'localhost', 0)", nodes=2),
)


@dataclass(frozen=True)
class Case:
    """A kind with the layout of its shared session."""

    kind: Kind
    workers: int
    groups: int


# The same object each time, because that is how pytest knows a parameter again.
case_of = functools.cache(Case)


def pytest_configure(config):
    """Makes the mark known."""
    config.addinivalue_line("markers", "layouts: (workers, groups) of the shared session, each")


def pytest_generate_tests(metafunc):
    """Runs what asks for a session once for each kind and layout."""
    if "case" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("layouts")
    cases = [
        pytest.param(
            case_of(kind, workers, groups),
            id=f"{kind.name}-{workers}w{groups}g",
            marks=[
                pytest.mark.xdist_group(f"conformance-{kind.name}"),
                *([pytest.mark.gpu] if kind.real else []),
            ],
        )
        for kind in KINDS
        if kind.processes or "workers_of_their_own" not in metafunc.fixturenames
        for workers, groups in (mark.args if mark else DEFAULT_LAYOUTS)
    ]
    metafunc.parametrize("case", cases, indirect=True, scope="session")


def pytest_collection_modifyitems(items):
    """Sorts the tests of this folder by kind and layout, so that each session is opened once."""
    places = [i for i, item in enumerate(items) if _HERE in item.path.parents and _case(item)]
    ours = [items[place] for place in places]
    order = {id(case): number for number, case in enumerate(_cases(ours))}
    ours.sort(key=lambda item: order[id(_case(item))])
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def _case(item):
    """The case of a test, if it has one."""
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("case")


def _cases(items):
    """The cases of some tests, those of a kind together."""
    found = dict.fromkeys(map(_case, items))
    return sorted(found, key=lambda case: (case.kind.name, case.workers, case.groups))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Closes the shared session after its last test: others may not want it in their process."""
    if nextitem is None or _case(nextitem) is not _case(item):
        for holder in _holders:
            holder.close()


# Where sessions come from ---------------------------------------------------------


@pytest.fixture(scope="session")
def import_path() -> Iterator[None]:
    """Lets workers that belong to this process find the suite's functions."""
    sys.path.insert(0, str(WORKER_MODULES))
    yield
    sys.path.remove(str(WORKER_MODULES))


@pytest.fixture(scope="session")
def conformance_cluster() -> Iterator[LocalCluster]:
    """Two nodes with room for a shared session and those of one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCO_SESSION_LEASE_S", _LEASE_S)
        cluster = LocalCluster(2, 4, import_path=[str(WORKER_MODULES)])
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def grpc_cluster() -> Iterator[LocalCluster]:
    """The same where gRPC carries everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCO_FRAMES", "off")
        patch.setenv("DISCO_SESSION_LEASE_S", _LEASE_S)
        cluster = LocalCluster(2, 4, import_path=[str(WORKER_MODULES)])
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def standin_gpu_cluster() -> Iterator[LocalCluster]:
    """The same with GPUs for slots, which a stand-in for cupy pretends to have."""
    yield from gpu_cluster({})


@pytest.fixture(scope="session")
def oneccl_gpu_cluster(oneccl) -> Iterator[LocalCluster]:
    """The same where oneCCL carries the collectives of the stand-in."""
    yield from gpu_cluster(oneccl)


def gpu_cluster(environ: dict[str, str]) -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setenv("DISCO_SESSION_LEASE_S", _LEASE_S)
        patch.setenv("STANDIN_GPUS", "8")
        patch.setenv("DISCO_DEVICE_CHECK", "off")  # it asks the driver, not the stand-in
        cluster = LocalCluster(
            2,
            4,
            devices="cuda:0,1,2,3,4,5,6,7",
            import_path=[str(WORKER_MODULES), str(STANDIN)],
        )
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_gpu_cluster(real_gpus) -> Iterator[LocalCluster]:
    """The same with the GPUs of this machine, divided between two nodes where that is possible."""
    nodes = 2 if real_gpus % 2 == 0 else 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCO_SESSION_LEASE_S", _LEASE_S)
        devices = [f"cuda:{number}" for number in range(real_gpus)]
        cluster = LocalCluster(nodes, devices=devices, import_path=[str(WORKER_MODULES)])
    with cluster:
        yield cluster


def need_gpus(request, kind: Kind, count: object) -> None:
    """Skips what needs more GPUs than this machine has; what is no number is for the session."""
    if not kind.real or not isinstance(count, int):
        return
    if (here := request.getfixturevalue("real_gpus")) < count:
        pytest.skip(f"needs {count} GPUs, of which {here} are here")


@pytest.fixture(scope="session")
def case(request) -> Case:
    """The kind and the layout."""
    return request.param


@pytest.fixture(scope="session")
def kind(case) -> Kind:
    """The kind alone."""
    return case.kind


@pytest.fixture(scope="session")
def program(request, import_path, kind) -> Callable[..., str]:
    """Makes the expression that opens a session of the kind."""

    def expression(workers: int = 2, groups: int = 1) -> str:
        need_gpus(request, kind, workers)
        addresses = {
            name: request.getfixturevalue(cluster).address
            for name, cluster in _CLUSTERS.items()
            if f"{{{name}" in kind.program
        }
        return kind.program.format(**addresses, workers=workers, groups=groups)

    return expression


def opened(expression: str) -> di.Session:
    """A session with the suite's functions."""
    session = eval(expression, {"di": di})  # noqa: S307, RUF100  (ours, see KINDS)
    session.import_python_module(FUNCTIONS)
    return session


@contextlib.contextmanager
def over_nodes(case: Case) -> Iterator[str]:
    """Starts the other nodes of a session that has some; the expression to open it."""
    port = own_port()
    per_node = case.workers // case.kind.nodes
    command = [sys.executable, "-m", "disco_server.cli.worker", "--allow-module", FUNCTIONS]
    command += ["--allow-read", "*", "--allow-save", "*", "--allow-load", "*", "--http", "off"]
    command += ["--controller", f"localhost:{port}", "--slots", str(per_node)]
    path = os.pathsep.join((str(WORKER_MODULES), os.environ.get("PYTHONPATH", "")))
    with subprocess.Popen(
        [*command, "--log-level", "error"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    ) as node:
        yield (
            f"di.SocketSession({case.kind.nodes}, {per_node}, {case.groups}, 'localhost', {port})"
        )
        node.send_signal(signal.SIGTERM)


@dataclass
class Shared:
    """The session of a case, opened again if a test has broken it."""

    open: Callable[[], di.Session]
    current: di.Session | None = None

    def get(self) -> di.Session:
        if self.current is None:
            self.current = self.open()
        return self.current

    def check(self) -> None:
        """Raises what a test has left, after which the next one gets another session."""
        session, self.current = self.get(), None
        try:
            session.sync_all()
        except di.DiscoError:
            session.shutdown()
            raise
        self.current = session

    def close(self) -> None:
        """Ends the session; whoever needs one again gets a new one."""
        if self.current is not None:
            self.current.shutdown()
            self.current = None


_holders: list[Shared] = []


@pytest.fixture(scope="session")
def shared(case, program) -> Iterator[Shared]:
    """The session of this case, for all its tests."""
    with contextlib.ExitStack() as stack:
        expression = program(case.workers, case.groups)
        if case.kind.nodes > 1 and case.workers > 1:
            expression = stack.enter_context(over_nodes(case))
        holder = Shared(lambda: opened(expression))
        _holders.append(holder)
        yield holder
        _holders.remove(holder)
        holder.close()


@pytest.fixture
def session(shared) -> Iterator[di.Session]:
    """A session that tests share; all its workers serve on after each, without an error."""
    yield shared.get()
    shared.check()


@pytest.fixture(autouse=True)
def room(request) -> None:
    """Ends the shared session for a test that opens others, where GPUs are few."""
    case = _case(request.node)
    if case is None or not case.kind.real or "shared" in request.fixturenames:
        return
    if request.getfixturevalue("real_gpus") < case.workers + _OWN_WORKERS:
        for holder in _holders:
            holder.close()


@pytest.fixture
def open_session(request, case, program) -> Iterator[Callable[..., di.Session]]:
    """Opens sessions of the test's own."""
    sessions: list[di.Session] = []
    shared = case.workers if "shared" in request.fixturenames else 0

    def open_one(workers: int = 2, groups: int = 1) -> di.Session:
        need_gpus(request, case.kind, shared + workers)
        sessions.append(opened(program(workers, groups)))
        return sessions[-1]

    yield open_one
    for each in sessions:
        each.shutdown()


# What tests do with them ----------------------------------------------------------


@dataclass
class Tools:
    """Short ways to do what most tests do."""

    session: di.Session
    workers: range = field(init=False)

    def __post_init__(self) -> None:
        self.workers = range(self.session.num_workers)

    def call(self, name, *args, **named):
        """Calls a function by its name; the reference of the results."""
        name = name if "." in name else f"conformance.{name}"
        return self.session.get_global_func(name)(*args, **named)

    def fetch(self, ref):
        """What each worker's register holds."""
        return [ref.debug_get_from_remote(worker) for worker in self.workers]

    def results(self, name, *args, **named):
        """What a function returns on each worker."""
        return self.fetch(self.call(name, *args, **named))

    def place(self, parts):
        """Puts one array on each worker; None leaves a worker without."""
        ref = self.call("echo", None)
        for worker, part in enumerate(parts):
            if part is not None:
                ref.debug_copy_from(worker, part)
        return ref

    def counting(self, *shape, dtype="float32"):
        """An array for each worker, all different, of small numbers."""
        numbers = np.random.default_rng(7).integers(1, 4, (len(self.workers), *shape))
        return [part.astype(dtype) for part in numbers]

    def team(self, worker, in_group):
        """Who takes part in a worker's collective."""
        if not in_group:
            return list(self.workers)
        size = self.session.num_workers // self.session.num_groups
        first = worker // size * size
        return list(range(first, first + size))


@pytest.fixture
def own_words() -> Callable[[str], str]:
    """Leaves out of a program's output the lines of oneCCL, which no setting of it stops."""

    def leave_out(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if not _OF_ONECCL.search(line))

    return leave_out


@pytest.fixture
def workers_of_their_own(kind):
    """Only for kinds whose workers are processes: they can be killed, and handle signals."""
    assert kind.processes


@pytest.fixture
def tools(session) -> Tools:
    """Those of the shared session."""
    return Tools(session)


@pytest.fixture
def tools_of() -> type[Tools]:
    """Those of any session."""
    return Tools


@pytest.fixture
def waiter(tmp_path) -> Iterator[Path]:
    """What ``wait_for_file`` waits for; opened by ``touch()``, and at the end in any case."""
    path = tmp_path / "waiter"
    yield path
    path.touch()


@pytest.fixture
def await_begun(tools, eventually) -> Callable[[Path], object]:
    """Waits until a function has made its file on each worker: a path, with the worker's number."""

    def wait(path: Path) -> object:
        files = [path.with_name(f"{path.name}.{worker}") for worker in tools.workers]
        return eventually(lambda: all(map(Path.exists, files)), what=f"all of {files}")

    return wait
