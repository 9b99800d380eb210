"""A tensor that lies on many workers, used as if it were one array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from disco_client.distributed.array_like import ArrayLike
from disco_client.distributed.plan import Plan, make_plan
from disco_client.errors import ConfigError
from disco_client.handles import Distributed, DRef
from disco_client.wire.layout import shape_within

if TYPE_CHECKING:
    from disco_client.distributed.engine import Engine
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.placement import Placement
    from disco_client.distributed.struct_info import DTensorStructInfo
    from disco_client.wire.values import Shape

__all__ = ["DTensor", "Origin", "several"]


class Origin(NamedTuple):
    """What a tensor came of, for :meth:`DTensor.explain`.

    Attributes:
        name: The function that made it.
        moves: What was brought where for it: which operand, and how.
    """

    name: str
    moves: tuple[tuple[str, Plan], ...] = ()

    def with_others(self, brought: Mapping[str, Origin]) -> Origin:
        """The same where some operands were host arrays, which came in in another way.

        Args:
            brought: What was moved for each of them.
        """
        moves: list[tuple[str, Plan]] = []
        for which, plan in self.moves:
            if which in brought:
                moves += ((f"{which}, {name}", other) for name, other in brought[which].moves)
            else:
                moves.append((which, plan))
        return Origin(self.name, tuple(moves))


def _forward(name: str) -> Callable[..., Any]:
    def operator(self: DTensor, other: Any) -> Any:
        return self._apply(name, self, other)

    operator.__doc__ = f"``numpy.{name}`` with the tensor first."
    return operator


def _reflected(name: str) -> Callable[..., Any]:
    def operator(self: DTensor, other: Any) -> Any:
        return self._apply(name, other, self)

    operator.__doc__ = f"``numpy.{name}`` with the tensor second."
    return operator


def _unary(name: str) -> Callable[..., Any]:
    def operator(self: DTensor) -> Any:
        return self._apply(name, self)

    operator.__doc__ = f"``numpy.{name}``."
    return operator


_FROM_HOST = Origin("distribute")


class DTensor(Distributed, ArrayLike):
    """A distributed tensor; made by ``session.distribute`` and by computing with others.

    Operators, numpy's functions and those of :mod:`disco_client.distributed` work on
    it; each call is one or a few commands on the workers and returns at once.

    Attributes:
        info: Its shape, dtype, mesh and placement.
        ref: The reference of the parts.
        origin: What made it, and what was moved for that.
    """

    __slots__ = ("_engine", "info", "origin", "ref")

    # Before numpy's own arrays: `array + dtensor` comes here.
    __array_priority__ = 1000.0

    def __init__(
        self,
        engine: Engine,
        info: DTensorStructInfo,
        ref: DRef,
        origin: Origin = _FROM_HOST,
    ) -> None:
        """Made by an engine, never by a program.

        Args:
            engine: Computes with it.
            info: What it is, and where it lies.
            ref: Its parts.
            origin: The function that made it, and what had to be moved for it.
        """
        self._engine = engine
        self.origin = origin
        self.info = info
        self.ref = ref

    @property
    def shape(self) -> Shape:
        """The extents of the whole."""
        return self.info.tensor_sinfo.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        return self.info.tensor_sinfo.dtype

    @property
    def mesh(self) -> DeviceMesh:
        """The workers on which it lies."""
        return self.info.device_mesh

    @property
    def placement(self) -> Placement:
        """How it lies there."""
        return self.info.placement

    @property
    def T(self) -> DTensor:  # noqa: N802  (numpy's name)
        """With the axes in the opposite order."""
        return self._engine.call("transpose", self)

    def belongs_to(self, engine: Engine) -> bool:
        """Whether an engine, and so its session, computes with it."""
        return self._engine is engine

    def plan(self, placement: Placement | str) -> Plan:
        """What :meth:`redistribute` would do; printed, it says so with its cost.

        Raises:
            ConfigError: The placement does not fit the tensor or the mesh.
        """
        return make_plan(self.info, placement)

    def explain(self) -> str:
        """Says what the function that made it cost: what moved between workers, and how much.

        Returns:
            A line for each move, the bytes being those that reach the worker that
            gets the most. Host arrays that travel with the commands are not counted.
        """
        name, moves = self.origin
        cost = sum(plan.cost for _, plan in moves)
        lines = [f"{name} -> {self.placement}: {cost:,} bytes to a worker"]
        for which, plan in moves:
            lines += [f"  {which}: {step}" for step in plan.steps]
        return "\n".join(lines if len(lines) > 1 else [*lines, "  nothing moved"])

    def explained_as(self, name: str, *made: DTensor) -> DTensor:
        """The same tensor as the result of a function that took several; for `explain`.

        Args:
            name: The function.
            *made: What it made on the way, each by a function.
        """
        moves = [
            (f"{tensor.origin.name}, {which}", plan)
            for tensor in (*made, self)
            for which, plan in tensor.origin.moves
            if plan.steps
        ]
        return DTensor(self._engine, self.info, self.ref, Origin(name, tuple(moves)))

    def redistribute(self, placement: Placement | str) -> DTensor:
        """Returns the same tensor, lying otherwise on the same mesh; at once.

        Args:
            placement: A spec for each axis of the mesh, or the text of it.

        Raises:
            ConfigError: The placement does not fit the tensor or the mesh.
        """
        return self._engine.redistribute(self, placement)

    def shard(self, worker: int) -> np.ndarray[Any, Any]:
        """Fetches the part of one worker; waits for it.

        Where the placement is partial, these are the worker's own values.

        Raises:
            ConfigError: The mesh has no such worker.
            RemoteError: The tensor could not be computed.
        """
        if worker not in self.mesh.device_ids:
            raise ConfigError(f"worker {worker} is none of {self.mesh!r}")
        return self._engine.part(self, worker)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Fetches the whole; waits for it.

        Partial values are combined by the workers first; parts come from the workers
        that hold them, and nothing else moves between workers.

        Raises:
            RemoteError: The tensor could not be computed.
        """
        return self._engine.fetch(self)

    def astype(self, dtype: object) -> DTensor:
        """Converts every element."""
        return self._engine.call("cast", self, dtype=dtype)

    def reshape(self, *shape: Any) -> DTensor:
        """The elements in the same order, with other extents; one may be -1."""
        return self._engine.call("reshape", self, shape=_in_one(shape))

    def transpose(self, *axes: Any) -> DTensor:
        """The axes in another order; by default the opposite one."""
        order = None if axes in ((), (None,)) else _in_one(axes)
        return self._engine.call("transpose", self, axes=order)

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """Adds up along an axis, several, or all."""
        return self._engine.call("sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """Averages along an axis, several, or all."""
        return self._engine.call("mean", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """The largest along an axis, several, or all."""
        return self._engine.call("max", self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """The smallest along an axis, several, or all."""
        return self._engine.call("min", self, axis=axis, keepdims=keepdims)

    def prod(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """Multiplies along an axis, several, or all."""
        return self._engine.call("prod", self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None) -> DTensor:
        """Where along an axis, or in all elements in a row, the largest is; the first of equals."""
        return self._engine.call_function(np.argmax, (self, axis), {})

    def argmin(self, axis: int | None = None) -> DTensor:
        """Where the smallest is, likewise."""
        return self._engine.call_function(np.argmin, (self, axis), {})

    def __getitem__(self, items: Any) -> DTensor:
        """Parts by numbers, slices, ``...`` and ``None``; steps are those of numpy."""
        return self._engine.call("getitem", self, items=items)

    def held_by(self, ref: DRef) -> DTensor:
        """A tensor like this one in another register."""
        return DTensor(self._engine, self.info, ref, Origin("program"))

    def refuse_unlike(self, value: object, name: str) -> None:
        """Makes sure that something is a tensor of this shape, dtype, mesh and placement.

        Raises:
            TypeError: It is no distributed tensor.
            ConfigError: It is another one.
        """
        if not isinstance(value, DTensor):
            msg = f"expected {self.info!r} for {name}, got {value!r}"
            raise TypeError(msg)
        if value.info != self.info:
            raise ConfigError(f"expected {self.info!r} for {name}, got {value.info!r}")

    def _apply(self, name: str, *operands: Any) -> Any:
        if not all(self._engine.takes(operand) for operand in operands):
            return NotImplemented
        return self._engine.call(name, *operands)

    __add__, __radd__ = _forward("add"), _reflected("add")
    __sub__, __rsub__ = _forward("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _forward("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _forward("true_divide"), _reflected("true_divide")
    __floordiv__, __rfloordiv__ = _forward("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _forward("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _forward("power"), _reflected("power")
    __and__, __rand__ = _forward("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _forward("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _forward("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _forward("left_shift"), _reflected("left_shift")
    __rshift__, __rrshift__ = _forward("right_shift"), _reflected("right_shift")
    __matmul__, __rmatmul__ = _forward("matmul"), _reflected("matmul")
    __lt__, __le__ = _forward("less"), _forward("less_equal")
    __gt__, __ge__ = _forward("greater"), _forward("greater_equal")
    __eq__, __ne__ = _forward("equal"), _forward("not_equal")  # type: ignore[assignment]
    __neg__, __pos__, __abs__ = _unary("negative"), _unary("positive"), _unary("absolute")
    __invert__ = _unary("invert")
    __hash__ = None  # type: ignore[assignment]  (like numpy's, as == compares elements)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Lets ``numpy.exp(x)`` and the like compute on the workers."""
        return self._engine.call_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Lets ``numpy.concatenate([x, y])`` and the like compute on the workers."""
        del types
        return self._engine.call_function(func, args, kwargs)

    def __len__(self) -> int:
        if not self.shape:
            msg = "a tensor without axes has no length"
            raise TypeError(msg)
        return self.shape[0]

    def _repr_html_(self) -> str:
        from disco_client.distributed.pictures.reprs import tensor_html

        return tensor_html(self.info)

    def __repr__(self) -> str:
        parts = [shape_within(self.info.bounds(place)) for place in range(self.mesh.size)]
        each = sorted(set(parts), reverse=True)
        return (
            f"DTensor({tuple(self.shape)}, {self.dtype.name}, {str(self.placement)!r} on"
            f" {self.mesh!r}, parts of {' or '.join(map(str, each[:2]))})"
        )


def several(value: Any) -> tuple[Any, ...]:
    """One extent or axis, or several, as a tuple."""
    return tuple(cast("Iterable[Any]", value)) if isinstance(value, Iterable) else (value,)


def _in_one(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Extents or axes that were given one by one, or as one sequence."""
    return several(given[0]) if len(given) == 1 else given
