"""Computes with the distributed tensors of one session."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from disco_client.distributed import rules_elementwise, rules_linear, rules_reduce, rules_shape
from disco_client.distributed.checkpoints import CheckpointSession
from disco_client.distributed.composites import COMPOSITES, FUNCTIONS
from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.files import FileTensor, distribute_file
from disco_client.distributed.layout import all_bounds, first_places, local_shapes
from disco_client.distributed.moving import Move, Mover
from disco_client.distributed.pattern import choose
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.plan import Plan, make_plan
from disco_client.distributed.rules import Rule, rule_for
from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.elementwise import ELEMENTWISE
from disco_client.wire.values import INLINE_ARRAY_BYTES, Shape, dtype_name

if TYPE_CHECKING:
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.handles import DRef

__all__ = ["Engine", "check_mesh"]

_RULES = (rules_elementwise, rules_linear, rules_reduce, rules_shape)  # imported: registered
_NUMBERS = (bool, int, float)
_KEPT = 4096
"""Of how many kinds of calls it is remembered what they come to."""


class _Number(NamedTuple):
    """A number among operands, told apart by its type, too: 1 computes other than 1.0."""

    kind: type
    value: Any


class _Call(NamedTuple):
    """What a call of a function comes to, for all operands that lie like the first ones.

    Attributes:
        func: What the workers call on their parts.
        moves: What brings each tensor among the operands to where it must lie.
        origin: The function's name and the plans, for ``DTensor.explain``.
        result: What comes out.
    """

    func: DRef
    moves: tuple[tuple[Move, ...], ...]
    origin: tuple[str, tuple[Plan, ...]]
    result: DTensorStructInfo


class Engine:
    """What a session does with distributed tensors.

    A call looks up what calls like it have come to: found out once, it is one command
    that names a function on the workers and the parts.

    Args:
        session: The session.

    Attributes:
        mover: Carries out plans.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.mover = Mover(session)
        self._found = functools.lru_cache(maxsize=_KEPT)(self._find)
        self._ways = functools.lru_cache(maxsize=_KEPT)(self._find_way)
        self._takers = functools.lru_cache(maxsize=_KEPT)(self._make_taker)

    # In and out -----------------------------------------------------------------------

    def distribute(self, array: object, mesh: DeviceMesh, placement: Placement | str) -> DTensor:
        """Brings a host array to the workers of a mesh; see ``Session.distribute``."""
        if isinstance(array, FileTensor):
            check_mesh(mesh, self._session.num_workers)
            return distribute_file(self._session, self, array, mesh, placement)
        host = np.asarray(array)
        tensor = TensorStructInfo(host.shape, host.dtype)
        info = DTensorStructInfo(tensor, mesh, placement)
        check_mesh(mesh, self._session.num_workers)
        if any(spec.is_partial for spec in info.placement.dim_specs):
            whole = info.placement.combined()
            return self.distribute(host, mesh, whole).redistribute(info.placement)
        if host.nbytes <= INLINE_ARRAY_BYTES:
            # It travels within the command, and each worker takes its part.
            return DTensor(self, info, self._session.call_packed(self._takers(info), host))
        ref = self._session.call_packed(self._takers(info))
        copies = [axis for axis, spec in enumerate(info.placement.dim_specs) if spec.is_replica]
        for place in first_places(info):
            part = tuple(slice(*bounds) for bounds in info.bounds(place))
            held = np.ascontiguousarray(host[part])
            self._session._fill(ref, mesh.device_ids[place], held)  # noqa: SLF001
        for axis in copies:
            if mesh.shape[axis] > 1:
                team = self.mover.team(mesh, axis)
                ref = self._session.call_packed(self.mover.bind("broadcast", team), ref)
        return DTensor(self, info, ref)

    def _make_taker(self, info: DTensorStructInfo) -> DRef:
        """What makes parts of a host array: of one that travels along, or room for them."""
        mesh, dtype = info.device_mesh, info.tensor_sinfo.dtype
        if math.prod(info.tensor_sinfo.shape) * dtype.itemsize <= INLINE_ARRAY_BYTES:
            return self.mover.bind("from_host", self.mover.table(mesh, all_bounds(info)))
        shapes = self.mover.table(mesh, local_shapes(info))
        return self.mover.bind("empty", shapes, dtype_name(dtype))

    def fetch(self, tensor: DTensor) -> np.ndarray[Any, Any]:
        """Returns the whole as a host array; see ``DTensor.numpy``."""
        tensor = tensor.redistribute(tensor.placement.combined())
        info, mesh = tensor.info, tensor.mesh
        places = first_places(info)
        parts = self._session._get_all(  # noqa: SLF001
            tensor.ref, [mesh.device_ids[place] for place in places]
        )
        if len(places) == 1:
            return np.asarray(parts[0]).reshape(tensor.shape)
        out = np.empty(tensor.shape, tensor.dtype)
        for place, part in zip(places, parts, strict=True):
            bounds = info.bounds(place)
            out[tuple(slice(*each) for each in bounds)] = part
        return out

    def redistribute(self, tensor: DTensor, placement: Placement | str) -> DTensor:
        """Brings a tensor to another placement; see ``DTensor.redistribute``."""
        if not isinstance(placement, (str, Placement)):
            make_plan(tensor.info, placement)  # says what was expected
        plan, moves = self._ways(tensor.info, placement)
        ref = self.mover.run(moves, tensor.ref)
        return DTensor(self, plan.after, ref, ("redistribute", (plan,)))

    def _find_way(
        self, info: DTensorStructInfo, placement: Placement | str
    ) -> tuple[Plan, tuple[Move, ...]]:
        plan = make_plan(info, placement)
        return plan, self.mover.prepare(plan)

    # Functions ------------------------------------------------------------------------

    def takes(self, operand: object) -> bool:
        """Whether something can be computed with."""
        return isinstance(operand, (DTensor, np.ndarray, np.generic, *_NUMBERS))

    def call(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function of distributed tensors, arrays and numbers; returns at once.

        Args:
            name: The function's.
            *operands: Host arrays are brought to every worker of the mesh first.
            **options: The function's.

        Raises:
            ConfigError: There is no rule for it, or the operands do not fit it.
        """
        composite = COMPOSITES.get(name)
        if composite is not None:
            return composite(self, *operands, **options)
        mesh = next((each.mesh for each in operands if isinstance(each, DTensor)), None)
        ready = [self._ready(operand, mesh) for operand in operands]
        seen = tuple(
            each.info if isinstance(each, DTensor) else _Number(type(each), each) for each in ready
        )
        known = tuple((key, frozen(value)) for key, value in options.items())
        found = self._look_up(name, rule_for(name), seen, known)
        moves, run = iter(found.moves), self.mover.run
        refs = [run(next(moves), each.ref) if isinstance(each, DTensor) else each for each in ready]
        ref = self._session.call_packed(found.func, *refs)
        return DTensor(self, found.result, ref, found.origin)

    def _look_up(self, *call: Any) -> _Call:
        try:
            hash(call)
        except TypeError:  # an option that only a rule of somebody else's can know
            return self._find(*call)
        return self._found(*call)

    def _find(
        self,
        name: str,
        rule: Rule,
        seen: Sequence[DTensorStructInfo | _Number],
        options: Sequence[tuple[str, Any]],
    ) -> _Call:
        """Finds out what a call comes to, and tells the workers what they will need."""
        infos = tuple(each for each in seen if isinstance(each, DTensorStructInfo))
        mesh = _one_mesh(name, infos)
        operands = [each.value if isinstance(each, _Number) else each.tensor_sinfo for each in seen]
        local = rule(*operands, **dict(options))
        choice = choose(local.pattern, infos)
        result = DTensorStructInfo(local.result, mesh, choice.output)
        tables: Mapping[str, Sequence[Any]] = {}
        if local.tables is not None:
            tables = local.tables([plan.after for plan in choice.plans], result)
        by_worker = {key: self.mover.table(mesh, value) for key, value in tables.items()}
        func = self._session._call_now(  # noqa: SLF001
            "runtime.disco._dt_bind", local.name, dict(local.options), by_worker
        )
        moves = tuple(self.mover.prepare(plan) for plan in choice.plans)
        return _Call(func, moves, (local.name, choice.plans), result)

    def _ready(self, operand: Any, mesh: DeviceMesh | None) -> Any:
        if isinstance(operand, (DTensor, *_NUMBERS)) and not isinstance(operand, np.generic):
            return operand
        if isinstance(operand, (np.ndarray, np.generic, list, tuple)) and mesh is not None:
            whole = Placement([PlacementSpec.replica()] * mesh.ndim)
            return self.distribute(cast("Any", operand), mesh, whole)
        msg = f"expected a distributed tensor, an array or a number, got {operand!r}"
        raise TypeError(msg)

    # numpy's protocols ------------------------------------------------------------------

    def call_ufunc(
        self, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Computes one of numpy's ufuncs."""
        if not all(self.takes(each) for each in inputs):
            return NotImplemented
        name = ufunc.__name__
        if method == "reduce" and name in _REDUCES:
            known = {key: v for key, v in options.items() if v is not None or key == "axis"}
            return self.call(_REDUCES[name], *inputs, **{"axis": 0, **known})
        if method != "__call__" or options:
            what = f"numpy.{name}.{method}" if method != "__call__" else f"numpy.{name}"
            more = f" with {', '.join(options)}" if options else ""
            raise ConfigError(
                f"{what}{more} has no rule for distributed tensors; redistribute('R') or"
                " .numpy() gives what numpy can compute with"
            )
        if name not in ELEMENTWISE and name != "matmul":
            rule_for(f"numpy.{name}")
        return self.call(name, *inputs)

    def call_function(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Computes another of numpy's functions."""
        adapter = FUNCTIONS.get(func)
        if adapter is None:
            rule_for(f"{func.__module__}.{func.__name__}")
        first = next(_tensors(args))
        return adapter(first._engine, *args, **kwargs)  # type: ignore[misc]  # noqa: SLF001


def check_mesh(mesh: DeviceMesh, num_workers: int) -> DeviceMesh:
    """Returns a mesh whose workers a session has.

    Raises:
        ConfigError: It names others.
    """
    beyond = [worker for worker in mesh.device_ids if worker >= num_workers]
    if beyond:
        raise ConfigError(
            f"the mesh names worker {beyond[0]}, and the session has {num_workers} workers"
        )
    return mesh


def frozen(value: Any) -> Any:
    """An option as something that can be looked up: lists become tuples."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Shape):
        return tuple(map(frozen, cast("Sequence[Any]", value)))
    return value


def _one_mesh(name: str, infos: Sequence[DTensorStructInfo]) -> DeviceMesh:
    meshes = {info.device_mesh for info in infos}
    if len(meshes) != 1:
        text = " and ".join(map(repr, meshes)) or "none"
        raise ConfigError(
            f"{name} needs distributed tensors on one mesh, got {text};"
            " fetch and distribute to bring one to another mesh"
        )
    return meshes.pop()


_REDUCES = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}


def _tensors(values: Any) -> Any:
    for value in values:
        if isinstance(value, DTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class Session(CheckpointSession, Protocol):
    """What of a session is needed here."""

    def _fill(self, ref: DRef, worker: int, array: np.ndarray[Any, Any]) -> None: ...
