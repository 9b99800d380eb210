"""The calls of those who watch a cluster: what it does, and what its ranks print."""

from __future__ import annotations

import grpc

from disco_client.pb import controller_pb2
from disco_client.wire.overview import encode_overview
from disco_server.controller.finding import find_session
from disco_server.controller.gate import caller
from disco_server.controller.hub import Hub
from disco_server.controller.logs import LogPart
from disco_server.controller.streams import Context, NotYours, guarded, refuse_call
from disco_server.core.session_state import SessionState, SessionTable

__all__ = ["Watching", "named"]


class Watching:
    """The handlers of these calls.

    Args:
        hub: Who is behind it.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @guarded
    async def overview(
        self, _request: controller_pb2.OverviewRequest, _context: Context
    ) -> controller_pb2.OverviewResult:
        """Says what the cluster does at this moment."""
        return encode_overview(await self._hub.overviews.snapshot(caller()))

    @guarded
    async def logs(self, request: controller_pb2.LogsRequest, context: Context) -> None:
        """Sends what ranks printed, as fast as it is read."""
        session = await named(self._hub, request.name, context, "logs refused", ended=True)
        worker = request.worker_plus_one - 1
        if worker >= session.num_workers:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"expected a rank from 0 to {session.num_workers - 1}, got {worker}",
            )
        log = self._hub.logs.of(session.session, over=session.state is SessionState.GONE)
        parts = log.read(
            worker=worker if worker >= 0 else None,
            last=request.lines if request.HasField("lines") else None,
            follow=request.follow,
        )
        async for part in parts:
            await context.write(_encode(part).SerializeToString())


async def named(
    hub: Hub, name: str, context: Context, event: str, *, ended: bool = False
) -> SessionTable:
    """The session of that name or id, which must be whoever's who calls.

    Args:
        hub: Knows the sessions.
        name: Which.
        context: Of the call, which ends where there is none, or it is somebody else's.
        event: What the audit log says then.
        ended: Whether one that is over will do.

    Raises:
        grpc.aio.AbortError: There is none, or it is somebody else's.
    """
    try:
        return find_session(hub.cluster, name, caller(), ended=ended)
    except NotYours as error:
        await refuse_call(context, event, name, str(error))
    except LookupError as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
    raise AssertionError  # abort() raises; this tells the type checker


def _encode(part: LogPart) -> controller_pb2.LogsPart:
    return controller_pb2.LogsPart(
        lost=part.lost,
        printed=(
            controller_pb2.Printed(
                time_s=each.time_s,
                lines=controller_pb2.LogLines(
                    worker=each.worker, node=each.node, stderr=each.stderr, lines=each.lines
                ),
            )
            for each in part.printed
        ),
    )
