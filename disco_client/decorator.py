"""``@remote``: functions and classes that sessions run, and that this process can call as well.

Every module that uses it imports this, on the workers too, so it loads little: what a call on the
workers needs is imported by the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from inspect import getattr_static
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Protocol, overload

from disco_client.free_standing import check_free_standing
from disco_client.reentry import import_uninterrupted
from disco_client.type_variables import P, R_co, T, T_co

if TYPE_CHECKING:
    from disco_client.core import Distributed, DRef

__all__ = ["OnWorkers", "RemoteFunction", "remote"]

_NAME = "remote"


class OnWorkers(Generic[P, T_co]):
    """Calls a function, or makes an object of a class, on every worker of a session.

    Args:
        thing: The function or the class.
    """

    __slots__ = ("_thing",)

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    @overload
    def __call__(self, /, *args: P.args, **keywords: P.kwargs) -> DRef[T_co]: ...

    @overload
    def __call__(
        self, a: DRef | Distributed, /, *args: object, **keywords: object
    ) -> DRef[T_co]: ...

    @overload
    def __call__(
        self, a: object, b: DRef | Distributed, /, *args: object, **keywords: object
    ) -> DRef[T_co]: ...

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Calls it on every worker; returns at once, except from the first call in a session.

        The session is that of the first argument that is a reference or a distributed tensor. Where
        there is none, it is the session that is open.

        Args:
            *args: Arguments; see :meth:`Session.call_packed <disco_client.Session.call_packed>`.
            **keywords: Keyword arguments, of the same kinds.

        Returns:
            A reference to each worker's result; of a class, the object.

        Raises:
            ConfigError: No session is open, or several are and no argument belongs to one; or
                this is a worker; or workers cannot find the function or the class.
            NotAllowed, RemoteError, SessionError: As of ``session.function``.
        """
        calls = import_uninterrupted("disco_client.remote_calls")
        return calls.call_remotely(self._thing, args, keywords)

    def __repr__(self) -> str:
        return f"<{self._thing.__module__}.{self._thing.__qualname__} on the workers>"


class RemoteFunction(Protocol[P, R_co, T_co]):
    """A function that ``@remote`` decorates, for type checkers; it is the function itself.

    Attributes:
        remote: Calls it on every worker.
    """

    __name__: str
    __qualname__: str

    def __call__(self, /, *args: P.args, **keywords: P.kwargs) -> R_co:
        """Calls it here."""
        ...

    @property
    def remote(self) -> OnWorkers[P, T_co]:
        """Calls it on every worker."""
        ...


class _OfClass:
    """The attribute ``remote`` of a class and its subclasses; their objects have none."""

    def __get__(self, instance: object, owner: type) -> OnWorkers[..., Any]:
        if instance is None:
            return OnWorkers(owner)
        msg = f"{owner.__qualname__!r} object has no attribute {_NAME!r}; its class has"
        raise AttributeError(msg, name=_NAME, obj=instance)


# Classes are callable as well, and the first overload is theirs.
@overload
def remote(thing: type[T], /) -> type[T]: ...  # pyright: ignore[reportOverlappingOverload]


@overload
def remote(
    thing: Callable[P, Coroutine[Any, Any, T]], /
) -> RemoteFunction[P, Coroutine[Any, Any, T], T]: ...


@overload
def remote(thing: Callable[P, T], /) -> RemoteFunction[P, T, T]: ...


def remote(thing: Any, /) -> Any:
    """A decorator of functions and classes that sessions use.

    It returns the function or the class itself, with an attribute ``remote``. ``scale(x)`` still
    runs in this process; ``scale.remote(x)`` is ``session.function(scale)(x)``, and
    ``Learner.remote(2)`` is ``session.create(Learner, 2)``. The first call in a session brings
    the file to the workers and waits for that. The session is that of the first argument that is a
    reference or a distributed tensor; where there is none, it is the one that is open.

    On a worker the decorated function is called as any other; ``remote`` is refused there.

    Args:
        thing: A function or a class that is defined at the top of its module or in a class.

    Raises:
        ConfigError: It captures variables, is a lambda, or is defined inside of another function.
        TypeError: It is neither a function nor a class, or a class that has an attribute ``remote``
            of its own.

    Examples:
        >>> from pathlib import Path
        >>> source = '''
        ... import disco_client
        ... @disco_client.remote
        ... def double(x):
        ...     return 2 * x
        ... '''
        >>> _ = Path("doubling.py").write_text(source)
        >>> from doubling import double
        >>> double(4)
        8
        >>> double.remote(session.broadcast(np.arange(3))).numpy(worker_id=2)
        array([0, 2, 4])
    """
    if isinstance(thing, type):
        found = getattr_static(thing, _NAME, None)
        if found is not None and not isinstance(found, _OfClass):
            msg = (
                f"class {thing.__qualname__!r} has an attribute {_NAME!r} of its own, {found!r};"
                " rename it, or leave the decorator out and use session.create"
            )
            raise TypeError(msg)
        attribute: Any = _OfClass()
    elif isinstance(thing, FunctionType):
        attribute = OnWorkers(thing)
    else:
        kind = type(thing).__name__
        hint = f"; write @remote below @{kind}" if kind in ("staticmethod", "classmethod") else ""
        raise TypeError(f"expected a function or a class of this program, got {thing!r}{hint}")
    check_free_standing(thing, thing.__module__, thing.__qualname__)
    setattr(thing, _NAME, attribute)
    return thing
