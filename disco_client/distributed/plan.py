"""From one placement to another: which moves, along which axes of the mesh, at what cost.

Along one axis of the mesh each pair of specs has one way between them::

    from      to        move
    R         S[j]      slice            each keeps its part; nothing travels
    S[i]      R         allgather        each gets the parts of the others
    S[i]      S[j]      all-to-all       each gets its part of the parts of the others
    P         R         allreduce        each gets the combined whole
    P         S[j]      reduce-scatter   each gets its combined part
    R         P         keep             the first keeps its values, the others neutral ones

A plan is a way through the placements that are possible in between, the one on which
the fewest bytes reach a worker, found as Dijkstra's shortest path. Where several axes
of the mesh split one axis of the tensor, only the last of them can be changed, since
the pieces of the others do not lie side by side.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from disco_client.distributed.placement import Kind, Placement, PlacementSpec, mixes
from disco_client.distributed.struct_info import DTensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.layout import Bounds, coordinate_of, cut, shape_within

__all__ = ["Plan", "Step", "make_plan", "spread_plan"]

_State = tuple[PlacementSpec, ...]


@dataclass(frozen=True, slots=True)
class Step:
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
class Plan:
    """The moves that bring a tensor from one placement to another.

    Attributes:
        before: The tensor as it lies.
        after: As it is to lie.
        steps: The moves, in order; none where it lies so already.
    """

    before: DTensorStructInfo
    after: DTensorStructInfo
    steps: tuple[Step, ...]

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


def make_plan(info: DTensorStructInfo, placement: Placement | str) -> Plan:
    """Finds the cheapest way from where a tensor lies to another placement of its mesh.

    Args:
        info: The tensor as it lies.
        placement: Where it is to lie.

    Raises:
        ConfigError: The placement does not fit the tensor or the mesh.
    """
    return _cheapest(info, DTensorStructInfo(info.tensor_sinfo, info.device_mesh, placement))


# A program redistributes alike over and over, and finding a way takes longer than going it.
@functools.lru_cache(maxsize=4096)
def _cheapest(info: DTensorStructInfo, target: DTensorStructInfo) -> Plan:
    first, last = info.placement.dim_specs, target.placement.dim_specs
    choices = sorted(_between(first, last, info.tensor_sinfo.ndim), key=str)
    best: dict[_State, int] = {first: 0}
    came: dict[_State, Step] = {}
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
    found: list[Step] = []
    at = last
    while at != first:
        if at not in came:
            raise ConfigError(f"there is no way from {info.placement} to {target.placement}")
        found.append(came[at])
        at = came[at].before.placement.dim_specs
    return Plan(info, target, tuple(reversed(found)))


def spread_plan(info: DTensorStructInfo) -> Plan:
    """What copies the parts of a host array from where they came in: broadcasts.

    Args:
        info: The tensor that it becomes; without partial values.
    """
    mesh, itemsize = info.device_mesh, info.tensor_sinfo.dtype.itemsize
    steps: list[Step] = []
    for axis, spec in enumerate(info.placement.dim_specs):
        if spec.is_replica and mesh.shape[axis] > 1:
            nbytes = tuple(
                _count(info.bounds(place)) * itemsize
                if coordinate_of(mesh.shape, place)[axis]
                else 0
                for place in range(mesh.size)
            )
            steps.append(Step("broadcast", axis, info, info, nbytes))
    return Plan(info, info, tuple(steps))


def _between(first: _State, last: _State, ndim: int) -> set[PlacementSpec]:
    """The specs that a tensor may have on its way."""
    found = {*first, *last, PlacementSpec.replica()}
    if any(spec.is_partial for spec in first):
        # Where several axes are to be combined, it is cheaper to split first.
        found |= {PlacementSpec.sharding(axis) for axis in range(ndim)}
    return found


def _steps_from(
    info: DTensorStructInfo, state: _State, choices: list[PlacementSpec]
) -> Iterator[Step]:
    before = DTensorStructInfo(info.tensor_sinfo, info.device_mesh, Placement(state))
    for axis, source in enumerate(state):
        if not _is_last_cut(state, axis, source):
            continue
        for target in choices:
            move = _move(source, target)
            if move and _is_last_cut(state, axis, target):
                specs = (*state[:axis], target, *state[axis + 1 :])
                if mixes(specs):
                    continue
                after = DTensorStructInfo(info.tensor_sinfo, info.device_mesh, Placement(specs))
                yield Step(move, axis, before, after, _bytes_of(move, axis, before, after))


def _is_last_cut(state: _State, axis: int, spec: PlacementSpec) -> bool:
    """Whether no later axis of the mesh splits what this spec splits."""
    return spec.kind is not Kind.SHARDING or spec not in state[axis + 1 :]


def _move(source: PlacementSpec, target: PlacementSpec) -> str:
    if source == target:
        return ""
    return _MOVES.get((source.kind, target.kind), "")


_MOVES = {
    (Kind.REPLICA, Kind.SHARDING): "slice",
    (Kind.SHARDING, Kind.REPLICA): "allgather",
    (Kind.SHARDING, Kind.SHARDING): "all-to-all",
    (Kind.PARTIAL, Kind.REPLICA): "allreduce",
    (Kind.PARTIAL, Kind.SHARDING): "reduce-scatter",
    (Kind.REPLICA, Kind.PARTIAL): "keep",
}


def _bytes_of(
    move: str, axis: int, before: DTensorStructInfo, after: DTensorStructInfo
) -> tuple[int, ...]:
    """How many bytes reach each worker: what it has not, and what it must combine."""
    mesh = before.device_mesh
    itemsize = before.tensor_sinfo.dtype.itemsize
    parts = mesh.shape[axis]
    found: list[int] = []
    for place in range(mesh.size):
        had, gets = before.bounds(place), after.bounds(place)
        if move in ("slice", "keep"):
            count = 0
        elif move == "allreduce":
            # Each combines one part of all, and gets the other parts from the others.
            whole = _count(gets)
            start, stop = cut(0, whole, parts, coordinate_of(mesh.shape, place)[axis])
            count = (parts - 1) * (stop - start) + whole - (stop - start)
        elif move == "reduce-scatter":
            count = (parts - 1) * _count(gets)
        else:
            count = _count(gets) - _count(_overlap(had, gets))
        found.append(count * itemsize)
    return tuple(found)


def _count(bounds: Bounds) -> int:
    count = 1
    for extent in shape_within(bounds):
        count *= extent
    return count


def _overlap(one: Bounds, other: Bounds) -> Bounds:
    return tuple(
        (max(a, c), max(a, c, min(b, d))) for (a, b), (c, d) in zip(one, other, strict=True)
    )
