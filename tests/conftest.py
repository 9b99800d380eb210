"""Settings of all tests that need code."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings
from object_servers import CREDENTIALS, answers, make_bucket, s3_server
from own_ports import check_awaited, own_port

from disco_client import DRef, Session, connect, locks
from disco_client.transport.admin import list_cluster
from disco_client.transport.channel import ReloadingChannel
from disco_client.wire.codec import Action, encode_value
from disco_server.cli.local import LocalCluster

# A lock that this process takes out of order fails the test.
locks.check_order()

# How long an example takes depends on what else the machine does; and a folder
# that the examples of a test share is one that each of them writes anew.
settings.register_profile(
    "disco",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("disco")
# That of `make hunt`: a finding is repeated by its seed, not by what another run has kept.
settings.register_profile("hunt", settings.get_profile("disco"), max_examples=1000, database=None)

# A shell starts what it runs in the background with Ctrl-C ignored, and every process
# that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test uses the controllers that whoever runs it has given names.
os.environ["DISCO_CONTEXTS"] = str(Path(tempfile.gettempdir()) / "disco-tests-have-no-contexts")
os.environ.pop("DISCO_CONTEXT", None)

WORKER_MODULES = Path(__file__).parent / "worker_modules"
SUPPORT = Path(__file__).parent / "support"
STANDIN = Path(__file__).parent / "standin"
STANDIN_GPUS = 4
FUNCTIONS = "disco_test_functions"


LEASE_S = "2"
"""How long sessions of tests outlive their connections: killed programs soon free their slots."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Two real worker daemons with two slots each, and their controller."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISCO_SESSION_LEASE_S", LEASE_S)
        made = LocalCluster(2, 2, import_path=[str(WORKER_MODULES)])
    with made:
        yield made


@pytest.fixture(scope="session")
def await_free_slots() -> Callable[[str], None]:
    """Waits until all slots are free: a session that ended has them a moment longer."""

    def all_are_free(address: str) -> bool:
        with contextlib.closing(ReloadingChannel(address)) as line:
            return all(node.free_slots == node.slots for node in list_cluster(line).nodes)

    def wait(address: str) -> None:
        wait_until(lambda: all_are_free(address), what="the slots of earlier sessions")

    return wait


@pytest.fixture
def open_session(cluster: LocalCluster) -> Iterator[Callable[..., Session]]:
    """Opens sessions with the tests' worker functions; they end with the test."""
    opened: list[Session] = []

    def open_one(num_workers: int = 4, **options: object) -> Session:
        session = connect(cluster.address, num_workers=num_workers, **options)  # type: ignore[arg-type]
        opened.append(session)
        session.import_python_module(FUNCTIONS)
        return session

    yield open_one
    for session in opened:
        session.shutdown()


@pytest.fixture
def session(open_session: Callable[..., Session]) -> Session:
    """A session of four workers on two nodes."""
    return open_session(4)


@pytest.fixture(scope="session")
def s3_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server; skips the test where none is installed."""
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        wait_until(lambda: answers(address), what="the S3 server to answer")
        yield address


@pytest.fixture
def bucket(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket, which this process and its children may use."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{s3_address}"}.items():
        monkeypatch.setenv(name, value)
    return f"s3://{make_bucket(s3_address)}"


@pytest.fixture
def no_memory_left() -> Iterator[None]:
    """Fails a test that leaves shared memory open in this process."""

    def opened() -> int:
        count = 0
        for fd in Path("/proc/self").glob("fd/*"):
            with contextlib.suppress(OSError):  # a descriptor that is gone by now
                count += "disco-array" in str(fd.readlink())
        return count

    before = opened()
    yield
    assert opened() == before


@pytest.fixture(scope="session")
def real_gpus() -> int:
    """How many GPUs cupy can use here; skips the test where there is none.

    It is asked in a process of its own, because one that has used a GPU cannot fork.
    """
    program = "import cupy; print(cupy.cuda.runtime.getDeviceCount())"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)  # noqa: PLW1510  (looked at)
    if asked.returncode:
        said = asked.stderr.strip().splitlines() or ["cupy says nothing"]
        pytest.skip(f"no GPU that cupy can use: {said[-1]}")
    return int(asked.stdout)


@pytest.fixture(scope="session")
def oneccl() -> dict[str, str]:
    """What lets the stand-in's collectives be oneCCL's; skips the test where that is missing."""
    if not Path(sys.prefix, "lib", "libccl_legacy_cpu.so").exists():
        pytest.skip("oneCCL is not installed here; `make test-oneccl` does that")
    return {"STANDIN_NCCL_CARRIER": "oneccl"}


@pytest.fixture(scope="module", params=["hub", "oneccl"])
def carrier(request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables for what carries the stand-in's collectives: its own hub, then oneCCL."""
    return {} if request.param == "hub" else request.getfixturevalue("oneccl")


@pytest.fixture(
    params=[
        pytest.param("standin", id="standin"),
        pytest.param("real_gpus", id="gpu", marks=pytest.mark.gpu),
    ]
)
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many GPUs the processes that a test starts can use.

    Each test that asks for them runs with those of the stand-in for cupy, and once
    more with those of the machine, where it has some. Tests of collectives also name
    "oneccl" as a parameter: then that library carries the collectives of the stand-in.
    """
    if request.param == "real_gpus":
        return int(request.getfixturevalue(request.param))
    carried = request.getfixturevalue("oneccl") if request.param == "oneccl" else {}
    for name, value in carried.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    path = filter(None, (str(STANDIN), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.syspath_prepend(str(STANDIN))  # the workers of a ProcessSession inherit that
    monkeypatch.setenv("STANDIN_GPUS", str(STANDIN_GPUS))
    return STANDIN_GPUS


@pytest.fixture
def need_gpus(gpus: int) -> Callable[[int], None]:
    """Skips a test where there are fewer GPUs than it needs."""

    def need(count: int) -> None:
        if gpus < count:
            pytest.skip(f"needs {count} GPUs, of which {gpus} are here")

    return need


@pytest.fixture(scope="session")
def announce() -> Callable[..., tuple[DRef, int]]:
    """Issues a copy to worker 0 without its upload; returns the reference and the ticket."""

    def issue(session: Session, array: object) -> tuple[DRef, int]:
        uploads = session._core.uploads((0,))

        def fill(command: Any) -> int:
            value = command.args.add()
            encode_value(value, array, uploads)
            command.args.add().bool = True
            return value.ByteSize()

        _, reg = session._core.log.issue(Action.COPY_TO_WORKER0, fill, reg=int, workers=(0,))
        ((ticket, _),) = uploads.offered
        return DRef(reg, session), ticket

    return issue


@pytest.fixture(scope="session")
def tvm_modules() -> Path:
    """A folder of modules that the real TVM compiled, once for each state of their program."""
    program = Path(__file__).parent / "tvm_programs.py"
    state = hashlib.sha256(program.read_bytes() + version("apache-tvm").encode()).hexdigest()
    folder = Path(__file__).parents[1] / "build" / f"tvm-modules-{state[:16]}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        subprocess.run([sys.executable, program, made], check=True)
        with contextlib.suppress(OSError):  # another test process was faster
            made.rename(folder)
        shutil.rmtree(made, ignore_errors=True)
    return folder


def wait_until(
    condition: Callable[[], object], timeout: float = 20.0, what: str | Callable[[], str] = ""
) -> object:
    """Waits until a condition gives something true, and returns that; fails after the timeout."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            pytest.fail(f"waited {timeout:g} s for {text or 'a condition'} in vain")
        time.sleep(0.01)
    return found


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """What was written to standard error since the test began, by this process and its children.

    It can be read again and again while more comes. ``capfd.readouterr`` empties the file that it
    reads, and loses a text that is written in between.
    """
    del capfd  # it has made descriptor 2 a file
    return lambda: os.pread(2, os.fstat(2).st_size, 0).decode(errors="replace")


@pytest.fixture
def settled(session: Session) -> Iterator[None]:
    """Lets the workers of a shared session finish before the test's filters of warnings go.

    A test may have its value from one worker while others still compute theirs. Where they are
    threads, a warning of theirs would be an error, and the failure of the next test.
    """
    yield
    session.sync_all()


@pytest.fixture(scope="session")
def eventually() -> Callable[..., object]:
    """Waits for a condition with a deadline; no test depends on how long a sleep is."""
    return wait_until


def runs(pid: int) -> bool:
    """Whether there is such a process and it has not ended; one nobody collected has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def all_end() -> Callable[[Iterable[int | psutil.Process]], None]:
    """Waits for processes to end: one that was killed may run a moment longer."""

    def wait(processes: Iterable[int | psutil.Process]) -> None:
        pids = [each.pid if isinstance(each, psutil.Process) else each for each in processes]
        wait_until(lambda: not any(map(runs, pids)), what=f"the processes {pids} to end")

    return wait


class Daemon:
    """One daemon as a child process; its output goes to files, which tests may read.

    Attributes:
        process: The child.
        folder: Where its files are.
        address: Of a controller, where it listens; known once it is ready.
    """

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.address = ""
        self._out, self._err = folder / "stdout", folder / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                cwd=folder,
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """Its log, and what it writes within the moment that follows: it logs in the background."""
        text = self._err.read_text()
        for _ in range(10):
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
            before, text = text, self._err.read_text()
            if text == before:
                break
        return text

    @property
    def frames(self) -> int:
        """Of a controller, its port for frames; 0 where it takes none."""
        found = re.search("frames are taken at port ([0-9]+)", self.stderr)
        return int(found[1]) if found else 0

    def await_ready(self) -> str:
        """Waits for the line that is promised, and returns it."""

        def ready() -> str | None:
            line, end, _ = self.stdout.partition("\n")
            if not end and self.process.poll() is not None:
                pytest.fail(f"the daemon ended with {self.process.returncode}:\n{self.stderr}")
            return line if end else None

        line = str(wait_until(ready, 30.0, self._why_not_ready))
        self.address = line.rsplit(" ", 1)[-1]
        return line

    def _why_not_ready(self) -> str:
        """What is known of a daemon that says nothing: its log, and what its processes wait for."""
        seen = [f"a ready line of {self.process.args}", self.stderr]
        for process in [psutil.Process(self.process.pid), *self.family()]:
            with contextlib.suppress(OSError, psutil.Error):
                where = Path(f"/proc/{process.pid}/wchan").read_text()
                cpu = sum(process.cpu_times()[:2])
                about = f"{process.pid} {process.status()} {cpu:.2f} s of CPU, in {where}"
                seen.append(f"{about}: {' '.join(process.cmdline())}")
        return "\n".join(seen)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 20.0) -> int:
        return self.process.wait(timeout)

    def family(self) -> list[psutil.Process]:
        """The daemon's descendants of this moment."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def ranks(self) -> list[psutil.Process]:
        """Those of them that are ranks, or were started by ranks."""
        return [child for child in self.family() if not _forks_ranks(child)]


def _forks_ranks(process: psutil.Process) -> bool:
    """Whether a process is a daemon's fork server or one of its keepers, or has ended."""
    try:
        return "disco_server.rank.fork_server" in process.cmdline()
    except psutil.NoSuchProcess:
        return True


class Daemons:
    """Starts daemons of one test.

    Attributes:
        prefix: What stands before the command of the daemons started from now on.
        started: Those that were.
        frames: Whether controllers take frames, ``on`` or ``off``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.frames = "on"
        self.prefix: list[str] = []
        self.started: list[Daemon] = []

    def _start(
        self, what: str, options: tuple[object, ...], env: dict[str, str], faults: str
    ) -> Daemon:
        folder = self._folder / f"{what}-{len(self.started)}"
        folder.mkdir()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("DISCO_")}
        paths = [str(WORKER_MODULES), *([str(SUPPORT)] if faults else [])]
        path = os.pathsep.join(filter(None, (*paths, os.environ.get("PYTHONPATH"))))
        module = f"disco_server.cli.{what}"
        injecting = ["fault_tools.streams", faults, module] if faults else [module]
        program = [*self.prefix, sys.executable, "-m", *injecting]
        # What libraries and tools need that only tests use.
        passed = {"DISCO_ENV": "STANDIN_*,CLOCK_OFFSET,FAULT_TEST", "DISCO_HTTP": "off"}
        environ = {**inherited, **passed, "PYTHONPATH": path, **env}
        daemon = Daemon([*program, *map(str, options)], folder, environ)
        self.started.append(daemon)
        return daemon

    def controller(
        self, *options: object, ready: bool = True, faults: str = "", **env: str
    ) -> Daemon:
        """Starts a controller, on a free port unless the options say otherwise.

        Faults of its streams are those of ``fault_tools.streams``.
        """
        if "--listen" not in options and "DISCO_LISTEN" not in env and "--config" not in options:
            options = ("--listen", f"127.0.0.1:{own_port()}", *options)
        env = {"DISCO_SESSION_LEASE_S": LEASE_S, "DISCO_FRAMES": self.frames, **env}
        daemon = self._start("controller", options, env, faults)
        if ready:
            daemon.await_ready()
        return daemon

    def worker(
        self, address: str, *options: object, ready: bool = True, faults: str = "", **env: str
    ) -> Daemon:
        """Starts a worker daemon that lets sessions import the tests' functions."""
        check_awaited(address)
        common = ("--controller", address, "--allow-module", FUNCTIONS)
        daemon = self._start("worker", (*common, *options), env, faults)
        if ready:
            daemon.await_ready()
        return daemon

    def close(self) -> None:
        """Ends what still runs, however it was left."""
        for daemon in self.started:
            if daemon.process.poll() is None:
                daemon.send(signal.SIGCONT)
                daemon.send(signal.SIGKILL)
            daemon.wait()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    """Starts daemons one by one; all of them end with the test."""
    started = Daemons(tmp_path)
    yield started
    started.close()


@pytest.fixture(scope="module")
def shared_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """Starts daemons that the tests of one file share."""
    started = Daemons(tmp_path_factory.mktemp("daemons"))
    yield started
    started.close()


SUITES = {
    "faults": (
        "tests/faults/",
        "tests/cluster/",
        "tests/disco_client/distributed/test_checkpoints_crashes.py",
        "tests/security/test_loud_owners.py",
        "tests/security/test_quotas.py",
        "tests/security/test_strangers.py",
    ),
    "carriers": ("tests/gpu/", "tests/standin/", "tests/examples/test_embed_gpu.py"),
    "interop": ("tests/examples/", "tests/disco_client/telemetry/", "tests/interop/"),
    "deploy": ("tests/deploy/",),
    "browser": ("tests/browser/",),
    "benchmarks": ("tests/benchmarks/",),
    "docs": ("tests/docs/",),
    "compat": ("tests/compat/",),
    "llm": ("tests/llm/",),
    "models": ("tests/models/",),
    "clients": ("tests/clients/",),
    "hunt": ("tests/hunt/",),
}
"""Which tests are a suite of their own; all others are the suite "main"."""

_ONECCL = "oneccl"
"""Names, in its parameters, a test of the suite of this name, wherever it stands."""

_GPU = "gpu"
"""Marks a test of the suite of this name, which needs a GPU, wherever it stands."""

_CARRIED = ("standin-gpus", "connect-grpc", "[socket-")
"""Name, in the parameters of a test, sessions whose arrays another library carries, or whose
streams another carrier, or whose controller is a thread of the program."""

_STARTING = frozenset(
    {"cluster", "daemons", "open_kind", "processes", "run_program", "shared_daemons"}
)
"""Fixtures whose tests are not quick, because they start daemons or workers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tells which tests are run."""
    group = parser.getgroup("disco")
    group.addoption(
        "--suite",
        choices=("main", *SUITES, _ONECCL, _GPU, "all"),
        help="run one suite; without it and without paths, main",
    )
    group.addoption("--quick", action="store_true", help="leave out tests that start daemons")


def pytest_configure(config: pytest.Config) -> None:
    """Decides, before other test processes are started, which suite it is."""
    everything = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    config.option.suite = config.option.suite or ("all" if everything else "main")


def suite_of(item: pytest.Item) -> str:
    """The suite of a test."""
    nodeid = item.nodeid
    if item.get_closest_marker(_GPU) is not None:
        return _GPU
    if _ONECCL in nodeid:
        return _ONECCL
    found = (name for name, places in SUITES.items() if nodeid.startswith(places))
    second = any(carried in nodeid for carried in _CARRIED)
    return next(found, "carriers" if second else "main")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files that have no test of the suite, as to read them all takes its time."""
    suite = config.option.suite
    here = collection_path.relative_to(config.rootpath).as_posix()
    here += "/" * collection_path.is_dir()
    if suite in ("all", _ONECCL, _GPU) or any(e.startswith(here) for e in SUITES.get(suite, ())):
        return None
    owner = next((name for name, places in SUITES.items() if here.startswith(places)), "main")
    may_hold = owner == suite or (owner == "main" and suite == "carriers")
    return None if may_hold else True


def _is_slow(item: pytest.Item) -> bool:
    """Whether a test starts what takes its time; of session kinds threads alone are quick."""
    kind = getattr(getattr(getattr(item, "callspec", None), "params", {}).get("case"), "kind", None)
    return (
        item.get_closest_marker("slow") is not None
        or not _STARTING.isdisjoint(getattr(item, "fixturenames", ()))
        or getattr(kind, "processes", False)
    )


_OVERDUE_S = 60.0
"""How long after its time limit a test may still run: the limit raises in Python code alone, and
what it raises may be caught."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends the process of a test that its time limit could not end; the report names the test."""
    marker = item.get_closest_marker("timeout")
    limit = marker.args[0] if marker and marker.args else item.config.getoption("timeout")
    if limit:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(limit + _OVERDUE_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects a suite; keeps the tests of a file in one process, and all that make namespaces.

    With ``--dist loadgroup`` tests without a group are dealt out one by one,
    and each process would start the daemons of a file's fixtures again.
    """
    wanted = config.option.suite
    kept = [item for item in items if wanted in ("all", suite_of(item))]
    if config.option.quick:
        kept = [item for item in kept if not _is_slow(item)]
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            alone = item.get_closest_marker("netns") is not None
            item.add_marker(pytest.mark.xdist_group("netns" if alone else item.path.stem))


def pytest_collection_finish() -> None:
    """Keeps all tests and what they import out of collections, which many tests ask for.

    Each would look at half a million objects, which are there until the end.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def lose(eventually):
    """Kills a worker, and waits until the session has others."""

    def kill(session, worker=1):
        before = len(session.recoveries)
        os.kill(session.workers[worker].pid, signal.SIGKILL)
        eventually(lambda: len(session.recoveries) > before, 40, "other workers")

    return kill


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[list[Any]]:
    """Two joined hosts; they are gone after the file's tests."""
    from fault_tools.namespaces import NoNamespaces, network  # few files need it

    with contextlib.ExitStack() as stack:
        try:
            joined = stack.enter_context(network(os.getpid() % 100_000))
            pair = [joined.join(name) for name in ("near", "far")]
        except NoNamespaces as error:
            pytest.skip(str(error))
        yield pair
