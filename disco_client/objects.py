"""Objects on the workers, with methods and attributes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, overload

from disco_client.arguments import WorkerGrid, check_chosen
from disco_client.copies import Handle
from disco_client.core import ChosenFunction, DPackedFunc, DRef, SessionCore, core_of, holding
from disco_client.sources import described
from disco_client.type_variables import P, R, T

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CREATE", "ChosenObject", "DObject", "create"]

CREATE = "runtime.disco.create_object"
"""The workers' function that makes an object."""

_LOOK_UP = "runtime.disco.get_attribute"


class DObject(DRef[Any], Generic[T]):
    """A reference to an object on every worker; ``session.create`` makes one.

    ``model.name`` looks a public name up on every worker, at this point of the log, and
    returns a reference at once: to a method, which can be called, or to the value of an
    attribute, which can be fetched and passed on::

        model.step(x, rate=0.1)
        print(model.loss.numpy())

    ``model[Model.step]`` is the same method as ``model.step``, whose arguments and result type
    checkers know.

    What a reference has itself (``numpy``, ``session``, ``on`` and so on) is found first;
    ``model["numpy"]`` is the object's. A missing name is an error of the next sync
    (:class:`~disco_client.FunctionNotFound`), and so is one that leads to what another
    module defines (:class:`~disco_client.NotAllowed`). Attributes are read, never set.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_class("docs.Counter")
        ... class Counter:
        ...     def __init__(self):
        ...         self.total = 0
        ...     def add(self, number):
        ...         self.total += number
        >>> counter = session.create("docs.Counter")
        >>> _ = counter.add(5)
        >>> counter.total.get(worker=3)
        5
    """

    __slots__ = ()

    _instead: ClassVar[str] = (
        "create an object elsewhere, and hand over what methods return; copy.copy(x) is another"
        " reference to it"
    )

    def __init__(self, dref: DRef, session: Any) -> None:
        """Takes a reference whose register holds an object.

        Raises:
            ForeignReference: The reference belongs to another session, or its register was freed.
        """
        super().__init__(core_of(session).check_ref(dref), dref.session, owner=dref)

    def __getattr__(self, name: str) -> DPackedFunc:
        """Looks up a method or an attribute.

        Raises:
            AttributeError: The name is private.
        """
        return _look_up(self, name)

    @property
    def cancel(self) -> DPackedFunc:  # type: ignore[override]
        """The object's own, as objects often have one; see :class:`DRef` for a reference's."""
        return _look_up(self, "cancel")

    @property
    def stream(self) -> DPackedFunc:  # type: ignore[override]
        """The object's own; what a method of it yields has a stream."""
        return _look_up(self, "stream")

    @property
    def shape(self) -> DPackedFunc:  # type: ignore[override]
        """The object's own."""
        return _look_up(self, "shape")

    @property
    def dtype(self) -> DPackedFunc:  # type: ignore[override]
        """The object's own."""
        return _look_up(self, "dtype")

    @overload
    def __getitem__(self, name: str, /) -> DPackedFunc: ...

    @overload
    def __getitem__(
        self, name: Callable[Concatenate[T, P], Coroutine[Any, Any, R]], /
    ) -> DPackedFunc[P, R]: ...

    @overload
    def __getitem__(self, name: Callable[Concatenate[T, P], R], /) -> DPackedFunc[P, R]: ...

    def __getitem__(self, name: Any, /) -> DPackedFunc[Any, Any]:
        """Looks up a method or an attribute, also one of a name that references have.

        Args:
            name: The name; or a method of the class, as in ``model[Model.step]``.

        Raises:
            AttributeError: The name is private.
            TypeError: That is neither.
        """
        return _look_up(self, name.__name__ if isinstance(name, FunctionType) else name)

    def on(
        self, workers: Iterable[int] | WorkerGrid | None = None, *, worker: int | None = None
    ) -> ChosenObject:
        """Chooses workers, on which alone methods are called.

        Args:
            workers: The workers, or a mesh; see :meth:`DPackedFunc.on`.
            worker: One worker.

        Raises:
            TypeError: Neither or both are given, or something is no worker's number.
            ConfigError: There is no such worker, one is given twice, or there are none.
        """
        return ChosenObject(self, check_chosen(workers, worker, self._core.num_workers))


class ChosenObject(Handle):
    """An object whose methods only some workers call; see :meth:`DObject.on`."""

    __slots__ = ("_object", "_workers")

    _instead: ClassVar[str] = "create an object elsewhere, and hand over what methods return"

    def __init__(self, held: DObject, workers: tuple[int, ...]) -> None:
        """Made by an object, never by a program."""
        self._object = held
        self._workers = workers

    def __getattr__(self, name: str) -> ChosenFunction:
        """Looks up a method.

        Raises:
            AttributeError: The name is private.
        """
        _check_public(name, self)  # first, as it may be a field that is not set yet
        return ChosenFunction(_look_up(self._object, name, self._workers), self._workers)

    __getitem__ = __getattr__

    def __repr__(self) -> str:
        return f"{self._object!r}.on({list(self._workers)})"


def create(
    core: SessionCore, name: str, args: tuple[object, ...], keywords: Mapping[str, object]
) -> DObject:
    """Makes an object on every worker; see ``Session.create``."""
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a class, a str, got {described(name)}")
    made = core.call_with(core.builtin(CREATE), (name, *args), keywords, added=1)
    return holding(DObject(made, made.session), name=name)


def _check_public(name: str, where: object) -> None:
    if not isinstance(name, str):
        msg = f"expected the name of a method or an attribute, got {name!r}"
        raise TypeError(msg)
    if name.startswith("_"):
        msg = f"{name!r} is a private name, which no worker looks up"
        raise AttributeError(msg, name=name, obj=where)


def _look_up(held: DObject, name: str, workers: Sequence[int] = ()) -> DPackedFunc:
    _check_public(name, held)
    core = core_of(held)
    found = core.call_with(core.builtin(_LOOK_UP), (held, name), {}, workers)
    return holding(DPackedFunc(found, found.session), name=name)
