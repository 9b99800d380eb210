"""Every gRPC option of both ends, in one place because they must agree.

The figures and the spellings were measured; the ones below detect a frozen or
unreachable peer in about 15 s, while some of the documented ones detect nothing:

* ``grpc.keepalive_timeout_ms`` does not bound a ping; ``grpc.http2.ping_timeout_ms``
  does (its default is 60 s).
* A server drops a client that pings more often than
  ``grpc.http2.min_ping_interval_without_data_ms`` allows; the name that the C
  macro suggests is ignored.
* Two servers can share one port unless ``grpc.so_reuseport`` is 0.
* A peer that connects and says nothing, or slowly, holds a connection for 120 s unless
  ``grpc.server_handshake_timeout_ms`` is less.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CHANNEL_OPTIONS", "SERVER_OPTIONS", "connection_limit", "target"]

_PING_EVERY_MS = 10_000
_PING_TIMEOUT_MS = 5_000
_MAX_MESSAGE_BYTES = 64 << 20

_BOTH: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", _PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Frames of 1 MiB and a stream's window of several chunks carry arrays about
    # half as fast again as the defaults (16 KiB, 64 KiB) do.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Each session and each daemon has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy in the environment is meant for the web, not for a cluster.
    ("grpc.enable_http_proxy", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 2),
    ("grpc.http2.min_time_between_pings_ms", _PING_EVERY_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Of one connection; calls beyond wait at the client.
    ("grpc.max_concurrent_streams", 1024),
]


def connection_limit(count: int) -> tuple[str, Any]:
    """The option of a server that closes connections beyond so many as soon as they are made."""
    return "grpc.max_allowed_incoming_connections", count


def target(address: str) -> str:
    """Makes a gRPC target of ``HOST:PORT`` or ``unix:/path``."""
    return address if address.startswith("unix:") else f"dns:///{address}"
