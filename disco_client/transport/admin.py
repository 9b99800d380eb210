"""Administrative requests to a controller: an overview, output of ranks, ending a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from disco_client.clock import monotonic_ns
from disco_client.errors import (
    ConfigError,
    ConnectionFailed,
    DiscoError,
    NoSuchNode,
    NoSuchSession,
    SessionError,
)
from disco_client.pb import controller_pb2
from disco_client.transport.calls import ask, run_uninterrupted
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.reaching import denied, details
from disco_client.wire.overview import Overview, decode_overview
from disco_client.wire.reports import Inspection, decode_inspection

if TYPE_CHECKING:
    from disco_client.tracing.ring_cuts import Since

__all__ = [
    "DrainedNode",
    "LoggedLines",
    "ask_for_inspection",
    "ask_for_overview",
    "ask_for_sessions",
    "close_session",
    "drain_node",
    "interrupt_session",
    "list_cluster",
    "read_logs",
]


_SERVICE = "/disco.v1.SessionService/"
_ANSWER_S = 8.0
_REACTS_S = 10.0
"""How long the program of a session may take to answer, beside the grace of its workers."""


@dataclass(frozen=True, slots=True)
class LoggedLines:
    """Lines that a rank printed.

    Attributes:
        time_s: When they arrived at the controller, in seconds since 1970.
        worker, node: The rank that printed them, and its node.
        stderr: Whether to standard error.
        lines: Without their ends.
        lost: How many lines before these are not kept any more.
    """

    time_s: float
    worker: int
    node: str
    stderr: bool
    lines: tuple[str, ...]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class DrainedNode:
    """A node as it is after a request to drain it, or to undo that.

    Attributes:
        node: Its name.
        state: ``ready``, ``draining``, or ``away`` where it is not connected.
        drained: Who drained it, and why; empty where nobody did.
        held_slots: How many of its slots sessions hold.
        sessions: These sessions: id, name and owner of each.
    """

    node: str
    state: str
    drained: str
    held_slots: int
    sessions: tuple[tuple[int, str, str], ...]


def ask_for_overview(
    line: ReloadingChannel, timeout: float = _ANSWER_S, *, ended: bool = False
) -> Overview:
    """Asks a controller for the present state of its cluster.

    Args:
        line: To the controller.
        timeout: Seconds.
        ended: Whether sessions that ended within the last ten minutes are wanted too.

    Raises:
        AccessDenied: The controller refuses these credentials.
        ConnectionFailed: It does not answer, or is too old for that.
    """
    request = controller_pb2.OverviewRequest(ended=ended).SerializeToString()
    raw = _ask(line, "Overview", request, controller_pb2.OverviewResult, timeout)
    return decode_overview(raw)


def ask_for_sessions(line: ReloadingChannel, timeout: float = _ANSWER_S) -> list[tuple[int, str]]:
    """Asks a controller for the ids and names of its sessions, without asking any node.

    Args:
        line: To the controller.
        timeout: Seconds.

    Raises:
        AccessDenied: The controller refuses these credentials.
        ConnectionFailed: It does not answer in time.
    """
    return [(each.session, each.name) for each in list_cluster(line, timeout).sessions]


def list_cluster(
    line: ReloadingChannel, timeout: float = _ANSWER_S, *, activity: bool = False
) -> controller_pb2.ListResult:
    """Asks a controller for its nodes and sessions.

    Args:
        line: To the controller.
        timeout: Seconds.
        activity: Whether it asks the nodes which sessions are idle.

    Raises:
        AccessDenied: The controller refuses these credentials.
        ConnectionFailed: It does not answer in time.
    """
    request = controller_pb2.ListRequest(activity=activity).SerializeToString()
    return _ask(line, "List", request, controller_pb2.ListResult, timeout)


def drain_node(
    line: ReloadingChannel, node: str, *, undo: bool = False, reason: str = ""
) -> DrainedNode:
    """Lets a node take no new sessions; those that run there go on.

    Args:
        line: To the controller.
        node: The node's name, or a beginning that no other node's has.
        undo: Let it take sessions again instead.
        reason: Why, for those who read it.

    Raises:
        AccessDenied: The caller is no administrator, or the controller refuses these credentials.
        ConfigError: The reason is too long, or has characters that cannot be seen.
        ConnectionFailed: The controller does not answer.
        NoSuchNode: There is none, or several names begin so.
    """
    request = controller_pb2.DrainRequest(node=node, undo=undo, reason=reason).SerializeToString()
    result = controller_pb2.DrainResult
    found: controller_pb2.DrainResult = _ask(line, "Drain", request, result, _ANSWER_S, NoSuchNode)
    return DrainedNode(
        found.node.name,
        found.node.state,
        found.node.drained,
        found.node.held_slots,
        tuple((each.session, each.name, each.owner) for each in found.sessions),
    )


def close_session(line: ReloadingChannel, name: str) -> tuple[int, str]:
    """Ends a session.

    Args:
        line: To the controller.
        name: The session's name, or its id in hexadecimal.

    Returns:
        Its id and name.

    Raises:
        AccessDenied: It belongs to another owner, or the controller refuses these credentials.
        ConnectionFailed: The controller does not answer.
        NoSuchSession: There is none.
    """
    request = controller_pb2.CloseRequest(name=name).SerializeToString()
    closed = _ask(line, "Close", request, controller_pb2.CloseResult, _ANSWER_S)
    return closed.session, closed.name


def interrupt_session(
    line: ReloadingChannel, name: str, *, grace: float, force: bool
) -> tuple[int, str, tuple[int, ...]]:
    """Has the program of a session interrupt it.

    Args:
        line: To the controller.
        name: The session's name, or its id in hexadecimal.
        grace: How many seconds the workers have to react.
        force: Whether the processes of those that do not are ended then.

    Returns:
        Its id and name, and the workers that have not reacted.

    Raises:
        AccessDenied: It belongs to another owner, or the controller refuses these credentials.
        ConfigError: The grace is too long.
        ConnectionFailed: The controller does not answer.
        NoSuchSession: There is none.
        SessionError: Its program is not there, or does not react.
    """
    request = controller_pb2.InterruptRequest(name=name, grace_s=grace, force=force)
    raw, answers = request.SerializeToString(), controller_pb2.InterruptResult
    found = _ask(line, "Interrupt", raw, answers, grace + _REACTS_S)
    return found.session, found.name, tuple(found.late)


def read_logs(
    line: ReloadingChannel, name: str, *, worker: int | None, last: int | None, follow: bool
) -> Iterator[LoggedLines]:
    """Reads what the ranks of a session printed.

    Args:
        line: To the controller.
        name: The session's name, or its id in hexadecimal; it may have ended a while ago.
        worker: One rank alone.
        last: At most so many of the lines that are kept; None for all.
        follow: Whether to go on until the session ends, or until the iterator is closed.

    Raises:
        AccessDenied: It belongs to another owner, or the controller refuses these credentials.
        ConfigError: It has no such rank.
        ConnectionFailed: The controller does not answer, or went away.
        NoSuchSession: There is none.
    """
    request = controller_pb2.LogsRequest(
        name=name, worker_plus_one=0 if worker is None else worker + 1, lines=last, follow=follow
    )
    read = line.unary_stream(
        _SERVICE + "Logs",
        request_serializer=controller_pb2.LogsRequest.SerializeToString,
        response_deserializer=controller_pb2.LogsPart.FromString,
    )
    timeout = None if follow else _ANSWER_S
    call = run_uninterrupted(lambda: read(request, timeout=timeout), lambda made: made)
    try:
        while (part := run_uninterrupted(lambda: call, lambda made: next(made, None))) is not None:
            lost = part.lost
            for printed in part.printed:
                said = printed.lines
                yield LoggedLines(
                    printed.time_s, said.worker, said.node, said.stderr, tuple(said.lines), lost
                )
                lost = 0
            if lost:
                yield LoggedLines(0.0, 0, "", False, (), lost)
    except grpc.RpcError as error:
        _refuse(line, error)
    finally:
        call.cancel()


def _ask(
    line: ReloadingChannel,
    method: str,
    request: bytes,
    result: Any,
    timeout: float,
    missing: type[DiscoError] = NoSuchSession,
) -> Any:
    call = line.unary_unary(_SERVICE + method, response_deserializer=result.FromString)
    try:
        return ask(call, request, timeout=timeout)
    except grpc.RpcError as error:
        _refuse(line, error, missing)


def _refuse(
    line: ReloadingChannel, error: grpc.RpcError, missing: type[DiscoError] = NoSuchSession
) -> NoReturn:
    """Raises the error that the failure of a call stands for; `missing` is that of NOT_FOUND."""
    if (refused := denied(error)) is not None:
        raise refused from None
    code = error.code() if isinstance(error, grpc.Call) else None
    if isinstance(error, grpc.Call) and code is grpc.StatusCode.NOT_FOUND:
        raise missing(str(error.details())) from None
    if isinstance(error, grpc.Call) and code is grpc.StatusCode.INVALID_ARGUMENT:
        raise ConfigError(str(error.details())) from None
    if isinstance(error, grpc.Call) and code is grpc.StatusCode.FAILED_PRECONDITION:
        raise SessionError(str(error.details())) from None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        msg = f"the controller at {line.address} is too old for this; install its release anew"
        raise ConnectionFailed(msg) from None
    msg = f"the controller at {line.address} does not answer ({details(error)})"
    raise ConnectionFailed(msg) from None


# Asks a controller what the ranks of a session do.


_METHOD = "/disco.v1.SessionService/Inspect"
_NODES_S = 3.0
"""How long the controller waits for nodes."""

_CONTROLLER_S = 8.0
"""How long to wait for the controller; the records of many ranks take a moment."""


def ask_for_inspection(
    line: ReloadingChannel,
    session: str,
    *,
    stacks: bool,
    flights: bool,
    since: Sequence[Since] | None = None,
) -> Inspection:
    """Asks the controller; returns within seconds, whatever the session does.

    Args:
        line: To the controller.
        session: The session's id in hexadecimal, or its name.
        stacks: Whether to fetch the ranks' Python stacks.
        flights: Whether to fetch what their flight recorders hold.
        since: How far ranks were followed, to fetch instead what is new; see ``Transport``.

    Raises:
        AccessDenied: The session belongs to another owner, or the controller refuses these
            credentials.
        NoSuchSession: The controller knows no such session.
        SessionError: It did not answer.
    """
    call = line.unary_unary(
        _METHOD,
        request_serializer=controller_pb2.InspectRequest.SerializeToString,
        response_deserializer=controller_pb2.InspectResult.FromString,
    )
    request = controller_pb2.InspectRequest(
        name=session,
        stacks=stacks,
        flights=flights,
        timeout_s=_NODES_S,
        follow=since is not None,
        since=(controller_pb2.Followed(**each._asdict()) for each in since or ()),
    )
    try:
        asked = monotonic_ns()
        result = ask(call, request, timeout=_CONTROLLER_S)
        return decode_inspection(result, asked, monotonic_ns())
    except grpc.RpcError as error:
        if (refused := denied(error)) is not None:
            raise refused from None
        msg = f"the controller cannot say what session {session} does: {details(error)}"
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            raise NoSuchSession(str(error.details())) from None
        raise SessionError(msg) from None
    except ValueError:  # the channel is closed
        msg = f"session {session} has been shut down here, so the controller cannot be asked"
        raise SessionError(msg) from None
