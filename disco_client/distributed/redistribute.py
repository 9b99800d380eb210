"""From one placement to another: which moves, along which axes of the mesh, at what cost.

Along one axis of the mesh each pair of specs has one way between them::

    from      to        move
    R         S[j]      slice            each keeps its part; nothing travels
    S[i]      R         allgather        each gets the parts of the others
    S[i]      S[j]      all-to-all       each gets its part of the parts of the others
    P         R         allreduce        each gets the combined whole
    P         S[j]      reduce-scatter   each gets its combined part
    R         P         keep             the first keeps its values, the others neutral ones

Given parts, ``S[j: ...]``, come from a copy for each and become one.

A plan is a way through the placements that are possible in between, the one on which
the fewest bytes reach a worker, found as Dijkstra's shortest path. Where several axes
of the mesh split one axis of the tensor, only the last of them can be changed, since
the pieces of the others do not lie side by side.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    PlacementSpecKind,
    crosses,
    mixes,
)
from disco_client.errors import ConfigError
from disco_client.wire.partition import Intervals, coordinate_of, cut, line_of
from disco_client.wire.values import Shape

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore

__all__ = [
    "Move",
    "RedistributionExecutor",
    "RedistributionPlan",
    "RedistributionStep",
    "all_bounds",
    "first_places",
    "flat_bounds",
    "line_extents",
    "local_shapes",
    "make_plan",
    "per_worker",
    "spread_plan",
]


_State = tuple[PlacementSpec, ...]


@dataclass(frozen=True, slots=True)
class RedistributionStep:
    """One move along one axis of the mesh.

    Attributes:
        move: Its name: "slice", "allgather", "all-to-all", "allreduce",
            "reduce-scatter" or "keep"; "broadcast" only where a host array comes in.
        mesh_axis: Along which axis of the mesh.
        before: The tensor before it.
        after: The tensor after it.
        nbytes: How many bytes reach each worker, in the order of the mesh's list.
    """

    move: str
    mesh_axis: int
    before: DTensorStructInfo
    after: DTensorStructInfo
    nbytes: tuple[int, ...]

    @property
    def cost(self) -> int:
        """The bytes that reach the worker that gets the most."""
        return max(self.nbytes)

    def __str__(self) -> str:
        mesh = self.before.device_mesh
        name = f" ({mesh.names[self.mesh_axis]})" if mesh.names else ""
        source = str(self.before.placement.dim_specs[self.mesh_axis])
        if self.move == "broadcast":
            source = "first"
        target = self.after.placement.dim_specs[self.mesh_axis]
        return (
            f"{self.move} along mesh axis {self.mesh_axis}{name}: {source} -> {target},"
            f" {self.cost:,} bytes to a worker"
        )


@dataclass(frozen=True, slots=True)
class RedistributionPlan:
    """The moves that bring a tensor from one placement to another.

    Attributes:
        before: The tensor as it is placed.
        after: The tensor as it is to be placed.
        steps: The moves, in order; none if it is placed so already.
    """

    before: DTensorStructInfo
    after: DTensorStructInfo
    steps: tuple[RedistributionStep, ...]

    @property
    def cost(self) -> int:
        """The bytes that reach the worker that gets the most, move by move."""
        return sum(step.cost for step in self.steps)

    def __str__(self) -> str:
        title = (
            f"{self.before.placement} -> {self.after.placement}: {self.cost:,} bytes to a worker"
        )
        lines = [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([title, *(lines or ["  nothing to do"])])


def make_plan(info: DTensorStructInfo, placement: Placement | str) -> RedistributionPlan:
    """Finds the cheapest way from a tensor's placement to another one on its mesh.

    Args:
        info: The tensor as it is placed.
        placement: The wanted placement.

    Raises:
        ConfigError: The placement does not fit the tensor or the mesh.
    """
    return _cheapest(info, DTensorStructInfo(info.tensor_sinfo, info.device_mesh, placement))


# Programs repeat the same redistributions, and finding a plan takes longer than running it.
@functools.lru_cache(maxsize=4096)
def _cheapest(info: DTensorStructInfo, target: DTensorStructInfo) -> RedistributionPlan:
    first, last = info.placement.dim_specs, target.placement.dim_specs
    choices = sorted(_between(first, last, info.tensor_sinfo.ndim), key=str)
    best: dict[_State, int] = {first: 0}
    came: dict[_State, RedistributionStep] = {}
    # The second number makes the order of equal ones certain: fewer steps first.
    heap: list[tuple[int, int, int, _State]] = [(0, 0, 0, first)]
    count = 0
    done: set[_State] = set()
    while heap:
        cost, steps, _, state = heapq.heappop(heap)
        if state in done:
            continue
        done.add(state)
        if state == last:
            break
        for step in _steps_from(info, state, choices):
            after = step.after.placement.dim_specs
            new = cost + step.cost
            if after not in done and new <= best.get(after, new):
                if after in best and new == best[after]:
                    continue
                best[after], came[after] = new, step
                count += 1
                heapq.heappush(heap, (new, steps + 1, count, after))
    found: list[RedistributionStep] = []
    at = last
    while at != first:
        if at not in came:
            raise ConfigError(f"there is no way from {info.placement} to {target.placement}")
        found.append(came[at])
        at = came[at].before.placement.dim_specs
    return RedistributionPlan(info, target, tuple(reversed(found)))


def spread_plan(info: DTensorStructInfo) -> RedistributionPlan:
    """The broadcasts that copy the parts of a host array from the workers that received them.

    Args:
        info: The tensor that it becomes; without partial values.
    """
    mesh, itemsize = info.device_mesh, info.tensor_sinfo.dtype.itemsize
    steps: list[RedistributionStep] = []
    for axis, spec in enumerate(info.placement.dim_specs):
        if spec.is_replica and mesh.shape[axis] > 1:
            nbytes = tuple(
                math.prod(info.local_shape(place)) * itemsize
                if coordinate_of(mesh.shape, place)[axis]
                else 0
                for place in range(mesh.size)
            )
            steps.append(RedistributionStep("broadcast", axis, info, info, nbytes))
    return RedistributionPlan(info, info, tuple(steps))


def _between(first: _State, last: _State, ndim: int) -> set[PlacementSpec]:
    """The specs that a tensor may have on its way."""
    found = {*first, *last, PlacementSpec.replica()}
    if any(spec.is_partial for spec in first):
        # Where several axes are to be combined, it is cheaper to split first.
        found |= {PlacementSpec.sharding(axis) for axis in range(ndim)}
    return found


def _steps_from(
    info: DTensorStructInfo, state: _State, choices: list[PlacementSpec]
) -> Iterator[RedistributionStep]:
    before = DTensorStructInfo(info.tensor_sinfo, info.device_mesh, Placement(state))
    for axis, source in enumerate(state):
        if not _is_last_split(state, axis, source):
            continue
        for target in choices:
            move = _move(source, target)
            if move and _is_last_split(state, axis, target):
                specs = (*state[:axis], target, *state[axis + 1 :])
                if mixes(specs) or crosses(specs):
                    continue
                after = DTensorStructInfo(info.tensor_sinfo, info.device_mesh, Placement(specs))
                yield RedistributionStep(
                    move, axis, before, after, _bytes_of(move, axis, before, after)
                )


def _is_last_split(state: _State, axis: int, spec: PlacementSpec) -> bool:
    """Whether no later axis of the mesh splits what this spec splits."""
    return spec.kind is not PlacementSpecKind.SHARDING or spec not in state[axis + 1 :]


def _move(source: PlacementSpec, target: PlacementSpec) -> str:
    given = source.parts or target.parts
    if source == target or (given and not (source.is_replica or target.is_replica)):
        return ""
    return _MOVES.get((source.kind, target.kind), "")


_MOVES = {
    (PlacementSpecKind.REPLICA, PlacementSpecKind.SHARDING): "slice",
    (PlacementSpecKind.SHARDING, PlacementSpecKind.REPLICA): "allgather",
    (PlacementSpecKind.SHARDING, PlacementSpecKind.SHARDING): "all-to-all",
    (PlacementSpecKind.PARTIAL, PlacementSpecKind.REPLICA): "allreduce",
    (PlacementSpecKind.PARTIAL, PlacementSpecKind.SHARDING): "reduce-scatter",
    (PlacementSpecKind.REPLICA, PlacementSpecKind.PARTIAL): "keep",
}


def _bytes_of(
    move: str, axis: int, before: DTensorStructInfo, after: DTensorStructInfo
) -> tuple[int, ...]:
    """How many bytes reach each worker: what it lacks, and what it must combine."""
    mesh = before.device_mesh
    itemsize = before.tensor_sinfo.dtype.itemsize
    parts = mesh.shape[axis]
    if move in ("slice", "keep"):
        return (0,) * mesh.size
    held = [math.prod(before.local_shape(place)) for place in range(mesh.size)]
    found: list[int] = []
    for place, own in enumerate(held):
        if move == "allreduce":
            # Each combines one part of all, and gets the other parts from the others.
            start, stop = cut(0, own, parts, coordinate_of(mesh.shape, place)[axis])
            count = (parts - 1) * (stop - start) + own - (stop - start)
        elif move == "reduce-scatter":
            count = (parts - 1) * math.prod(after.local_shape(place))
        elif move == "allgather":
            count = sum(held[other] for other in line_of(mesh.shape, place, axis)) - own
        else:
            pairs = zip(before.pieces(place), after.pieces(place), strict=True)
            count = math.prod(after.local_shape(place)) - math.prod(
                _shared(*pair) for pair in pairs
            )
        found.append(count * itemsize)
    return tuple(found)


def _shared(some: Intervals, others: Intervals) -> int:
    """How many indices of an axis are in both."""
    return sum(max(0, min(b, d) - max(a, c)) for a, b in some for c, d in others)


# Tables of what differs from worker to worker, which are sent to the workers.


def per_worker(mesh: DeviceMesh, num_workers: int, entries: Sequence[Any]) -> list[Any]:
    """Sorts entries by worker; None for workers outside the mesh.

    Args:
        mesh: The mesh.
        num_workers: Of the session.
        entries: In the order of the mesh's list.
    """
    table: list[Any] = [None] * num_workers
    for worker, entry in zip(mesh.device_ids, entries, strict=True):
        table[worker] = entry
    return table


def local_shapes(info: DTensorStructInfo) -> list[Shape]:
    """The shapes of the parts, in the order of the mesh's list."""
    return [Shape(info.local_shape(place)) for place in range(info.device_mesh.size)]


def all_bounds(info: DTensorStructInfo) -> list[Shape]:
    """Where in the whole each part lies: first, last for each axis."""
    places = range(info.device_mesh.size)
    return [Shape(at for bounds in info.bounds(place) for at in bounds) for place in places]


def first_places(info: DTensorStructInfo) -> list[int]:
    """The places of the mesh's list that are the first of all with the same part."""
    mesh, specs = info.device_mesh.shape, info.placement.dim_specs
    copies = [axis for axis, spec in enumerate(specs) if spec.is_replica]
    return [
        place
        for place in range(info.device_mesh.size)
        if not any(coordinate_of(mesh, place)[axis] for axis in copies)
    ]


def flat_bounds(before: DTensorStructInfo, after: DTensorStructInfo) -> list[Shape]:
    """Where in each part the smaller new part lies: first, last for each axis."""
    found: list[Shape] = []
    for place in range(before.device_mesh.size):
        pairs = zip(before.bounds(place), after.bounds(place), strict=True)
        found.append(Shape(at - start for (start, _), part in pairs for at in part))
    return found


def line_extents(info: DTensorStructInfo, mesh_axis: int, axis: int) -> list[Shape]:
    """For each place of the mesh the extents of the parts of its line along an axis.

    Args:
        info: The tensor.
        mesh_axis: Along which axis of the mesh.
        axis: Which axis of the tensor.
    """
    mesh = info.device_mesh
    extents = [shape[axis] for shape in local_shapes(info)]
    return [
        Shape(extents[other] for other in line_of(mesh.shape, place, mesh_axis))
        for place in range(mesh.size)
    ]


# Carries out on the workers what a plan says, and keeps the teams of a mesh's axes.


class Move(NamedTuple):
    """A step of a plan, and the function that does it on the workers."""

    step: RedistributionStep
    func: DRef


class RedistributionExecutor:
    """The moves of one session.

    What stays the same from one move to the next, such as where parts begin, is sent
    to the workers once: they keep a function for each step, which is then called with
    the parts alone.

    Args:
        core: Of the session.

    Attributes:
        watchers: Called with each step that is carried out.
    """

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._teams: dict[tuple[DeviceMesh, int], DRef] = {}
        self.watchers: list[Callable[[RedistributionStep], None]] = []

    def bind(self, move: str, *constants: object) -> DRef:
        """Makes a function of a move on the workers, for the whole session.

        Args:
            move: Its name there.
            *constants: Its arguments besides the parts that it moves.
        """
        # Once, also where a program that is captured needs it first.
        return self._core.call_now("runtime.disco._dt_bind_move", move, *constants)

    def table(self, mesh: DeviceMesh, entries: Sequence[Any]) -> list[Any]:
        """What differs from worker to worker: an entry for each, None outside the mesh.

        Args:
            mesh: The mesh.
            entries: In the order of the mesh's list.
        """
        return per_worker(mesh, self._core.num_workers, entries)

    def team(self, mesh: DeviceMesh, axis: int) -> DRef:
        """The communicators along an axis of a mesh, made once."""
        known = self._teams
        team = known.get((mesh, axis))
        if team is None:
            lines = [list(line) for line in mesh.lines(axis)]
            team = self._core.call_now("runtime.disco._make_teams", lines)
            known[mesh, axis] = team
        return team

    def renew(self) -> None:
        """Forgets the communicators, because other workers take the place of theirs."""
        self._teams = {}

    def prepare(self, plan: RedistributionPlan) -> tuple[Move, ...]:
        """Sends the workers what a plan needs; for any number of calls of :meth:`run`."""
        return tuple(Move(step, _BINDERS[step.move](self, step)) for step in plan.steps)

    def run(self, moves: Sequence[Move], ref: DRef) -> DRef:
        """Carries out a plan; returns at once.

        Args:
            moves: The plan, prepared.
            ref: The parts of the tensor as they are placed.

        Returns:
            The parts as they are placed afterwards; ``ref`` itself where nothing is to be done.
        """
        for step, func in moves:
            ref = self._core.call(func, ref)
            for watcher in self.watchers:
                watcher(step)
        return ref

    def _extents(self, info: DTensorStructInfo, mesh_axis: int, axis: int) -> list[Any]:
        return self.table(info.device_mesh, line_extents(info, mesh_axis, axis))


def _slice(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    mesh = step.before.device_mesh
    spec = step.after.placement.dim_specs[step.mesh_axis]
    if step.after.is_explicit:
        # Along the other axes nothing changes, and parts of those need not be one block.
        pieces = [_within(step, place, spec.axis) for place in range(mesh.size)]
        return executor.bind("select", spec.axis, executor.table(mesh, pieces))
    return executor.bind("slice", executor.table(mesh, flat_bounds(step.before, step.after)))


def _keep(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    mesh = step.before.device_mesh
    keeps = [not coordinate_of(mesh.shape, p)[step.mesh_axis] for p in range(mesh.size)]
    op = step.after.placement.dim_specs[step.mesh_axis].op
    return executor.bind("keep", op, executor.table(mesh, keeps))


def _allgather(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    spec = step.before.placement.dim_specs[step.mesh_axis]
    extents = executor._extents(step.before, step.mesh_axis, spec.axis)  # noqa: SLF001
    order = [_order_of(cast("tuple[Intervals, ...]", spec.parts))] if spec.parts else []
    return executor.bind("allgather", _team(executor, step), spec.axis, extents, *order)


def _within(step: RedistributionStep, place: int, axis: int) -> Shape:
    """The range that a worker keeps, within its part of an axis."""
    ((start, _),) = step.before.pieces(place)[axis]
    return Shape(at - start for piece in step.after.pieces(place)[axis] for at in piece)


def _order_of(parts: tuple[Intervals, ...]) -> Shape:
    """Which pieces of given parts, one behind the other, make up the axis: first, last for each."""
    starts: list[tuple[int, int, int]] = []
    at = 0
    for start, stop in (piece for pieces in parts for piece in pieces):
        starts.append((start, stop, at))
        at += stop - start
    found: list[int] = []
    done = 0
    for start, stop, where in sorted(starts):
        if stop > done:
            found += (where + done - start, where + stop - start)
            done = stop
    return Shape(found)


def _allreduce(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    op = step.before.placement.dim_specs[step.mesh_axis].op
    return executor.bind("allreduce", _team(executor, step), op)


def _reduce_scatter(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    op = step.before.placement.dim_specs[step.mesh_axis].op
    axis = step.after.placement.dim_specs[step.mesh_axis].axis
    extents = executor._extents(step.after, step.mesh_axis, axis)  # noqa: SLF001
    return executor.bind("reduce_scatter", _team(executor, step), op, axis, extents)


def _all_to_all(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    source = step.before.placement.dim_specs[step.mesh_axis]
    target = step.after.placement.dim_specs[step.mesh_axis]
    have = executor._extents(step.before, step.mesh_axis, source.axis)  # noqa: SLF001
    want = executor._extents(step.after, step.mesh_axis, target.axis)  # noqa: SLF001
    team = _team(executor, step)
    return executor.bind("all_to_all", team, source.axis, target.axis, have, want)


def _broadcast(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    return executor.bind("broadcast", _team(executor, step))


def _team(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    return executor.team(step.before.device_mesh, step.mesh_axis)


_BINDERS: dict[str, Callable[[RedistributionExecutor, RedistributionStep], DRef]] = {
    "broadcast": _broadcast,
    "slice": _slice,
    "keep": _keep,
    "allgather": _allgather,
    "allreduce": _allreduce,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
}
