"""Raw grpcio between two processes: what a stream costs before Disco adds anything."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from disco_bench.child import Child

__all__ = ["CHUNK_BYTES", "SERVICE", "RawGrpc", "raw_grpc"]

SERVICE = "disco.bench.Raw"
CHUNK_BYTES = 1 << 20
MESSAGE = bytes(64)
"""About what a lone command or its reply takes."""
_START_S = 30.0


class RawGrpc:
    """The synchronous client of the raw server.

    Args:
        channel: A connection to it.
    """

    def __init__(self, channel: Any) -> None:
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        self._replies: Iterator[bytes] = channel.stream_stream(f"/{SERVICE}/Ping")(
            iter(self._out.get, None)
        )
        self._upload = channel.stream_unary(f"/{SERVICE}/Upload")
        self._download = channel.unary_stream(f"/{SERVICE}/Download")

    def ping(self) -> None:
        """Sends one message on a bidirectional stream and waits for it to come back."""
        self._out.put(MESSAGE)
        next(self._replies)

    def upload(self, data: memoryview) -> None:
        """Sends bytes in chunks of 1 MiB."""
        chunks = (
            bytes(data[start : start + CHUNK_BYTES]) for start in range(0, len(data), CHUNK_BYTES)
        )
        got = int(self._upload(chunks))
        assert got == len(data), (got, len(data))

    def download(self, nbytes: int) -> None:
        """Receives bytes in chunks of 1 MiB; ``nbytes`` is a multiple of that."""
        got = sum(len(chunk) for chunk in self._download(str(nbytes // CHUNK_BYTES).encode()))
        assert got == nbytes, (got, nbytes)

    def close(self) -> None:
        """Ends the stream of pings."""
        self._out.put(None)
        for _ in self._replies:
            pass


@contextlib.contextmanager
def raw_grpc() -> Generator[RawGrpc]:
    """Starts the server and connects to it."""
    with Child(["-m", "disco_bench.grpc_server"]) as server:
        address = f"127.0.0.1:{server.read_line(_START_S)}"
        with grpc.insecure_channel(address) as channel:
            client = RawGrpc(channel)
            yield client
            client.close()
