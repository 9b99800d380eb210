"""What outlives a program: sessions that it leaves, and values under a name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from disco_client.errors import ConfigError, SessionClosed
from disco_client.handles import Distributed, DRef
from disco_client.wire.codec import Action, EncodedCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from disco_client.command_log import CommandLog
    from disco_client.distributed.dtensor import DTensor
    from disco_client.distributed.engine import Engine
    from disco_client.transport.base import Transport

__all__ = ["Lasting"]

_MAX_NAME = 256


class Lasting(ABC):
    """The part of a session that lets another program go on with it."""

    _log: CommandLog
    _transport: Transport
    _finalizer: Callable[[], object]
    _closed: bool

    @property
    @abstractmethod
    def name(self) -> str:
        """The session's name at the controller."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session's id at the controller, in hexadecimal."""

    @property
    @abstractmethod
    def _engine(self) -> Engine: ...

    @abstractmethod
    def _call_builtin(self, name: str, *args: object) -> DRef: ...

    @abstractmethod
    def _get_all(self, ref: DRef, workers: Sequence[int], *, own: bool = False) -> list[Any]: ...

    @abstractmethod
    def sync_all(self) -> None:
        """Waits until every worker has executed every command issued before."""

    def publish(self, name: str, value: DRef | DTensor) -> None:
        """Keeps a value on the workers under a name, beyond the life of its references.

        Another program that attaches to the session finds it with :meth:`published`.
        What had the name before is replaced.

        Args:
            name: At most 256 characters.
            value: A reference of this session, or a distributed tensor.

        Raises:
            ConfigError: The name is empty or too long.
            ForeignReference: The value belongs to another session.
        """
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            msg = f"expected a name of 1 to {_MAX_NAME} characters, got {name!r}"
            raise ConfigError(msg)
        facts: dict[str, object] = {}
        if isinstance(value, Distributed):
            facts = _facts_of(value)
        self._call_builtin("runtime.disco._publish", name, value, facts)

    def published(self, name: str) -> DRef | DTensor:
        """Refers to a value that was published under a name; waits for the workers.

        Returns:
            A distributed tensor where one was published, else a reference.

        Raises:
            BadArgument: Nothing is published under this name; the error says what is.
        """
        facts = self._get_all(self._call_builtin("runtime.disco._published_facts", name), (0,))[0]
        ref = self._call_builtin("runtime.disco._published", name)
        return _tensor_of(self._engine, ref, facts) if facts else ref

    def list_published(self) -> list[str]:
        """The names under which values are published, in order; waits for worker 0."""
        names = self._get_all(self._call_builtin("runtime.disco._list_published"), (0,))[0]
        return [str(name) for name in names]

    def unpublish(self, name: str) -> None:
        """Forgets a name; what it stood for lives on as long as its references do."""
        self._call_builtin("runtime.disco._unpublish", name)

    def release_all(self) -> None:
        """Empties every register of the workers, those of references that live included."""
        self._log.issue(Action.KILL_REG, _everything, reg=0)

    def detach(self, lease: float = 3600.0) -> str:
        """Leaves the session as it is on its workers, for another program to attach to.

        Waits until everything that was issued is executed. References of this session
        are of no use afterwards; what should be found again is to be published first.

        Args:
            lease: Seconds that the session waits for somebody to attach; at most a week.
                After that it ends.

        Returns:
            The session's id, for :func:`disco_client.attach`; its name serves as well.

        Raises:
            ConfigError: The session is no session of a controller daemon, which would
                keep it, or the lease is no number of seconds.
            RemoteError: A command failed on some worker and no call has raised it.
        """
        if isinstance(lease, bool) or not isinstance(lease, int | float) or not lease > 0:
            msg = f"expected a lease of more than 0 seconds, got {lease!r}"
            raise ConfigError(msg)
        self._transport.check_detachable()
        self.sync_all()
        self._transport.detach(lease)
        left = SessionClosed(
            f"this program has detached from session {self.name!r};"
            f" disco_client.attach({self.session_id!r}) goes on with it"
        )
        self._log.close(left, drop=False)
        self._closed = True
        self._finalizer()
        return self.session_id


def _everything(command: EncodedCommand) -> int:
    command.args.add().bool = True
    return 0


def _facts_of(tensor: DTensor) -> dict[str, object]:
    """What another program has to know of a tensor."""
    info = tensor.info
    mesh, whole = info.device_mesh, info.tensor_sinfo
    return {
        "shape": whole.shape,
        "dtype": whole.dtype,
        "placement": str(info.placement),
        "mesh": mesh.shape,
        "workers": list(mesh.device_ids),
        "names": list(mesh.names),
    }


def _tensor_of(engine: Engine, ref: DRef, facts: dict[str, Any]) -> DTensor:
    from disco_client.distributed.dtensor import DTensor, Origin
    from disco_client.distributed.mesh import DeviceMesh
    from disco_client.distributed.struct_info import DTensorStructInfo, TensorStructInfo

    mesh = DeviceMesh(facts["mesh"], facts["workers"], facts["names"])
    whole = TensorStructInfo(facts["shape"], facts["dtype"])
    info = DTensorStructInfo(whole, mesh, facts["placement"])
    return DTensor(engine, info, ref, Origin("published"))
