"""Host arrays over gRPC: straight to the worker's daemon, or through the controller.

A daemon that the client can reach takes arrays at a door of its own, which spares
them a hop. Whether it can be reached shows at the first attempt, and is remembered.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, cast

import grpc

from disco_client.pb import controller_pb2
from disco_client.transport.options import CHANNEL_OPTIONS, target
from disco_client.wire.arrays import chunk_data, encode_head, encode_stream

__all__ = ["ArrayClient"]

_SERVICE = "/disco.v1.ArrayService/"
_REACH_S = 1.0
"""A daemon that does not answer within this time is reached through the controller."""


class ArrayClient:
    """The transfers of one session; may be used from several threads.

    Args:
        relay: The channel to the controller.
        session: The session's id.
        key: Its secret.
        doors: Each worker's array address; empty where its daemon has none.
    """

    def __init__(
        self, relay: grpc.Channel, session: int, key: bytes, doors: Mapping[int, str]
    ) -> None:
        self._relay = relay
        self._session = session
        self._key = key
        self._doors = dict(doors)
        self._lock = threading.Lock()
        self._direct: dict[str, grpc.Channel | None] = {}

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            grpc.RpcError: It cannot be sent either way.
        """
        direct = self._reach(worker)
        if direct is not None:
            try:
                self._upload(direct, ticket, worker, data)
            except grpc.RpcError as error:
                self._give_up_if_unreachable(worker, error)
            else:
                return
        self._upload(self._relay, ticket, worker, data)

    def _upload(self, channel: grpc.Channel, ticket: int, worker: int, data: memoryview) -> None:
        head = encode_head(self._session, self._key, ticket, len(data), worker)
        # Bytes cross the channel as they are, which the types of its methods do not foresee.
        call = cast("Any", channel).stream_unary(
            _SERVICE + "Upload",
            response_deserializer=controller_pb2.UploadResult.FromString,
        )
        call(encode_stream(head, data))

    def download(self, ticket: int, worker: int, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns the bytes that came.

        Raises:
            grpc.RpcError: It cannot be fetched either way.
        """
        direct = self._reach(worker)
        if direct is not None:
            try:
                return self._download(direct, ticket, worker, into)
            except grpc.RpcError as error:
                self._give_up_if_unreachable(worker, error)
        return self._download(self._relay, ticket, worker, into)

    def _download(self, channel: grpc.Channel, ticket: int, worker: int, into: memoryview) -> int:
        head = encode_head(self._session, self._key, ticket, len(into), worker)
        call: Any = cast("Any", channel).unary_stream(
            _SERVICE + "Download",
            request_serializer=controller_pb2.Transfer.SerializeToString,
        )
        at = 0
        for raw in call(head):
            data = chunk_data(raw)
            into[at : at + len(data)] = data
            at += len(data)
        return at

    def _reach(self, worker: int) -> grpc.Channel | None:
        """The channel to a worker's daemon, if there is a way."""
        address = self._doors.get(worker, "")
        if not address:
            return None
        with self._lock:
            if address in self._direct:
                return self._direct[address]
            channel = grpc.insecure_channel(target(address), options=CHANNEL_OPTIONS)
            ready = grpc.channel_ready_future(channel)
            try:
                ready.result(timeout=_REACH_S)
            except grpc.FutureTimeoutError:
                ready.cancel()
                channel.close()
                self._direct[address] = None
                return None
            self._direct[address] = channel
            return channel

    def _give_up_if_unreachable(self, worker: int, error: grpc.RpcError) -> None:
        """Lets a broken connection fall back to the relay; everything else stands."""
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is not grpc.StatusCode.UNAVAILABLE:
            raise error
        with self._lock:
            address = self._doors.get(worker, "")
            channel = self._direct.get(address)
            self._direct[address] = None
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Closes the channels to daemons; the one to the controller is its owner's."""
        with self._lock:
            for channel in self._direct.values():
                if channel is not None:
                    with contextlib.suppress(Exception):
                        channel.close()
            self._direct.clear()
            self._doors.clear()
