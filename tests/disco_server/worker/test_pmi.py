"""MPI worlds without a launcher: the start-up protocol, real ranks, and its traps."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from disco_client.errors import ConfigError
from disco_server.core.rendezvous import Rendezvous, Wake
from disco_server.worker import pmi
from disco_server.worker.pmi import PmiNode, kvsname, map_processes, sweep_shared_memory

SESSION = int.from_bytes(os.urandom(8), "big")
PROGRAM = """
import os, signal, sys
import mpi4py
mpi4py.rc.thread_level = "multiple"
from mpi4py import MPI
import numpy as np
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
nodes = world.Split_type(MPI.COMM_TYPE_SHARED).size
print(world.size, total, nodes, flush=True)
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "abort" in sys.argv and world.rank == 1:
    world.Abort(7)
"""


@dataclass
class Fences:
    """Joins the nodes of a session through one rendezvous, in this process."""

    nodes: int
    rendezvous: Rendezvous = field(default_factory=Rendezvous)

    def of(self, node: int):
        async def fence(name: str, items: Mapping[str, bytes]) -> Mapping[str, bytes]:
            waiter = asyncio.get_running_loop().create_future()
            self.wake(self.rendezvous.fence(name, node, self.nodes, items, waiter))
            return await waiter

        return fence

    def wake(self, wakes: list[Wake]) -> None:
        for wake in wakes:
            if wake.error:
                wake.waiter.set_exception(RuntimeError(wake.error))
            else:
                wake.waiter.set_result(wake.items)


@dataclass
class World:
    """Two nodes or one, their ranks' processes, and what was reported of them."""

    attempt: int
    nodes: list[list[int]] = field(default_factory=lambda: [[0, 1, 2, 3]])
    aborts: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return kvsname(SESSION, self.attempt)

    async def run(self, *args: str) -> None:
        pairs = {rank: socket.socketpair() for node in self.nodes for rank in node}
        fences = Fences(len(self.nodes))
        servers = [
            PmiNode(
                ranks={rank: pairs[rank][0] for rank in ranks},
                nodes=self.nodes,
                kvsname=self.name,
                fence=fences.of(node),
                on_abort=lambda rank, why: self.aborts.append((rank, why)),
            )
            for node, ranks in enumerate(self.nodes)
        ]
        ranks = [self.start(rank, pairs[rank][1], args) for rank in sorted(pairs)]
        async with asyncio.TaskGroup() as group:
            for server in servers:
                group.create_task(server.serve())
            for process in ranks:
                output, _ = await asyncio.to_thread(process.communicate, timeout=30)
                self.outputs.append(output.strip())
                self.statuses.append(process.returncode)
        for server in servers:
            await server.close()

    def start(self, rank: int, theirs: socket.socket, args: tuple[str, ...]):
        size = sum(len(node) for node in self.nodes)
        with theirs:
            environment = os.environ | {
                "PMI_FD": str(theirs.fileno()),
                "PMI_RANK": str(rank),
                "PMI_SIZE": str(size),
            }
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *args],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )


@pytest.fixture(autouse=True)
def swept():
    yield
    for attempt in range(10):
        sweep_shared_memory(kvsname(SESSION, attempt))


def left_behind(world: World) -> list[Path]:
    """What the killed ranks of a world left; the hash is the rule under test."""
    mark = pmi._hash_name(world.name)
    return sorted(Path("/dev/shm").glob(f"mpich_*_{mark:x}_*"))


def test_ranks_of_two_nodes_form_a_world():
    """Four ranks of two nodes meet without mpiexec, know who is near, and add up."""
    world = World(0, [[0, 1], [2, 3]])
    asyncio.run(world.run())
    assert world.outputs == ["4 10 2"] * 4
    assert world.statuses == [0] * 4
    assert world.aborts == []


def test_nodes_may_be_uneven():
    """Nodes with different numbers of ranks form a world too."""
    world = World(1, [[0, 1], [2]])
    asyncio.run(world.run())
    assert world.outputs == ["3 6 2", "3 6 2", "3 6 1"]


def test_a_killed_run_does_not_break_the_next():
    """What killed ranks leave lies under their own name, and sweeping removes just that."""
    killed, next_one = World(2, [[0, 1]]), World(3, [[0, 1]])
    asyncio.run(killed.run("die"))
    assert killed.statuses == [-signal.SIGKILL] * 2
    assert {rank for rank, _ in killed.aborts} == {0, 1}
    assert "ended before it finalized" in killed.aborts[0][1]
    leftovers = left_behind(killed)
    assert leftovers, "MPICH left nothing, so this test shows nothing"
    asyncio.run(next_one.run())
    assert next_one.outputs == ["2 3 2"] * 2
    assert left_behind(killed) == leftovers
    assert sorted(sweep_shared_memory(killed.name)) == leftovers
    assert left_behind(killed) == []
    assert sweep_shared_memory(killed.name) == []


def test_memory_in_use_is_not_swept(tmp_path):
    """A file of the right name stays while any process maps it."""
    program = """
import mmap, sys
file = open(sys.argv[1], "r+b")
held = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""
    path = tmp_path / f"mpich_shm_{pmi._hash_name(kvsname(SESSION)):x}_0"
    path.write_bytes(b"x" * 4096)
    stranger = tmp_path / f"mpich_shm_{pmi._hash_name('another'):x}_0"
    stranger.write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        assert sweep_shared_memory(kvsname(SESSION), tmp_path) == []
        holder.stdin.close()
    assert sweep_shared_memory(kvsname(SESSION), tmp_path) == [path]
    assert stranger.exists()


def test_an_abort_is_reported():
    """MPI_Abort reaches the callback with the rank that called it."""
    world = World(4, [[0, 1]])

    async def run() -> None:
        # The other rank would wait in its finalize for ever: the owner ends it.
        task = asyncio.create_task(world.run("abort"))
        while not world.aborts:
            await asyncio.sleep(0.01)
        task.cancel()

    pairs_before = len(world.aborts)
    asyncio.run(asyncio.wait_for(_abort_one(world), 30))
    assert pairs_before == 0
    assert world.aborts[0] == (1, "rank 1 called MPI_Abort with status 7")


async def _abort_one(world: World) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    aborted = asyncio.Event()

    def note(rank: int, why: str) -> None:
        world.aborts.append((rank, why))
        aborted.set()

    server = PmiNode(
        ranks={rank: pair[0] for rank, pair in enumerate(pairs)},
        nodes=world.nodes,
        kvsname=world.name,
        fence=Fences(1).of(0),
        on_abort=note,
    )
    serving = asyncio.create_task(server.serve())
    processes = [world.start(rank, pair[1], ("abort",)) for rank, pair in enumerate(pairs)]
    await aborted.wait()
    for process in processes:
        process.kill()
        process.communicate()
    await server.close()
    await serving
