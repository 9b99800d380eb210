"""How a rank takes part in bringing a tensor to other workers; see `distributed.routes`.

What a rank sends to each other one, and receives from each, goes in one exchange of all
members, which agree before anybody begins; there is no message where there is nothing to send.
Partial values are combined after a first exchange, and what they make up is sent on in a second
one. A box that lies in one piece is sent from where it is, and received where it belongs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.wire.values import dtype_from_name
from disco_server.collectives.numeric import combine
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import Family, find_kind
from disco_server.rank.builtins.tensors import as_moved, neutral
from disco_server.rank.functions import NamedCall, register_func
from disco_server.rank.worker import Worker, current_worker

if TYPE_CHECKING:
    from disco_server.collectives.group import ProcessGroup

__all__ = ["PartTransfer"]

Array = Any
"""An array of this rank's device; None where it has none."""

Index = tuple[Any, ...]

_UFUNCS = {"sum": "add", "prod": "multiply", "min": "minimum", "max": "maximum"}
_NOTHING: tuple[Any, ...] = (0, None, [()], (), [()], [()], ())
"""What a rank does that is not a member."""


class PartTransfer(NamedCall):
    """One rank's part in a route, for any number of tensors that lie alike.

    Called with what this rank has of the tensor, it returns its part as it is placed afterwards;
    None outside the mesh.

    Args:
        worker: This rank.
        team: The members of its line; None where nothing is sent.
        dtype: The tensor's.
        ops: How partial values are combined, and whose neutral element a part consists of that
            gets nothing; empty where there are none.
        counts: How many elements each member of a line sends to each to be combined, row by
            row, and how many it sends afterwards; for each line.
        entry: The number of this rank's line, and what it does: the shape of its part; what it
            sends to be combined, as [member, box]; what it combines, as [shape, members, own
            box]; what it sends, as [member, number of what it has combined or -1, box]; what
            it receives, as [member, box]; and what it keeps, as [number, box, box of its
            part]. Before what is sent and received stands where all of that lies in one
            piece, if it does. None for a rank that is not a member.
    """

    __slots__ = (
        "_combines",
        "_dtype",
        "_fill",
        "_given",
        "_gives",
        "_keeps",
        "_lends",
        "_lent",
        "_op",
        "_runs",
        "_shape",
        "_slice",
        "_takes",
        "_team",
        "_worker",
    )

    def __init__(
        self,
        worker: Worker,
        team: ProcessGroup | None,
        dtype: str,
        ops: Sequence[str],
        counts: Sequence[Sequence[Sequence[int]]],
        entry: Sequence[Any] | None,
    ) -> None:
        super().__init__("transfer", self._run)
        self._worker, self._team = worker, team
        self._dtype = dtype_from_name(dtype)
        self._op, self._fill = ops
        work: Sequence[Any] = entry or _NOTHING
        line, shape, lends, combines, gives, takes, keeps = work
        size = 0 if team is None else team.size
        lent, given = counts[int(line)] if entry else ((), ())
        self._lent, self._given = _rows(lent, size), _rows(given, size)
        self._shape = None if shape is None else tuple(shape)
        self._lends = [(-1, _index(box)) for _, box in lends[1:]]
        self._combines = [
            (tuple(extents), tuple(held), _index(own)) for extents, held, own in combines
        ]
        self._gives = [(at, _index(box)) for _, at, box in gives[1:]]
        self._takes = [_index(box) for _, box in takes[1:]]
        self._keeps = [(at, _index(box), _index(there)) for at, box, there in keeps]
        self._runs = tuple(slice(*each[0]) if each[0] else None for each in (lends, gives, takes))
        # Where nobody of the line sends anything, what one keeps is cut off at once.
        alone = not (self._lent or self._given or combines) and len(keeps) == 1
        self._slice = self._keeps[0][1] if alone else None

    def _run(self, local: Array, out: Any = None) -> Array:
        """Carries it out.

        Args:
            local: What this rank has of the tensor; None if nothing.
            out: Takes its part; by default an array that is made for it.
        """
        if self._slice is not None and out is None:
            return local[self._slice].copy()
        made = self._combine(local) if self._lent or self._combines else []
        if self._shape is None:
            self._exchange_given(local, made, out)
            return None
        part: Array = self._worker.arrays.empty(self._shape, self._dtype) if out is None else out
        self._exchange_given(local, made, part)
        for at, box, there in self._keeps:
            part[there] = local[box] if at < 0 else made[at].reshape(part[there].shape)
        if self._fill and not (self._takes or self._keeps):
            part[...] = neutral(self._fill, self._dtype)
        return part

    def assign(self, register: int, local: Array) -> None:
        """Writes its part into a register: into the array there if it fits and is not shared."""
        registers = self._worker.registers
        if self._shape is None:
            self._run(local)
            return
        registers.reserve(register)
        out = self._run(local, self._room(register))
        registers.write(register, out)

    def _room(self, register: int) -> Array:
        """The array of a register if it can take this rank's part unseen by anybody else."""
        held = self._worker.registers.sole_array(register, self._worker.arrays.kind)
        fits = held is not None and held.shape == self._shape and held.dtype == self._dtype
        return held if fits else None

    def _combine(self, local: Array) -> list[Array]:
        """Exchanges partial values, and combines those that this rank is to combine; flat."""
        came = self._new(_column(self._lent, self._team))
        if self._lent:
            self._exchange(self._joined(self._lends, self._runs[0], local, ()), came, self._lent)
        me = -1 if self._team is None else self._team.rank
        at = _starts(self._lent, self._team)
        made: list[Array] = []
        for extents, held, own in self._combines:
            values: list[Array] = []
            count = math.prod(extents)
            for member in held:
                if member == me or self._team is None:
                    values.append(self._worker.xp.ascontiguousarray(local[own]).reshape(-1))
                else:
                    values.append(came[at[member] : at[member] + count])
                    at[member] += count
            made.append(self._combined(values))
        return made

    def _combined(self, values: list[Array]) -> Array:
        if len(values) == 1:
            return values[0]
        kind = find_kind(self._dtype)
        family = Family.OPAQUE if kind is None else kind.family
        if self._worker.arrays.on_host:
            out = self._new(values[0].size)
            combine(values, out, ReduceOp.from_name(self._op), family)
            return out
        ufunc = getattr(self._worker.xp, _UFUNCS[self._op])
        half = family is Family.HALF
        found = values[0].astype(np.float32) if half else values[0]
        for value in values[1:]:
            found = ufunc(found, value)
        return found.astype(self._dtype)

    def _exchange_given(self, local: Array, made: list[Array], out: Array) -> None:
        if not self._given:
            return
        source = self._joined(self._gives, self._runs[1], local, made)
        run = self._runs[2]
        if run is not None and out.flags.c_contiguous:
            self._exchange(source, out.reshape(-1)[run], self._given)
            return
        came = self._new(_column(self._given, self._team))
        self._exchange(source, came, self._given)
        at = 0
        for box in self._takes:
            target = out[box]
            target[...] = came[at : at + target.size].reshape(target.shape)
            at += target.size

    def _joined(
        self,
        boxes: Sequence[tuple[int, Index]],
        run: slice | None,
        local: Array,
        made: Sequence[Array],
    ) -> Array:
        """What is sent, one after the other in one flat array; a copy unless it lies so already."""
        if run is not None and local.flags.c_contiguous:
            return local.reshape(-1)[run]
        if len(boxes) == 1 and boxes[0][0] >= 0:
            return made[boxes[0][0]]
        parts = [local[box] if at < 0 else made[at] for at, box in boxes]
        flat = self._new(sum(part.size for part in parts))
        at = 0
        for part in parts:
            flat[at : at + part.size].reshape(part.shape)[...] = part
            at += part.size
        return flat

    def _exchange(self, sent: Array, came: Array, rows: Sequence[Sequence[int]]) -> None:
        if self._team is None:
            return
        moved, into = as_moved(sent), as_moved(came)
        if moved is not sent:
            rows = [[count * sent.itemsize for count in row] for row in rows]
        self._team.all_to_all(moved, into, rows)

    def _new(self, count: int) -> Array:
        return self._worker.arrays.empty((count,), self._dtype)


def _rows(flat: Sequence[int], size: int) -> list[list[int]]:
    """A table that was written row by row."""
    return [list(flat[at : at + size]) for at in range(0, len(flat), size or 1)]


def _column(rows: Sequence[Sequence[int]], team: ProcessGroup | None) -> int:
    return 0 if team is None else sum(row[team.rank] for row in rows)


def _starts(rows: Sequence[Sequence[int]], team: ProcessGroup | None) -> list[int]:
    """Where in what this rank receives that of each member begins."""
    if team is None:
        return []
    return [0, *accumulate(row[team.rank] for row in rows)]


def _index(box: Sequence[int]) -> Index:
    # With the dots what is taken of an array without axes is an array, too.
    return (*map(slice, box[::2], box[1::2]), ...)


@register_func("runtime.disco._dt_bind_transfer")
def bind_transfer(
    team: ProcessGroup | None,
    dtype: str,
    ops: Sequence[str],
    counts: Sequence[Sequence[Sequence[int]]],
    entries: Sequence[Sequence[Any] | None],
) -> PartTransfer:
    """Makes a function of a route: it takes what this worker has of a tensor.

    Args:
        team: The members of this worker's line; None where nothing is sent.
        dtype: Of the tensor.
        ops: See `PartTransfer`.
        counts: See `PartTransfer`.
        entries: What each worker of the session does.
    """
    worker = current_worker()
    return PartTransfer(worker, team, dtype, ops, counts, entries[worker.worker_id])


@register_func("runtime.disco._dt_assign")
def assign(transfers: Sequence[PartTransfer], registers: Sequence[int], *sources: Array) -> None:
    """Brings tensors into registers, each by its transfer, one after the other.

    Args:
        transfers: What brings each.
        registers: The numbers of the registers, each of which is overwritten.
        *sources: What this worker has of each.
    """
    for transfer, register, local in zip(transfers, registers, sources, strict=True):
        transfer.assign(register, local)
