"""A process that is many peers of one controller: pretended nodes, and pretended programs.

It reads commands, one a line, and answers each with a line of JSON:

    nodes COUNT SLOTS        that many nodes join
    clients COUNT WORKERS    that many programs more get a session each
    queue COUNT WORKERS      that many programs more wait for slots
    wait COUNT WORKERS SECONDS
                             the same, and all give up together in so many seconds; the answer
                             comes shortly before, with how many have not yet
    given_up                 waits until they have
    leave COUNT              the programs that came last end their sessions
    leave_first COUNT        the first that have sessions do
    fence NAME ITEMS BYTES   every node comes to a fence of the newest session
    open                     the ranks of the newest session open their communicator
    sample                   every node sends a sample of its machine
    rest                     waits until no node has a session any more
    traffic                  what came since it was last asked, by kind
    carriers                 how many streams are carried by what

Programs are of the owner whose name follows, or of one each.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from disco_scale import recording
from disco_scale.clients import PretendedClient
from disco_scale.nodes import PretendedNode, Templates, Traffic

__all__ = ["Peers"]

_AT_ONCE = 32
_BEFORE_S = 0.5
_LOOK_S = 0.001


class Peers:
    """All of them, and the commands that they follow.

    Args:
        address: The controller's.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._templates = Templates(recording.read())
        self._traffic = Traffic()
        self._nodes: list[PretendedNode] = []
        self._clients: list[tuple[PretendedClient, asyncio.Task[None]]] = []
        self._waiting: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def _start(self, running: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(running)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            print(json.dumps({"error": repr(error)}), flush=True)

    async def nodes(self, count: str, slots: str) -> object:
        """Lets nodes join, some at a time."""
        while len(self._nodes) < int(count):
            some = min(_AT_ONCE, int(count) - len(self._nodes))
            for number in range(len(self._nodes), len(self._nodes) + some):
                name = f"node-{number}"
                node = PretendedNode(self._templates, name, int(slots), self._traffic)
                self._nodes.append(node)
                self._start(node.run(self._address))
            await asyncio.gather(*(node.registered.wait() for node in self._nodes[-some:]))
        return len(self._nodes)

    async def clients(self, count: str, workers: str, owner: str = "") -> object:
        """Lets programs get sessions, some at a time."""
        return await self._come(int(count), int(workers), "ready", owner)

    async def queue(self, count: str, workers: str, owner: str = "") -> object:
        """Lets programs wait for sessions."""
        return await self._come(int(count), int(workers), "queued", owner)

    async def wait(self, count: str, workers: str, seconds: str, owner: str = "") -> object:
        """Lets programs wait for sessions that they do not get in time."""
        loop = asyncio.get_running_loop()
        end, known = loop.time() + float(seconds), len(self._clients)
        await self._come(int(count), int(workers), "queued", owner, end)
        self._waiting = [task for _, task in self._clients[known:]]
        del self._clients[known:]
        await asyncio.sleep(max(0.0, end - loop.time() - _BEFORE_S))
        return sum(not each.done() for each in self._waiting)

    async def given_up(self) -> object:
        """Waits until these have given up."""
        await asyncio.gather(*self._waiting)
        return True

    async def _come(
        self, count: int, workers: int, what: str, owner: str, until: float = math.inf
    ) -> int:
        now = asyncio.get_running_loop().time
        for first in range(0, count, _AT_ONCE):
            some = min(_AT_ONCE, count - first)
            for _ in range(some):
                name = f"s{len(self._clients)}"
                patience = {} if until == math.inf else {"timeout_s": until - now()}
                client = PretendedClient(
                    self._address, name, workers, self._traffic, owner=owner, **patience
                )
                self._clients.append((client, self._start(client.run())))
            newest = [client for client, _ in self._clients[-some:]]
            await asyncio.gather(*(getattr(each, what).wait() for each in newest))
        return len(self._clients)

    async def leave(self, count: str) -> object:
        """Lets the programs that came last end their sessions, one after the other."""
        for _ in range(int(count)):
            await self._leave(-1)
        return len(self._clients)

    async def leave_first(self, count: str) -> object:
        """Lets the first that have sessions end theirs, each once there is one."""
        for _ in range(int(count)):
            while not any(  # noqa: ASYNC110  (whichever is first)
                ready := [client.ready.is_set() for client, _ in self._clients]
            ):
                await asyncio.sleep(_LOOK_S)
            await self._leave(ready.index(True))
        return len(self._clients)

    async def _leave(self, which: int) -> None:
        client, task = self._clients.pop(which)
        await client.leave()
        await task

    async def fence(self, name: str, items: str, nbytes: str) -> object:
        """Lets every node come to a fence; returns how many bytes went out to all of them."""
        session = list(self._nodes[0].sessions)[-1]
        sizes = {f"item-{number}": int(nbytes) for number in range(int(items))}
        count = len(self._nodes)
        answers = await asyncio.gather(
            *(
                node.fence(session, name, (index, count), sizes)
                for index, node in enumerate(self._nodes)
            )
        )
        return sum(answers)

    async def open(self) -> object:
        """Lets the first node's ranks begin with that, and the others do as they are told."""
        for node in self._nodes:
            node.met.clear()
        first = self._nodes[0]
        first.open_communicators(list(first.sessions)[-1])
        for node in self._nodes:
            await node.met.wait()
        return True

    async def sample(self) -> object:
        """Lets every node send a sample of its machine."""
        for node in self._nodes:
            node.sample()
        return True

    async def rest(self) -> object:
        """Waits until no node has a session any more."""
        for node in self._nodes:
            await node.resting.wait()
        return True

    async def traffic(self) -> object:
        """What came, by kind."""
        came = {"messages": dict(self._traffic.messages), "bytes": dict(self._traffic.nbytes)}
        self._traffic.messages.clear()
        self._traffic.nbytes.clear()
        return came

    async def carriers(self) -> object:
        """What carries the streams of the nodes and of the programs."""
        peers = [*self._nodes, *(client for client, _ in self._clients)]
        return Counter(each.carrier.carrier for each in peers if each.carrier is not None)

    async def serve(self) -> None:
        """Follows commands until there are no more."""
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := (await lines.readline()).decode().split():
            print(json.dumps(await getattr(self, line[0])(*line[1:])), flush=True)


if __name__ == "__main__":
    asyncio.run(Peers(sys.argv[1]).serve())
