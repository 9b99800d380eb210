"""What people expect of anything that looks like one of numpy's arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from disco_client.distributed.dtensor import DTensor
    from disco_client.distributed.engine import Engine
    from disco_client.wire.values import Shape

__all__ = ["ArrayLike"]


class ArrayLike(ABC):
    """The part of a distributed tensor that Python and numpy ask for.

    What needs values on the host fetches them, and waits: ``float``, ``bool``,
    ``item``, ``tolist``, ``in``, and whatever calls ``numpy.asarray``. Everything else
    is computed on the workers and returns at once. No tensor ever changes: ``x += y``
    makes another tensor and calls it ``x``.
    """

    __slots__ = ()

    _engine: Engine

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

    def take(self, ids: Any, axis: int | None = None) -> DTensor:
        """What stands at positions along an axis, by default of all elements in a row."""
        return np.take(self, ids, axis=axis)  # type: ignore[call-overload]

    def __round__(self, ndigits: int | None = None) -> DTensor:
        return self.round(ndigits or 0)

    def __iter__(self) -> Iterator[DTensor]:
        if not self.shape:
            msg = "a tensor without axes cannot be iterated over"
            raise TypeError(msg)
        return (self._engine.call("getitem", self, items=at) for at in range(self.shape[0]))

    def __setitem__(self, items: Any, value: Any) -> NoReturn:
        msg = (
            "a distributed tensor does not change; numpy.where(condition, value, x) makes another"
            " one, and numpy.concatenate puts parts together"
        )
        raise TypeError(msg)

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
