"""A namespace of numpy's names whose functions compute on the workers of a session."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, cast

import numpy as np

from disco_client.core import DRef
from disco_client.distributed.array_api import NamespaceFunction, StandardNamespace, mesh_of
from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.numpy_api import FUNCTIONS
from disco_client.distributed.numpy_arguments import array_of, as_dtype
from disco_client.distributed.numpy_made import MADE
from disco_client.distributed.numpy_refused import REFUSED, way_round
from disco_client.distributed.numpy_ufuncs import is_served
from disco_client.distributed.ops import call_checked, integers
from disco_client.distributed.overlaps import map_overlap
from disco_client.distributed.own_functions import check_function
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    PlacementSpecKind,
    TensorStructInfo,
)
from disco_client.distributed.random import RandomNamespace
from disco_client.errors import ConfigError, DtypeError
from disco_client.wire.values import dtype_from_name, dtype_name

__all__ = ["ArrayNamespace", "first_axis_split"]


_DATA = frozenset(
    [
        *("pi", "e", "inf", "nan", "newaxis", "euler_gamma"),
        *("bool", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
        *("uint64", "float16", "float32", "float64", "complex64", "complex128", "intp"),
        *("dtype", "result_type", "can_cast", "promote_types", "issubdtype"),
        *("isdtype", "broadcast_shapes", "errstate", "s_", "index_exp"),
        *("byte", "short", "intc", "int_", "long", "longlong", "ubyte", "ushort", "uint"),
        *("uintc", "uintp", "ulong", "ulonglong", "half", "single", "double", "csingle"),
        *("cdouble", "datetime64", "timedelta64", "generic", "number", "integer", "inexact"),
        *("signedinteger", "unsignedinteger", "floating", "complexfloating", "flexible"),
        *("character", "mintypecode", "typename", "datetime_data", "ndindex"),
        *("get_printoptions", "set_printoptions", "printoptions"),
    ]
)
"""Names of numpy's that compute with no tensor, and are numpy's own."""


_OF_SEVERAL = frozenset(["concatenate", "stack", "vstack", "hstack", "dstack", "column_stack"])
"""Functions whose first operand is a sequence of arrays."""


class ArrayNamespace(StandardNamespace):
    """numpy's functions, for one mesh of a session; see ``Session.numpy``.

    Args:
        engine: Computes.
        mesh: On which workers what is made here lies.
        placement: How, unless a call says so; an axis that a tensor lacks is not split.
        session: What lives as long as this, so that a program need not name it.
    """

    def __init__(
        self,
        engine: Computing,
        mesh: DeviceMesh,
        placement: Placement | str,
        session: object = None,
    ) -> None:
        self._engine = engine
        self._session = session
        self._mesh = mesh
        found = Placement.from_text(placement) if isinstance(placement, str) else placement
        if len(found) != mesh.ndim:
            raise ConfigError(f"expected a spec for each axis of {mesh!r}, got {str(found)!r}")
        self._placement = found

    def __call__(
        self, *, mesh: DeviceMesh | None = None, placement: Placement | str | None = None
    ) -> ArrayNamespace:
        """The same on another mesh, or with another placement of what is made.

        Args:
            mesh: The mesh; by default the same.
            placement: A spec for each of its axes; by default a split of a tensor's first axis
                along the first axis of the mesh.
        """
        where = self._mesh if mesh is None else mesh
        if placement is None:
            placement = self._placement if mesh is None else first_axis_split(where)
        return ArrayNamespace(self._engine, where, placement, self._session)

    @property
    def mesh(self) -> DeviceMesh:
        """On which workers what is made here lies."""
        return self._mesh

    def __repr__(self) -> str:
        return f"<numpy on {self._mesh!r}, {str(self._placement)!r}>"

    # Made on the workers ----------------------------------------------------------------

    def _info(
        self, shape: Any, dtype: object, placement: Placement | str | None, device: object = None
    ) -> DTensorStructInfo:
        extents = integers("shape", several(shape))
        whole = TensorStructInfo(extents, dtype_from_name(dtype))
        mesh, usual = self._mesh, self._placement
        if device is not None and device != mesh:
            mesh = mesh_of(device)
            usual = first_axis_split(mesh)
        if placement is None:
            # A tensor without the axis is not split along it.
            copies = PlacementSpec.replica()
            placement = Placement(
                copies
                if spec.kind is PlacementSpecKind.SHARDING
                and not -whole.ndim <= spec.axis < whole.ndim
                else spec
                for spec in usual.dim_specs
            )
        return DTensorStructInfo(whole, mesh, placement)

    def full(
        self,
        shape: Any,
        fill_value: Any,
        dtype: object = None,
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """A tensor of one value, or of an array that is broadcast.

        Args:
            shape: An extent, or several.
            fill_value: The value.
            dtype: By default that of the value.
            placement: How it lies; by default as the namespace says.
            device: On which mesh; by default that of the namespace.
        """
        value = array_of(fill_value)
        kind = value.dtype if dtype is None else dtype_from_name(dtype)
        info = self._info(shape, kind, placement, device)
        if not value.ndim and not isinstance(value, DTensor):
            return self._engine.create("full", info, as_dtype(fill_value, kind))
        shape = info.tensor_sinfo.shape
        plan = DTensorStructInfo(TensorStructInfo(shape, "bool"), info.device_mesh, info.placement)
        nowhere = self._engine.create("full", plan, np.False_)
        made = self._engine.call("where", nowhere, value, value).astype(kind)
        return made.redistribute(info.placement)._explained_as("full", made)

    def zeros(
        self,
        shape: Any,
        dtype: object = "float64",
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """A tensor of zeros; see :meth:`full`."""
        return self._of(0, shape, dtype, placement, device)

    def ones(
        self,
        shape: Any,
        dtype: object = "float64",
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """A tensor of ones; see :meth:`full`."""
        return self._of(1, shape, dtype, placement, device)

    def empty(
        self,
        shape: Any,
        dtype: object = "float64",
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """A tensor whose values are not to be used; they are zeros."""
        return self._of(0, shape, dtype, placement, device)

    def _of(
        self,
        value: int,
        shape: Any,
        dtype: object,
        placement: Placement | str | None,
        device: object,
    ) -> DTensor:
        kind = np.dtype("float64") if dtype is None else dtype_from_name(dtype)
        info = self._info(shape, kind, placement, device)
        return self._engine.create("full", info, np.asarray(value, kind))

    def arange(
        self,
        start: Any,
        stop: Any = None,
        step: Any = 1,
        dtype: object = None,
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """Numbers in even steps, from a first one to before a last one."""
        if stop is None:
            start, stop = 0, start
        ends = [np.asarray(each) for each in (start, stop, step)]
        if any(each.ndim or each.dtype.kind not in "iuf" for each in ends):
            raise DtypeError(f"arange: expected real numbers, got {start!r}, {stop!r}, {step!r}")
        if not step:
            raise ConfigError("arange: expected a step that is not 0")
        kind = np.result_type(*ends) if dtype is None else dtype_from_name(dtype)
        if kind.kind == "b":
            raise DtypeError("arange: expected a dtype of numbers, got bool")
        count = max(0, math.ceil((stop - start) / step))
        info = self._info(count, kind, placement, device)
        first, second = (np.asarray(each) for each in (start, start + step))
        return self._engine.create("arange", info, first, second)

    def linspace(  # noqa: PLR0913  (numpy's parameters)
        self,
        start: Any,
        stop: Any,
        num: int = 50,
        endpoint: bool = True,
        retstep: bool = False,
        dtype: object = None,
        axis: int = 0,
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> Any:
        """So many numbers at equal distances, the last one among them unless ``endpoint=False``."""
        (count,) = integers("linspace", (num,))
        if count < 0:
            raise ConfigError(f"linspace: expected a count from 0, got {count}")
        if np.ndim(start) or np.ndim(stop) or axis not in (0, -1):
            raise ConfigError("linspace on the workers takes numbers as its ends")
        kind = np.result_type(np.asarray(start), np.asarray(stop), float(count))
        wanted = kind if dtype is None else dtype_from_name(dtype)
        info = self._info(count, wanted, placement, device)
        ends = (np.asarray(each, kind) for each in (start, stop))
        made = self._engine.create("linspace", info, *ends, count, bool(endpoint))
        if not retstep:
            return made
        divisions = count - 1 if endpoint else count
        return made, (stop - start) / divisions if divisions > 0 else math.nan

    def eye(
        self,
        N: int,  # noqa: N803  (numpy's names)
        M: int | None = None,  # noqa: N803
        k: int = 0,
        dtype: object = "float64",
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """Ones on a diagonal and zeros elsewhere."""
        return self._matrix("eye", N, M, k, dtype, placement, device)

    def identity(
        self,
        n: int,
        dtype: object = "float64",
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """The square matrix with ones on its diagonal."""
        return self._matrix("eye", n, None, 0, dtype, placement, device)

    def tri(
        self,
        N: int,  # noqa: N803  (numpy's names)
        M: int | None = None,  # noqa: N803
        k: int = 0,
        dtype: object = "float64",
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> DTensor:
        """Ones on a diagonal and below it, zeros above."""
        return self._matrix("tri", N, M, k, dtype, placement, device)

    def _matrix(
        self,
        name: str,
        rows: int,
        columns: int | None,
        offset: int,
        dtype: object,
        placement: Placement | str | None,
        device: object,
    ) -> DTensor:
        extents = integers(name, (rows, rows if columns is None else columns))
        (diagonal,) = integers(name, (offset,))
        kind = np.dtype("float64") if dtype is None else dtype_from_name(dtype)
        info = self._info([max(0, extent) for extent in extents], kind, placement, device)
        most = sum(info.tensor_sinfo.shape)  # beyond which all diagonals are alike
        return self._engine.create(name, info, min(max(diagonal, -most), most))

    def indices(
        self,
        dimensions: Sequence[int],
        dtype: object = "int64",
        sparse: bool = False,
        *,
        placement: Placement | str | None = None,
        device: object = None,
    ) -> Any:
        """For each axis of a grid the index along it of each element, one grid after the other."""
        extents = integers("indices", several(dimensions))
        kind = dtype_from_name(dtype)
        if sparse:
            shapes = [
                [extent if at == axis else 1 for at in range(len(extents))]
                for axis, extent in enumerate(extents)
            ]
            return tuple(
                self._engine.create("indices", self._info(shape, kind, placement, device), axis)
                for axis, shape in enumerate(shapes)
            )
        info = self._info(extents, kind, placement, device)
        grids = [self._engine.create("indices", info, axis) for axis in range(len(extents))]
        if not grids:
            return self.zeros((0,), kind, device=device)
        return np.stack(grids)  # type: ignore[arg-type]

    def fromfunction(
        self,
        function: Any,
        shape: Any,
        *,
        dtype: object = float,
        result_dtype: object = None,
        placement: Placement | str | None = None,
        **kwargs: Any,
    ) -> Any:
        """What a function makes of the indices of each element.

        Args:
            function: Of the workers: its name, or what ``session.get_global_func`` returned. Each
                worker calls it with the indices of its part in the whole, for each axis an array
                of the shape of the part that cannot be written into, unless the part has no
                elements. It returns the part, or a number for all elements of it. Or a function
                of this program, which is called here with a distributed tensor of indices for
                each axis; what it returns is returned.
            shape: An extent, or several.
            dtype: Of the indices.
            result_dtype: Of what a function of the workers makes; by default that of the indices.
            placement: How it lies; by default as the namespace says.
            **kwargs: What the function takes besides.

        Raises:
            ConfigError: That is no function.
            BadArgument: With a wait: a worker's function returned another shape, or a dtype that
                cannot become that of the result.
        """
        indices = dtype_from_name(dtype)
        info = self._info(shape, indices, placement)
        if callable(function) and not isinstance(function, DRef):
            axes = range(info.tensor_sinfo.ndim)
            made = function(*(self._engine.create("indices", info, at) for at in axes), **kwargs)
            return made if result_dtype is None else self.asarray(made, result_dtype)
        called = check_function("fromfunction", function)
        if result_dtype is not None:
            info = self._info(shape, result_dtype, placement)
        names = dtype_name(indices)
        return self._engine.create("fromfunction", info, called, names, kwargs)

    def map_overlap(
        self,
        function: Any,
        x: Any,
        depth: Any,
        boundary: Any = "none",
        *,
        trim: bool = True,
        dtype: object = None,
        **kwargs: Any,
    ) -> DTensor:
        """Calls a worker's function with each part and its halos, for stencils.

        Neighbours exchange the halos, so that those of a part are what is beside it in the whole;
        nothing else moves. The names are those of ``dask.array.map_overlap``.

        Args:
            function: A function of the workers: its name, or what ``session.get_global_func``
                returned. It is called with an array that cannot be written into, unless the part
                has no elements; where a part has several pieces of an axis with halos, with each
                of them.
            x: The tensor; partial values are combined first.
            depth: How many indices a halo has on either side: of all axes, of each in order, or by
                axis in a dict, with 0 for the others.
            boundary: What is beyond the ends of the whole, for all axes or for each, likewise:
                ``"none"``, where halos end there, ``"reflect"``, the same backwards, beginning
                with the last element (numpy.pad's ``symmetric``), ``"nearest"``, the last element
                (its ``edge``), ``"periodic"``, what is at the other end (its ``wrap``), or a
                number.
            trim: True where the function returns the shape that it was given; its halos are then
                cut off. False where it returns the shape without halos.
            dtype: Of the result; by default that of ``x``.
            **kwargs: What the function takes besides.

        Returns:
            A tensor of the shape of ``x``, which lies as it does.

        Raises:
            ConfigError: That is no function, or the depth or the boundary does not fit.
            DtypeError: The dtype of ``x`` has no such number.
            BadArgument: With a wait: the function returned another shape, or a dtype that cannot
                become that of the result.
        """
        return map_overlap(
            self._engine,
            function,
            self.asarray(x),
            depth,
            boundary,
            trim=trim,
            dtype=dtype,
            options=kwargs,
        )

    def asarray(
        self,
        a: Any,
        dtype: object = None,
        *,
        device: object = None,
        copy: bool | None = None,
        placement: Placement | str | None = None,
    ) -> DTensor:
        """A tensor of what is none yet, from the client; others stay as they are.

        Args:
            a: A distributed tensor, an array, nested sequences or a number.
            dtype: By default its own.
            device: On which mesh; by default on its own, or on that of the namespace.
            copy: True for a tensor of its own, False for ``a`` itself; None for whichever does.
            placement: How it lies; by default as the namespace says, or as it does.

        Raises:
            ValueError: ``copy`` is False, and ``a`` is not what was asked for.
        """
        made = self._as_tensor(a, dtype, placement, device)
        if copy is False and made is not a:
            msg = "only a distributed tensor of this dtype and placement need not be copied"
            raise ValueError(msg)
        return made.__copy__() if copy and made is a else made

    def _as_tensor(
        self, a: Any, dtype: object, placement: Placement | str | None, device: object
    ) -> DTensor:
        kind = None if dtype is None else dtype_from_name(dtype)
        if not isinstance(a, DTensor):
            host = array_of(a) if kind is None else as_dtype(a, kind)
            info = self._info(host.shape, host.dtype, placement, device)
            return self._engine.distribute(host, info.device_mesh, info.placement)
        out = a if kind is None or kind == a.dtype else a.astype(kind)
        out = out if device is None else out.to_device(mesh_of(device))
        return out if placement is None else out.redistribute(placement)

    array = asarray

    # Functions ----------------------------------------------------------------------------

    @cached_property
    def random(self) -> RandomNamespace:
        """Generators of random tensors: ``random.default_rng(seed).normal(size=(4, 2))``."""
        return RandomNamespace(self._engine, self._info)

    @cached_property
    def linalg(self) -> _Functions:
        """Those of ``numpy.linalg``."""
        return _Functions(self, "linalg.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also of one that is being made, which has no mesh to name
            msg = f"{type(self).__name__} has no {name}"
            raise AttributeError(msg)
        if name in _DATA and hasattr(np, name):
            return getattr(np, name)
        if name in MADE:
            return partial(self._made, name)
        return self.function(name)

    def _made(
        self, name: str, *args: Any, placement: Placement | str | None = None, **options: Any
    ) -> Any:
        xp = self if placement is None else self(placement=placement)
        return call_checked(name, MADE[name], xp, *args, **options)

    def function(self, name: str) -> Callable[..., Any]:
        """One of numpy's functions, which also takes what is no distributed tensor yet.

        Raises:
            AttributeError: It is not served.
        """
        try:
            # Not what is refused: numpy warns of names that will be gone.
            function = None if name in REFUSED else attrgetter(name)(np)
        except AttributeError:
            function = None
        if isinstance(function, np.ufunc):
            served = is_served(function)
        else:
            served = callable(function) and function in FUNCTIONS
        if not served:
            msg = f"{self!r} has no {name}; {way_round(name)}"
            raise AttributeError(msg)
        return NamespaceFunction(cast("Callable[..., Any]", function), self._call)

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if args and not any(map(_has_tensor, args)):
            first, *rest = args
            several_of = function.__name__ in _OF_SEVERAL
            made = list(map(self.asarray, first)) if several_of else self.asarray(first)
            args = (made, *rest)
        return function(*args, **options)


class _Functions:
    """The functions of one of numpy's modules."""

    def __init__(self, namespace: ArrayNamespace, prefix: str) -> None:
        self._namespace = namespace
        self._prefix = prefix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._namespace.function(self._prefix + name)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, cast("Sequence[Any]", value)))
    return isinstance(value, DTensor)


def first_axis_split(mesh: DeviceMesh) -> Placement:
    """The placement of a tensor whose first axis the first axis of a mesh splits."""
    copies = [PlacementSpec.replica()] * (mesh.ndim - 1)
    return Placement([PlacementSpec.sharding(0), *copies])
