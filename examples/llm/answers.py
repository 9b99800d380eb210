"""The answers to one request on their way: whole, or piece by piece, in OpenAI's forms."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from llm.asked import Refused
from llm.engine import pieces_of
from llm.logprobs import TextForm, chat_form

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from llm.asked import Asked
    from llm.engine import Engine, Request
    from llm.logprobs import Told
    from llm.metrics import Metrics
    from llm.text import Text

__all__ = ["Choice", "ServedAnswer", "error_of"]


def error_of(refused: Refused) -> dict[str, Any]:
    """What is wrong, as OpenAI says it."""
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


class Choice:
    """One of the answers to a request.

    Args:
        index: Its number.
        asked: The request.
        engine: Computes it.
        text: Knows the tokens.
        request: The engine's.
        chat: Whether it continues a conversation.

    Attributes:
        index: Its number.
        request: The engine's.
        count: How many tokens it has so far.
    """

    def __init__(
        self, index: int, asked: Asked, engine: Engine, text: Text, request: Request, *, chat: bool
    ) -> None:
        self.index, self.request, self.count = index, request, 0
        self._asked, self._engine, self._text, self._chat = asked, engine, text, chat
        self._form = TextForm(text, continues=not (chat or asked.echo))

    async def pieces(self) -> AsyncGenerator[tuple[str, list[Told]], None]:
        """Yields text, and the tokens behind it where they are told.

        Raises:
            Exception: See `llm.engine.pieces_of`.
        """
        asked, request = self._asked, self.request
        silent = asked.max_tokens == 0
        echoing = asked.echo
        text = pieces_of(self._engine, self._text, request, asked.stop, continues=not self._chat)
        async with contextlib.aclosing(text) as pieces:
            async for piece, count in pieces:
                if echoing:
                    echoing = False
                    yield self._echo()
                if not silent:
                    told = self._told(count)
                    self.count = count
                    yield piece, told
        if echoing:
            yield self._echo()
        if silent or (request.reason == "stop" and request.ended_by is None):
            return  # behind a stop string nothing counts
        told = self._told(len(request.notes))
        self.count = len(request.found)
        if told:
            yield "", told

    def _echo(self) -> tuple[str, list[Told]]:
        prompt, scores = self.request.prompt, self._scores()
        given = self._asked.prompts[self.index // self._asked.choices]
        text = given if isinstance(given, str) else self._text.decode(prompt)
        if self._asked.sampling.logprobs is None:
            return text, []
        return text, [(token, scores.get(at)) for at, token in enumerate(prompt)]

    def _scores(self) -> dict[int, Any]:
        # Those of the first answer to a prompt, whose tokens are computed once.
        leader = self.request.leader
        return (self.request if leader is None else leader).scores

    def _told(self, end: int) -> list[Told]:
        return [(int(noted[0][0]), noted) for noted in self.request.notes[self.count : end]]

    def form(self, told: Sequence[Told]) -> dict[str, Any] | None:
        """How likely tokens were, in the form of the request; None where that is not asked."""
        if self._asked.sampling.logprobs is None or not told:
            return None
        return chat_form(self._text, told) if self._chat else self._form.of(told)

    async def whole(self, pieces: AsyncGenerator[tuple[str, list[Told]], None]) -> dict[str, Any]:
        """All of it."""
        texts: list[str] = []
        tokens: list[Told] = []
        async with contextlib.aclosing(pieces):
            async for piece, told in pieces:
                texts.append(piece)
                tokens += told
        text = "".join(texts)
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self._chat
            else {"text": text}
        )
        ended = {"logprobs": self.form(tokens), "finish_reason": self.reason}
        return {"index": self.index, **said, **ended}

    @property
    def reason(self) -> str:
        """Why it has ended."""
        return "length" if self._asked.max_tokens == 0 else self.request.reason


class ServedAnswer:
    """The answers to one request.

    Args:
        asked: The request.
        choices: They.
        metrics: Where to note how fast they come.
        model: What the model is called.
        chat: Whether they continue a conversation.
    """

    def __init__(
        self,
        asked: Asked,
        choices: Sequence[Choice],
        metrics: Metrics,
        model: str,
        *,
        chat: bool,
    ) -> None:
        self._asked, self._choices, self._metrics, self._chat = asked, choices, metrics, chat
        self._begun = time.perf_counter()
        self._common = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }

    def _usage(self) -> dict[str, Any]:
        first = [choice.request for choice in self._choices[:: self._asked.choices]]
        prompt = sum(len(request.prompt) for request in first)
        answer = sum(choice.count for choice in self._choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": sum(request.shared for request in first)},
        }

    async def _timed(self, choice: Choice) -> AsyncGenerator[tuple[str, list[Told]], None]:
        """Yields an answer's pieces.

        Raises:
            Refused: The workers were lost.
        """
        last = 0.0
        try:
            async with contextlib.aclosing(choice.pieces()) as pieces:
                async for piece in pieces:
                    now = time.perf_counter()
                    if last:
                        self._metrics.between.observe(now - last)
                    else:
                        first = choice.request.first_token_at or now
                        self._metrics.first.observe(first - self._begun)
                    last = now
                    yield piece
        except Exception as error:
            if choice.request.reason != "error":
                raise
            raise Refused(str(error), status=503, code="workers_lost", retry_after=1) from error

    async def whole(self) -> web.Response:
        """All of them at once.

        Raises:
            Refused: The workers were lost.
        """
        choices = await asyncio.gather(
            *(choice.whole(self._timed(choice)) for choice in self._choices)
        )
        kind = "chat.completion" if self._chat else "text_completion"
        return web.json_response(
            {**self._common, "object": kind, "choices": choices, "usage": self._usage()}
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
                for choice in self._choices:
                    await send(self._chunk(choice, {"role": "assistant", "content": ""}))
            async with contextlib.aclosing(self._pieces()) as pieces:
                async for choice, piece, told in pieces:
                    if piece is None:
                        end: dict[str, str] = {}
                        said = end if self._chat else ""
                        await send(self._chunk(choice, said, reason=choice.reason))
                    else:
                        said = {"content": piece} if self._chat else piece
                        await send(self._chunk(choice, said, choice.form(told)))
        except Refused as refused:
            await send(error_of(refused))
            return
        if self._asked.with_usage:
            await send({**self._about(), "choices": [], "usage": self._usage()})
        await response.write(b"data: [DONE]\n\n")

    async def _pieces(self) -> AsyncGenerator[tuple[Choice, str | None, list[Told]], None]:
        """Yields the pieces of all answers as they come; None as the text ends an answer.

        Raises:
            Refused: The workers were lost.
        """
        if len(self._choices) == 1:  # the usual one pays for no queue
            choice = self._choices[0]
            async with contextlib.aclosing(self._timed(choice)) as pieces:
                async for piece, told in pieces:
                    yield choice, piece, told
            yield choice, None, []
            return
        queue: asyncio.Queue[tuple[Choice, str | None, list[Told]] | Exception] = asyncio.Queue()
        tasks = [asyncio.create_task(self._put(each, queue.put_nowait)) for each in self._choices]
        try:
            ended = 0
            while ended < len(tasks):
                news = await queue.get()
                if isinstance(news, Exception):
                    raise news
                ended += news[1] is None
                yield news
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _put(self, choice: Choice, put: Callable[[Any], None]) -> None:
        try:
            async with contextlib.aclosing(self._timed(choice)) as pieces:
                async for piece, told in pieces:
                    put((choice, piece, told))
            put((choice, None, []))
        except Exception as error:  # noqa: BLE001  (whoever reads the queue raises it)
            put(error)

    def _about(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._common, "object": kind}

    def _chunk(
        self,
        choice: Choice,
        said: object,
        logprobs: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        part = {
            "index": choice.index,
            "delta" if self._chat else "text": said,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        chunk: dict[str, Any] = {**self._about(), "choices": [part]}
        if not (self._asked.with_usage or self._asked.usage_so_far):
            return chunk
        return {**chunk, "usage": self._usage() if self._asked.usage_so_far else None}
