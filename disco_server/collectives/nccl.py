"""Lets arrays on GPUs take part in a session's collectives, by NCCL or RCCL.

The ranks keep the communicator through which they meet on the host, MPI's or that
of threads: before each operation they compare there what they bring, so that only
operations that fit one another ever reach NCCL, which knows no way out of others.
NCCL's unique id takes the same way, whose own addresses came through the session's
rendezvous. Before that the ranks tell each other what they have, so that what is
missing on one of them is an error on all and not a wait for ever.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from disco_server.collectives.base import CommunicatorLost, UnavailableError, name_workers
from disco_server.collectives.meeting import MeetingCommunicator
from disco_server.collectives.nccl_library import NcclLibrary, version_text
from disco_server.collectives.nccl_parts import NcclPartMoves
from disco_server.collectives.nccl_watch import Limits, NcclWatch
from disco_server.collectives.part_checks import Lines
from disco_server.collectives.sides import DataMoves, Tag
from disco_server.devices.base import Arrays
from disco_server.devices.gpu import GpuArrays

__all__ = ["NcclHooks", "start_nccl"]

_PROBLEM_CHARACTERS = 300
_RECORD_BYTES = 512 + 12 * _PROBLEM_CHARACTERS  # escaped, a character is at most 12 bytes
_ID_BYTES = 128
_NO_COLOR = -1  # NCCL_SPLIT_NOCOLOR: takes part in a split and gets nothing


class NcclHooks(NamedTuple):
    """What a rank's process does for its watch.

    Attributes:
        on_failure: Called once, on another thread, with what failed; the session
            cannot go on.
        on_slow: Called with what takes long.
        limits: How long operations may take.
    """

    on_failure: Callable[[str], None]
    on_slow: Callable[[str], None]
    limits: Limits = Limits()


class _Record(NamedTuple):
    """What one rank says of itself before NCCL starts.

    Attributes:
        problem: Why it cannot take part; empty if it can.
        version: Of its library.
        gpu: Tells GPUs of all machines apart.
        ids: The unique ids that it made, of all workers and of its group.
    """

    problem: str = ""
    version: int = 0
    gpu: str = ""
    ids: tuple[str, str] = ("", "")

    def encode(self) -> np.ndarray[Any, Any]:
        """Writes it into as many bytes as every other."""
        text = json.dumps(self).encode()
        out = np.zeros(_RECORD_BYTES, np.uint8)
        out[: len(text)] = np.frombuffer(text, np.uint8)
        return out

    @classmethod
    def decode(cls, data: np.ndarray[Any, Any]) -> _Record:
        """Reads it."""
        problem, version, gpu, ids = json.loads(data.tobytes().rstrip(b"\0"))
        return cls(problem, version, gpu, (ids[0], ids[1]))


def start_nccl(
    comm: MeetingCommunicator, arrays: Arrays, name: str, host: str, hooks: NcclHooks
) -> NcclWatch:
    """Starts the library on all ranks; every rank calls it in the same command.

    Args:
        comm: Where the ranks meet; its `ccl` is `name` from now on.
        arrays: This rank's device.
        name: "nccl" or "rccl".
        host: Tells this rank's machine from others.
        hooks: What to do when something fails or takes long.

    Returns:
        What watches over the operations of this rank.

    Raises:
        UnavailableError: A rank has not what it needs, or two share a GPU; the same
            on every rank, and none has begun.
        CommunicatorLost: The library failed while it started; peers may still be in
            it, so this process should end.
        AbortedError: A rank cannot come; nobody began.
    """
    library, mine = _prepare(comm, arrays, name, host)
    parts = np.empty((comm.num_workers, _RECORD_BYTES), np.uint8)
    comm.allgather(mine.encode(), parts, in_group=False)
    records = [_Record.decode(part) for part in parts]
    problem = _compare(records, name)
    if problem or library is None:
        comm.refuse_device(problem)
        raise UnavailableError(problem)
    gpu = cast("GpuArrays", arrays)
    watch = NcclWatch(
        library,
        gpu,
        comm.worker_id,
        position=lambda: comm.position,
        on_failure=hooks.on_failure,
        on_slow=hooks.on_slow,
        limits=hooks.limits,
    )
    opened = _Opening(comm, library, gpu, watch, records)
    comm.add_device(name, gpu.xp, opened.make_moves, opened.open_device)
    return watch


def _prepare(
    comm: MeetingCommunicator, arrays: Arrays, name: str, host: str
) -> tuple[NcclLibrary | None, _Record]:
    """Finds out what this rank has; what it lacks is told to the others, not raised."""
    if arrays.on_host:
        return None, _Record(f"it computes on {arrays.device}")
    try:
        library = NcclLibrary(name, arrays)
        # A group's id is needed where the library cannot split a communicator.
        apart = comm.num_groups > 1 and not library.splits
        leads = (comm.worker_id == 0, comm.group_rank == 0 and apart)
        ids = [library.binding.get_unique_id().hex() if lead else "" for lead in leads]
        gpu = f"{host} {cast('GpuArrays', arrays).bus_id()}"
    except Exception as error:  # noqa: BLE001  (whatever a broken library raises)
        return None, _Record(str(error)[:_PROBLEM_CHARACTERS] or type(error).__name__)
    return library, _Record("", library.version, gpu, (ids[0], ids[1]))


def _compare(records: Sequence[_Record], name: str) -> str:
    """Says why the ranks cannot start together; empty if they can. Equal on all ranks."""
    missing: dict[str, list[int]] = {}
    for worker, record in enumerate(records):
        if record.problem:
            missing.setdefault(record.problem, []).append(worker)
    if missing:
        told = "; ".join(f"{name_workers(who)}: {why}" for why, who in missing.items())
        return f"{name} needs a GPU of its own for each worker, so none began: {told}"
    users: dict[str, list[int]] = {}
    for worker, record in enumerate(records):
        users.setdefault(record.gpu, []).append(worker)
    for gpu, who in users.items():
        if len(who) > 1:
            return (
                f"{name} needs a GPU of its own for each worker, so none began:"
                f" {name_workers(who)} share the GPU {gpu.split()[-1]}"
            )
    versions: dict[int, list[int]] = {}
    for worker, record in enumerate(records):
        versions.setdefault(record.version, []).append(worker)
    if len(versions) > 1:
        told = "; ".join(f"{name_workers(w)} {version_text(v)}" for v, w in versions.items())
        return f"{name} must have the same version everywhere, so none began: {told}"
    return ""


class _Opening:
    """Opens the communicators of one rank: of all workers, then of its group and teams."""

    def __init__(
        self,
        comm: MeetingCommunicator,
        library: NcclLibrary,
        arrays: GpuArrays,
        watch: NcclWatch,
        records: Sequence[_Record],
    ) -> None:
        self._comm, self._library, self._arrays = comm, library, arrays
        self._watch, self._records = watch, records
        self._world: Any = None

    def make_moves(self, tag: Tag, members: tuple[int, ...]) -> NcclPartMoves:
        """Makes what moves data among these members, of whom this rank is one."""
        rank, size = members.index(self._comm.worker_id), len(members)
        try:
            if tag == Tag.WORLD:
                made = self._world = self._begin(members[0], 0, size, rank)
            elif self._library.splits:
                made = self._world.commSplit(members[0], rank)
            else:
                made = self._begin(members[0], 1, size, rank)
        except Exception as error:
            # Whatever it is: the peers are in the same call, or about to be.
            which = "the workers" if tag == Tag.WORLD else "the group"
            raise CommunicatorLost(
                f"worker {self._comm.worker_id}: {self._library.name} could not connect {which}:"
                f" {self._library.explain(error)}"
            ) from error
        return self._wrap(made, rank, size)

    def open_device(
        self, lines: Lines, place: int | None, moves: DataMoves
    ) -> NcclPartMoves | None:
        """Makes what moves data in a line of teams; see `teams.OpenDevice`.

        Raises:
            CommunicatorLost: It failed; peers may still be in it.
        """
        members = () if place is None else lines[place]
        rank, size = members.index(self._comm.worker_id) if members else 0, len(members)
        # A split is a call on the communicator of all workers, which the watch guards.
        with self._watch.launching("make_teams"):
            if self._library.splits:
                made = self._world.commSplit(_NO_COLOR if place is None else place, rank)
            elif members:
                unique = self._share_id(rank, moves)
                made = self._library.binding.NcclCommunicator(size, unique, rank)
            else:
                made = None
        return self._wrap(made, rank, size) if members else None

    def _wrap(self, made: Any, rank: int, size: int) -> NcclPartMoves:
        self._watch.add(made)
        return NcclPartMoves(
            made, rank, size, library=self._library, arrays=self._arrays, watch=self._watch
        )

    def _share_id(self, rank: int, moves: DataMoves) -> bytes:
        """Brings a unique id of the first member to all, on the host."""
        shared = np.zeros(_ID_BYTES, np.uint8)
        if rank == 0:
            with contextlib.suppress(self._library.error):
                shared[:] = np.frombuffer(self._library.binding.get_unique_id(), np.uint8)
        moves.broadcast(shared, shared)
        if not shared.any():
            raise RuntimeError("the first member could not make a unique id")
        return shared.tobytes()

    def _begin(self, leader: int, which: int, size: int, rank: int) -> Any:
        unique = bytes.fromhex(self._records[leader].ids[which])
        return self._library.binding.NcclCommunicator(size, unique, rank)
