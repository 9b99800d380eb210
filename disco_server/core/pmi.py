"""The replies to the PMI-1 requests of an MPI library's ranks; no I/O.

A library of the MPICH family asks what started it for its rank, its neighbours and
their addresses, in the PMI-1 text protocol (described by Flux RFC 13) on the
descriptor that PMI_FD names. `PmiExchange` knows what to answer the ranks of one
session on one node, keeps what they put, and reports when all of them have entered a
barrier, where what they put is exchanged with the other nodes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from disco_client.errors import ConfigError

__all__ = [
    "MAX_LINE",
    "ClosePmi",
    "MeetNodes",
    "NotePmi",
    "PmiEffect",
    "PmiExchange",
    "SendPmi",
    "map_processes",
]


# The limits of hydra, MPICH's own launcher, which its ranks were tested with.
_MAX_NAME = 256


_MAX_KEY = 64


_MAX_VALUE = 1024


MAX_LINE = 4096


_MAX_PUTS = 4096


_NAME = re.compile(r"[!-~]+")


class _ProtocolError(Exception):
    """A rank sent what is not PMI-1."""


@dataclass(frozen=True, slots=True)
class SendPmi:
    """Send bytes to a rank's MPI library, which waits for them."""

    worker: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ClosePmi:
    """Close a rank's connection for PMI: nothing more is expected of it."""

    worker: int


@dataclass(frozen=True, slots=True)
class MeetNodes:
    """Exchange what this node's ranks have put since the last time with all other nodes.

    Then call ``pmi_met`` or ``pmi_not_met``. The name is the same on each node.
    """

    name: str
    puts: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class NotePmi:
    """Note that a rank, or none where it is -1, aborts, errs or leaves too early."""

    worker: int
    why: str


PmiEffect: TypeAlias = SendPmi | ClosePmi | MeetNodes | NotePmi


class PmiExchange:
    """One session's ranks on one node: what their MPI libraries say in, effects out.

    Args:
        ranks: The ranks of this node.
        nodes: The ranks of each machine of the session, the same for all daemons;
            several daemons may share one.
        kvsname: The key-value space; the same on all nodes.

    Raises:
        ConfigError: The nodes do not hold each rank once, the ranks are not those
            of one node, or the name is too long.
    """

    def __init__(
        self,
        *,
        ranks: Collection[int],
        nodes: Sequence[Sequence[int]],
        kvsname: str,
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
        self._count = len(ranks)
        self._size = len(everyone)
        self._rests = dict.fromkeys(ranks, b"")
        self._name = kvsname
        self._said: list[PmiEffect] = []
        self._store = {"PMI_process_mapping": map_processes(nodes)}
        self._puts: dict[str, bytes] = {}
        self._waiting: set[int] = set()
        self._spawning: set[int] = set()
        self._done: set[int] = set()
        self._fences = 0
        self._last: int | None = None  # the rank for which the others waited, while nodes meet
        self._broken = ""

    def receive(self, rank: int, data: bytes) -> list[PmiEffect]:
        """A rank has sent bytes, or closed its connection where there are none."""
        if not data:
            self._leave(rank)
        elif rank not in self._done:
            self._rests[rank] += data
            self._act_on(rank)
        return self._take()

    def _take(self) -> list[PmiEffect]:
        said, self._said = self._said, []
        return said

    def _act_on(self, rank: int) -> None:
        """Acts on the lines of a rank that are there, up to a barrier that all have entered."""
        if rank == self._last and len(self._rests[rank]) > MAX_LINE:
            self._refuse(rank, "it goes on before it may leave a barrier")
        while rank not in self._done and rank != self._last:
            line, end, rest = self._rests[rank].partition(b"\n")
            if len(line) > MAX_LINE:
                self._refuse(rank, "a line is too long")
            elif not end:
                return
            else:
                self._rests[rank] = rest
                self._act(rank, line)

    def _act(self, rank: int, line: bytes) -> None:
        if rank in self._spawning:
            # A request of several lines: only spawn has that form.
            if line == b"endcmd":
                self._spawning.discard(rank)
                self._reply(rank, self._answer("spawn", {}))
            return
        try:
            fields = _parse(line)
        except _ProtocolError as error:
            self._refuse(rank, str(error))
            return
        command = fields.get("cmd", "")
        if "mcmd" in fields:
            self._spawning.add(rank)
        elif command == "barrier_in":
            self._arrive(rank)
        elif command == "abort":
            status = fields.get("exitcode", "unknown")
            self._break(rank, f"rank {rank} called MPI_Abort with status {status}")
            self._close(rank)
        else:
            self._reply(rank, self._answer(command, fields))
            if command == "finalize":
                self._close(rank)
                if self._waiting:
                    self._break(rank, f"rank {rank} finalized MPI while others wait for it")

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that wait in a barrier, for others here or on other nodes."""
        return frozenset(self._waiting)

    def _close(self, rank: int) -> None:
        self._done.add(rank)
        self._said.append(ClosePmi(rank))

    def _refuse(self, rank: int, why: str) -> None:
        self._break(rank, f"rank {rank} does not speak PMI-1: {why}")
        self._close(rank)

    def _leave(self, rank: int) -> None:
        self._waiting.discard(rank)
        if rank not in self._done:
            self._break(rank, f"rank {rank} ended before it finalized MPI")
            self._close(rank)

    def _reply(self, rank: int, answer: str) -> None:
        self._said.append(SendPmi(rank, f"{answer}\n".encode()))

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

    # Barriers -------------------------------------------------------------------------

    def _arrive(self, rank: int) -> None:
        self._waiting.add(rank)
        if self._broken:
            self._release(-1)
        elif self._done:
            self._break(rank, f"rank {rank} waits for others, of which some have finalized MPI")
        elif len(self._waiting) == self._size:
            self._puts = {}  # all ranks are here, which have the same store
            self._release(0)
        elif len(self._waiting) == self._count:
            name, self._fences = f"pmi-{self._fences}", self._fences + 1
            puts, self._puts = self._puts, {}
            self._last = rank
            self._said.append(MeetNodes(name, puts))

    def met(self, merged: Mapping[str, bytes]) -> list[PmiEffect]:
        """Releases the ranks of a barrier, with what all nodes have put."""
        self._store.update({key: value.decode("ascii") for key, value in merged.items()})
        self._release(-1 if self._broken else 0)
        return self._go_on()

    def not_met(self, name: str, why: object) -> list[PmiEffect]:
        """Releases the ranks of a barrier that cannot complete."""
        self._break(-1, f"the nodes did not meet in {name}: {why}")
        return self._go_on()

    def _go_on(self) -> list[PmiEffect]:
        rank, self._last = self._last, None
        if rank is not None:
            self._act_on(rank)
        return self._take()

    def _release(self, status: int) -> None:
        waiting, self._waiting = self._waiting, set()
        for rank in sorted(waiting):
            self._reply(rank, f"cmd=barrier_out rc={status}")

    def _break(self, rank: int, reason: str) -> None:
        """Notes a failure; ranks in a barrier that cannot complete are released."""
        first = not self._broken
        self._broken = self._broken or reason
        self._release(-1)
        if first or rank >= 0:
            self._said.append(NotePmi(rank, reason))


def map_processes(nodes: Sequence[Sequence[int]]) -> str:
    """Says which ranks share a node, in the format of PMI_process_mapping.

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


def _parse(line: bytes) -> dict[str, str]:
    """Splits a line into its fields; a value may hold spaces only in the last one."""
    try:
        text = line.decode("ascii")
    except UnicodeDecodeError as error:
        raise _ProtocolError("a line is not ASCII") from error
    if not text.startswith(("cmd=", "mcmd=")):
        raise _ProtocolError(f"a line begins with {text[:40]!r}")
    head, has_value, value = text.partition(" value=")
    fields = dict(part.split("=", 1) for part in head.split(" ") if "=" in part)
    if has_value:
        fields["value"] = value.rstrip(" ")
    return fields
