"""What people ask a controller about its cluster: an overview, what ranks print, an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from disco_client.errors import ConfigError, ConnectionFailed, NoSuchSession
from disco_client.pb import controller_pb2
from disco_client.transport.apart import apart, ask
from disco_client.transport.line import Line
from disco_client.transport.reaching import denied, details
from disco_client.wire.overview import Overview, decode_overview

__all__ = ["LoggedLines", "ask_for_overview", "ask_for_sessions", "close_session", "read_logs"]

_SERVICE = "/disco.v1.SessionService/"
_ANSWER_S = 8.0


@dataclass(frozen=True, slots=True)
class LoggedLines:
    """Lines that a rank printed.

    Attributes:
        time_s: When they came to the controller, in seconds since 1970.
        worker, node: Who printed them.
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


def ask_for_overview(line: Line, timeout: float = _ANSWER_S) -> Overview:
    """Asks a controller what its cluster does at this moment.

    Args:
        line: To the controller.
        timeout: Seconds.

    Raises:
        AccessDenied: The controller lets nobody in as this.
        ConnectionFailed: It does not answer, or is too old for that.
    """
    raw = _ask(line, "Overview", b"", controller_pb2.OverviewResult, timeout)
    return decode_overview(raw)


def ask_for_sessions(line: Line, timeout: float = _ANSWER_S) -> list[tuple[int, str]]:
    """Asks a controller for the ids and names of its sessions, and no node for anything.

    Args:
        line: To the controller.
        timeout: Seconds.

    Raises:
        AccessDenied: The controller lets nobody in as this.
        ConnectionFailed: It does not answer in time.
    """
    found = _ask(line, "List", b"", controller_pb2.ListResult, timeout)
    return [(session.session, session.name) for session in found.sessions]


def close_session(line: Line, name: str) -> tuple[int, str]:
    """Ends a session.

    Args:
        line: To the controller.
        name: The session's name, or its id in hexadecimal.

    Returns:
        Its id and name.

    Raises:
        AccessDenied: It is somebody else's, or the controller lets nobody in as this.
        ConnectionFailed: The controller does not answer.
        NoSuchSession: There is none.
    """
    request = controller_pb2.CloseRequest(name=name).SerializeToString()
    closed = _ask(line, "Close", request, controller_pb2.CloseResult, _ANSWER_S)
    return closed.session, closed.name


def read_logs(
    line: Line, name: str, *, worker: int | None, last: int | None, follow: bool
) -> Iterator[LoggedLines]:
    """Reads what the ranks of a session printed.

    Args:
        line: To the controller.
        name: The session's name, or its id in hexadecimal; it may have ended a while ago.
        worker: One rank alone.
        last: At most so many of the lines that are kept; None for all.
        follow: Whether to go on until the session ends, or until the iterator is closed.

    Raises:
        AccessDenied: It is somebody else's, or the controller lets nobody in as this.
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
    call = apart(lambda: read(request, timeout=timeout), lambda made: made)
    try:
        while (part := apart(lambda: call, lambda made: next(made, None))) is not None:
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


def _ask(line: Line, method: str, request: bytes, result: Any, timeout: float) -> Any:
    call = line.unary_unary(_SERVICE + method, response_deserializer=result.FromString)
    try:
        return ask(call, request, timeout=timeout)
    except grpc.RpcError as error:
        _refuse(line, error)


def _refuse(line: Line, error: grpc.RpcError) -> NoReturn:
    """Raises what the failure of a call means."""
    if (refused := denied(error)) is not None:
        raise refused from None
    code = error.code() if isinstance(error, grpc.Call) else None
    if isinstance(error, grpc.Call) and code is grpc.StatusCode.NOT_FOUND:
        raise NoSuchSession(str(error.details())) from None
    if isinstance(error, grpc.Call) and code is grpc.StatusCode.INVALID_ARGUMENT:
        raise ConfigError(str(error.details())) from None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        msg = f"the controller at {line.address} is too old for this; install its release anew"
        raise ConnectionFailed(msg) from None
    msg = f"the controller at {line.address} does not answer ({details(error)})"
    raise ConnectionFailed(msg) from None
