"""Authentication of a controller's calls: each is refused unless the table of methods allows it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.transport.credentials import state_of
from disco_server.core.access import (
    EVERYBODY,
    METHODS,
    Identity,
    Role,
    Tokens,
    accepted,
    certificate_identity,
    read_tokens,
)
from disco_server.observe.logs import refusals

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from disco_server.security import Guard

__all__ = ["AuthInterceptor", "TokenBook", "as_caller", "caller", "peer_of"]


_logger = logger_of("disco.controller")
_caller: ContextVar[Identity] = ContextVar("caller", default=EVERYBODY)
_BEHAVIOURS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_MOST_BYTES: Final = 1 << 20
"""How long the one request of a call may be; what is longer comes in streams."""

_REQUEST_S: Final = 10.0
_BEARER: Final = "bearer "
_ANYBODY_READS: Final = 0o004
_GROUP_READS: Final = 0o044


def caller() -> Identity:
    """The identity of the caller of the call that is being answered."""
    return _caller.get()


def as_caller(who: Identity) -> None:
    """Lets the running task answer a peer that was identified before."""
    _caller.set(who)


def peer_of(context: Any) -> str:
    """The address that a call comes from, as ``ipv4:10.0.0.7:41234``."""
    return unquote(str(context.peer()))


def _others_may_read(status: os.stat_result) -> bool:
    """Whether users other than its owner may read a file of secrets.

    A file of root's may be readable by a group: that is how a daemon that is not root reads
    it, and how Kubernetes mounts Secrets for one.
    """
    return bool(status.st_mode & (_ANYBODY_READS if status.st_uid == 0 else _GROUP_READS))


class TokenBook:
    """The tokens of a file, as it is now.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or is not of its form.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = state_of(path)
        self._tokens = self._read()

    def _read(self) -> Tokens:
        where = f"auth_token_file {self._path}"
        try:
            text = self._path.read_text()
            status = self._path.stat()
        except OSError as error:
            raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{where}: is no text") from None
        if _others_may_read(status):
            _logger.warning("%s can be read by other users; chmod 600 keeps it secret", where)
        return accepted(read_tokens(text, where))

    def find(self, token: str) -> Identity | None:
        """The identity that a token belongs to; None if the token is unknown."""
        state = state_of(self._path)
        if state != self._seen:
            self._seen = state
            try:
                self._tokens = self._read()
            except ConfigError as error:
                _logger.error("the tokens before serve on: %s", error)  # noqa: TRY400  (no traceback)
            else:
                _logger.info("the tokens in %s were read again", self._path)
        return self._tokens.find(token)


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates each caller, and admits the calls that the table of methods allows its role.

    gRPC would read the one request of a call before it lets anybody look at the call. So such
    methods are served as if they took a stream of requests, which is the same on the wire, and
    the first is read once the caller is admitted. Of strangers, who may ask for the health alone,
    it is not read, and counts as empty.

    Args:
        guard: Which credentials callers must show.

    Raises:
        ConfigError: The file of the tokens cannot be read.
    """

    def __init__(self, guard: Guard) -> None:
        self._prefix = guard.tls_id_prefix
        self._by_certificate = guard.require_client_cert
        self._book = TokenBook(guard.auth_token_file) if guard.auth_token_file else None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Puts the check before a handler; a method without a handler needs none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(cast("Any", handler_call_details).method)
        found = next(kind for kind in _BEHAVIOURS if getattr(handler, kind) is not None)
        behaviour, kind = getattr(handler, found), found.replace("unary_", "stream_", 1)
        if found != kind:
            behaviour = _first_of(behaviour, handler.request_deserializer)
            handler = handler._replace(
                request_streaming=True, request_deserializer=None, **{found: None}
            )
        return handler._replace(**{kind: self._before(behaviour, method)})

    def _before(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(behaviour):

            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
                await self._admit(method, context)
                async for each in behaviour(request, context):
                    yield each

            return generate

        async def answer(request: Any, context: Any) -> Any:
            known = await self._admit(method, context)
            return await behaviour(request if known else _nothing(), context)

        return answer

    async def _admit(self, method: str, context: Any) -> bool:
        """Lets a call go on, or aborts it; sets the identity of its caller.

        Returns:
            Whether the caller has said who it is.
        """
        allowed = METHODS.get(method, frozenset())
        found = self._identify(context)
        if allowed is None:
            return isinstance(found, Identity)
        code, problem, who = grpc.StatusCode.UNAUTHENTICATED, found, ""
        if isinstance(found, Identity):
            who = str(found)
            if found.role in allowed or (found.role is Role.ANYBODY and method in METHODS):
                _caller.set(found)
                return True
            may = ", ".join(sorted(role.value for role in allowed)) or "nobody"
            code = grpc.StatusCode.PERMISSION_DENIED
            problem = f"{who} may not call {method.rpartition('/')[2]}: it is for {may}"
        refusals.record(
            "refused", who=who, peer=peer_of(context), what=method, outcome=str(problem)
        )
        await context.abort(code, problem)
        raise AssertionError  # abort() raises; this tells the type checker

    def _identify(self, context: Any) -> Identity | str:
        names = context.auth_context().get("x509_subject_alternative_name", ())
        texts = [name.decode("utf-8", "replace") for name in names]
        return self.identify(_bearer(context.invocation_metadata() or ()), texts)

    def identify(self, token: str, names: Sequence[str]) -> Identity | str:
        """Identifies a caller.

        Args:
            token: The caller's token; may be empty.
            names: The alternative names in the caller's certificate, if there is one.

        Returns:
            The identity; where it cannot be determined, a text that says what was expected.
        """
        if self._book is not None:
            if not token:
                return (
                    "this controller asks for a token, and none came; give token_file or token"
                    " (DISCO_TOKEN_FILE, DISCO_TOKEN; of a worker daemon, --auth-token-file)"
                )
            return self._book.find(token) or (
                "this controller does not know the token that came; its --auth-token-file has"
                " those that it knows"
            )
        if not self._by_certificate:
            return EVERYBODY
        return certificate_identity(names, self._prefix) or (
            "the certificate that came names no role; expected a URI among its alternative names"
            f" such as {self._prefix}client/NAME"
        )


async def _nothing() -> AsyncIterator[bytes]:
    """A stream with one empty request."""
    yield b""


def _first_of(
    behaviour: Callable[..., Awaitable[Any]], deserialize: Callable[[bytes], Any] | None
) -> Callable[..., Awaitable[Any]]:
    """Makes a handler of a stream of requests, of which there must be one, from one of a request.

    Args:
        behaviour: Takes the request and the call's context.
        deserialize: Makes the request of bytes; None where it is bytes.
    """

    async def answer(stream: AsyncIterator[bytes], context: Any) -> Any:
        raw = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REQUEST_S):
                raw = await anext(aiter(stream), None)
        if raw is None or len(raw) > _MOST_BYTES:
            came = "none" if raw is None else f"one of {len(raw)} bytes"
            problem = f"expected a request of at most {_MOST_BYTES} bytes in {_REQUEST_S:g} s, got "
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem + came)
            raise AssertionError  # abort() raises; this tells the type checker
        try:
            request = raw if deserialize is None else deserialize(raw)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a protobuf message")
            raise
        try:
            return await behaviour(request, context)
        except NotImplementedError:  # the library's, for a method that it only declares
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this method is not implemented")
            raise

    return answer


def _bearer(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    for name, value in metadata:
        text = value if isinstance(value, str) else value.decode("latin-1")
        if name == "authorization" and text[: len(_BEARER)].lower() == _BEARER:
            return text[len(_BEARER) :]
    return ""
