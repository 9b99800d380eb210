"""References to what lives in the workers' registers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from disco_client.session import Session

__all__ = ["DModule", "DPackedFunc", "DRef", "Distributed"]


class DRef:
    """A register, the same one on every worker; when it dies, they empty it.

    Attributes:
        reg_id: The register.
        session: The session it belongs to; inside a capture, what records for it.
    """

    __slots__ = ("__weakref__", "_owner", "reg_id", "session")

    def __init__(self, reg_id: int, session: Session, owner: DRef | None = None) -> None:
        """Made by a session, never by a program.

        Args:
            reg_id: The register.
            session: The session it belongs to.
            owner: The reference that frees the register, where this one does not.
        """
        self.reg_id = reg_id
        self.session = session
        self._owner = owner

    def __del__(self) -> None:
        # Attributes are missing where __init__ raised.
        if getattr(self, "_owner", self) is None:
            self.session._release(self.reg_id)  # noqa: SLF001  (the pair is one thing)

    def debug_get_from_remote(self, worker_id: int) -> Any:
        """Fetches what one worker's register holds; waits for it.

        Returns:
            The value; an :class:`~disco_client.Opaque` for an object that cannot
            travel, such as a function.

        Raises:
            RemoteError: The register is poisoned by an earlier failure.
            SessionError: The session is closed or lost.
        """
        return self.session._get(self, worker_id)  # noqa: SLF001

    def debug_copy_from(self, worker_id: int, value: object) -> None:
        """Copies an array into one worker's register; waits until it is there.

        Args:
            worker_id: The worker.
            value: An array, or what ``numpy.asarray`` makes one of. Where the
                register already holds an array of that size and dtype, it is
                overwritten in place, so that other registers with the same array
                see it; otherwise the register is replaced.

        Raises:
            BadArgument: The register holds an array of another size or dtype.
            EncodingError: The value is no array of plain numbers.
            SessionError: The session is closed or lost.
        """
        self.session._set(self, worker_id, value)  # noqa: SLF001

    def numpy(self, worker_id: int = 0) -> np.ndarray[Any, Any]:
        """Fetches the array that one worker's register holds.

        Raises:
            TypeError: The register holds something else.
            RemoteError: The register is poisoned by an earlier failure.
            SessionError: The session is closed or lost.
        """
        import numpy as np

        value = self.debug_get_from_remote(worker_id)
        if isinstance(value, (np.ndarray, bool, int, float)):
            return np.asarray(value)
        msg = f"expected an array in register {self.reg_id} of worker {worker_id}, got {value!r}"
        raise TypeError(msg)

    def __getitem__(self, key: Any, /) -> DRef:
        """Takes one item out of what the register holds, on every worker; returns at once.

        Args:
            key: A position in a list or along an array's first axis, or a map's key.

        Returns:
            The item's own reference; a missing one is an error of the next sync
            (:class:`~disco_client.BadArgument`).
        """
        return self.session._call_builtin("runtime.disco.get_item", self, key)  # noqa: SLF001

    # How many items there are is known to the workers alone.
    __iter__ = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(reg_id={self.reg_id}, session={self.session.name!r})"

    def _repr_html_(self) -> str:
        from disco_client.notebook import facts_table

        facts = {
            "session": self.session.name,
            "register": f"{self.reg_id} on each of {self.session.num_workers} workers",
        }
        return facts_table(type(self).__name__, facts)


class Distributed(ABC):
    """A whole of which a register holds each worker's part; a distributed tensor is one.

    As an argument of a call it stands for its reference.

    Attributes:
        ref: The reference.
    """

    __slots__ = ()

    ref: DRef

    @abstractmethod
    def held_by(self, ref: DRef) -> Distributed:
        """A whole that lies as this one does, in another register."""

    @abstractmethod
    def refuse_unlike(self, value: object, name: str) -> None:
        """Makes sure that something lies as this one does.

        Args:
            value: Anything.
            name: What it was given as.

        Raises:
            TypeError: It is no such whole.
            ConfigError: It lies otherwise.
        """


class DPackedFunc(DRef):
    """A reference to a function; calling it calls the function on every worker."""

    __slots__ = ()

    def __init__(self, dref: DRef, session: Session) -> None:
        """Takes a reference whose register holds a function.

        Raises:
            ForeignReference: The reference belongs to another session.
        """
        super().__init__(session._check_ref(dref), dref.session, owner=dref)  # noqa: SLF001

    def __call__(self, *args: object) -> DRef:
        """Calls the function on every worker; returns at once.

        Returns:
            The register that will hold each worker's result.
        """
        return self.session.call_packed(self, *args)


class DModule(DRef):
    """A reference to a module; ``module["name"]`` is one of its functions."""

    __slots__ = ()

    def __init__(self, dref: DRef, session: Session) -> None:
        """Takes a reference whose register holds a module.

        Raises:
            ForeignReference: The reference belongs to another session.
        """
        super().__init__(session._check_ref(dref), dref.session, owner=dref)  # noqa: SLF001

    def __getitem__(self, name: str, /) -> DPackedFunc:
        """Looks a function up on every worker; a missing one is an error of the next sync."""
        getter = self.session._builtin("ffi.ModuleGetFunction")  # noqa: SLF001
        return DPackedFunc(getter(self, name), self.session)
