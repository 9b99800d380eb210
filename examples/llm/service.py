"""OpenAI's API on an engine, over HTTP: one current session, and another one when that has to go.

`Service.keep` opens the engine, and opens another where the first one's workers are lost for good
or one of their nodes is being drained. New requests go to the newest; what runs on a former one
that still works ends there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

import disco_client
from llm.asked import Asked, Refused, read
from llm.config import ModelError
from llm.engine import Busy, Counts, Engine, Request, Settings, TooLong, text_of
from llm.text import TemplateError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from llm.config import Checkpoint
    from llm.text import Text

__all__ = ["Service", "application"]

_logger = logging.getLogger("llm.service")
_LOOK_S = 0.2
"""How often it looks whether the engine has to be replaced, or is done."""
_PAUSES_S = (0.5, 10.0)
"""How long after a failure to try again: at first, and at most."""
_BODY = 4 << 20
"""How many bytes a request may have."""
_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class _Metrics:
    """What is measured, in Prometheus' format."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "disco_llm_requests",
            "Requests, by how they ended.",
            ["outcome"],
            registry=self._registry,
        )
        self.first = Histogram(
            "disco_llm_first_token_seconds",
            "From a request to the first token of its answer.",
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self.between = Histogram(
            "disco_llm_between_tokens_seconds",
            "From a token to the next one.",
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self._registry.register(self)  # type: ignore[arg-type]

    def collect(self) -> Iterator[Metric]:
        """Yields what others count."""
        counts, engines = self._service.counts, self._service.engines
        for name, text, count in (
            ("prompt_tokens", "Tokens of prompts that were computed.", counts.prompt_tokens),
            ("shared_tokens", "Tokens of prompts found in the cache.", counts.shared_tokens),
            ("answer_tokens", "Tokens of answers.", counts.answer_tokens),
            ("steps", "Steps of all workers.", counts.steps),
            ("recoveries", "How often workers were replaced.", counts.recoveries),
        ):
            yield CounterMetricFamily(f"disco_llm_{name}", text, value=count)
        for name, text, value in (
            ("waiting", "Requests that have not begun.", sum(e.waiting for e in engines)),
            ("running", "Requests that are being answered.", sum(e.running for e in engines)),
            ("cache_blocks", "Blocks of the cache.", sum(e.pool.count for e in engines)),
            ("cache_blocks_used", "Those that answers hold.", sum(e.pool.used for e in engines)),
        ):
            yield GaugeMetricFamily(f"disco_llm_{name}", text, value=value)

    def written(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)


@dataclass
class Service:
    """Answers with the newest of its engines.

    Args:
        checkpoint: The model.
        text: Its tokenizer.
        settings: Of the engines.
        session: How sessions are opened: the arguments of `disco_client.connect`.
        default_tokens: The most tokens of an answer whose request does not say.

    Attributes:
        name: What the model is called.
        counts: What all engines have done.
        loaded: Set when there has been an engine.
        draining: Whether it takes no requests any more.
        metrics: What is measured.
    """

    checkpoint: Checkpoint
    text: Text
    settings: Settings
    session: dict[str, Any]
    default_tokens: int = 512
    counts: Counts = field(default_factory=Counts)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False

    def __post_init__(self) -> None:
        path = self.checkpoint.path
        self.name = path.stem if self.checkpoint.is_gguf else path.name
        self.metrics = _Metrics(self)
        self._engine: Engine | None = None
        self._former: dict[Engine, asyncio.Task[None]] = {}
        self._why = "the model is being loaded"
        self._answering = 0
        self._make_engine()  # what is wrong with the settings shows here

    def _make_engine(self) -> Engine:
        return Engine(
            self.checkpoint, self.text.ends, self.settings, counts=self.counts, **self.session
        )

    # Its engines -------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """The one that takes requests, if there is one, and those that end theirs."""
        return [*self._former, *([] if self._engine is None else [self._engine])]

    @property
    def why_not_ready(self) -> str:
        """Why it takes no requests; empty if it does."""
        if self.draining:
            return "the service is ending"
        return self._why if self._engine is None or self._engine.lost is not None else ""

    async def keep(self) -> None:
        """Sees to it that there is an engine with workers that stay, until it is cancelled.

        Raises:
            ModelError: What the workers read at first is no model that is served.
        """
        pause, most = _PAUSES_S
        while True:
            engine = self._engine
            if engine is not None:
                if engine.lost is not None:
                    self._why = f"the workers were lost: {engine.lost}"
                    self._engine = None
                    self._retire(engine)
                elif not engine.session.draining:
                    pause = _PAUSES_S[0]
                    await asyncio.sleep(_LOOK_S)
                    continue
                else:
                    nodes = ", ".join(engine.session.draining)
                    _logger.warning("being drained, so another session is opened: %s", nodes)
            another = self._make_engine()
            try:
                await another.open()
            except (disco_client.DiscoError, ModelError) as error:
                if isinstance(error, ModelError) and not self.loaded.is_set():
                    raise
                self._why = f"there is no session with the model: {error}"
                _logger.warning("no session, once more in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, most)
                continue
            session = another.session
            _logger.info("session %s has %d workers", session.session_id, session.num_workers)
            engine, self._engine = self._engine, another
            if engine is not None:
                self._retire(engine)
            self.loaded.set()

    def _retire(self, engine: Engine) -> None:
        """Closes an engine when it has answered what it was asked."""

        async def close_later() -> None:
            while engine.running or engine.waiting:  # noqa: ASYNC110  (they end one by one)
                await asyncio.sleep(_LOOK_S)
            await engine.close()
            del self._former[engine]

        self._former[engine] = asyncio.create_task(close_later())

    async def drain(self, seconds: float) -> None:
        """Takes no more requests; returns when all are answered, at the latest after a time."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self._answering and time.monotonic() < deadline:  # noqa: ASYNC110  (the same)
            await asyncio.sleep(_LOOK_S / 10)

    async def close(self) -> None:
        """Ends all sessions; answers that are not complete end with an error."""
        for task in self._former.values():
            task.cancel()
        await asyncio.gather(*(engine.close() for engine in self.engines))

    # Requests ----------------------------------------------------------------------------

    async def answer(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        """Answers a request.

        Raises:
            Refused: It is wrong, or cannot be served now.
        """
        self._answering += 1
        outcome, request = "cancelled", None
        try:
            asked = read(await http.read(), chat=chat)
            if asked.model not in (None, self.name):
                raise _unknown(asked.model)
            self._look_ready()
            prompt = await asyncio.to_thread(self._tokens, asked)
            engine, request = self._submit(asked, prompt)
            try:
                answer = _Answer(self, asked, engine, request, chat=chat)
                return await (answer.stream(http) if asked.stream else answer.whole())
            finally:
                engine.cancel(request)
        except (Refused, web.HTTPException) as refused:
            outcome = f"refused {refused.status}"
            raise
        finally:
            self._answering -= 1
            ended = outcome if request is None else request.reason
            self.metrics.requests.labels(ended).inc()

    def _look_ready(self) -> Engine:
        if (why := self.why_not_ready) or self._engine is None:
            raise Refused(why, status=503, code="not_ready", retry_after=1)
        return self._engine

    def _tokens(self, asked: Asked) -> list[int]:
        """The tokens of a prompt; long ones take their time."""
        given = asked.prompt
        if isinstance(given, str):
            return self.text.encode(given)
        if all(isinstance(each, int) for each in given):
            tokens: list[int] = given  # type: ignore[assignment]
            if not all(0 <= token < self.checkpoint.config.vocabulary for token in tokens):
                most = self.checkpoint.config.vocabulary - 1
                raise Refused(f"prompt: expected tokens from 0 to {most}", "prompt")
            return tokens
        try:
            return self.text.conversation(given)  # type: ignore[arg-type]
        except TemplateError as error:
            raise Refused(str(error), "messages") from None

    def _submit(self, asked: Asked, prompt: list[int]) -> tuple[Engine, Request]:
        engine = self._look_ready()
        if not prompt:
            raise Refused("prompt: expected one token or more", "prompt")
        limit = asked.max_tokens or max(1, min(self.default_tokens, engine.room - len(prompt)))
        try:
            return engine, engine.submit(prompt, limit, asked.sampling)
        except TooLong as error:
            raise Refused(str(error), code="context_length_exceeded") from None
        except Busy as error:
            raise Refused(str(error), status=429, code="queue_full", retry_after=1) from None


class _Answer:
    """One answer on its way."""

    def __init__(
        self, service: Service, asked: Asked, engine: Engine, request: Request, *, chat: bool
    ) -> None:
        self._service, self._asked, self._chat = service, asked, chat
        self._request = request
        self._text = text_of(engine, service.text, request, asked.stop, continues=not chat)
        self._begun = time.perf_counter()
        self._common = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": service.name,
        }

    def _usage(self) -> dict[str, Any]:
        prompt, answer = len(self._request.prompt), len(self._request.found)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": self._request.shared},
        }

    async def _pieces(self) -> AsyncGenerator[str, None]:
        """Yields the answer's text.

        Raises:
            Refused: The workers were lost.
        """
        metrics, last = self._service.metrics, 0.0
        try:
            async with contextlib.aclosing(self._text) as pieces:
                async for piece in pieces:
                    now = time.perf_counter()
                    if last:
                        metrics.between.observe(now - last)
                    else:
                        metrics.first.observe(self._request.first_token_at - self._begun)
                    last = now
                    yield piece
        except Exception as error:
            if self._request.reason != "error":
                raise
            raise Refused(str(error), status=503, code="workers_lost", retry_after=1) from error

    async def whole(self) -> web.Response:
        """All of it at once."""
        text = "".join([piece async for piece in self._pieces()])
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self._chat
            else {"text": text}
        )
        kind = "chat.completion" if self._chat else "text_completion"
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._request.reason}
        return web.json_response(
            {**self._common, "object": kind, "choices": [choice], "usage": self._usage()}
        )

    async def stream(self, http: web.Request) -> web.StreamResponse:
        """Piece by piece, as server-sent events."""
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        response.headers["Cache-Control"] = "no-cache"
        with contextlib.suppress(ConnectionResetError):  # nobody reads it any more
            await response.prepare(http)
            await self._send(response)
            await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse) -> None:
        async def send(event: object) -> None:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        try:
            if self._chat:
                await send(self._chunk({"role": "assistant", "content": ""}))
            async with contextlib.aclosing(self._pieces()) as pieces:
                async for piece in pieces:
                    await send(self._chunk({"content": piece} if self._chat else piece))
        except Refused as refused:
            await send(_body_of(refused))
            return
        await send(self._chunk({} if self._chat else "", self._request.reason))
        if self._asked.with_usage:
            await send({**self._chunk(None), "choices": [], "usage": self._usage()})
        await response.write(b"data: [DONE]\n\n")

    def _chunk(self, said: object, reason: str | None = None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        choice = {
            "index": 0,
            "delta" if self._chat else "text": said,
            "logprobs": None,
            "finish_reason": reason,
        }
        chunk: dict[str, Any] = {**self._common, "object": kind, "choices": [choice]}
        return {**chunk, "usage": None} if self._asked.with_usage else chunk


# HTTP --------------------------------------------------------------------------------------


def _body_of(refused: Refused) -> dict[str, Any]:
    kinds = {400: "invalid_request_error", 429: "rate_limit_error"}
    kind = kinds.get(refused.status, "server_error" if refused.status >= 500 else kinds[400])  # noqa: PLR2004  (HTTP's)
    return {
        "error": {
            "message": str(refused),
            "type": kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def _unknown(model: str | None) -> Refused:
    return Refused(f"there is no model {model!r}", "model", status=404, code="model_not_found")


@web.middleware
async def _in_their_form(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Says what is wrong as OpenAI does."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except Refused as error:
        refused = error
        if error.retry_after is not None:
            headers["Retry-After"] = str(error.retry_after)
    except web.HTTPException as error:
        refused = Refused(f"{request.method} {request.path}: {error.reason}", status=error.status)
        if "Allow" in error.headers:
            headers["Allow"] = error.headers["Allow"]
    except Exception:
        _logger.exception("%s %s failed", request.method, request.path)
        refused = Refused("the service has failed; its log says more", status=500)
    return web.json_response(_body_of(refused), status=refused.status, headers=headers)


def application(service: Service) -> web.Application:
    """The paths of a service."""
    about = {"id": service.name, "object": "model", "created": 0, "owned_by": "disco"}

    async def chat(http: web.Request) -> web.StreamResponse:
        return await service.answer(http, chat=True)

    async def complete(http: web.Request) -> web.StreamResponse:
        return await service.answer(http, chat=False)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [about]})

    async def model(http: web.Request) -> web.Response:
        if http.match_info["name"] != service.name:
            raise _unknown(http.match_info["name"])
        return web.json_response(about)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        why = service.why_not_ready
        return web.Response(status=503 if why else 200, text=f"{why or 'ready'}\n")

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=service.metrics.written(), headers=headers)

    app = web.Application(middlewares=[_in_their_form], client_max_size=_BODY)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{name:.+}", model)
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", metrics)
    return app
