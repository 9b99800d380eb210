"""What ranks load and refuse, in the audit log of their daemon."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from disco_client.pb import node_pb2
from disco_server.observe import audit
from disco_server.worker.node_session import NodeSession

__all__ = ["audit_rank"]

_REMEMBERED = 256


def audit_rank(session: NodeSession, worker: int, node: str, payload: bytes) -> None:
    """Writes down what a rank says that it did, or refused to do.

    All ranks of a session do the same; what one of them has said here, the others need
    not say again.

    Args:
        session: Its session.
        worker: Which of its ranks it is.
        node: This node's name.
        payload: What it said; its process may be under somebody else's control by now.
    """
    try:
        said = node_pb2.Audited.FromString(payload)
    except DecodeError:
        return
    key = said.what, said.name, said.refused
    if key in session.audited:
        return
    session.audited[key] = None
    if len(session.audited) > _REMEMBERED:
        session.audited.popitem(last=False)
    write = audit.refusals.record if said.refused else audit.record
    write(
        said.what,
        who=session.start.owner,
        what=said.name,
        session=session.start.session_name,
        outcome=said.refused or "allowed",
        node=node,
        rank=worker,
    )
