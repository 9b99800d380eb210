"""Where the ranks of communicators meet: a thread of the process that made the unique id.

Each rank has one connection for each of its communicators. It sends what it contributes to
an operation; when all have, the hub looks whether they mean the same, computes, and sends
each what is due to it.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cupy._machine.nccl_carrier import Call
from cupy._machine.nccl_errors import INVALID_USAGE, REMOTE_ERROR
from cupy._machine.nccl_math import DTYPES, reduced
from cupy._machine.nccl_wire import Line, encode_id, socket_name

__all__ = ["end_hub", "hub_address", "new_unique_id"]


@dataclass
class Member:
    """A rank of a communicator, as it introduced itself; without a GPU it has failed already."""

    line: Line
    rank: int
    size: int
    gpu: str
    version: int
    process: int

    @property
    def local(self) -> bool:
        """Whether it is in the process of the hub."""
        return self.process == os.getpid()


@dataclass
class Room:
    """A communicator.

    Attributes:
        key: Its name.
        members: The ranks that have come.
        posts: What was contributed, for each operation that is not complete.
        state: `filling`, `ready` or `refused`.
        refusal: Why it was refused, as a number and a text.
    """

    key: str
    members: dict[int, Member] = field(default_factory=dict)
    posts: dict[Any, dict[Any, tuple[int, Any, bytes]]] = field(default_factory=dict)
    state: str = "filling"
    refusal: tuple[int, str] = (INVALID_USAGE, "the unique id was used already")
    lock: threading.Lock = field(default_factory=threading.Lock)

    def distant_first(self) -> list[Member]:
        """The members, those of this process last.

        It may end as soon as those know that something is done; then the others must know.
        """
        return sorted(self.members.values(), key=lambda member: member.local)

    def tell(self, *message: Any) -> None:
        """Sends a message to all members."""
        for member in self.distant_first():
            member.line.send(*message)

    def refuse(self, status: int, text: str) -> None:
        """Lets the construction fail on all members."""
        self.state = "refused"
        self.refusal = (status, text)
        self.tell("refused", status, text)

    def join(self, member: Member) -> None:
        """Lets a rank in; the last one makes it ready."""
        others = list(self.members.values())
        if self.state != "filling":
            member.line.send("refused", *self.refusal)
            return
        if not member.gpu:
            self.refuse(REMOTE_ERROR, f"the construction failed on rank {member.rank}")
            return
        if any(other.size != member.size for other in others):
            text = f"rank {member.rank} says {member.size} ranks, others {others[0].size}"
        elif not 0 <= member.rank < member.size or member.rank in self.members:
            text = f"there cannot be a (second) rank {member.rank} of {member.size}"
        else:
            text = ""
        if text:
            member.line.send("refused", INVALID_USAGE, text)
            self.refuse(INVALID_USAGE, text)
            return
        self.members[member.rank] = member
        if len(self.members) == member.size:
            self._complete()

    def _complete(self) -> None:
        ranks = sorted(self.members.values(), key=lambda member: member.rank)
        for one, two in itertools.combinations(ranks, 2):
            if one.gpu == two.gpu:
                where = one.gpu.rpartition(" ")[2]
                text = (
                    f"Duplicate GPU detected : rank {one.rank} and rank {two.rank}"
                    f" both on CUDA device {where}"
                )
                self.refuse(INVALID_USAGE, text)
                return
            if one.version != two.version:
                text = (
                    f"Mismatched NCCL version detected : rank {one.rank} version {one.version}"
                    f" rank {two.rank} version {two.version}"
                )
                self.refuse(INVALID_USAGE, text)
                return
        self.state = "ready"
        self.tell("ready")

    def leave(self, member: Member, *, orderly: bool) -> None:
        """Notes that a rank is gone."""
        if self.members.get(member.rank) is not member:
            return
        del self.members[member.rank]
        if self.state == "filling":
            self.refuse(REMOTE_ERROR, f"rank {member.rank} is gone")
        else:
            self.tell("left" if orderly else "lost", member.rank)

    def post(self, member: Member, key: Any, part: Any, asked: Any, content: bytes) -> None:
        """Takes what a rank contributes; the last contribution completes the operation."""
        call = Call(*asked) if isinstance(asked[0], str) else asked
        posts = self.posts.setdefault(key, {})
        if not posts:
            expected = set(range(member.size)) if key[0] == "all" else set(key[1:3])
            for rank in expected - {member.rank}:
                if rank in self.members:
                    self.members[rank].line.send("need", key)
        posts[part] = (member.rank, call, content)
        if len(posts) == (member.size if key[0] == "all" else 2):
            del self.posts[key]
            self._settle(key, posts)

    def _settle(self, key: Any, posts: dict[Any, tuple[int, Any, bytes]]) -> None:
        calls = {part: call for part, (_, call, _) in posts.items()}
        first = next(iter(calls.values()))
        if not all(isinstance(call, type(first)) for call in calls.values()) or (
            isinstance(first, Call) and not all(first.matches(call) for call in calls.values())
        ):
            told = "; ".join(f"rank {rank}: {call}" for rank, call, _ in _sorted(posts))
            self.tell("fault", f"mismatch among ranks in operation {key}: {told}")
        elif key[0] == "p2p":
            contents = {"send": b"", "recv": posts["send"][2]}
            for member in self.distant_first():
                for part in (part for part in posts if posts[part][0] == member.rank):
                    member.line.send("done", key, part, contents[part])
        else:
            if isinstance(first, Call):
                due = outcomes(first, [posts[rank][2] for rank in sorted(posts)])
            else:
                due = split_groups(self.key, key[1], calls)
            for member in self.distant_first():
                member.line.send("done", key, member.rank, due.get(member.rank))


def _sorted(posts: dict[Any, tuple[int, Any, bytes]]) -> list[tuple[int, Any, bytes]]:
    return sorted(posts.values(), key=lambda post: post[0])


def outcomes(call: Call, contents: list[bytes]) -> dict[int, bytes]:
    """What each rank gets of a collective."""
    ranks = range(len(contents))
    if call.kind == "allGather":
        return dict.fromkeys(ranks, b"".join(contents))
    if call.kind == "broadcast":
        return dict.fromkeys(ranks, contents[call.root])
    combined = reduced(contents, DTYPES[call.dtype], call.operator)
    if call.kind == "reduce":
        return {call.root: combined}
    if call.kind == "reduceScatter":
        size = len(combined) // len(contents)
        return {rank: combined[rank * size : (rank + 1) * size] for rank in ranks}
    return dict.fromkeys(ranks, combined)


def split_groups(key: str, number: int, calls: dict[int, tuple[int, int, str]]) -> dict[int, Any]:
    """The address, the key, the rank and the size of the new communicator of each rank.

    The hub of its first rank is its hub: it must not need ranks that are not in it.
    """
    groups: dict[int, list[tuple[int, int, str]]] = {}
    for rank, (color, order, address) in calls.items():
        if color >= 0:
            groups.setdefault(color, []).append((order, rank, address))
    return {
        rank: (min(ranks)[2], f"{key}/{number}.{color}", new, len(ranks))
        for color, ranks in groups.items()
        for new, (_, rank, _) in enumerate(sorted(ranks))
    }


class Hub:
    """Listens for ranks.

    Attributes:
        address: Where.
    """

    def __init__(self) -> None:
        name = f"standin-{os.getpid()}-{secrets.token_hex(4)}"
        elsewhere = "" if sys.platform == "linux" else tempfile.gettempdir()
        folder = os.environ.get("STANDIN_SOCKETS", elsewhere)
        self.address = str(Path(folder) / name) if folder else f"@{name}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(True)  # whatever socket.setdefaulttimeout says
        self._listener.bind(socket_name(self.address))
        self._listener.listen(128)
        self._rooms: dict[str, Room] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True, name="standin-nccl-hub").start()

    def close(self) -> None:
        """Closes this process's end of the listening socket, after a fork."""
        self._listener.close()

    def end(self) -> None:
        """Takes no further connections; its thread ends."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Line(connection),), daemon=True).start()

    def _serve(self, line: Line) -> None:
        hello = line.receive()
        if hello is None:
            line.close()
            return
        key, *introduction = hello
        with self._lock:
            room = self._rooms.setdefault(key, Room(key))
        member = Member(line, *introduction)
        with room.lock:
            room.join(member)
        while (message := line.receive()) is not None:
            with room.lock:
                if message[0] == "bye":
                    room.leave(member, orderly=True)
                    line.send("bye")
                    continue
                try:
                    room.post(member, *message[1:])
                except Exception as error:  # noqa: BLE001 - nobody would hear of it
                    room.tell("fault", f"the hub failed: {error!r}")
        with room.lock:
            room.leave(member, orderly=False)
        line.close()


_hubs: list[Hub] = []
_starting = threading.Lock()


def hub_address() -> str:
    """Where the hub of this process listens; it is started if there is none."""
    with _starting:
        if not _hubs:
            _hubs.append(Hub())
    return _hubs[0].address


def new_unique_id() -> bytes:
    """A unique id that leads to the hub of this process."""
    return encode_id(hub_address(), secrets.token_hex(8))


def end_hub() -> None:
    """Ends the hub of this process, if there is one, once no communicator will be made with it."""
    while _hubs:
        _hubs.pop().end()


def _forget() -> None:
    while _hubs:
        _hubs.pop().close()


os.register_at_fork(after_in_child=_forget)
