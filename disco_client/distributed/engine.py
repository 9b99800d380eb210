"""Computes with the distributed tensors of one session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from disco_client.distributed import rules_elementwise, rules_linear, rules_reduce, rules_shape
from disco_client.distributed.composites import COMPOSITES, FUNCTIONS
from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.layout import local_shapes
from disco_client.distributed.moving import Caller, Mover
from disco_client.distributed.pattern import choose
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.plan import Plan
from disco_client.distributed.rules import Local, rule_for
from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.elementwise import ELEMENTWISE
from disco_client.wire.layout import coordinate_of
from disco_client.wire.values import dtype_name

if TYPE_CHECKING:
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.handles import DRef

__all__ = ["Engine", "check_mesh"]

_RULES = (rules_elementwise, rules_linear, rules_reduce, rules_shape)  # imported: registered
_NUMBERS = (bool, int, float)


class Engine:
    """What a session does with distributed tensors.

    Args:
        session: The session.

    Attributes:
        mover: Carries out plans.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.mover = Mover(session)

    # In and out -----------------------------------------------------------------------

    def distribute(self, array: object, mesh: DeviceMesh, placement: Placement | str) -> DTensor:
        """Brings a host array to the workers of a mesh; see ``Session.distribute``."""
        host = np.asarray(array)
        tensor = TensorStructInfo(host.shape, host.dtype)
        info = DTensorStructInfo(tensor, mesh, placement)
        check_mesh(mesh, self._session.num_workers)
        if any(spec.is_partial for spec in info.placement.dim_specs):
            whole = info.placement.combined()
            return self.distribute(host, mesh, whole).redistribute(info.placement)
        shapes = self.mover.table(mesh, local_shapes(info))
        ref = self.mover.call("empty", shapes, dtype_name(host.dtype))
        copies = [axis for axis, spec in enumerate(info.placement.dim_specs) if spec.is_replica]
        for place, worker in enumerate(mesh.device_ids):
            coordinate = coordinate_of(mesh.shape, place)
            if not any(coordinate[axis] for axis in copies):
                part = tuple(slice(*bounds) for bounds in info.bounds(place))
                self._session._fill(ref, worker, np.ascontiguousarray(host[part]))  # noqa: SLF001
        for axis in copies:
            if mesh.shape[axis] > 1:
                ref = self.mover.call("broadcast", ref, self.mover.team(mesh, axis))
        return DTensor(self, info, ref)

    def fetch(self, tensor: DTensor) -> np.ndarray[Any, Any]:
        """Returns the whole as a host array; see ``DTensor.numpy``."""
        tensor = tensor.redistribute(tensor.placement.combined())
        info, mesh = tensor.info, tensor.mesh
        copies = [axis for axis, spec in enumerate(info.placement.dim_specs) if spec.is_replica]
        places = [
            place
            for place in range(mesh.size)
            if not any(coordinate_of(mesh.shape, place)[axis] for axis in copies)
        ]
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

    def redistribute(self, tensor: DTensor, plan: Plan) -> DTensor:
        """Carries out a plan."""
        ref = self.mover.run(plan, tensor.ref)
        return DTensor(self, plan.after, ref, ("redistribute", (plan,)))

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
        mesh = self._mesh_of(name, operands)
        ready = [self._ready(operand, mesh) for operand in operands]
        tensors = [each for each in ready if isinstance(each, DTensor)]
        seen = [each.info.tensor_sinfo if isinstance(each, DTensor) else each for each in ready]
        return self._compute(rule_for(name)(*seen, **options), tensors, ready)

    def _compute(self, local: Local, tensors: Sequence[DTensor], ready: Sequence[Any]) -> DTensor:
        choice = choose(local.pattern, tuple(tensor.info for tensor in tensors))
        result = DTensorStructInfo(local.result, tensors[0].mesh, choice.output)
        moved = [
            self.redistribute(tensor, plan)
            for tensor, plan in zip(tensors, choice.plans, strict=True)
        ]
        tables: Mapping[str, Sequence[Any]] = {}
        if local.tables is not None:
            tables = local.tables([tensor.info for tensor in moved], result)
        refs = iter(moved)
        args = [next(refs).ref if isinstance(each, DTensor) else each for each in ready]
        by_worker = {key: self.mover.table(result.device_mesh, v) for key, v in tables.items()}
        ref = self.mover.call("apply", local.name, dict(local.options), by_worker, *args)
        return DTensor(self, result, ref, (local.name, choice.plans))

    def _mesh_of(self, name: str, operands: Sequence[Any]) -> DeviceMesh:
        meshes = {each.mesh for each in operands if isinstance(each, DTensor)}
        if len(meshes) != 1:
            text = " and ".join(map(repr, meshes)) or "none"
            raise ConfigError(
                f"{name} needs distributed tensors on one mesh, got {text};"
                " fetch and distribute to bring one to another mesh"
            )
        return meshes.pop()

    def _ready(self, operand: Any, mesh: DeviceMesh) -> Any:
        if isinstance(operand, (DTensor, *_NUMBERS)) and not isinstance(operand, np.generic):
            return operand
        if isinstance(operand, (np.ndarray, np.generic, list, tuple)):
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


class Session(Caller, Protocol):
    """What of a session is needed here."""

    def _fill(self, ref: DRef, worker: int, array: np.ndarray[Any, Any]) -> None: ...

    def _get_all(self, ref: DRef, workers: Sequence[int]) -> list[Any]: ...
