"""Sessions of this folder, and programs that are run to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import disco_client
from disco_client import Session

MODULES = str(Path(__file__).parents[2] / "worker_modules")
FUNCTIONS = "disco_test_functions"


def make_opener(kind: str) -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def open_one(num_workers: int = 2, num_groups: int = 1, **options: object) -> Session:
        session = getattr(disco_client, kind)(num_workers, num_groups, **options)
        opened.append(session)
        session.import_python_module(FUNCTIONS)
        return session

    yield open_one
    for session in opened:
        session.shutdown()


@pytest.fixture
def modules(monkeypatch) -> None:
    """Lets workers import the tests' functions, as a program's own modules."""
    monkeypatch.syspath_prepend(MODULES)


@pytest.fixture
def threads(modules) -> Iterator[Callable[..., Session]]:
    """Opens threaded sessions."""
    yield from make_opener("ThreadedSession")


@pytest.fixture
def processes(modules) -> Iterator[Callable[..., Session]]:
    """Opens process sessions."""
    yield from make_opener("ProcessSession")


@pytest.fixture
def gone() -> Callable[[list[int]], bool]:
    """Whether none of some processes runs any more."""

    def is_gone(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return lambda pids: all(map(is_gone, pids))


class Program:
    """A Python program that uses sessions, in a process of its own."""

    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": MODULES},
        )

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def finish(self, timeout: float = 30.0, text: str | None = None) -> tuple[int, str, str]:
        out, err = self.process.communicate(text, timeout=timeout)
        return self.process.returncode, out, err


@pytest.fixture
def run_program() -> Iterator[Callable[[str], Program]]:
    """Starts programs; what still runs at the end of the test is killed."""
    started: list[Program] = []

    def run(text: str) -> Program:
        started.append(Program(text))
        return started[-1]

    yield run
    for program in started:
        program.process.kill()
        program.process.communicate()
