"""OpenAI's API on an engine, over HTTP: one current session, and another one when that has to go.

`Service.keep` opens the engine, and opens another where the first one's workers are lost for good
or one of their nodes is being drained. New requests go to the newest; what runs on a former one
that still works ends there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import disco_client
from llm.access import demand_key, let_origins_read
from llm.answers import Choice, ServedAnswer, error_of
from llm.asked import Asked, Refused, read
from llm.config import ModelError
from llm.embeddings import Embeddings, read_texts
from llm.engine import Busy, Counts, Engine, Request, Settings, TooLong
from llm.metrics import Metrics
from llm.text import TemplateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from llm.asked import Prompt
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


@dataclass
class Service:
    """Answers with the newest of its engines.

    Args:
        checkpoint: The model.
        text: Its tokenizer.
        settings: Of the engines.
        session: How sessions are opened: the arguments of `disco_client.connect`.
        default_tokens: The most tokens of an answer whose request does not say.
        names: What the model is called, the first of them in answers; none for the file's name.

    Attributes:
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
    names: list[str] = field(default_factory=list[str])
    counts: Counts = field(default_factory=Counts)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False

    def __post_init__(self) -> None:
        path = self.checkpoint.path
        self.names = self.names or [path.stem if self.checkpoint.is_gguf else path.name]
        self.metrics = Metrics(self)
        self._embedder = Embeddings()
        self._engine: Engine | None = None
        self._former: dict[Engine, asyncio.Task[None]] = {}
        self._why = "the model is being loaded"
        self._answering = 0
        self._make_engine()  # what is wrong with the settings shows here

    def _make_engine(self) -> Engine:
        return Engine(
            self.checkpoint, self.text.ends, self.settings, counts=self.counts, **self.session
        )

    @property
    def name(self) -> str:
        """What the model is called in answers."""
        return self.names[0]

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
            _logger.info(
                "session %s has %d workers, computing with %s",
                session.session_id,
                session.num_workers,
                another.computed_by,
            )
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
        outcome, requests = "cancelled", dict[Request, Engine]()
        try:
            asked = read(await http.read(), chat=chat)
            self._check_model(asked.model)
            self._look_ready()
            prompts = await asyncio.to_thread(self._tokens, asked)
            engine = self._look_ready()  # it may have been replaced meanwhile
            self._submit(engine, asked, prompts, requests)
            choices = [
                Choice(index, asked, engine, self.text, request, chat=chat)
                for index, request in enumerate(requests)
            ]
            answer = ServedAnswer(asked, choices, self.metrics, self.name, chat=chat)
            return await (answer.stream(http) if asked.stream else answer.whole())
        except (Refused, web.HTTPException) as refused:
            outcome = f"refused {refused.status}"
            raise
        finally:
            for request, its_engine in requests.items():
                its_engine.cancel(request)
            self._answering -= 1
            self.metrics.requests.labels(_outcome(requests) or outcome).inc()

    async def embed(self, http: web.Request) -> web.Response:
        """Embeds texts.

        Raises:
            Refused: The request is wrong, or cannot be served now, or here.
        """
        self._answering += 1
        try:
            asked = read_texts(await http.read())
            return await self._embedder.answer(self._look_ready(), asked)
        finally:
            self._answering -= 1

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names:
            raise _unknown(name)

    def _look_ready(self) -> Engine:
        if (why := self.why_not_ready) or self._engine is None:
            raise Refused(why, status=503, code="not_ready", retry_after=1)
        return self._engine

    def _tokens(self, asked: Asked) -> list[list[int]]:
        """The tokens of the prompts; long ones take their time."""
        for name, tokens in (
            ("logit_bias", [token for token, _ in asked.sampling.bias]),
            ("stop_token_ids", asked.sampling.ends),
        ):
            self._check_tokens(tokens, name)
        return [self._encode(prompt) for prompt in asked.prompts]

    def _encode(self, given: Prompt) -> list[int]:
        if isinstance(given, str):
            return self.text.encode(given)
        if all(isinstance(each, int) for each in given):
            tokens: list[int] = given  # type: ignore[assignment]
            self._check_tokens(tokens, "prompt")
            return tokens
        try:
            return self.text.conversation(given)  # type: ignore[arg-type]
        except TemplateError as error:
            raise Refused(str(error), "messages") from None

    def _check_tokens(self, tokens: Sequence[int], name: str) -> None:
        most = self.checkpoint.config.vocabulary - 1
        if not all(0 <= token <= most for token in tokens):
            raise Refused(f"{name}: expected tokens from 0 to {most}", name)

    def _submit(
        self,
        engine: Engine,
        asked: Asked,
        prompts: list[list[int]],
        requests: dict[Request, Engine],
    ) -> None:
        """Asks for all answers; `requests` gets them, also where one is refused."""
        most = self.settings.queue
        if len(prompts) * asked.choices > most:
            wanted = f"{len(prompts)} prompts with {asked.choices} answers each"
            raise Refused(f"expected at most {most} answers in a request, got {wanted}", "n")
        for prompt in prompts:
            if not prompt:
                raise Refused("prompt: expected one token or more", "prompt")
            limit = asked.max_tokens
            if limit is None:
                limit = max(1, min(self.default_tokens, engine.room - len(prompt)))
            leader = None
            for choice in range(asked.choices):
                sampling = asked.sampling_of(choice)
                try:
                    request = engine.submit(prompt, limit, sampling, leader=leader)
                except TooLong as error:
                    raise Refused(str(error), code="context_length_exceeded") from None
                except Busy as error:
                    said = str(error)
                    raise Refused(said, status=429, code="queue_full", retry_after=1) from None
                requests[request] = engine
                leader = leader or request


def _outcome(requests: Iterable[Request]) -> str:
    """How a request ended, by its answers; empty where it has none."""
    reasons = [request.reason for request in requests]
    return next((each for each in ("error", "cancelled") if each in reasons), "".join(reasons[:1]))


# HTTP --------------------------------------------------------------------------------------


def _unknown(model: str) -> Refused:
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
        if error.status == 401:  # noqa: PLR2004  (HTTP's)
            headers["WWW-Authenticate"] = "Bearer"
    except web.HTTPException as error:
        refused = Refused(f"{request.method} {request.path}: {error.reason}", status=error.status)
        if "Allow" in error.headers:
            headers["Allow"] = error.headers["Allow"]
    except Exception:
        _logger.exception("%s %s failed", request.method, request.path)
        refused = Refused("the service has failed; its log says more", status=500)
    return web.json_response(error_of(refused), status=refused.status, headers=headers)


def application(
    service: Service, keys: Sequence[str] = (), origins: Sequence[str] = ()
) -> web.Application:
    """The paths of a service.

    Args:
        service: Answers.
        keys: One of them has to come with each request, except for those of `llm.access.OPEN`;
            none for no check.
        origins: The pages of browsers that may use the service; ``*`` for all, none for none.
    """
    about = {"object": "model", "created": 0, "owned_by": "disco"}

    async def chat(http: web.Request) -> web.StreamResponse:
        return await service.answer(http, chat=True)

    async def complete(http: web.Request) -> web.StreamResponse:
        return await service.answer(http, chat=False)

    async def models(_: web.Request) -> web.Response:
        listed = [{"id": name, **about} for name in service.names]
        return web.json_response({"object": "list", "data": listed})

    async def model(http: web.Request) -> web.Response:
        name = http.match_info["name"]
        if name not in service.names:
            raise _unknown(name)
        return web.json_response({"id": name, **about})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        why = service.why_not_ready
        return web.Response(status=503 if why else 200, text=f"{why or 'ready'}\n")

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=service.metrics.written(), headers=headers)

    app = web.Application(middlewares=[_in_their_form], client_max_size=_BODY)
    if keys:
        demand_key(app, keys)
    if origins:
        let_origins_read(app, origins)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/v1/embeddings", service.embed)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{name:.+}", model)
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/health", ready)  # by the name of vLLM, and as it means it
    app.router.add_get("/metrics", metrics)
    return app
