"""From one placement to another, on the same mesh or another: which moves, at what cost.

Between two meshes there is one move, a transfer, by the route that `routes` finds. On one mesh
each pair of specs has one way between them along one axis of the mesh::

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
the pieces of the others do not lie side by side. Where nothing is to be combined and a
transfer brings fewer bytes than this way does, it is the plan.

The collectives of a library do what it does best: allgather, allreduce and reduce-scatter of equal
parts. Slices, all-to-alls and moves from given parts are carried out as transfers are.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from disco_client.distributed.mesh import DeviceMesh, check_mesh
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    PlacementSpecKind,
    crosses,
    mixes,
)
from disco_client.distributed.routes import Route, find_route
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
            "reduce-scatter", "keep" or "transfer"; "broadcast" only where a host array
            comes in.
        mesh_axis: Along which axis of the mesh; of a transfer -1.
        before: The tensor before it.
        after: The tensor after it.
        nbytes: How many bytes reach each of `workers`.
        route: Who sends what to whom in a transfer; None for another move.
    """

    move: str
    mesh_axis: int
    before: DTensorStructInfo
    after: DTensorStructInfo
    nbytes: tuple[int, ...]
    route: Route | None = None

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that `nbytes` speaks of: those of the mesh, in a transfer of both."""
        if self.route is not None:
            return self.route.members
        return tuple(self.before.device_mesh.device_ids)

    @property
    def cost(self) -> int:
        """The bytes that reach the worker that gets the most."""
        return max(self.nbytes)

    def __str__(self) -> str:
        if self.route is not None:
            return f"transfer: {_way(self.before, self.after)}, {self.cost:,} bytes to a worker"
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
    """The moves that bring a tensor from one placement to another, of its mesh or another one.

    Attributes:
        before: The tensor as it is placed.
        after: The tensor as it is to be placed.
        steps: The moves, in order; none if it is placed so already.

    Examples:
        >>> x = session.distribute(np.ones((4, 4)), placement="S[0]")
        >>> print(x.plan("R"))
        S[0] -> R: 96 bytes to a worker
          1. allgather along mesh axis 0: S[0] -> R, 96 bytes to a worker
          384 bytes in all, 1.00 times the least, 384
    """

    before: DTensorStructInfo
    after: DTensorStructInfo
    steps: tuple[RedistributionStep, ...]

    @property
    def cost(self) -> int:
        """The bytes that reach the worker that gets the most, move by move."""
        return sum(step.cost for step in self.steps)

    @property
    def nbytes(self) -> int:
        """How many bytes all workers together are sent."""
        return sum(sum(step.nbytes) for step in self.steps)

    @property
    def bound(self) -> int:
        """How many bytes have to be sent at least, by all workers together.

        What a worker lacks comes to it once. Partial values of ``k`` workers that ``m`` need take
        ``k + m - 1`` times their size, once less where one of these has some and needs them.
        """
        return sum(_transfer_step(self.before, self.after, ()).nbytes)

    @property
    def ratio(self) -> float:
        """How many times the lower bound is sent; 1 where nothing has to be."""
        return self.nbytes / self.bound if self.bound else 1.0

    @property
    def traffic(self) -> dict[tuple[int, int], int]:
        """The bytes that each worker sends to each other one by transfers, by both of them."""
        found: dict[tuple[int, int], int] = {}
        for step in self.steps:
            for pair, nbytes in step.route.traffic().items() if step.route else ():
                found[pair] = found.get(pair, 0) + nbytes
        return found

    def __str__(self) -> str:
        lines = [f"{_way(self.before, self.after)}: {self.cost:,} bytes to a worker"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"  {number}. {step}")
            sent = list(step.route.traffic().items()) if step.route else []
            lines += [
                f"     worker {sender} to worker {receiver}: {nbytes:,} bytes"
                for (sender, receiver), nbytes in sent[:_MOST_LINES]
            ]
            if len(sent) > _MOST_LINES:
                rest = sum(nbytes for _, nbytes in sent[_MOST_LINES:])
                lines.append(f"     and {len(sent) - _MOST_LINES} more: {rest:,} bytes")
        if not self.steps:
            return f"{lines[0]}\n  nothing to do"
        lines.append(
            f"  {self.nbytes:,} bytes in all, {self.ratio:.2f} times the least, {self.bound:,}"
        )
        return "\n".join(lines)


_MOST_LINES = 64
"""How many pairs of workers a printed plan lists for one transfer."""


def _way(before: DTensorStructInfo, after: DTensorStructInfo) -> str:
    """From where to where; with the meshes if they are two."""
    if before.device_mesh == after.device_mesh:
        return f"{before.placement} -> {after.placement}"
    return (
        f"{before.placement} on {before.device_mesh!r} ->"
        f" {after.placement} on {after.device_mesh!r}"
    )


def make_plan(
    info: DTensorStructInfo,
    placement: Placement | str,
    mesh: DeviceMesh | None = None,
    nodes: tuple[str, ...] = (),
) -> RedistributionPlan:
    """Finds the cheapest way from a tensor's placement to another one.

    Args:
        info: The tensor as it is placed.
        placement: The wanted placement.
        mesh: On which mesh; by default on that of the tensor.
        nodes: On which node each worker of the session is; empty where it does not matter.

    Raises:
        ConfigError: The placement does not fit the tensor or the mesh.
    """
    where = info.device_mesh if mesh is None else mesh
    return _cheapest(info, DTensorStructInfo(info.tensor_sinfo, where, placement), nodes)


# Programs repeat the same redistributions, and finding a plan takes longer than running it.
@functools.lru_cache(maxsize=4096)
def _cheapest(
    info: DTensorStructInfo, target: DTensorStructInfo, nodes: tuple[str, ...]
) -> RedistributionPlan:
    if info.device_mesh != target.device_mesh:
        return RedistributionPlan(info, target, (_transfer_step(info, target, nodes),))
    steps = _cheapest_steps(info, target)
    combines = any(spec.is_partial for spec in info.placement.dim_specs)
    sent = sum(sum(step.nbytes) for step in steps)
    # A single move cannot be bettered.
    if len(steps) > 1 and sent and not combines:
        once = _transfer_step(info, target, nodes)
        if sum(once.nbytes) < sent:
            steps = (once,)
    return RedistributionPlan(info, target, steps)


@functools.lru_cache(maxsize=1024)
def _transfer_step(
    before: DTensorStructInfo, after: DTensorStructInfo, nodes: tuple[str, ...]
) -> RedistributionStep:
    route = find_route(before, after, nodes)
    return RedistributionStep("transfer", -1, before, after, route.received(), route)


def _cheapest_steps(
    info: DTensorStructInfo, target: DTensorStructInfo
) -> tuple[RedistributionStep, ...]:
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
    return tuple(reversed(found))


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
                fits = not target.parts or len(target.parts) == info.device_mesh.shape[axis]
                if mixes(specs) or crosses(specs) or not fits:
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
            count = math.prod(after.local_shape(place)) - own
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

    Raises:
        ConfigError: The mesh names workers that the session has not, or has no more.
    """
    check_mesh(mesh, num_workers)
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
        self._teams: dict[tuple[tuple[int, ...], ...], DRef] = {}
        self._share: DRef | None = None
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
        return self._team(tuple(mesh.lines(axis)))

    def _team(self, lines: tuple[tuple[int, ...], ...]) -> DRef:
        known = self._teams
        team = known.get(lines)
        if team is None:
            team = self._core.call_now("runtime.disco._make_teams", list(map(list, lines)))
            known[lines] = team
        return team

    @property
    def nodes(self) -> tuple[str, ...]:
        """On which node each worker of the session is."""
        return tuple(rank.node for rank in self._core.welcome.ranks)

    def bind_transfer(
        self, before: DTensorStructInfo, after: DTensorStructInfo, axis: int | None = None
    ) -> DRef:
        """Makes a function of a route on the workers, for the whole session.

        Args:
            before: The tensor as it is placed.
            after: The tensor as it is to be placed.
            axis: Along which axis of the one mesh; None for any way.
        """
        # Plans that are made only to compare their costs know nothing of nodes.
        route = find_route(before, after, self.nodes, axis)
        tables = route.tables()
        entries: list[Any] = [None] * self._core.num_workers
        for worker, entry in zip(route.members, tables.entries, strict=True):
            entries[worker] = entry
        return self._core.call_now(
            "runtime.disco._dt_bind_transfer",
            self._team(route.lines) if tables.sends else None,
            before.tensor_sinfo.dtype_name,
            [_op_of(before), _op_of(after)],
            [list(each) for each in tables.counts],
            entries,
        )

    def renew(self) -> None:
        """Forgets the communicators, because other workers take the place of theirs."""
        self._teams = {}
        self._share = None

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

    def share(self, ref: DRef) -> DRef:
        """Puts the same parts into a register of their own, without a copy; returns at once.

        Each worker sees then that two registers have its part, and overwrites it for neither.

        Args:
            ref: The parts of a tensor.
        """
        share = self._share
        if share is None:
            share = self._share = self.bind("share")
        return self._core.call(share, ref)

    def _extents(self, info: DTensorStructInfo, mesh_axis: int, axis: int) -> list[Any]:
        return self.table(info.device_mesh, line_extents(info, mesh_axis, axis))


def _op_of(info: DTensorStructInfo) -> str:
    """How partial values of a tensor are combined; empty if there are none."""
    return next((spec.op for spec in info.placement.dim_specs if spec.is_partial), "")


def _keep(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    mesh = step.before.device_mesh
    keeps = [not coordinate_of(mesh.shape, p)[step.mesh_axis] for p in range(mesh.size)]
    op = step.after.placement.dim_specs[step.mesh_axis].op
    return executor.bind("keep", op, executor.table(mesh, keeps))


def _allgather(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    spec = step.before.placement.dim_specs[step.mesh_axis]
    if spec.parts:  # which need not lie side by side
        return _transfer(executor, step)
    extents = executor._extents(step.before, step.mesh_axis, spec.axis)  # noqa: SLF001
    return executor.bind("allgather", _team(executor, step), spec.axis, extents)


def _allreduce(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    op = step.before.placement.dim_specs[step.mesh_axis].op
    return executor.bind("allreduce", _team(executor, step), op)


def _reduce_scatter(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    op = step.before.placement.dim_specs[step.mesh_axis].op
    axis = step.after.placement.dim_specs[step.mesh_axis].axis
    extents = executor._extents(step.after, step.mesh_axis, axis)  # noqa: SLF001
    return executor.bind("reduce_scatter", _team(executor, step), op, axis, extents)


def _transfer(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    axis = step.mesh_axis if step.mesh_axis >= 0 else None
    return executor.bind_transfer(step.before, step.after, axis)


def _broadcast(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    return executor.bind("broadcast", _team(executor, step))


def _team(executor: RedistributionExecutor, step: RedistributionStep) -> DRef:
    return executor.team(step.before.device_mesh, step.mesh_axis)


_BINDERS: dict[str, Callable[[RedistributionExecutor, RedistributionStep], DRef]] = {
    "broadcast": _broadcast,
    "slice": _transfer,
    "keep": _keep,
    "allgather": _allgather,
    "allreduce": _allreduce,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _transfer,
    "transfer": _transfer,
}
