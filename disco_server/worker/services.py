"""What every session on a node uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disco_client.pb import node_pb2

if TYPE_CHECKING:
    from disco_server.worker.counters import NodeCounters
    from disco_server.worker.environment import WorkFolders
    from disco_server.worker.fork_server import ForkServer
    from disco_server.worker.launcher_pmi import LauncherPmi

__all__ = ["NodeServices"]


@dataclass(frozen=True, slots=True)
class NodeServices:
    """What every session on a node uses.

    Attributes:
        node: This node's name.
        rules: What sessions may do here: the fields that are the same for all ranks.
        max_array_bytes: How large an array may be that a client uploads.
        folders: Makes the folders of ranks.
        fork_server: Starts ranks.
        post: Sends an encoded envelope of a ``session`` to the controller; with
            ``droppable`` only if that is not too slow. Returns whether it did.
        counters: What is counted for this node's metrics.
        launcher: Answers the MPI library of the only rank here, where an MPI launcher started
            this process for it.
    """

    node: str
    rules: node_pb2.AssignRank
    max_array_bytes: int
    folders: WorkFolders
    fork_server: ForkServer
    post: Callable[..., bool]
    counters: NodeCounters
    launcher: LauncherPmi | None = None
