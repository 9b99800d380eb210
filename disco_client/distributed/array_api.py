"""What the Array API standard asks of a namespace and of its arrays beyond numpy's functions.

The standard is https://data-apis.org/array-api/2025.12, whose functions numpy 2 has under the same
names. A device of the standard's is a mesh: where on it an array lies, its placement says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.mesh import DeviceMesh
from disco_client.errors import ConfigError, DtypeError
from disco_client.wire.values import dtype_from_name

__all__ = ["FloatInfo", "NamespaceFunction", "NamespaceInfo", "StandardNamespace", "mesh_of"]


_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = (*_KINDS["signed integer"], *_KINDS["unsigned integer"])
_KINDS["numeric"] = (*_KINDS["integral"], *_KINDS["real floating"], *_KINDS["complex floating"])

_MOST_AXES = 64


def mesh_of(device: object) -> DeviceMesh:
    """The mesh that is meant by a device.

    Raises:
        ConfigError: It is no mesh.
    """
    if not isinstance(device, DeviceMesh):
        raise ConfigError(
            f"expected a mesh as the device, such as the device of a tensor, got {device!r}"
        )
    return device


class NamespaceInfo:
    """What a namespace can do, as the standard's ``__array_namespace_info__`` returns it.

    Args:
        mesh: Of the namespace.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def capabilities(self) -> dict[str, Any]:
        """Of what the standard leaves to choice."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _MOST_AXES,
        }

    def default_device(self) -> DeviceMesh:
        """The mesh on which lies what is made without one."""
        return self._mesh

    def devices(self) -> tuple[DeviceMesh, ...]:
        """The same, among any others that a program makes of the session's workers."""
        return (self._mesh,)

    def default_dtypes(self, *, device: object = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of what is made without one, by kind.

        Args:
            device: A mesh; the dtypes are those of all.
        """
        del device
        names = {
            "real floating": "float64",
            "complex floating": "complex128",
            "integral": "int64",
            "indexing": "int64",
        }
        return {kind: np.dtype(name) for kind, name in names.items()}

    def dtypes(
        self, *, device: object = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype[Any]]:
        """The dtypes of a kind, of several, or all, by name.

        Args:
            device: A mesh; the dtypes are those of all.
            kind: One of the standard's kinds, several, or None for all.

        Raises:
            ConfigError: There is no such kind.
        """
        del device
        kinds = ("bool", "numeric") if kind is None else (kind,) if isinstance(kind, str) else kind
        for each in kinds:
            if each not in _KINDS:
                raise ConfigError(f"expected kinds of dtypes among {', '.join(_KINDS)}: {each!r}")
        return {name: np.dtype(name) for each in kinds for name in _KINDS[each]}


class FloatInfo:
    """The limits of a dtype of floating-point numbers, as Python's own; others are numpy's.

    Args:
        dtype: The dtype.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        found: Any = np.finfo(dtype)
        self._numpys = found
        self.bits = int(found.bits)
        self.eps = float(found.eps)
        self.max = float(found.max)
        self.min = float(found.min)
        self.smallest_normal = float(found.smallest_normal)
        self.dtype: np.dtype[Any] = found.dtype

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._numpys, name)

    def __repr__(self) -> str:
        return repr(self._numpys)


class NamespaceFunction:
    """One of numpy's functions that also takes what is no distributed tensor yet.

    Args:
        function: The function, whose name and signature this one has.
        call: Calls it on what it is given.
    """

    def __init__(self, function: Callable[..., Any], call: Callable[..., Any]) -> None:
        self.__wrapped__ = function
        self.__name__: str = function.__name__
        self.__doc__: str | None = function.__doc__
        self._call = call

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls the function, with tensors for what is none."""
        return self._call(self.__wrapped__, *args, **options)

    def __repr__(self) -> str:
        return f"<{self.__name__} on the workers>"


class StandardNamespace(ABC):
    """What has another signature in the standard than in numpy, or other results."""

    __name__ = "session.numpy"
    __array_api_version__ = "2025.12"

    @property
    @abstractmethod
    def mesh(self) -> DeviceMesh:
        """On which workers what is made here lies."""

    @abstractmethod
    def asarray(
        self, a: Any, dtype: object = None, *, device: object = None, copy: bool | None = None
    ) -> DTensor:
        """A tensor of what is none yet."""

    def __array_namespace_info__(self) -> NamespaceInfo:
        """What the standard has a program ask about a namespace."""
        return NamespaceInfo(self.mesh)

    def finfo(self, dtype: object, /) -> FloatInfo:
        """The limits of a floating-point dtype, or of a tensor's.

        Args:
            dtype: The dtype, or a tensor or an array of it.

        Raises:
            DtypeError: It has none.
        """
        found = _dtype_of(dtype)
        if found.kind not in "fc":
            raise DtypeError(f"finfo: expected a floating-point dtype, got {found}")
        return FloatInfo(found)

    def iinfo(self, dtype: object, /) -> np.iinfo[Any]:
        """The limits of an integer dtype, or of a tensor's.

        Args:
            dtype: The dtype, or a tensor or an array of it.

        Raises:
            DtypeError: It has none.
        """
        found = _dtype_of(dtype)
        if found.kind not in "iu":
            raise DtypeError(f"iinfo: expected an integer dtype, got {found}")
        return np.iinfo(found)

    def clip(
        self,
        x: Any,
        /,
        min: Any = None,  # noqa: A002  (the standard's names)
        max: Any = None,  # noqa: A002
        *,
        a_min: Any = None,
        a_max: Any = None,
    ) -> DTensor:
        """Each element, or the nearer one of two limits.

        Args:
            x: The elements.
            min: The lower limit, or several, which are broadcast; None for none.
            max: The upper limit, likewise.
            a_min: numpy's name of the lower limit.
            a_max: And of the upper one.
        """
        low = a_min if min is None else min
        high = a_max if max is None else max
        return np.clip(self.asarray(x), low, high)  # type: ignore[call-overload,return-value]

    def from_dlpack(self, x: Any, /, *, device: object = None, copy: bool | None = None) -> DTensor:
        """A tensor of another library's array, or of a tensor.

        Args:
            x: What speaks DLPack.
            device: The mesh on which it is to lie; by default as :meth:`asarray` says.
            copy: True for a tensor of its own, False for ``x`` itself; None for whichever does.

        Raises:
            ValueError: ``copy`` is False, and ``x`` is not on these workers.
        """
        return self.asarray(x, device=device, copy=copy)


def _dtype_of(value: object) -> np.dtype[Any]:
    is_array = isinstance(value, (DTensor, np.ndarray, np.generic))
    return cast("Any", value).dtype if is_array else dtype_from_name(value)
