"""Every gRPC option of both ends, in one place because they must agree.

The figures and the spellings were measured; the ones below detect a frozen or
unreachable peer in about 20 s, while some of the documented ones detect nothing:

* ``grpc.keepalive_timeout_ms`` does not bound a ping; ``grpc.http2.ping_timeout_ms``
  does (its default is 60 s).
* A server drops a client that pings more often than
  ``grpc.http2.min_ping_interval_without_data_ms`` allows; the name that the C
  macro suggests is ignored.
* Two servers can share one port unless ``grpc.so_reuseport`` is 0.
* A peer that connects and says nothing, or slowly, holds a connection for 120 s unless
  ``grpc.server_handshake_timeout_ms`` is less.
* ``grpc.min_reconnect_backoff_ms`` is no pause: it is how long an attempt to connect may
  take (its default is 20 s). The pauses between attempts are bounded by the two others.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CHANNEL_OPTIONS", "NODE_STREAM_OPTIONS", "SERVER_OPTIONS", "connection_limit"]


_PING_EVERY_MS = 10_000

_PING_TIMEOUT_MS = 10_000
"""As long as a controller's lease for nodes: a peer that is silent for less stays connected."""

_CONNECT_TIMEOUT_MS = 5_000
"""Four round trips (TCP, TLS, HTTP/2) over any link; for an attempt over a broken one, a
small part of the time that a session waits for its client, or a daemon's workers for a
controller."""

_RESOLVE_EVERY_MS = 1_000
"""A controller that is started again may have another address, to which its name leads only after
its peers have looked for it; gRPC's default is 30 s, longer than any lease of a node."""

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
    ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_EVERY_MS),
    # Each session and each daemon has a connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy in the environment is meant for the web, not for a cluster.
    ("grpc.enable_http_proxy", 0),
]

_LOOKAHEAD = "grpc.http2.lookahead_bytes"

# What is in a stream's window has left the sender's queues, in which sessions take turns.
# So the stream that all sessions of a node share begins with a small one; over a long
# link, gRPC's estimate of its bandwidth and delay enlarges it.
NODE_STREAM_OPTIONS: list[tuple[str, Any]] = [
    *(option for option in CHANNEL_OPTIONS if option[0] != _LOOKAHEAD),
    (_LOOKAHEAD, 128 << 10),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 2),
    ("grpc.http2.min_time_between_pings_ms", _PING_EVERY_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A connection takes no more calls after 5 s. It stays for those under way, however long they
    # are, and its client makes another one for the next. So one without calls ends.
    ("grpc.max_connection_age_ms", 5_000),
    # A peer that does not go by itself is sent away. Clients go before: of this they print a line.
    ("grpc.max_connection_idle_ms", 8_000),
    # Per connection; further calls wait at the client.
    ("grpc.max_concurrent_streams", 1024),
]


def connection_limit(count: int) -> tuple[str, Any]:
    """The option of a server that closes connections beyond a limit as soon as they are made."""
    return "grpc.max_allowed_incoming_connections", count
