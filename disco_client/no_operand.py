"""References as operands, which Python and numpy refuse instead of computing with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["NoOperand"]


class NoOperand:
    """Something that stands for values, and that Python and numpy would take for an opaque object.

    Without this class they would do so without an error. With it, `bool` of one, and numpy's
    functions and operators with one, raise a :class:`TypeError` that says how to get the values.
    Two of them are equal if they are the same object.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...

    else:
        __hash__ = object.__hash__  # a method in Python would take four times as long

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NoOperand) and hasattr(other, "__array__"):
            self._refuse("numpy.equal")
        return NotImplemented

    def __bool__(self) -> NoReturn:  # noqa: PLE0304
        self._refuse("bool (whether there is a reference is `ref is not None`)")

    # Type checkers do not see these, so that they go on to refuse one where an array is expected.
    if not TYPE_CHECKING:

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
            del dtype, copy
            self._refuse("numpy.asarray")

        def __array_ufunc__(
            self, ufunc: Any, method: str, *inputs: Any, **options: Any
        ) -> NoReturn:
            del inputs, options
            self._refuse(f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}"))

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
            del types, args, kwargs
            self._refuse(f"{func.__module__}.{func.__name__}")

    def _refuse(self, what: str) -> NoReturn:
        function = repr(what) if what.startswith("numpy.") else "name"
        msg = (
            f"{what}: a {type(self).__name__} refers to a value on each worker and is not the value"
            " itself; ref.numpy() fetches worker 0's array, ref.get() any value, and"
            f" session.get_global_func({function})(ref) computes on the workers"
        )
        raise TypeError(msg)
