"""Lets the ranks of a session form an MPI world without a launcher.

An MPI library of the MPICH family asks whoever started it for its rank, its
neighbours and their addresses, in the PMI-1 text protocol (described by Flux RFC
13) on the descriptor that PMI_FD names. Here the worker daemon answers: `PmiNode`
serves the ranks of one session on one node, keeps what they put, and exchanges it
with the other nodes at each barrier.

MPICH names its shared memory after the key-value space, so a killed run leaves a
file that would break the next run of the same name: `kvsname` gives each start of
a session its own, and `sweep_shared_memory` removes what a dead one left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from disco_client.errors import ConfigError

if TYPE_CHECKING:
    import socket

__all__ = ["PmiNode", "kvsname", "map_processes", "sweep_shared_memory"]

# The limits of hydra, MPICH's own launcher, which its ranks were tested with.
_MAX_NAME = 256
_MAX_KEY = 64
_MAX_VALUE = 1024
_MAX_LINE = 4096
_MAX_PUTS = 4096
_NAME = re.compile(r"[!-~]+")

Fence = Callable[[str, Mapping[str, bytes]], Awaitable[Mapping[str, bytes]]]
OnAbort = Callable[[int, str], None]


class _ProtocolError(Exception):
    """A rank sent what is not PMI-1."""


class PmiNode:
    """Answers the MPI libraries of one session's ranks on one node.

    Args:
        ranks: The ranks of this node, each with the daemon's end of its socket,
            which belongs to this object from now on.
        nodes: The ranks of each machine of the session, the same for all daemons;
            several daemons may share one.
        kvsname: The key-value space, from the function of that name; the same on
            all nodes.
        fence: Gives this node's puts to the other nodes and returns what all nodes
            brought. It is called with the same names in the same order on each
            node, and may raise.
        on_abort: Called with a rank, or -1 where none is to blame, and a reason
            when a rank aborts, speaks nonsense or leaves before it finalized, or a
            fence fails.

    Raises:
        ConfigError: The nodes do not hold each rank once, the ranks are not those
            of one node, or the name is too long.
    """

    def __init__(
        self,
        *,
        ranks: Mapping[int, socket.socket],
        nodes: Sequence[Sequence[int]],
        kvsname: str,
        fence: Fence,
        on_abort: OnAbort,
    ) -> None:
        everyone = sorted(rank for node in nodes for rank in node)
        if everyone != list(range(len(everyone))):
            raise ConfigError(f"the nodes {nodes} do not hold ranks from 0 up, each once")
        if not any(set(ranks) <= set(node) for node in nodes):
            raise ConfigError(
                f"the ranks {sorted(ranks)} are not those of one of the nodes {nodes}"
            )
        if not 0 < len(kvsname) < _MAX_NAME or not _NAME.fullmatch(kvsname):
            raise ConfigError(f"{kvsname!r} cannot name a key-value space")
        self._ranks = dict(ranks)
        self._size = len(everyone)
        self._name = kvsname
        self._fence = fence
        self._on_abort = on_abort
        self._store = {"PMI_process_mapping": map_processes(nodes)}
        self._puts: dict[str, bytes] = {}
        self._barrier: dict[int, asyncio.StreamWriter] = {}
        self._fences = 0
        self._broken = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Answers until every rank has finalized or gone, or `close` is called."""
        async with asyncio.TaskGroup() as group:
            self._tasks = [
                group.create_task(self._serve(rank, ours), name=f"pmi-{rank}")
                for rank, ours in self._ranks.items()
            ]

    async def close(self) -> None:
        """Ends all connections; ranks that still need an answer find theirs closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for ours in self._ranks.values():
            ours.close()

    async def _serve(self, rank: int, ours: socket.socket) -> None:
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_MAX_LINE)
        try:
            if not await self._answer_all(rank, reader, writer):
                self._break(rank, f"rank {rank} ended before it finalized MPI")
        except (_ProtocolError, ValueError) as error:
            # A ValueError comes from readline: the line exceeded the limit.
            self._break(rank, f"rank {rank} does not speak PMI-1: {error}")
        except OSError:
            self._break(rank, f"rank {rank} ended before it finalized MPI")
        finally:
            self._barrier.pop(rank, None)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer_all(
        self, rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answers until the rank is done; returns whether it said so."""
        while line := await reader.readline():
            fields = _parse(line)
            command = fields.get("cmd", "")
            if "mcmd" in fields:
                # A request of several lines: only spawn has that form.
                while line and line != b"endcmd\n":
                    line = await reader.readline()
                command = "spawn"
            if command == "barrier_in":
                await self._arrive(rank, writer)
                continue
            if command == "abort":
                status = fields.get("exitcode", "unknown")
                self._break(rank, f"rank {rank} called MPI_Abort with status {status}")
                return True
            writer.write(f"{self._answer(command, fields)}\n".encode())
            await writer.drain()
            if command == "finalize":
                return True
        return False

    def _answer(self, command: str, fields: Mapping[str, str]) -> str:
        match command:
            case "init":
                status = 0 if fields.get("pmi_version") == "1" else -1
                answer = f"response_to_init rc={status} pmi_version=1 pmi_subversion=1"
            case "get_maxes":
                limits = f"kvsname_max={_MAX_NAME} keylen_max={_MAX_KEY} vallen_max={_MAX_VALUE}"
                answer = f"maxes rc=0 {limits}"
            case "get_appnum":
                answer = "appnum rc=0 appnum=0"
            case "get_my_kvsname":
                answer = f"my_kvsname rc=0 kvsname={self._name}"
            case "get_universe_size":
                answer = f"universe_size rc=0 size={self._size}"
            case "put":
                problem = self._put(fields)
                answer = f"put_result rc={-1 if problem else 0} msg={problem or 'success'}"
            case "get":
                answer = self._get(fields)
            case "finalize":
                answer = "finalize_ack rc=0"
            case _:
                answer = f"{command[:_MAX_KEY]}_result rc=-1 msg=unknown_command"
        return f"cmd={answer}"

    def _put(self, fields: Mapping[str, str]) -> str:
        key, value = fields.get("key", ""), fields.get("value", "")
        if fields.get("kvsname", self._name) != self._name:
            return "unknown_kvsname"
        if not 0 < len(key) <= _MAX_KEY or len(value) > _MAX_VALUE:
            return "key_or_value_too_long"
        if self._store.get(key, value) != value:
            return "duplicate_key"
        if len(self._puts) >= _MAX_PUTS:
            return "too_many_keys"
        self._store[key] = value
        self._puts[key] = value.encode("ascii")
        return ""

    def _get(self, fields: Mapping[str, str]) -> str:
        value = self._store.get(fields.get("key", ""))
        if value is None or fields.get("kvsname", self._name) != self._name:
            return "get_result rc=-1 msg=key_not_found"
        return f"get_result rc=0 msg=success value={value}"

    async def _arrive(self, rank: int, writer: asyncio.StreamWriter) -> None:
        """Notes a rank at the barrier; the last one exchanges the puts and frees all."""
        self._barrier[rank] = writer
        if self._broken:
            self._release(-1)
        elif len(self._barrier) == len(self._ranks):
            # The rank that came last does the exchange in its own connection: the
            # others send nothing while they wait.
            name, self._fences = f"pmi-{self._fences}", self._fences + 1
            puts, self._puts = self._puts, {}
            try:
                merged = await self._fence(name, puts)
                self._store.update({key: value.decode("ascii") for key, value in merged.items()})
            except Exception as error:  # noqa: BLE001 - whatever it was, the ranks must not hang
                self._break(-1, f"the nodes did not meet in {name}: {error}")
            else:
                self._release(-1 if self._broken else 0)

    def _release(self, status: int) -> None:
        waiting, self._barrier = self._barrier, {}
        for writer in waiting.values():
            writer.write(f"cmd=barrier_out rc={status}\n".encode())

    def _break(self, rank: int, reason: str) -> None:
        """Reports a failure; ranks in a barrier that cannot complete are freed."""
        first = not self._broken
        self._broken = self._broken or reason
        self._release(-1)
        if first or rank >= 0:
            self._on_abort(rank, reason)


def map_processes(nodes: Sequence[Sequence[int]]) -> str:
    """Says which ranks share a node, in the words of PMI_process_mapping.

    Args:
        nodes: The ranks of each node, each rank from 0 up once.

    Returns:
        "(vector,(0,2,2))" for two nodes with two consecutive ranks each. Each
        triple is a first node, a number of nodes and the ranks of each.

    Raises:
        ConfigError: The text is longer than a rank can receive.
    """
    home = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    runs = [(node, len(list(run))) for node, run in groupby(home[rank] for rank in sorted(home))]
    triples: list[list[int]] = []
    for node, count in runs:
        if triples and node == sum(triples[-1][:2]) and count == triples[-1][2]:
            triples[-1][1] += 1
        else:
            triples.append([node, 1, count])
    text = f"(vector,{','.join(f'({a},{b},{c})' for a, b, c in triples)})"
    if len(text) > _MAX_VALUE:
        raise ConfigError(
            f"{len(triples)} different pieces are too many for MPI's start-up"
            " protocol; give each node consecutive ranks"
        )
    return text


def kvsname(session_id: int, attempt: int = 0) -> str:
    """Names the key-value space of one start of a session, the same on all its nodes.

    Args:
        session_id: The session, unsigned 64 bits.
        attempt: Counts the starts of one session.
    """
    return f"disco-{session_id:016x}-{attempt}"


def sweep_shared_memory(name: str, folder: Path = Path("/dev/shm")) -> list[Path]:  # noqa: S108
    """Removes the shared memory that the killed ranks of one start left behind.

    MPICH names its files after the 32-bit FNV-1a hash of the key-value space. As
    two names may have one hash, a file that any process still maps is left alone.
    Intel MPI needs no sweeping: it removes the names at once.

    Args:
        name: The key-value space, from `kvsname`.
        folder: Where shared memory has its names.

    Returns:
        What was removed.
    """
    mark = f"{_hash_name(name):x}"
    found = [
        path
        for kind in ("shm", "vci")
        for path in folder.glob(f"mpich_{kind}_{mark}_*")
        if path.name.rpartition("_")[2].isdigit()
    ]
    mapped = _find_mapped() if found else frozenset[str]()
    removed: list[Path] = []
    for path in found:
        if str(path) not in mapped:
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def _hash_name(name: str) -> int:
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _find_mapped() -> frozenset[str]:
    """Lists the files named mpich_* that any process of this machine maps."""
    return frozenset(path for maps in Path("/proc").glob("[0-9]*/maps") for path in _read(maps))


def _read(maps: Path) -> Iterator[str]:
    # A process may end, or belong to somebody else, between listing and reading.
    with suppress(OSError):
        for line in maps.read_text(errors="replace").splitlines():
            if "/mpich_" in line:
                yield line.split(maxsplit=5)[5]


def _parse(line: bytes) -> dict[str, str]:
    """Splits a line into its fields; a value may hold spaces only in the last one."""
    try:
        text = line.decode("ascii")
    except UnicodeDecodeError as error:
        raise _ProtocolError("a line is not ASCII") from error
    if not text.endswith("\n") or not text.startswith(("cmd=", "mcmd=")):
        raise _ProtocolError(f"a line begins with {text[:40]!r}")
    head, has_value, value = text.rstrip("\n").partition(" value=")
    fields = dict(part.split("=", 1) for part in head.split(" ") if "=" in part)
    if has_value:
        fields["value"] = value.rstrip(" ")
    return fields
