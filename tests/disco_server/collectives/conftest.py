"""Real ranks for the tests of this folder: processes that meet as a session's do."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pmi_server import PmiServer

from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory

sys.path.insert(0, str(Path(__file__).parent))  # for the scenarios
PROGRAM = Path(__file__).with_name("rank_program.py")


class Ranks:
    """Rank processes that execute functions of `scenarios.py`, all the same one at a time."""

    def __init__(self, count: int, **environment: str) -> None:
        self.session = int.from_bytes(os.urandom(8), "big")
        pairs = [socket.socketpair() for _ in range(count)]
        self.processes = [
            self._start(rank, count, theirs, environment) for rank, (_, theirs) in enumerate(pairs)
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pmi")
        self._thread.start()
        node = PmiServer(
            ranks={rank: ours for rank, (ours, _) in enumerate(pairs)},
            nodes=[list(range(count))],
            kvsname=kvsname(self.session),
            fence=self._fence,
            on_abort=lambda rank, why: None,
        )
        self._serving = asyncio.run_coroutine_threadsafe(node.serve(), self._loop)
        self._node = node

    def run(self, scenario: str, **arguments: Any) -> list[Any]:
        """Runs a scenario on all ranks; returns what each gave back."""
        line = json.dumps([scenario, arguments]) + "\n"
        for process in self.processes:
            process.stdin.write(line)
            process.stdin.flush()
        answers = [
            json.loads(process.stdout.readline() or '["died"]') for process in self.processes
        ]
        wrong = {rank: each[0] for rank, each in enumerate(answers) if len(each) == 1}
        assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())
        return [each[1] for each in answers]

    def finish(self) -> list[int]:
        """Lets all ranks leave; returns their exit statuses."""
        for process in self.processes:
            process.stdin.close()
        return [process.wait(20) for process in self.processes]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stdin.close()
        asyncio.run_coroutine_threadsafe(self._node.close(), self._loop).result(10)
        self._serving.result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        sweep_shared_memory(kvsname(self.session))

    @staticmethod
    async def _fence(name: str, items: Mapping[str, bytes]) -> Mapping[str, bytes]:
        return items

    @staticmethod
    def _start(rank: int, count: int, theirs: socket.socket, environment: Mapping[str, str]):
        with theirs:
            here = {"PMI_FD": str(theirs.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": str(count)}
            return subprocess.Popen(
                [sys.executable, PROGRAM],
                env=os.environ | here | environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )


class ThreadRanks:
    """Ranks that are threads of this process; executes scenarios as `Ranks` does."""

    def __init__(self, count: int) -> None:
        import scenarios

        flat, grouped = LocalWorld(count), LocalWorld(count, 2)
        self.worlds = (flat, grouped)
        self.places = [
            scenarios.Place(rank, LocalGroups(rank, flat), LocalGroups(rank, grouped))
            for rank in range(count)
        ]
        self._threads = [ThreadPoolExecutor(1, f"rank-{rank}") for rank in range(count)]

    def run(self, scenario: str, **arguments: Any) -> list[Any]:
        """Runs a scenario on all ranks; returns what each gave back."""
        import scenarios
        import scenarios_exchange
        import scenarios_tags
        import scenarios_teams

        homes = (scenarios, scenarios_exchange, scenarios_tags, scenarios_teams)
        act = next(getattr(home, scenario) for home in homes if hasattr(home, scenario))
        answers = [
            thread.submit(act, place, **arguments)
            for thread, place in zip(self._threads, self.places, strict=True)
        ]
        return [answer.result(60) for answer in answers]

    def finish(self) -> None:
        """Lets all ranks leave in order."""
        leaving = [
            thread.submit(lambda place=place: (place.grouped.close(), place.flat.close()))
            for thread, place in zip(self._threads, self.places, strict=True)
        ]
        for each in leaving:
            each.result(20)

    def close(self) -> None:
        """Ends whatever still waits."""
        for world in self.worlds:
            world.close()
        for thread in self._threads:
            thread.shutdown()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Four ranks; communicators with one group and with two, for all tests of a file."""
    yield from _four_processes()


@pytest.fixture(scope="module", params=["processes", "threads"])
def any_ranks(request: pytest.FixtureRequest) -> Iterator[Ranks | ThreadRanks]:
    """The same of either kind."""
    yield from _four_processes() if request.param == "processes" else _four_threads()


@pytest.fixture(scope="module", params=["memory", "messages", "threads"])
def exchanging(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Any]]]:
    """Runs scenarios of `scenarios_exchange.py` on four ranks, with each kind of exchange."""
    way = request.param
    for ranks in _four_threads() if way == "threads" else _four_processes():
        yield partial(ranks.run, way=way)


def _four_threads() -> Iterator[ThreadRanks]:
    started = ThreadRanks(4)
    try:
        yield started
        started.finish()
    finally:
        started.close()


def _four_processes() -> Iterator[Ranks]:
    started = Ranks(4)
    try:
        yield started
        assert started.finish() == [0] * 4
    finally:
        started.close()


@pytest.fixture
def device_ranks(standin: Any) -> Iterator[Callable[..., Any]]:
    """Opens ranks that are threads with a GPU of the stand-in each; see `device_ranks.py`."""
    import device_ranks

    opened: list[device_ranks.DeviceRanks] = []

    def open_some(count: int, groups: int = 2, *, start: bool = True, **options: Any) -> Any:
        opened.append(device_ranks.DeviceRanks(count, groups, **options))
        if start:
            opened[-1].start()
        return opened[-1]

    yield open_some
    for ranks in opened:
        ranks.close()
