"""Requests that are parsed here, and not by gRPC, which answers nonsense as if it had failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

__all__ = ["parsed"]


def parsed(handler: Callable[..., Awaitable[Any]], kind: type[Message]) -> Callable[..., Any]:
    """Makes a handler of encoded requests out of one of messages.

    Args:
        handler: Takes a message and the call's context.
        kind: The message; what is none ends the call as INVALID_ARGUMENT.
    """

    @wraps(handler)
    async def parse(raw: bytes, context: Any) -> Any:
        try:
            request = kind.FromString(raw)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a disco.v1 message")
            raise
        return await handler(request, context)

    return parse
