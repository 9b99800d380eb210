"""Values that workers keep under a name, beyond the life of the references to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from disco_client.core import Distributed, DRef
from disco_client.errors import ConfigError
from disco_client.reentry import import_uninterrupted

if TYPE_CHECKING:
    from disco_client.core import SessionCore
    from disco_client.distributed.dtensor import DTensor

__all__ = ["list_published", "publish", "published"]

_MAX_NAME = 256


def publish(core: SessionCore, name: str, value: DRef | DTensor) -> None:
    """Keeps a value on the workers under a name; see ``Session.publish``."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        msg = f"expected a name of 1 to {_MAX_NAME} characters, got {name!r}"
        raise ConfigError(msg)
    facts: dict[str, object] = {}
    if isinstance(value, Distributed):
        facts = _facts_of(value)
    core.call_builtin("runtime.disco._publish", name, value, facts)


def published(core: SessionCore, name: str) -> DRef | DTensor:
    """Refers to a value that was published; see ``Session.published``."""
    facts = core.get(core.call_builtin("runtime.disco._published_facts", name), 0)
    ref = core.call_builtin("runtime.disco._published", name)
    return _tensor_of(core, ref, facts) if facts else ref


def list_published(core: SessionCore) -> list[str]:
    """The names under which values are published, in order; waits for worker 0."""
    names = core.get(core.call_builtin("runtime.disco._list_published"), 0)
    return [str(name) for name in names]


def _facts_of(tensor: DTensor) -> dict[str, object]:
    """What another program needs to know of a tensor."""
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


def _tensor_of(core: SessionCore, ref: DRef, facts: dict[str, Any]) -> DTensor:
    import_uninterrupted("disco_client.distributed.dispatch")
    from disco_client.distributed.dispatch import Engine

    import_uninterrupted("disco_client.distributed.dtensor")
    from disco_client.distributed.dtensor import DTensor, Origin

    import_uninterrupted("disco_client.distributed.mesh")
    from disco_client.distributed.mesh import DeviceMesh

    import_uninterrupted("disco_client.distributed.placement")
    from disco_client.distributed.placement import DTensorStructInfo, TensorStructInfo

    mesh = DeviceMesh(facts["mesh"], facts["workers"], facts["names"])
    whole = TensorStructInfo(facts["shape"], facts["dtype"])
    info = DTensorStructInfo(whole, mesh, facts["placement"])
    return DTensor(core.part(Engine), info, ref, Origin("published"))
