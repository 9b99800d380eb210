"""A tensor that is distributed over many workers, used as if it were one array."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast, overload

import numpy as np

from disco_client.copies import Handle
from disco_client.core import Distributed, DRef
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.ops import as_index
from disco_client.distributed.placement import placement_on
from disco_client.distributed.redistribute import RedistributionPlan
from disco_client.distributed.slices import taken_by
from disco_client.errors import ConfigError
from disco_client.notebook import html_of
from disco_client.wire.partition import length_of

if TYPE_CHECKING:
    from disco_client.distributed.halos import Overlap
    from disco_client.distributed.placement import DTensorStructInfo, Placement, PlacementSpec
    from disco_client.distributed.slices import Region
    from disco_client.wire.partition import Intervals
    from disco_client.wire.values import Shape

__all__ = [
    "ArrayLike",
    "Computing",
    "DTensor",
    "Origin",
    "TensorUpdate",
    "TensorUpdates",
    "several",
]


class Computing(ABC):
    """What tensors ask of the engine that computes with them, one for each session."""

    @abstractmethod
    def takes(self, operand: object) -> bool:
        """Whether something can be computed with."""

    @abstractmethod
    def call(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function of distributed tensors, arrays and numbers; returns at once."""

    @abstractmethod
    def call_rule(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Computes a function by its rule, also where another function of that name uses it."""

    @abstractmethod
    def create(self, name: str, info: DTensorStructInfo, *numbers: object) -> DTensor:
        """Makes a tensor on the workers, each its own part; returns at once."""

    @abstractmethod
    def distribute(self, array: object, mesh: DeviceMesh, placement: Placement | str) -> DTensor:
        """Brings a host array to the workers of a mesh."""

    @abstractmethod
    def namespace(self, mesh: DeviceMesh) -> Any:
        """Numpy's names, whose functions compute on the workers of a mesh."""

    @abstractmethod
    def getitem(self, tensor: DTensor, items: Any) -> DTensor:
        """Takes what stands between brackets."""

    @abstractmethod
    def setitem(self, tensor: DTensor, items: Any, value: Any) -> None:
        """Gives what stands between brackets other values."""

    @abstractmethod
    def updated(self, tensor: DTensor, items: Any, how: str, value: Any) -> DTensor:
        """A tensor like another one with other values for what stands between brackets."""

    @abstractmethod
    def write(
        self,
        tensor: DTensor,
        region: Region,
        operands: Sequence[Any],
        bounds: Sequence[int],
        *,
        in_place: bool,
    ) -> DTensor:
        """The same tensor with other values in a region; of the same memory where it may be."""

    @abstractmethod
    def take_slices(
        self, tensor: DTensor, axes: tuple[int, ...], bounds: tuple[int, ...]
    ) -> DTensor:
        """Takes what slices of some axes say, where it lies."""

    @abstractmethod
    def check_may_count(self) -> None:
        """Makes sure that a call may wait for how many elements a mask takes."""

    @abstractmethod
    def compress(
        self, rows: DTensor, mask: DTensor, known: np.ndarray[Any, Any] | None = None
    ) -> DTensor:
        """Takes what a mask says of a first axis, where it lies; waits unless it is known here."""

    @abstractmethod
    def append(self, tensors: Sequence[DTensor], axis: int, dtype: np.dtype[Any]) -> DTensor:
        """Puts tensors that lie alike, split along an axis, one behind the other along it."""

    @abstractmethod
    def map_blocks(
        self, function: str | DRef, tensor: DTensor, work: Overlap, options: Mapping[str, Any]
    ) -> DRef:
        """Calls a function of the workers with the parts of a tensor, which have halos."""

    @abstractmethod
    def call_ufunc(
        self, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Computes one of numpy's ufuncs."""

    @abstractmethod
    def call_function(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Computes another of numpy's functions."""

    @abstractmethod
    def redistribute(
        self, tensor: DTensor, placement: Placement | str, mesh: DeviceMesh | None = None
    ) -> DTensor:
        """Brings a tensor to another placement, of its mesh or another one."""

    @abstractmethod
    def plan(
        self, tensor: DTensor, placement: Placement | str, mesh: DeviceMesh | None = None
    ) -> RedistributionPlan:
        """What that would take."""

    @abstractmethod
    def fetch(self, tensor: DTensor, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Returns the whole as a host array; waits for it."""

    @abstractmethod
    async def fetch_later(self, tensor: DTensor) -> np.ndarray[Any, Any]:
        """Awaits the whole as a host array."""

    @abstractmethod
    def part(
        self, tensor: DTensor, worker: int, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Returns one worker's part as a host array; waits for it."""


# What people expect of anything that looks like one of numpy's arrays.


class ArrayLike(ABC):
    """The part of a distributed tensor that Python and numpy ask for.

    What needs values on the host fetches them, and waits: ``float``, ``bool``,
    ``item``, ``tolist``, ``in``, and whatever calls ``numpy.asarray``. Everything else
    is computed on the workers and returns at once. ``x += y`` makes another tensor and
    calls it ``x``; only ``x[items] = value`` changes one.
    """

    __slots__ = ()

    _engine: Computing

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The extents of the whole."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""

    @abstractmethod
    def numpy(self) -> np.ndarray[Any, Any]:
        """Fetches the whole; waits for it."""

    @abstractmethod
    def __getitem__(self, items: Any) -> DTensor:
        """Parts by numbers, slices, ``...`` and ``None``."""

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements the whole has."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def itemsize(self) -> int:
        """How many bytes an element has."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """How many bytes the whole has; copies on several workers do not count."""
        return self.size * self.itemsize

    # On the workers ---------------------------------------------------------------------

    def any(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """Whether one along an axis, several, or all is true."""
        return self._engine.call("any", self, axis=axis, keepdims=keepdims)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> DTensor:
        """Whether each along an axis, several, or all is true."""
        return self._engine.call("all", self, axis=axis, keepdims=keepdims)

    def clip(self, low: Any = None, high: Any = None) -> DTensor:
        """Each element, or the nearer one of two limits."""
        return self._engine.call("clip", self, low, high)

    def round(self, decimals: int = 0) -> DTensor:
        """Each element, rounded as ``numpy.round`` does."""
        return np.round(self, decimals)  # type: ignore[call-overload]

    def var(self, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> DTensor:
        """The variance along an axis, several, or all; ``ddof`` is taken off what it divides by."""
        return self._engine.call("var", self, axis=axis, ddof=ddof, keepdims=keepdims)

    def std(self, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> DTensor:
        """The standard deviation, likewise."""
        return self._engine.call("std", self, axis=axis, ddof=ddof, keepdims=keepdims)

    def cumsum(self, axis: int | None = None) -> DTensor:
        """Running sums along an axis, by default of all elements in a row."""
        return self._engine.call("cumsum", self, axis=axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> DTensor:
        """Each element several times along an axis, by default of all elements in a row."""
        return np.repeat(self, repeats, axis=axis)  # type: ignore[call-overload]

    def take(self, ids: Any, axis: int | None = None) -> DTensor:
        """What stands at positions along an axis, by default of all elements in a row."""
        return np.take(self, ids, axis=axis)  # type: ignore[call-overload]

    def __round__(self, ndigits: int | None = None) -> DTensor:
        return self.round(ndigits or 0)

    def __iter__(self) -> Iterator[DTensor]:
        if not self.shape:
            msg = "a tensor without axes cannot be iterated over"
            raise TypeError(msg)
        return (self[at] for at in range(self.shape[0]))

    # On the host ------------------------------------------------------------------------

    def item(self) -> Any:
        """Fetches the only element, as Python's own number.

        Raises:
            ValueError: There is not exactly one.
            RemoteError: The tensor could not be computed.
        """
        if self.size != 1:
            msg = f"only a tensor of one element is a number, got one of shape {tuple(self.shape)}"
            raise ValueError(msg)
        return self.numpy().item()

    def tolist(self) -> Any:
        """Fetches the whole as nested lists of Python's own numbers."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            msg = "the elements are on the workers, so an array of them is always a copy"
            raise ValueError(msg)
        host = self.numpy()
        return host if dtype is None else host.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Fetches the whole for another library, which gets memory of its own.

        Args:
            stream: None, of the CPU.
            max_version: The newest version of DLPack that the other library knows.
            dl_device: Where the memory is to be: (1, 0), the CPU.
            copy: False is taken, too: nothing else has this memory.

        Raises:
            BufferError: The memory cannot be there, or the dtype is none of DLPack's.
        """
        del copy
        given = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        # An older numpy knows the first one alone.
        said: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        return self.numpy().__dlpack__(**said)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU, to which the elements come first."""
        return (1, 0)

    def __bool__(self) -> bool:
        if self.size != 1:
            msg = (
                f"a tensor of shape {tuple(self.shape)} is neither true nor false:"
                " use .any() or .all(), and & and | instead of and, or and chains of comparisons"
            )
            raise ValueError(msg)
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            msg = f"only integers count positions, got a tensor of {self.dtype.name}"
            raise TypeError(msg)
        return int(self._number())

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())  # type: ignore[attr-defined]

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def _number(self) -> Any:
        if self.shape:
            msg = (
                f"only a tensor without axes is a number, got one of shape {tuple(self.shape)};"
                " .item() takes the only element of others"
            )
            raise TypeError(msg)
        return self.numpy()[()]


class Origin(NamedTuple):
    """How a tensor was made, for :meth:`DTensor.explain`.

    Attributes:
        name: The function that made it.
        moves: The redistributions of its operands: which operand, and how.
    """

    name: str
    moves: tuple[tuple[str, RedistributionPlan], ...] = ()

    def with_others(self, brought: Mapping[str, Origin]) -> Origin:
        """The same where some operands were host arrays, which were distributed first.

        Args:
            brought: What was moved for each of them.
        """
        moves: list[tuple[str, RedistributionPlan]] = []
        for which, plan in self.moves:
            if which in brought:
                moves += ((f"{which}, {name}", other) for name, other in brought[which].moves)
            else:
                moves.append((which, plan))
        return Origin(self.name, tuple(moves))


class BinaryOperator(Protocol):
    """An operator of two operands, as a method of a tensor."""

    def __get__(self, tensor: object, kind: object = None) -> Callable[[object], DTensor]:
        """Binds it to the tensor."""
        ...


class UnaryOperator(Protocol):
    """An operator of one operand, as a method of a tensor."""

    def __get__(self, tensor: object, kind: object = None) -> Callable[[], DTensor]:
        """Binds it to the tensor."""
        ...


def _forward(name: str) -> BinaryOperator:
    def operator(self: DTensor, other: Any) -> Any:
        return self._apply(name, self, other)

    operator.__doc__ = f"``numpy.{name}`` with the tensor first."
    return cast("BinaryOperator", operator)


def _reflected(name: str) -> BinaryOperator:
    def operator(self: DTensor, other: Any) -> Any:
        return self._apply(name, other, self)

    operator.__doc__ = f"``numpy.{name}`` with the tensor second."
    return cast("BinaryOperator", operator)


def _unary(name: str) -> UnaryOperator:
    def operator(self: DTensor) -> Any:
        return self._apply(name, self)

    operator.__doc__ = f"``numpy.{name}``."
    return cast("UnaryOperator", operator)


_FROM_HOST = Origin("distribute")


class DTensor(Handle, Distributed, ArrayLike):
    """A distributed tensor; made by ``session.distribute`` and by computing with others.

    Operators, numpy's functions and those of :mod:`disco_client.distributed` work on
    it; each call is one or a few commands on the workers and returns at once.

    Attributes:
        ref: The reference of the parts.
        origin: What made it, and what was moved for that.
        name: Its name in the files that it was loaded from; otherwise empty.

    Examples:
        >>> x = session.distribute(np.arange(8.0).reshape(4, 2), placement="S[0]")
        >>> y = (x * 2).sum(axis=0)
        >>> y.numpy()
        array([24., 32.])
        >>> x.shape_on(3)
        (1, 2)
    """

    __slots__ = ("_engine", "_info", "name", "origin", "ref")

    _instead: ClassVar[str] = (
        "copy.copy(x) is another tensor of the same parts, and x.numpy() fetches the whole, of"
        " which session.distribute makes one with parts of its own"
    )

    # Before numpy's own arrays: `array + dtensor` comes here.
    __array_priority__: float = 1000.0

    def __init__(
        self,
        engine: Computing,
        info: DTensorStructInfo | Callable[[], DTensorStructInfo],
        ref: DRef,
        origin: Origin = _FROM_HOST,
        name: str = "",
    ) -> None:
        """Made by an engine, never by a program.

        Args:
            engine: Computes with it.
            info: Its shape, dtype, mesh and placement; or what finds them when they are needed.
            ref: Its parts.
            origin: The function that made it, and what had to be moved for it.
            name: Its name in the files that it was loaded from.
        """
        self.name: str = name
        self._engine = engine
        self.origin: Origin = origin
        self._info = info
        self.ref: DRef = ref

    @property
    def info(self) -> DTensorStructInfo:
        """Its shape, dtype, mesh and placement."""
        found = self._info
        if callable(found):
            found = self._info = found()
        return found

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
        """The workers that hold it."""
        return self.info.device_mesh

    @property
    def placement(self) -> Placement:
        """Its placement there."""
        return self.info.placement

    @property
    def T(self) -> DTensor:  # noqa: N802  (numpy's name)
        """With the axes in the opposite order."""
        return self._engine.call("transpose", self)

    @property
    def mT(self) -> DTensor:  # noqa: N802  (numpy's name)
        """With the last two axes in the opposite order.

        Raises:
            ConfigError: There are fewer.
        """
        if self.ndim < 2:  # noqa: PLR2004
            raise ConfigError(f"a matrix has at least two axes, got {tuple(self.shape)}")
        axes = (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)
        return self._engine.call("transpose", self, axes=axes)

    @property
    def device(self) -> DeviceMesh:
        """The mesh, as the Array API standard calls where an array lies."""
        return self.mesh

    def to_device(self, device: DeviceMesh, /, *, stream: None = None) -> DTensor:
        """The same values on another mesh, where the placement fits it, else as copies.

        Args:
            device: The mesh.
            stream: There are none to choose among.

        Raises:
            ConfigError: It is no mesh of the session's, or a stream is given.
        """
        if stream is not None or not isinstance(device, DeviceMesh):
            raise ConfigError(f"expected a mesh and no stream, got {device!r} and {stream!r}")
        if device == self.mesh:
            return self
        return self.redistribute(device, placement_on(device, self.info))

    @property
    def split(self) -> PlacementSpec | None:
        """Deprecated: how it is split along the last axis of the mesh; None for copies."""
        _deprecated("split", "placement")
        spec = self.placement.dim_specs[-1]
        return None if spec.is_replica else spec

    def debug_get_from_remote(self, worker_id: int) -> np.ndarray[Any, Any]:
        """Deprecated: fetches the part of one worker, as :meth:`shard` does."""
        _deprecated("debug_get_from_remote", "shard")
        return self.shard(worker_id)

    @property
    def reg_id(self) -> int:
        """Deprecated: the register of the parts."""
        _deprecated("reg_id", "ref.reg_id")
        return self.ref.reg_id

    @property
    def session(self) -> Any:
        """Deprecated: the session of the parts."""
        _deprecated("session", "ref.session")
        return self.ref.session

    def _belongs_to(self, engine: Computing) -> bool:
        """Whether an engine, and so its session, computes with it."""
        return self._engine is engine

    @overload
    def plan(self, placement: Placement | str, /) -> RedistributionPlan: ...

    @overload
    def plan(self, *, placement: Placement | str) -> RedistributionPlan: ...

    @overload
    def plan(self, mesh: DeviceMesh, placement: Placement | str) -> RedistributionPlan: ...

    def plan(
        self,
        mesh: DeviceMesh | Placement | str | None = None,
        placement: Placement | str | None = None,
    ) -> RedistributionPlan:
        """What :meth:`redistribute` would do; printed, it says so with its cost.

        Args:
            mesh: The mesh; left out for the tensor's own.
            placement: A spec for each axis of the mesh, or the text of it.

        Raises:
            ConfigError: The placement does not fit the tensor or the mesh, or the session has
                not all workers of the mesh.
        """
        return self._engine.plan(self, *_where("plan", mesh, placement))

    def explain(self) -> str:
        """Says what the function that made it cost: what moved between workers, and how much.

        Returns:
            A line for each move, the bytes being those that reach the worker that
            gets the most. Host arrays that travel with the commands are not counted.
            Where the parts are given ones, as those of a slice, a line says how unequal they are.
        """
        name, moves = self.origin
        cost = sum(plan.cost for _, plan in moves)
        lines = [f"{name} -> {self.placement}: {cost:,} bytes to a worker"]
        for which, plan in moves:
            lines += [f"  {which}: {step}" for step in plan.steps]
        if len(lines) == 1:
            lines.append("  nothing moved")
        return "\n".join([*lines, *self._inequality()])

    def _inequality(self) -> Iterator[str]:
        """How unequal given parts are, and what it takes to make them equal."""
        for spec in self.placement.dim_specs:
            if spec.parts and not spec.overlaps:
                sizes = map(str, map(length_of, cast("tuple[Intervals, ...]", spec.parts)))
                plan = self.plan(self.placement.plain())
                yield (
                    f"  parts of {', '.join(sizes)} along axis {spec.axis}:"
                    f" redistribute({str(plan.after.placement)!r}) makes them equal and sends"
                    f" {plan.nbytes:,} bytes in all"
                )

    def _explained_as(self, name: str, *made: DTensor) -> DTensor:
        """The same tensor, in its register, as the result of several functions; for `explain`.

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

    @overload
    def redistribute(self, placement: Placement | str, /) -> DTensor: ...

    @overload
    def redistribute(self, *, placement: Placement | str) -> DTensor: ...

    @overload
    def redistribute(self, mesh: DeviceMesh, placement: Placement | str) -> DTensor: ...

    def redistribute(
        self,
        mesh: DeviceMesh | Placement | str | None = None,
        placement: Placement | str | None = None,
    ) -> DTensor:
        """Returns the same tensor with another placement, on its mesh or another one; at once.

        ``x.redistribute("R, S[0]")`` stays on the mesh, ``x.redistribute(mesh, "S[1]")`` goes to
        any other one of the session, which may have some of the same workers or none. The
        workers send one another what they lack; nothing passes the client. Where it lies so
        already the result has the same memory, but keeps its values when this one is assigned
        others.

        Args:
            mesh: The mesh; left out for the tensor's own.
            placement: A spec for each axis of the mesh, or the text of it.

        Raises:
            ConfigError: The placement does not fit the tensor or the mesh, or the session has
                not all workers of the mesh.
        """
        return self._engine.redistribute(self, *_where("redistribute", mesh, placement))

    def shape_on(self, worker: int) -> tuple[int, ...]:
        """The shape of the part of one worker; no round trip.

        Raises:
            ConfigError: The mesh has no such worker.
        """
        if worker not in self.mesh.device_ids:
            raise ConfigError(f"worker {worker} is none of {self.mesh!r}")
        return self.info.local_shape(self.mesh.device_ids.index(worker))

    def shard(self, worker: int, *, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Fetches the part of one worker; waits for it.

        Where the placement is partial, these are the worker's own values.

        Args:
            worker: The worker.
            timeout: Seconds to wait; None waits as long as the session lives.

        Raises:
            ConfigError: The mesh has no such worker.
            DiscoTimeout: There is no answer yet; the call may be repeated.
            RemoteError: The tensor could not be computed.
        """
        if worker not in self.mesh.device_ids:
            raise ConfigError(f"worker {worker} is none of {self.mesh!r}")
        return self._engine.part(self, worker, timeout)

    def __await__(self) -> Generator[Any, None, np.ndarray[Any, Any]]:
        """Awaits the whole as a host array: :meth:`numpy` for asyncio."""
        return self._engine.fetch_later(self).__await__()

    def numpy(
        self, worker_id: int | None = None, *, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """Fetches the whole; waits for it.

        Partial values are combined by the workers first; parts come from the workers
        that hold them, and nothing else moves between workers.

        Args:
            worker_id: Deprecated; :meth:`shard` fetches one worker's part.
            timeout: Seconds to wait; None waits as long as the session lives.

        Raises:
            DiscoTimeout: There is no answer yet; the call may be repeated.
            RemoteError: The tensor could not be computed.
        """
        if worker_id is not None:
            _deprecated("numpy(worker)", "shard(worker)")
            return self.shard(worker_id, timeout=timeout)
        return self._engine.fetch(self, timeout)

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
        # Slices from here: each call on the way to the command costs the client time.
        shape = self.info.tensor_sinfo.shape
        found = taken_by(
            shape,
            items if isinstance(items, tuple) else (items,),  # pyright: ignore[reportUnknownArgumentType]
        )
        if found is None:
            return self._engine.getitem(self, items)
        return self._engine.take_slices(self, *found)

    def __setitem__(self, items: Any, value: Any) -> None:
        """Gives parts other values: ``x[1:3] = y``, ``x[0, 0] = 1``, ``x[mask] = 0``.

        This tensor has another register then, with the values; every name of it sees them. Other
        tensors never do, slices of this one among them, which in numpy would. The memory stays
        the same where nothing else has it.

        Args:
            items: Numbers, slices, ``...``, None, positions or a mask, as in numpy.
            value: A tensor, an array or a number, which is broadcast and converted to the dtype.

        Raises:
            CaptureError: A program is captured; ``x.at[items].set(value)`` makes another tensor.
            ConfigError: The index or the value does not fit.
        """
        self._engine.setitem(self, items, value)

    @property
    def at(self) -> TensorUpdates:
        """What makes tensors like this one, with other values in a place; this one stays.

        ``x.at[items].set(value)`` is what ``x[items] = value`` would make of a copy. ``add``,
        ``min`` and ``max`` combine the value with what is there, as often as a position is given.
        They also work in a program that is captured.

        Examples:
            >>> y = x.at[0, 2:].set(1.0)
            >>> counts = counts.at[bins].add(1)
        """
        return TensorUpdates(self._engine, self)

    def _become(self, ref: DRef, info: DTensorStructInfo, origin: Origin) -> None:
        """Takes the values of another register.

        Args:
            ref: Has them.
            info: How they lie.
            origin: What made them.
        """
        self.ref, self._info, self.origin = ref, info, origin

    def _held_by(self, ref: DRef) -> DTensor:
        """A tensor like this one in another register."""
        return DTensor(self._engine, self.info, ref, Origin("program"))

    def _refuse_unlike(self, value: object, name: str) -> None:
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

    __add__: BinaryOperator = _forward("add")
    __radd__: BinaryOperator = _reflected("add")
    __sub__: BinaryOperator = _forward("subtract")
    __rsub__: BinaryOperator = _reflected("subtract")
    __mul__: BinaryOperator = _forward("multiply")
    __rmul__: BinaryOperator = _reflected("multiply")
    __truediv__: BinaryOperator = _forward("true_divide")
    __rtruediv__: BinaryOperator = _reflected("true_divide")
    __floordiv__: BinaryOperator = _forward("floor_divide")
    __rfloordiv__: BinaryOperator = _reflected("floor_divide")
    __mod__: BinaryOperator = _forward("remainder")
    __rmod__: BinaryOperator = _reflected("remainder")
    __pow__: BinaryOperator = _forward("power")
    __rpow__: BinaryOperator = _reflected("power")
    __and__: BinaryOperator = _forward("bitwise_and")
    __rand__: BinaryOperator = _reflected("bitwise_and")
    __or__: BinaryOperator = _forward("bitwise_or")
    __ror__: BinaryOperator = _reflected("bitwise_or")
    __xor__: BinaryOperator = _forward("bitwise_xor")
    __rxor__: BinaryOperator = _reflected("bitwise_xor")
    __lshift__: BinaryOperator = _forward("left_shift")
    __rlshift__: BinaryOperator = _reflected("left_shift")
    __rshift__: BinaryOperator = _forward("right_shift")
    __rrshift__: BinaryOperator = _reflected("right_shift")
    __matmul__: BinaryOperator = _forward("matmul")
    __rmatmul__: BinaryOperator = _reflected("matmul")
    __lt__: BinaryOperator = _forward("less")
    __le__: BinaryOperator = _forward("less_equal")
    __gt__: BinaryOperator = _forward("greater")
    __ge__: BinaryOperator = _forward("greater_equal")
    __eq__: BinaryOperator = _forward("equal")  # type: ignore[assignment]
    __ne__: BinaryOperator = _forward("not_equal")  # type: ignore[assignment]
    __neg__: UnaryOperator = _unary("negative")
    __pos__: UnaryOperator = _unary("positive")
    __abs__: UnaryOperator = _unary("absolute")
    __invert__: UnaryOperator = _unary("invert")
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  (like numpy's, as == compares elements)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Lets ``numpy.exp(x)`` and the like compute on the workers."""
        return self._engine.call_ufunc(ufunc, method, inputs, options)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Numpy's names for the tensor's mesh, as the Array API standard asks for them.

        Args:
            api_version: The version of the standard, which changes nothing.
        """
        del api_version
        return self._engine.namespace(self.mesh)

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
        return html_of(self)

    def __copy__(self) -> DTensor:
        """Another tensor of the same values: what either is assigned later is not the other's."""
        ref = self._engine.redistribute(self, self.placement).ref
        return DTensor(self._engine, self.info, ref, self.origin, self.name)

    def __repr__(self) -> str:
        parts = [self.info.local_shape(place) for place in range(self.mesh.size)]
        each = sorted(set(parts), reverse=True)
        name = f"{self.name!r}, " if self.name else ""
        return (
            f"DTensor({name}{tuple(self.shape)}, {self.info.tensor_sinfo.dtype_name},"
            f" {str(self.placement)!r} on {self.mesh!r}, parts of"
            f" {' or '.join(map(str, each[:2]))})"
        )


class TensorUpdates:
    """What ``x.at`` is, to be indexed by a place; see :attr:`DTensor.at`."""

    __slots__ = ("_engine", "_tensor")

    def __init__(self, engine: Computing, tensor: DTensor) -> None:
        self._engine = engine
        self._tensor = tensor

    def __getitem__(self, items: Any) -> TensorUpdate:
        """The place; what may stand here is what may stand between a tensor's brackets."""
        return TensorUpdate(self._engine, self._tensor, items)


class TensorUpdate:
    """A place in a tensor, of which another tensor has other values; see :attr:`DTensor.at`."""

    __slots__ = ("_engine", "_items", "_tensor")

    def __init__(self, engine: Computing, tensor: DTensor, items: Any) -> None:
        self._engine = engine
        self._tensor = tensor
        self._items = items

    def get(self) -> DTensor:
        """What is there: ``x[items]``."""
        return self._tensor[self._items]

    def set(self, value: Any) -> DTensor:
        """With values in place of what is there; of equal positions the last one counts."""
        return self._engine.updated(self._tensor, self._items, "set", value)

    def add(self, value: Any) -> DTensor:
        """With values added to what is there."""
        return self._engine.updated(self._tensor, self._items, "add", value)

    def min(self, value: Any) -> DTensor:
        """With the smaller ones of the values and of what is there."""
        return self._engine.updated(self._tensor, self._items, "min", value)

    def max(self, value: Any) -> DTensor:
        """With the larger ones of the values and of what is there."""
        return self._engine.updated(self._tensor, self._items, "max", value)


def _where(
    method: str, mesh: DeviceMesh | Placement | str | None, placement: Placement | str | None
) -> tuple[Placement | str, DeviceMesh | None]:
    """The placement and the mesh among a method's arguments, the first of which is optional.

    Raises:
        TypeError: These are others.
    """
    if placement is None and mesh is not None:
        return cast("Placement | str", mesh), None
    if placement is None or not (mesh is None or isinstance(mesh, DeviceMesh)):
        msg = (
            f"expected {method}(placement) or {method}(mesh, placement), such as"
            f" {method}('S[0]'), got {mesh!r} and {placement!r}"
        )
        raise TypeError(msg)
    return placement, mesh


def _deprecated(old: str, new: str) -> None:
    """Warns of attributes that tensors of load_weights had before they were of this class."""
    warnings.warn(
        f"DTensor.{old} is {new} and goes with the next release", DeprecationWarning, stacklevel=3
    )


def several(value: Any) -> tuple[Any, ...]:
    """One extent or axis, or several, as a tuple."""
    # An array without axes claims to be iterable, too.
    if as_index(value) is not None or not isinstance(value, Iterable):
        return (value,)
    return tuple(cast("Iterable[Any]", value))


def _in_one(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Extents or axes that were given one by one, or as one sequence."""
    return several(given[0]) if len(given) == 1 else given
