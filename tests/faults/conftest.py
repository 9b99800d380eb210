"""What the fault tests share, and what every one of them must leave behind: nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import disco_client
from disco_client import Session
from fault_tools.cgroups import Group, NotPermitted, limited
from fault_tools.processes import marked

FUNCTIONS = "disco_test_functions"
WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"


def shared_memory() -> set[str]:
    """The files in shared memory that Disco's processes and their MPI make."""
    return {file.name for file in Path("/dev/shm").glob("*") if "mpich" in file.name}


def in_use(name: str) -> bool:
    """Whether a live process has a file of shared memory."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if name in maps.read_text():
                return True
    return False


@pytest.fixture(autouse=True)
def nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]
) -> Iterator[None]:
    """No process that a test started outlives it, so no port of one, nor shared memory."""
    name, value = "FAULT_TEST", secrets.token_hex(8)
    monkeypatch.setenv(name, value)
    before = shared_memory()
    yield
    mark = f"{name}={value}"
    eventually(lambda: not marked(mark), what=f"the end of {marked(mark)}")
    eventually(
        lambda: not [each for each in shared_memory() - before if not in_use(each)],
        what="the end of what is in /dev/shm",
    )


@pytest.fixture
def node(daemons: Any) -> Callable[..., tuple[Any, Any]]:
    """Starts a controller and one worker daemon; options and variables are the daemon's."""

    def start(slots: int = 2, *options: object, lease: float = 2, **env: str) -> tuple[Any, Any]:
        controller = daemons.controller("--session-lease", lease)
        common = ("--slots", slots, "--name", "here")
        return controller, daemons.worker(controller.address, *common, *options, **env)

    return start


@pytest.fixture(scope="module")
def shared_node(shared_daemons: Any) -> Any:
    """A controller with a worker daemon of four slots, for all tests of a file."""
    other = {"FAULT_TEST": "shared"}  # not the test's that happens to be the first one
    controller = shared_daemons.controller(**other)
    options = ("--slots", "4", "--name", "shared")
    shared_daemons.worker(controller.address, *options, **other)
    return controller


@pytest.fixture(params=["connect", "process"])
def open_kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Session]]:
    """Opens sessions of both kinds whose ranks are processes, with the tests' functions.

    Variables that are given reach the ranks' daemon, or the program whose children
    the ranks are.
    """
    opened: list[Session] = []

    def open_one(num_workers: int, **env: str) -> Session:
        if request.param == "connect":
            if env:
                controller, _ = request.getfixturevalue("node")(num_workers, **env)
            else:
                controller = request.getfixturevalue("shared_node")
            session = disco_client.connect(controller.address, num_workers=num_workers, logs=False)
        else:
            monkeypatch.syspath_prepend(str(WORKER_MODULES))
            for name, value in env.items():
                monkeypatch.setenv(name, value)
            session = disco_client.ProcessSession(num_workers, logs=False)
        opened.append(session)
        session.import_python_module(FUNCTIONS)
        return session

    yield open_one
    for session in opened:
        session.shutdown()


@pytest.fixture
def limit() -> Iterator[Callable[[str, float], Group]]:
    """Makes control groups that are gone after the test."""
    with contextlib.ExitStack() as groups:

        def make(controller: str, amount: float) -> Group:
            try:
                return groups.enter_context(limited(controller, amount))
            except NotPermitted as error:
                pytest.skip(str(error))

        yield make


@pytest.fixture(scope="session")
def long_seconds() -> float:
    """How long the tests that only time makes thorough take; DISCO_FAULTS_LONG_S says more."""
    return float(os.environ.get("DISCO_FAULTS_LONG_S", "0"))
