"""Computes with the distributed tensors of one session."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from disco_client.core import Renewable
from disco_client.distributed.assignment import assign, updated
from disco_client.distributed.composites import COMPOSITES
from disco_client.distributed.dtensor import Computing, DTensor, Origin, several
from disco_client.distributed.file_tensors import FileTensor, distribute_file
from disco_client.distributed.indexing import getitem
from disco_client.distributed.mesh import DeviceMesh, check_mesh, checked_shape
from disco_client.distributed.namespace import ArrayNamespace, first_axis_split
from disco_client.distributed.numpy_api import FUNCTIONS
from disco_client.distributed.numpy_arguments import unsaid
from disco_client.distributed.numpy_refused import refuse_function
from disco_client.distributed.numpy_ufuncs import call_ufunc
from disco_client.distributed.ops import Rule, call_checked, choose, exact, rule_for
from disco_client.distributed.partial_sums import NumberStructInfo
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
    placement_on,
)
from disco_client.distributed.redistribute import (
    Move,
    RedistributionExecutor,
    RedistributionPlan,
    all_bounds,
    first_places,
    local_shapes,
    make_plan,
    spread_plan,
)
from disco_client.distributed.same_workers import seen_on_one
from disco_client.distributed.slices import (
    Region,
    appended,
    compressed,
    held_along,
    pieces_of,
    places_along,
    rows_along,
    sliced,
    split_along,
    whole_along,
)
from disco_client.errors import CaptureError, ConfigError, EncodingError
from disco_client.futures import await_room
from disco_client.no_operand import NoOperand
from disco_client.wire.array_likes import plain_array
from disco_client.wire.dlpack import speaks_dlpack
from disco_client.wire.host_arrays import as_host_array
from disco_client.wire.values import (
    INLINE_ARRAY_BYTES,
    Shape,
    dtype_name,
    is_floating,
    is_int64,
    not_int64,
)

if TYPE_CHECKING:
    from disco_client.core import DRef, SessionCore
    from disco_client.distributed.halos import Overlap
    from disco_client.wire.partition import Intervals

__all__ = ["Engine", "make_mesh"]


_NUMBERS = (bool, int, float)
_ARRAYS = (np.ndarray, np.generic, list, tuple)
"""What stands for an array of the host, as numpy takes it."""
_EXPECTED = "expected a distributed tensor, an array or a number"
_DISTRIBUTE = "await session.adistribute(array, mesh, placement)"
"""What a thread may do where the event loop must not wait."""


class _Alone:
    """What has a reference that nobody else has."""

    def __init__(self) -> None:
        self.ref = object()

    def count(self) -> int:
        """How often it is referred to, as `Engine.write` counts it."""
        ref = self.ref
        return sys.getrefcount(ref)


_OF_ITS_TENSOR = _Alone().count()
"""How often a reference is referred to if its tensor alone has it; Pythons differ."""

_KEPT = 4096
"""For how many kinds of calls the compiled form is kept."""


class _Number(NamedTuple):
    """A number among operands, distinguished by its type, too: 1 computes differently from 1.0."""

    kind: type
    value: Any


class _Host(NamedTuple):
    """A host array among operands; any placement is as cheap for it as a copy for each."""

    array: np.ndarray[Any, Any]
    info: DTensorStructInfo


class _Call(NamedTuple):
    """The compiled form of a call, for all operands placed like the first ones.

    Attributes:
        func: What the workers call on their parts.
        plans: How each array among the operands is brought to its required placement.
        moves: The same on the workers.
        origin: What :meth:`DTensor.explain` says, where all of them are distributed.
        result: The result.
    """

    func: DRef
    plans: tuple[RedistributionPlan, ...]
    moves: tuple[tuple[Move, ...], ...]
    origin: Origin
    result: DTensorStructInfo


class Engine(Computing, Renewable):
    """What a session does with distributed tensors.

    A call looks up the compiled form of similar calls: once compiled, it is one command
    that names a function on the workers and the parts.

    Args:
        core: Of the session.

    Attributes:
        executor: Carries out plans.
    """

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self.executor: RedistributionExecutor = RedistributionExecutor(core)
        self.renew()

    def renew(self) -> None:
        """Forgets what the workers were sent for calls of each kind."""
        self.executor.renew()
        # New ones: calls that look something up at this moment write into those of before.
        self._found = functools.lru_cache(maxsize=_KEPT)(self._find)
        self._ways = functools.lru_cache(maxsize=_KEPT)(self._find_way)
        self._spreads = functools.lru_cache(maxsize=_KEPT)(self._find_spread)
        self._takers = functools.lru_cache(maxsize=_KEPT)(self._make_taker)
        self._transfers = functools.lru_cache(maxsize=_KEPT)(self.executor.bind_transfer)
        self._creators = functools.lru_cache(maxsize=_KEPT)(self._make_creator)
        self._writers = functools.lru_cache(maxsize=_KEPT)(self._make_writer)
        self._slicers = functools.lru_cache(maxsize=_KEPT)(self._make_slicer)
        self._selectors = functools.lru_cache(maxsize=_KEPT)(self._make_selector)
        self._appenders = functools.lru_cache(maxsize=_KEPT)(self._make_appender)
        self._mappers = functools.lru_cache(maxsize=_KEPT)(self._make_mapper)

    # In and out -----------------------------------------------------------------------

    def distribute(self, array: object, mesh: DeviceMesh, placement: Placement | str) -> DTensor:
        """Brings a host array to the workers of a mesh; see ``Session.distribute``."""
        if isinstance(array, FileTensor):
            self._core.check_may_wait(_DISTRIBUTE)
            check_mesh(mesh, self._core.num_workers)
            return distribute_file(self._core, self, array, mesh, placement)
        _refuse_reference(array)
        self._core.check_may_send(array, _DISTRIBUTE)
        host = as_host_array(array) if speaks_dlpack(array) else plain_array(array)
        tensor = TensorStructInfo(host.shape, host.dtype)
        info = DTensorStructInfo(tensor, mesh, placement)
        check_mesh(mesh, self._core.num_workers)
        return self._place(host, info)

    def _place(self, host: np.ndarray[Any, Any], info: DTensorStructInfo) -> DTensor:
        """Brings a host array to its placement, on a mesh that the session has."""
        mesh = info.device_mesh
        if any(spec.is_partial or spec.parts for spec in info.placement.dim_specs):
            parts = DTensorStructInfo(info.tensor_sinfo, mesh, info.placement.plain())
            whole = self._place(host, parts)
            return whole.redistribute(info.placement)._explained_as("distribute", whole)
        if host.nbytes <= INLINE_ARRAY_BYTES:
            # It travels within the command, and each worker takes its part.
            return DTensor(self, info, self._core.call(self._takers(info), host))
        ref = self._core.call(self._takers(info))
        for place in first_places(info):
            part = tuple(slice(*bounds) for bounds in info.bounds(place))
            # Without a name, which would keep one part while the next one is copied.
            self._core.fill(ref, mesh.device_ids[place], np.ascontiguousarray(host[part]))
        plan, moves = self._spreads(info)
        ref = self.executor.run(moves, ref)
        return DTensor(self, info, ref, Origin("distribute", (("host array", plan),)))

    def _find_spread(self, info: DTensorStructInfo) -> tuple[RedistributionPlan, tuple[Move, ...]]:
        plan = spread_plan(info)
        return plan, self.executor.prepare(plan)

    def _make_taker(self, info: DTensorStructInfo) -> DRef:
        """The function that makes the parts: from a host array in the command, or uninitialised."""
        mesh, dtype = info.device_mesh, info.tensor_sinfo.dtype
        if math.prod(info.tensor_sinfo.shape) * dtype.itemsize <= INLINE_ARRAY_BYTES:
            return self.executor.bind("from_host", self.executor.table(mesh, all_bounds(info)))
        shapes = self.executor.table(mesh, local_shapes(info))
        return self.executor.bind("empty", shapes, dtype_name(dtype))

    def fetch(self, tensor: DTensor, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Returns the whole as a host array; see ``DTensor.numpy``."""
        self._core.check_may_wait("await tensor")
        tensor, workers = self._to_fetch(tensor)
        parts = self._core.get_all(tensor.ref, workers, timeout)
        return self._put_together(tensor, parts)

    async def fetch_later(self, tensor: DTensor) -> np.ndarray[Any, Any]:
        """Awaits the whole as a host array; see ``DTensor``."""
        await await_room(self._core.log)
        tensor, workers = self._to_fetch(tensor)
        parts = await self._core.fetch_all(tensor.ref, workers)
        return self._put_together(tensor, parts)

    def _to_fetch(self, tensor: DTensor) -> tuple[DTensor, list[int]]:
        """The tensor without partial values, and the workers that have all of it together."""
        check_mesh(tensor.mesh, self._core.num_workers)  # there may have been more
        tensor = self._brought(tensor, tensor.placement.combined())
        return tensor, [tensor.mesh.device_ids[place] for place in first_places(tensor.info)]

    def _put_together(self, tensor: DTensor, parts: list[Any]) -> np.ndarray[Any, Any]:
        info = tensor.info
        places = first_places(info)
        if len(places) == 1 and not info.is_explicit:
            return np.asarray(parts[0]).reshape(tensor.shape)
        out = np.empty(tensor.shape, tensor.dtype)
        for place, part in zip(places, parts, strict=True):
            _put(out, info.pieces(place), np.asarray(part))
        return out

    def part(
        self, tensor: DTensor, worker: int, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Returns one worker's part as a host array; see ``DTensor.shard``."""
        self._core.check_may_wait(f"await tensor.ref.get({worker})")
        found = self._core.get_all(tensor.ref, (worker,), timeout)
        return np.asarray(found[0])

    def plan(
        self, tensor: DTensor, placement: Placement | str, mesh: DeviceMesh | None = None
    ) -> RedistributionPlan:
        """What a redistribution would take; see ``DTensor.plan``."""
        if mesh is not None:
            check_mesh(mesh, self._core.num_workers)
        return make_plan(tensor.info, placement, mesh, self.executor.nodes)

    def redistribute(
        self, tensor: DTensor, placement: Placement | str, mesh: DeviceMesh | None = None
    ) -> DTensor:
        """Brings a tensor to another placement; see ``DTensor.redistribute``."""
        found = self._brought(tensor, placement, mesh)
        if found is not tensor:
            return found
        # In a register of its own: values that one of the two is assigned are not the other's.
        plan = self._ways(tensor.info, placement, mesh)[0]
        ref = self.executor.share(tensor.ref)
        return DTensor(self, plan.after, ref, Origin("redistribute", (("moved", plan),)))

    def _brought(
        self, tensor: DTensor, placement: Placement | str, mesh: DeviceMesh | None = None
    ) -> DTensor:
        """The same for one use, to be dropped: the tensor itself where it lies so already."""
        if not isinstance(placement, (str, Placement)):
            self.plan(tensor, placement, mesh)  # says what was expected
        plan, moves = self._ways(tensor.info, placement, mesh)
        if not moves:
            return tensor
        ref = self.executor.run(moves, tensor.ref)
        return DTensor(self, plan.after, ref, Origin("redistribute", (("moved", plan),)))

    def _find_way(
        self, info: DTensorStructInfo, placement: Placement | str, mesh: DeviceMesh | None
    ) -> tuple[RedistributionPlan, tuple[Move, ...]]:
        if mesh is not None:
            check_mesh(mesh, self._core.num_workers)
        plan = make_plan(info, placement, mesh, self.executor.nodes)
        return plan, self.executor.prepare(plan)

    def transfer(self, before: DTensorStructInfo, after: DTensorStructInfo) -> DRef:
        """The function that brings a tensor from one placement to another in one move."""
        return self._transfers(before, after)

    # Functions ------------------------------------------------------------------------

    def takes(self, operand: object) -> bool:
        """Whether something can be computed with.

        Raises:
            EncodingError: It is a reference, which stands for one value on each worker.
        """
        _refuse_reference(operand)
        return isinstance(operand, (DTensor, *_ARRAYS, complex, *_NUMBERS))

    def call(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function of distributed tensors, arrays and numbers; returns at once.

        Args:
            name: The function's.
            *operands: Of host arrays each worker of the mesh gets what it needs.
            **options: The function's.

        Raises:
            ConfigError: There is no rule for it, or the operands do not fit it.
        """
        operands = self._on_one_mesh(operands)
        composite = COMPOSITES.get(name)
        if composite is not None:
            return call_checked(name, composite, self, *operands, **options)
        return self.call_rule(name, *operands, **options)

    def _on_one_mesh(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same where tensors lie on several meshes, if it takes no move to see them on one."""
        tensors = {at: each for at, each in enumerate(operands) if isinstance(each, DTensor)}
        if len({each.mesh for each in tensors.values()}) < 2:  # noqa: PLR2004
            return operands
        found = seen_on_one([each.info for each in tensors.values()])
        if found is None:
            return operands  # which the rule refuses, and says what would move
        seen = list(operands)
        for (at, each), info in zip(tensors.items(), found, strict=True):
            seen[at] = DTensor(self, info, each.ref, each.origin, each.name)
        return tuple(seen)

    def call_rule(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function by its rule; see :meth:`call`."""
        mesh = next((each.mesh for each in operands if isinstance(each, DTensor)), None)
        ready = [self._ready(operand, operands, mesh) for operand in operands]
        seen = tuple(
            _Number(type(each), each) if isinstance(each, _NUMBERS) else each.info for each in ready
        )
        known = tuple((key, frozen(value)) for key, value in options.items())
        kinds = tuple(_kinds(value) for _, value in known)
        found = self._look_up(name, rule_for(name), seen, known, kinds)
        refs: list[Any] = []
        brought: dict[str, Origin] = {}
        at = 0  # among those that are no numbers
        for number, each in enumerate(ready):
            if isinstance(each, DTensor):
                refs.append(self.executor.run(found.moves[at], each.ref))
            elif isinstance(each, _Host):
                placed = self._place(each.array, found.plans[at].after)
                refs.append(placed.ref)
                brought[f"operand {number}"] = placed.origin
            else:
                refs.append(each)
                continue
            at += 1
        ref = self._core.call(found.func, *refs)
        origin = found.origin.with_others(brought) if brought else found.origin
        return DTensor(self, found.result, ref, origin)

    def _look_up(self, *call: Any) -> _Call:
        try:
            hash(call)
        except TypeError:  # an unhashable option, which only a third-party rule can have
            return self._find(*call)
        return self._found(*call)

    def _find(
        self,
        name: str,
        rule: Rule,
        seen: Sequence[DTensorStructInfo | _Number],
        options: Sequence[tuple[str, Any]],
        kinds: object,
    ) -> _Call:
        """Compiles a call, and sends the workers what they will need for it."""
        del kinds  # it only distinguishes calls
        infos = tuple(each for each in seen if isinstance(each, DTensorStructInfo))
        mesh = _one_mesh(name, seen, self.executor.nodes)
        _refuse_overlaps(name, infos)
        operands = [each.value if isinstance(each, _Number) else each.tensor_sinfo for each in seen]
        local = call_checked(name, rule, *operands, **dict(options))
        choice = choose(exact(local.pattern, infos, local.result.dtype), infos)
        # Not what a rule has returned of its operand: a result is no number of the program's.
        whole = TensorStructInfo(local.result.shape, local.result.dtype)
        result = DTensorStructInfo(whole, mesh, choice.output)
        tables: Mapping[str, Sequence[Any]] = {}
        if local.tables is not None:
            tables = local.tables([plan.after for plan in choice.plans], result)
        func = self._bind(local.name, result, local.options, tables)
        moves = tuple(self.executor.prepare(plan) for plan in choice.plans)
        places = [at for at, each in enumerate(seen) if isinstance(each, DTensorStructInfo)]
        which = (f"operand {at}" for at in places)
        origin = Origin(local.name, tuple(zip(which, choice.plans, strict=True)))
        return _Call(func, choice.plans, moves, origin, result)

    def _ready(self, operand: Any, operands: Sequence[Any], mesh: DeviceMesh | None) -> Any:
        """An operand as a tensor, a number, or an array that has to be distributed."""
        if isinstance(operand, DTensor):
            return operand
        if isinstance(operand, int) and not is_int64(operand):
            operand = _large_integer(operand, operands)
        if type(operand) in _NUMBERS:
            return operand
        if type(operand) is complex:
            # It cannot travel as a number; its precision is that of the others, as in numpy.
            # Truth values have no part in it, such as the condition of where.
            kinds = {each.dtype for each in operands if hasattr(each, "dtype")} - {np.dtype(bool)}
            try:
                dtype = np.result_type(*kinds, operand)
            except TypeError:  # beside dates, for example, which logical functions take
                dtype = np.dtype(complex)
            operand = np.asarray(operand, dtype)
        # For numpy, numbers of a class derived from Python's have a dtype of their own.
        if isinstance(operand, (*_ARRAYS, complex, *_NUMBERS)) and mesh is not None:
            host = plain_array(cast("Any", operand))
            self._core.check_may_send(host, _DISTRIBUTE)
            whole = Placement([PlacementSpec.replica()] * mesh.ndim)
            tensor = (
                TensorStructInfo(host.shape, host.dtype) if host.ndim else NumberStructInfo(host)
            )
            return _Host(host, DTensorStructInfo(tensor, mesh, whole))
        _refuse_reference(cast("object", operand))
        msg = f"{_EXPECTED}, got {operand!r}"
        raise TypeError(msg)

    # Parts as they lie --------------------------------------------------------------------

    def getitem(self, tensor: DTensor, items: Any) -> DTensor:
        """Takes what stands between brackets; see ``DTensor.__getitem__``."""
        return getitem(self, tensor, items)

    def take_slices(
        self, tensor: DTensor, axes: tuple[int, ...], bounds: tuple[int, ...]
    ) -> DTensor:
        """Takes what slices of some axes say, where it lies; returns at once.

        What they say goes with the command: other slices of the same axes need no other function
        on the workers.

        Args:
            tensor: Of which no two workers hold the same index in given parts.
            axes: The axes.
            bounds: Of each axis the first index, how many, and the step.

        Raises:
            ConfigError: Workers hold the same index in given parts.
        """
        before = tensor.info
        func = self._slicers(before, axes)
        if func is None:
            moved = self._brought(tensor, whole_along(before, axes))
            return self.take_slices(moved, axes, bounds)._explained_as("slice", moved)
        ref = self._core.call(func, tensor.ref, *bounds)
        return DTensor(self, functools.partial(_sliced, before, axes, bounds), ref, _SLICE)

    def setitem(self, tensor: DTensor, items: Any, value: Any) -> None:
        """Gives what stands between brackets other values; see ``DTensor.__setitem__``."""
        if self._core.here() is not self._core:
            raise CaptureError(
                "a tensor cannot be changed while a program is captured, which would change it"
                " each time that it runs; x = x.at[items].set(value) makes another one"
            )
        assign(self, tensor, items, value)

    def updated(self, tensor: DTensor, items: Any, how: str, value: Any) -> DTensor:
        """A tensor like another one with other values in a place; see ``DTensor.at``."""
        return updated(self, tensor, items, how, value)

    def write(
        self,
        tensor: DTensor,
        region: Region,
        operands: Sequence[Any],
        bounds: Sequence[int],
        *,
        in_place: bool,
    ) -> DTensor:
        """Makes a tensor with other values in a region; returns at once.

        Args:
            tensor: The tensor, without partial values.
            region: What gets others.
            operands: The values, which lie where they go, or one without axes; and a mask, or
                the positions along each axis.
            bounds: Of each axis that is sliced the first index, how many, and the step.
            in_place: Whether the tensor's memory may be used for it, if nobody else has it.
        """
        func = self._writers(tensor.info, region)
        given = (each.ref if isinstance(each, DTensor) else each for each in operands)
        ref = tensor.ref
        alone = sys.getrefcount(ref) == _OF_ITS_TENSOR
        # By its number, the worker sees whether its own register is the only one.
        may_overwrite = in_place and alone and self._core.here() is self._core
        whole = self._core.check_ref(ref) if may_overwrite else ref
        made = self._core.call(func, whole, *given, *bounds)
        return DTensor(self, tensor.info, made, Origin("setitem"))

    def _make_writer(self, info: DTensorStructInfo, region: Region) -> DRef:
        if region.is_masked:
            return self._core.call_now("runtime.disco._dt_bind_put_where", region.how)
        held = self.executor.table(info.device_mesh, _held(info, (*region.axes, *region.at)))
        extents = Shape(info.tensor_sinfo.shape[axis] for axis in region.at)
        given = Shape(region.axes), Shape(region.at), held, extents, region.how
        return self._core.call_now("runtime.disco._dt_bind_put", *given)

    def _make_slicer(self, info: DTensorStructInfo, axes: tuple[int, ...]) -> DRef | None:
        _refuse_overlaps("getitem", (info,))
        if any(info.axes.count(axis) > 1 for axis in axes):
            return None
        return self._bind("slice", info, {"axes": Shape(axes)}, {"held": _held(info, axes)})

    def compress(
        self, rows: DTensor, mask: DTensor, known: np.ndarray[Any, Any] | None = None
    ) -> DTensor:
        """Takes what a mask says of a first axis, where it lies.

        Args:
            rows: The tensor, whose first axis one axis of the mesh splits at most.
            mask: Lies beside that axis.
            known: The same as a host array; else the call waits for how many each worker takes.

        Raises:
            CaptureError: A program is captured, whose shapes must not depend on data.
            WouldBlock: The call would wait in an event loop.
        """
        info = rows.info
        count, take = self._selectors(info)
        if known is not None:
            counts = _counted(info, known)
        else:
            self.check_may_count()
            counts = self._counts(info, self._core.call(count, mask.ref))
        ref = self._core.call(take, rows.ref, mask.ref)
        return DTensor(self, compressed(info, counts), ref, Origin("compress"))

    def check_may_count(self) -> None:
        """Makes sure that a call may wait for how many elements a mask takes.

        Raises:
            CaptureError: A program is captured, whose shapes must not depend on data.
            WouldBlock: The call would wait in an event loop.
        """
        if self._core.here() is not self._core:
            raise CaptureError(
                "how many elements a mask takes is not known while a program is captured;"
                " numpy.where(mask, x, 0) has the shape of x"
            )
        self._core.check_may_wait("await asyncio.to_thread(x.__getitem__, mask)")

    def _counts(self, info: DTensorStructInfo, ref: DRef) -> list[list[int]]:
        """How many each worker along the axis of the mesh that splits it takes of each piece."""
        mesh_axis = split_along(info, 0)
        mesh = info.device_mesh
        places = [0] if mesh_axis is None else places_along(info, mesh_axis)
        found = self._core.get_all(ref, [mesh.device_ids[place] for place in places])
        return [np.asarray(each).tolist() for each in found]

    def _make_selector(self, info: DTensorStructInfo) -> tuple[DRef, DRef]:
        _refuse_overlaps("taking by a mask", (info,))
        held = (pieces_of(info, place, 0) for place in range(info.device_mesh.size))
        pieces = [[stop - start for start, stop in pieces] for pieces in held]
        count = self._bind("count_pieces", rows_along(info, "int64"), {}, {"lengths": pieces})
        return count, self._bind("compress", info, {}, {})

    def namespace(self, mesh: DeviceMesh) -> ArrayNamespace:
        """Numpy's names, whose functions compute on the workers of a mesh."""
        return ArrayNamespace(self, mesh, first_axis_split(mesh), self._core.face())

    def create(self, name: str, info: DTensorStructInfo, *numbers: object) -> DTensor:
        """Makes a tensor on the workers, each its own part; returns at once.

        Args:
            name: How: see ``disco_server.rank.builtins.creation``.
            info: What it is to be.
            *numbers: What it is made from besides.
        """
        check_mesh(info.device_mesh, self._core.num_workers)
        placement = info.placement
        whole = DTensorStructInfo(info.tensor_sinfo, info.device_mesh, placement.combined())
        made = DTensor(self, whole, self._core.call(self._creators(name, whole), *numbers))
        return self._brought(made, placement)._explained_as(name, made)

    def _make_creator(self, name: str, info: DTensorStructInfo) -> DRef:
        mesh = info.device_mesh
        pieces = [
            [list(map(list, axis)) for axis in info.pieces(place)] for place in range(mesh.size)
        ]
        table = self.executor.table(mesh, pieces)
        dtype = info.tensor_sinfo.dtype_name
        return self._core.call_now("runtime.disco._dt_bind_creator", name, table, dtype)

    def map_blocks(
        self, function: str | DRef, tensor: DTensor, work: Overlap, options: Mapping[str, Any]
    ) -> DRef:
        """Calls a function of the workers with the parts of a tensor, which have halos.

        Args:
            function: The function, or its name.
            tensor: The parts.
            work: What is done with them.
            options: What the function takes besides, by name.

        Returns:
            The parts of the result, without halos.
        """
        named = isinstance(function, str)
        func = self._mappers(function if named else "", work)
        if named and not options:
            return self._core.call(func, tensor.ref)
        return self._core.call(func, tensor.ref, dict(options), *(() if named else (function,)))

    def _make_mapper(self, name: str, work: Overlap) -> DRef:
        table = self.executor.table(work.info.device_mesh, work.tables())
        known = work.axes(), table, work.trim, work.dtype_name
        return self._core.call_now("runtime.disco._dt_bind_overlap", name, *known)

    def append(self, tensors: Sequence[DTensor], axis: int, dtype: np.dtype[Any]) -> DTensor:
        """Puts tensors one behind the other along the axis that they are split along.

        Args:
            tensors: They lie alike, but for what the workers hold of this axis.
            axis: The axis.
            dtype: Of the result.
        """
        func, result = self._appenders(tuple(each.info for each in tensors), axis, dtype)
        ref = self._core.call(func, *(each.ref for each in tensors))
        return DTensor(self, result, ref, Origin("concatenate"))

    def _make_appender(
        self, infos: Sequence[DTensorStructInfo], axis: int, dtype: np.dtype[Any]
    ) -> tuple[DRef, DTensorStructInfo]:
        result = appended(infos, axis, dtype)
        return self._bind("concatenate", result, {"axis": axis}, {}), result

    def _bind(
        self,
        name: str,
        result: DTensorStructInfo,
        options: Mapping[str, Any],
        tables: Mapping[str, Sequence[Any]],
    ) -> DRef:
        """Makes a function of parts on the workers, for the whole session.

        Args:
            name: Of the local function.
            result: Has the mesh and the dtype of the result.
            options: What it takes besides, by name.
            tables: The same where it differs from worker to worker.
        """
        mesh = result.device_mesh
        by_worker = {key: self.executor.table(mesh, value) for key, value in tables.items()}
        dtype = result.tensor_sinfo.dtype_name
        return self._core.call_now("runtime.disco._dt_bind", name, dict(options), by_worker, dtype)

    # numpy's protocols ------------------------------------------------------------------

    def call_ufunc(
        self, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Computes one of numpy's ufuncs."""
        if not all(self.takes(each) for each in inputs):
            return NotImplemented
        return call_ufunc(self, ufunc, method, inputs, options)

    def call_function(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Computes another of numpy's functions."""
        name = f"{func.__module__}.{func.__name__}"
        adapter = FUNCTIONS.get(func)
        if adapter is None:
            refuse_function(name)
        given = {key: v for key, v in kwargs.items() if not unsaid(key, v)}
        return call_checked(name, cast("Any", adapter), self, *args, **given)


def make_mesh(
    core: SessionCore, shape: Sequence[int] | int | None, names: Sequence[str]
) -> DeviceMesh:
    """Makes a mesh of a session's first workers; see ``Session.mesh``."""
    extents = (core.num_workers,) if shape is None else checked_shape(several(shape))
    mesh = DeviceMesh(extents, range(math.prod(extents)), names)
    return check_mesh(mesh, core.num_workers)


def _large_integer(number: int, operands: Sequence[Any]) -> float | np.uint64:
    """An integer that cannot travel as such, as numpy takes it beside the dtypes of the others.

    Raises:
        EncodingError: These have no such number.
    """
    dtypes = [each.dtype for each in operands if hasattr(each, "dtype")]
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(object)
    if dtype.kind == "c" or is_floating(dtype.name):
        with contextlib.suppress(OverflowError):
            return float(number)
    elif dtype == np.uint64 and 0 <= number < 1 << 64:
        return np.uint64(number)
    raise EncodingError(
        f"{dtype} has no such number: {not_int64(number)}; beside floating-point tensors it is one"
        " of theirs"
    )


def frozen(value: Any) -> Any:
    """An option as something that can be looked up: lists become tuples."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Shape):
        return tuple(map(frozen, cast("Sequence[Any]", value)))
    return value


def _kinds(value: Any) -> object:
    """What distinguishes options that are equal: an axis 1 is one, and 1.0 and True are none."""
    if isinstance(value, tuple):
        return tuple(map(_kinds, cast("tuple[Any, ...]", value)))
    if isinstance(value, float):
        return float, math.copysign(1, value)
    return cast("object", type(value))


def _put(
    out: np.ndarray[Any, Any], pieces: Sequence[Intervals], part: np.ndarray[Any, Any]
) -> None:
    """Writes one worker's part into the whole."""
    places = [list(zip(each, _starts(each), strict=True)) for each in pieces]
    for block in itertools.product(*places):
        source = tuple(slice(at, at + stop - start) for (start, stop), at in block)
        out[tuple(slice(*piece) for piece, _ in block)] = part[source]


def _starts(pieces: Intervals) -> list[int]:
    """Where each piece begins, one behind the other."""
    lengths = [stop - start for start, stop in pieces]
    return [sum(lengths[:number]) for number in range(len(lengths))]


def _held(info: DTensorStructInfo, axes: Sequence[int]) -> list[list[list[list[int]]]]:
    """What each worker of a mesh has of some axes, piece by piece."""
    places = range(info.device_mesh.size)
    return [[list(map(list, info.pieces(place)[axis])) for axis in axes] for place in places]


def _counted(info: DTensorStructInfo, mask: np.ndarray[Any, Any]) -> list[list[int]]:
    """How often a mask of the client is true in each piece that workers have of a first axis."""
    mesh_axis = split_along(info, 0)
    held = (((0, len(mask)),),) if mesh_axis is None else held_along(info, mesh_axis)
    return [[int(np.count_nonzero(mask[slice(*piece)])) for piece in pieces] for pieces in held]


_sliced = functools.lru_cache(maxsize=_KEPT)(sliced)
_SLICE = Origin("slice")


def _refuse_overlaps(name: str, infos: Sequence[DTensorStructInfo]) -> None:
    for placement in (info.placement for info in infos):
        if not any(spec.overlaps for spec in placement.dim_specs):
            continue
        whole = PlacementSpec.replica()
        copies = Placement(whole if spec.parts else spec for spec in placement.dim_specs)
        raise ConfigError(
            f"{name} has no rule for a tensor that lies as {str(placement)!r}, where workers hold"
            f" the same indices; redistribute it first, to {str(placement.plain())!r} or"
            f" {str(copies)!r}"
        )


def _one_mesh(
    name: str, operands: Sequence[DTensorStructInfo | _Number], nodes: tuple[str, ...]
) -> DeviceMesh:
    """The mesh of a function's operands.

    Raises:
        ConfigError: They are on several, or none is on any; it says how to bring them to one.
    """
    infos = {at: each for at, each in enumerate(operands) if isinstance(each, DTensorStructInfo)}
    meshes = list(dict.fromkeys(info.device_mesh for info in infos.values()))
    if len(meshes) == 1:
        return meshes[0]
    if not meshes:
        raise ConfigError(f"{name} needs distributed tensors on one mesh, got none")
    ways: list[str] = []
    for mesh in meshes:
        plans = {
            at: make_plan(info, placement_on(mesh, info), mesh, nodes)
            for at, info in infos.items()
            if info.device_mesh != mesh
        }
        calls = (
            f"operand {at}: x.redistribute({mesh!r}, {str(plan.after.placement)!r})"
            for at, plan in plans.items()
        )
        sent = sum(plan.nbytes for plan in plans.values())
        ways.append(f"\n  {', '.join(calls)}, which sends {sent:,} bytes")
    raise ConfigError(
        f"{name} needs distributed tensors on one mesh, got {' and '.join(map(repr, meshes))};"
        f" bring them to one of these first:{' or'.join(ways)}"
    )


def _refuse_reference(operand: object) -> None:
    """Says how to make a tensor of a reference, whose values on the workers have no placement.

    Raises:
        EncodingError: It is one.
    """
    if isinstance(operand, NoOperand):
        msg = (
            f"{_EXPECTED}, got {operand!r}, which stands for a value on each worker;"
            " session.distribute(ref.numpy(), mesh, placement) makes a tensor of worker 0's array,"
            " and session.get_global_func(name)(ref) computes with each worker's own"
        )
        raise EncodingError(msg)
