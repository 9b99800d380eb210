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
from pmi_server import PmiServer

from disco_client.errors import ConfigError
from disco_server.collectives import mpich_memory
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory
from disco_server.core.rendezvous import Rendezvous, Wake

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
    daemons: list[list[int]] | None = None
    aborts: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return kvsname(SESSION, self.attempt)

    async def run(self, *args: str) -> None:
        pairs = {rank: socket.socketpair() for node in self.nodes for rank in node}
        daemons = self.daemons or self.nodes
        fences = Fences(len(daemons))
        servers = [
            PmiServer(
                ranks={rank: pairs[rank][0] for rank in ranks},
                nodes=self.nodes,
                kvsname=self.name,
                fence=fences.of(node),
                on_abort=lambda rank, why: self.aborts.append((rank, why)),
            )
            for node, ranks in enumerate(daemons)
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
    mark = mpich_memory._hash_name(world.name)
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


def test_two_daemons_may_serve_one_node():
    """Ranks of one machine share memory though two daemons started them."""
    world = World(5, [[0, 1]], daemons=[[0], [1]])
    asyncio.run(world.run())
    assert world.outputs == ["2 3 2"] * 2


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


def test_an_abort_is_reported():
    """MPI_Abort reaches the callback with the rank that called it."""
    world = World(4, [[0, 1]])
    asyncio.run(asyncio.wait_for(abort_one(world), 30))
    assert world.aborts == [(1, "rank 1 called MPI_Abort with status 7")]


async def abort_one(world: World) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    aborted = asyncio.Event()

    def note(rank: int, why: str) -> None:
        world.aborts.append((rank, why))
        aborted.set()

    server = PmiServer(
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


@dataclass
class Line:
    """A rank that speaks the protocol by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, text: str | bytes) -> str:
        self.writer.write(text if isinstance(text, bytes) else f"{text}\n".encode())
        return (await self.reader.readline()).decode().strip()


@asynccontextmanager
async def hand_made(aborts: list[tuple[int, str]], fence=None, ranks: int = 2):
    """Serves ranks that this test plays itself."""
    pairs = [socket.socketpair() for _ in range(ranks)]
    server = PmiServer(
        ranks={rank: pair[0] for rank, pair in enumerate(pairs)},
        nodes=[list(range(ranks)), [ranks] if fence else []],
        kvsname="disco-test",
        fence=fence or Fences(1).of(0),
        on_abort=lambda rank, why: aborts.append((rank, why)),
    )
    serving = asyncio.create_task(server.serve())
    lines = [Line(*await asyncio.open_unix_connection(sock=pair[1])) for pair in pairs]
    try:
        yield lines
    finally:
        for line in lines:
            line.writer.close()
        await asyncio.wait_for(serving, 10)
        await server.close()


def converse(talk, **options) -> list[tuple[int, str]]:
    """Runs a conversation; returns what was reported."""
    aborts: list[tuple[int, str]] = []

    async def run() -> None:
        async with hand_made(aborts, **options) as lines:
            await talk(lines)

    asyncio.run(asyncio.wait_for(run(), 30))
    return aborts


def test_the_questions_of_a_library_are_answered():
    """Each command of PMI-1 that a start needs gets the answer it defines."""

    async def talk(lines: list[Line]) -> None:
        ask = lines[0].ask
        version = "pmi_version=1 pmi_subversion=1"
        assert await ask(f"cmd=init {version}") == f"cmd=response_to_init rc=0 {version}"
        assert "rc=-1" in await ask("cmd=init pmi_version=2 pmi_subversion=0")
        assert "keylen_max=64 vallen_max=1024" in await ask("cmd=get_maxes")
        assert await ask("cmd=get_appnum") == "cmd=appnum rc=0 appnum=0"
        assert await ask("cmd=get_universe_size") == "cmd=universe_size rc=0 size=2"
        assert await ask("cmd=get_my_kvsname") == "cmd=my_kvsname rc=0 kvsname=disco-test"
        mapping = await ask("cmd=get kvsname=disco-test key=PMI_process_mapping")
        assert mapping.endswith("value=(vector,(0,1,2))")
        for line in lines:
            assert await line.ask("cmd=finalize") == "cmd=finalize_ack rc=0"

    assert converse(talk) == []


def test_unknown_commands_do_no_harm():
    """An unknown command, a spawn of several lines included, gets rc=-1 and the line lives."""

    async def talk(lines: list[Line]) -> None:
        answer = await lines[0].ask("cmd=publish_name service=x port=y")
        assert answer == "cmd=publish_name_result rc=-1 msg=unknown_command"
        spawn = b"mcmd=spawn\nnprocs=1\nexecname=/bin/true\nendcmd\n"
        assert "cmd=spawn_result rc=-1" in await lines[0].ask(spawn)
        for line in lines:
            assert "rc=0" in await line.ask("cmd=finalize")

    assert converse(talk) == []


def test_keys_are_written_once_and_within_limits():
    """A second value, a long key or value, and a strange key-value space are refused."""

    async def talk(lines: list[Line]) -> None:
        ask = lines[0].ask
        assert "rc=0" in await ask("cmd=put kvsname=disco-test key=a value=x y=z")
        assert (await ask("cmd=get kvsname=disco-test key=a")).endswith("value=x y=z")
        assert "rc=0" in await ask("cmd=put kvsname=disco-test key=a value=x y=z")
        assert "duplicate_key" in await ask("cmd=put kvsname=disco-test key=a value=other")
        assert "too_long" in await ask(f"cmd=put kvsname=disco-test key={'k' * 65} value=x")
        assert "too_long" in await ask(f"cmd=put kvsname=disco-test key=b value={'v' * 1025}")
        assert "unknown_kvsname" in await ask("cmd=put kvsname=other key=b value=x")
        assert "key_not_found" in await ask("cmd=get kvsname=other key=a")
        assert "key_not_found" in await ask("cmd=get kvsname=disco-test key=b")
        for line in lines:
            await line.ask("cmd=finalize")

    assert converse(talk) == []


@pytest.mark.parametrize("noise", [b"\xff\xfe\n", b"hello\n", b"cmd=" + b"x" * 5000 + b"\n"])
def test_nonsense_ends_only_its_own_line(noise):
    """Malformed bytes close the connection they came on; the other rank goes on."""

    async def talk(lines: list[Line]) -> None:
        assert await lines[0].ask(noise) == ""
        assert "rc=0" in await lines[1].ask("cmd=get_appnum")
        assert "rc=0" in await lines[1].ask("cmd=finalize")

    [(rank, why)] = converse(talk)
    assert rank == 0
    assert "does not speak PMI-1" in why


def test_a_failed_fence_frees_the_ranks():
    """If the nodes do not meet, all ranks get rc=-1 and the callback learns why."""

    async def fence(name: str, items: Mapping[str, bytes]) -> Mapping[str, bytes]:
        raise TimeoutError(f"node 1 did not come to {name}")

    async def talk(lines: list[Line]) -> None:
        answers = await asyncio.gather(*(line.ask("cmd=barrier_in") for line in lines))
        assert answers == ["cmd=barrier_out rc=-1"] * 2
        for line in lines:
            await line.ask("cmd=finalize")

    [(rank, why)] = converse(talk, fence=fence)
    assert rank == -1
    assert "node 1 did not come to pmi-0" in why


def test_a_rank_that_leaves_frees_those_in_the_barrier():
    """A barrier that cannot complete any more answers rc=-1."""

    async def talk(lines: list[Line]) -> None:
        waiting = asyncio.create_task(lines[0].ask("cmd=barrier_in"))
        lines[1].writer.close()
        assert await waiting == "cmd=barrier_out rc=-1"
        await lines[0].ask("cmd=finalize")

    assert converse(talk) == [(1, "rank 1 ended before it finalized MPI")]


def test_a_fence_carries_what_was_put_since_the_last():
    """Each barrier exchanges its own puts, under names that count up."""
    calls: list[tuple[str, dict[str, bytes]]] = []

    async def fence(name: str, items: Mapping[str, bytes]) -> Mapping[str, bytes]:
        calls.append((name, dict(items)))
        return {**items, f"far-{name}": b"there"}

    async def talk(lines: list[Line]) -> None:
        await lines[0].ask("cmd=put kvsname=disco-test key=a value=1")
        await asyncio.gather(*(line.ask("cmd=barrier_in") for line in lines))
        await lines[1].ask("cmd=put kvsname=disco-test key=b value=2")
        await asyncio.gather(*(line.ask("cmd=barrier_in") for line in lines))
        assert (await lines[1].ask("cmd=get key=far-pmi-0")).endswith("value=there")
        for line in lines:
            await line.ask("cmd=finalize")

    assert converse(talk, fence=fence) == []
    assert calls == [("pmi-0", {"a": b"1"}), ("pmi-1", {"b": b"2"})]


@pytest.mark.parametrize(
    ("ranks", "nodes", "name"),
    [([0], [[0], [0]], "x"), ([0, 1], [[0], [1]], "x"), ([0], [[0]], ""), ([0], [[0]], "a b")],
)
def test_wrong_descriptions_are_refused(ranks, nodes, name):
    """Doubled or foreign ranks and unusable names are found at once."""
    with pytest.raises(ConfigError):
        PmiServer(
            ranks=dict.fromkeys(ranks),
            nodes=nodes,
            kvsname=name,
            fence=Fences(1).of(0),
            on_abort=lambda rank, why: None,
        )
