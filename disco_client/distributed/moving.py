"""Carries out on the workers what a plan says, and keeps the teams of a mesh's axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from disco_client.distributed.layout import flat_bounds, line_extents, per_worker
from disco_client.wire.layout import coordinate_of

if TYPE_CHECKING:
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.plan import Plan, Step
    from disco_client.distributed.struct_info import DTensorStructInfo
    from disco_client.handles import DRef

__all__ = ["Caller", "Move", "Mover"]


class Caller(Protocol):
    """What of a session is needed here."""

    @property
    def num_workers(self) -> int:
        """How many workers it has."""
        ...

    def call_packed(self, func: DRef, *args: object) -> DRef:
        """Calls a function on the workers."""
        ...

    def _call_now(self, name: str, *args: object) -> DRef: ...


class Move(NamedTuple):
    """A step of a plan, and the function that does it on the workers."""

    step: Step
    func: DRef


class Mover:
    """The moves of one session.

    What stays the same from one move to the next, such as where parts begin, is told
    to the workers once: they keep a function for each step, which is then called with
    the parts alone.

    Args:
        session: The session.

    Attributes:
        watchers: Called with each step that is carried out.
    """

    def __init__(self, session: Caller) -> None:
        self._session = session
        self._teams: dict[tuple[DeviceMesh, int], DRef] = {}
        self.watchers: list[Callable[[Step], None]] = []

    def bind(self, move: str, *constants: object) -> DRef:
        """Makes a function of a move on the workers, for the whole session.

        Args:
            move: Its name there.
            *constants: What it takes besides what is moved.
        """
        # Once, also where a program that is captured needs it first.
        return self._session._call_now("runtime.disco._dt_bind_move", move, *constants)  # noqa: SLF001

    def table(self, mesh: DeviceMesh, entries: Sequence[Any]) -> list[Any]:
        """What differs from worker to worker: an entry for each, None outside the mesh.

        Args:
            mesh: The mesh.
            entries: In the order of the mesh's list.
        """
        return per_worker(mesh, self._session.num_workers, entries)

    def team(self, mesh: DeviceMesh, axis: int) -> DRef:
        """The communicators along an axis of a mesh, made once."""
        team = self._teams.get((mesh, axis))
        if team is None:
            lines = [list(line) for line in mesh.lines(axis)]
            team = self._session._call_now("runtime.disco._make_teams", lines)  # noqa: SLF001
            self._teams[mesh, axis] = team
        return team

    def prepare(self, plan: Plan) -> tuple[Move, ...]:
        """Tells the workers what a plan will need; for :meth:`run`, any number of times."""
        return tuple(Move(step, _BINDERS[step.move](self, step)) for step in plan.steps)

    def run(self, moves: Sequence[Move], ref: DRef) -> DRef:
        """Carries out a plan; returns at once.

        Args:
            moves: The plan, prepared.
            ref: The parts of the tensor as they lie.

        Returns:
            The parts as they lie afterwards; ``ref`` itself where nothing is to be done.
        """
        for step, func in moves:
            ref = self._session.call_packed(func, ref)
            for watcher in self.watchers:
                watcher(step)
        return ref

    def _extents(self, info: DTensorStructInfo, mesh_axis: int, axis: int) -> list[Any]:
        return self.table(info.device_mesh, line_extents(info, mesh_axis, axis))


def _slice(mover: Mover, step: Step) -> DRef:
    mesh = step.before.device_mesh
    return mover.bind("slice", mover.table(mesh, flat_bounds(step.before, step.after)))


def _keep(mover: Mover, step: Step) -> DRef:
    mesh = step.before.device_mesh
    keeps = [not coordinate_of(mesh.shape, p)[step.mesh_axis] for p in range(mesh.size)]
    op = step.after.placement.dim_specs[step.mesh_axis].op
    return mover.bind("keep", op, mover.table(mesh, keeps))


def _allgather(mover: Mover, step: Step) -> DRef:
    axis = step.before.placement.dim_specs[step.mesh_axis].axis
    extents = mover._extents(step.before, step.mesh_axis, axis)  # noqa: SLF001
    return mover.bind("allgather", _team(mover, step), axis, extents)


def _allreduce(mover: Mover, step: Step) -> DRef:
    op = step.before.placement.dim_specs[step.mesh_axis].op
    return mover.bind("allreduce", _team(mover, step), op)


def _reduce_scatter(mover: Mover, step: Step) -> DRef:
    op = step.before.placement.dim_specs[step.mesh_axis].op
    axis = step.after.placement.dim_specs[step.mesh_axis].axis
    extents = mover._extents(step.after, step.mesh_axis, axis)  # noqa: SLF001
    return mover.bind("reduce_scatter", _team(mover, step), op, axis, extents)


def _all_to_all(mover: Mover, step: Step) -> DRef:
    source = step.before.placement.dim_specs[step.mesh_axis]
    target = step.after.placement.dim_specs[step.mesh_axis]
    have = mover._extents(step.before, step.mesh_axis, source.axis)  # noqa: SLF001
    want = mover._extents(step.after, step.mesh_axis, target.axis)  # noqa: SLF001
    team = _team(mover, step)
    return mover.bind("all_to_all", team, source.axis, target.axis, have, want)


def _broadcast(mover: Mover, step: Step) -> DRef:
    return mover.bind("broadcast", _team(mover, step))


def _team(mover: Mover, step: Step) -> DRef:
    return mover.team(step.before.device_mesh, step.mesh_axis)


_BINDERS: dict[str, Callable[[Mover, Step], DRef]] = {
    "broadcast": _broadcast,
    "slice": _slice,
    "keep": _keep,
    "allgather": _allgather,
    "allreduce": _allreduce,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
}
