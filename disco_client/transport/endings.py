"""The errors of sessions that ended, from the controller's messages."""

from __future__ import annotations

from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.wire.overview import limit_name

__all__ = ["error_before", "error_of_end"]


def error_before(ended: controller_pb2.SessionEnded, name: str) -> errors.DiscoError:
    """The error of a session that never began."""
    if ended.reason == controller_pb2.END_REASON_QUOTA:
        return errors.QuotaExceeded(
            ended.message,
            quota=ended.quota.name,
            limit=ended.quota.limit,
            used=ended.quota.used,
            sessions=ended.quota.sessions,
            total_slots=ended.slots.total_slots,
            free_slots=ended.slots.free_slots,
        )
    if ended.reason == controller_pb2.END_REASON_NO_SLOTS:
        return errors.NoSlots(
            ended.message,
            total_slots=ended.slots.total_slots,
            free_slots=ended.slots.free_slots,
        )
    if ended.reason == controller_pb2.END_REASON_REFUSED:
        return errors.ConfigError(ended.message)
    return error_of_end(ended, name)


def error_of_end(ended: controller_pb2.SessionEnded, name: str) -> errors.SessionError:
    """The error of a session that ended by itself."""
    if ended.reason in (
        controller_pb2.END_REASON_RANK_LOST,
        controller_pb2.END_REASON_START_FAILED,
    ):
        return errors.worker_lost(
            ended.message,
            worker=ended.worker,
            node=ended.node,
            exit_status=ended.exit_status,
            output=ended.output,
        )
    if ended.reason == controller_pb2.END_REASON_NODE_LOST:
        return errors.NodeLost(ended.message, node=ended.node)
    if ended.reason in (controller_pb2.END_REASON_EXPIRED, controller_pb2.END_REASON_IDLE):
        return errors.SessionExpired(
            ended.message, limit=limit_name(ended.reason), limit_s=ended.limit_s
        )
    if ended.reason == controller_pb2.END_REASON_WINDOW:
        return errors.WindowExceeded(ended.message)
    if ended.reason == controller_pb2.END_REASON_DRAINED:
        return errors.ControllerLost(ended.message)
    if ended.reason == controller_pb2.END_REASON_CLOSED:
        return errors.SessionClosed(f"session {name!r} was shut down")
    return errors.SessionLost(ended.message or f"session {name!r} ended")
