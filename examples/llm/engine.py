"""Answers of a model to many at once: which sequences are in the next step.

Each step takes one token of each sequence that is being continued and, in chunks, prompts of
those that have just come. It is one message, and the workers are a step ahead: the next one is
issued before the tokens of the last one are here. What a sequence needs of the cache is set aside
when it begins, so none has to be stopped for room.

What the engine knows of a sequence is its tokens. When workers are lost, others take their place
(``recover=`` of `disco_client.connect`), and every sequence goes on from its tokens there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

import disco_client
from llm.cache import BlockPool
from llm.choosing import Sampling
from llm.layers import BLOCK
from llm.model import Model, Piece, blocks_within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from llm.choosing import Note
    from llm.config import Checkpoint
    from llm.steps import Found
    from llm.text import Text

__all__ = [
    "Busy",
    "Counts",
    "Engine",
    "Request",
    "Sampling",
    "Settings",
    "TooLong",
    "pieces_of",
    "text_of",
]

_logger = logging.getLogger("llm.engine")
_AHEAD = 2
"""How many steps may be under way."""
_LOOK_S = 1.0
"""How often an engine without work looks whether it still has workers."""


class Busy(Exception):
    """As many requests wait as may."""


class TooLong(ValueError):
    """Prompt and answer together have more tokens than the model or the cache has room for."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much an engine does at a time.

    Attributes:
        cache_bytes: What the cache may take on each worker.
        slots: How many sequences there may be at a time.
        chunk: How many tokens of prompts a step takes at most.
        queue: How many requests may wait.
        compute: What multiplies; see `llm.model.Model`.
    """

    cache_bytes: int = 256 << 20
    slots: int = 32
    chunk: int = 64
    queue: int = 256
    compute: str = "auto"


@dataclass(slots=True)
class Counts:
    """What an engine has done.

    Attributes:
        steps: Steps.
        prompt_tokens: Tokens of prompts, computed.
        shared_tokens: Tokens of prompts that were in the cache already.
        answer_tokens: Tokens of answers.
        recoveries: How often workers were replaced.
    """

    steps: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    answer_tokens: int = 0
    recoveries: int = 0


@dataclass(slots=True)
class CachePlace:
    """Where a sequence is in the cache, and how far the workers are with it.

    Attributes:
        slot: Where its newest token is remembered; -1 before it has begun.
        blocks: The cache's blocks that it holds.
        issued: How many of its tokens the workers have been told to compute.
        coming: How many tokens were asked for that have not come.
        named: How many of the blocks others can share.
        name: What the last of these is known by.
        told: Whether the workers know what its sampling takes.
    """

    slot: int = -1
    blocks: list[int] = field(default_factory=list[int])
    issued: int = 0
    coming: int = 0
    named: int = 0
    name: int = 0
    told: bool = False


class Request:
    """One sequence: a prompt and its answer, an iterator over the tokens of the answer.

    Args:
        prompt: The tokens of the prompt.
        limit: How many tokens prompt and answer may have.
        sampling: How tokens are chosen.
        leader: A request for the same prompt that begins first, so that this one finds the
            prompt's blocks; None for none.

    Attributes:
        prompt: The tokens of the prompt.
        found: Those of the answer so far.
        reason: Why it has ended: ``stop`` at a token that ends answers, ``length``,
            ``cancelled`` or ``error``; empty before.
        shared: How many tokens of the prompt were in the cache already.
        first_token_at: When the first token was there, by `time.perf_counter`; 0 before.
        ended_by: The token that ended it, which is none of the answer; None for none.
        notes: Where the sampling asks for it, how likely each token of the answer was, and the
            one that ended it.
        scores: Likewise how likely the prompt's tokens were, by their positions from 1 on.
        place: Where it is in the cache; the engine's.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        limit: int,
        sampling: Sampling,
        leader: Request | None = None,
    ) -> None:
        self.prompt = list(prompt)
        self.sampling = sampling
        self.limit = limit
        self.found: list[int] = []
        self.reason = ""
        self.shared = 0
        self.first_token_at = 0.0
        self._news: asyncio.Queue[int | BaseException | None] = asyncio.Queue()
        self.leader = leader
        self.ended_by: int | None = None
        self.notes: list[Note] = []
        self.scores: dict[int, Note] = {}
        self.place = CachePlace()

    @property
    def known(self) -> int:
        """How many tokens are known, of prompt and answer."""
        return len(self.prompt) + len(self.found)

    @property
    def missing(self) -> int:
        """How many of its known tokens the workers have not been told to compute."""
        return self.known + self.place.coming - self.place.issued

    @property
    def unscored(self) -> bool:
        """Whether the prompt's tokens still have to be told with their log probabilities."""
        return self.sampling.scores_prompt and len(self.scores) < len(self.prompt) - 1

    @property
    def is_held(self) -> bool:
        """Whether its leader has still to be told to compute what they share."""
        leader = self.leader
        if leader is None or leader.reason:
            return False
        place = leader.place
        shared = (len(leader.prompt) - 1) // BLOCK
        return place.slot < 0 or leader.unscored or place.named < shared

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens of prompt and answer, by their positions."""
        border = len(self.prompt)
        if end <= border:
            return self.prompt[start:end]
        return self.prompt[start:] + self.found[max(start - border, 0) : end - border]

    def add(self, token: int) -> None:
        """Takes the next token of the answer."""
        if not self.found:
            self.first_token_at = time.perf_counter()
        self.found.append(token)
        self._news.put_nowait(token)

    def end(self, reason: str, error: BaseException | None = None) -> None:
        """Ends the answer."""
        self.reason = reason
        self._news.put_nowait(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        """The next token of the answer.

        Raises:
            disco_client.DiscoError: The workers were lost and there are no others.
        """
        news = await self._news.get()
        if isinstance(news, int):
            return news
        self._news.put_nowait(news)  # whoever asks again gets the same answer
        raise StopAsyncIteration if news is None else news


@dataclass(frozen=True, slots=True)
class _Step:
    """A step under way.

    Attributes:
        found: Its tokens, when they come.
        wanting: The requests that each of them is for.
        scoring: Those whose prompts' tokens are told, by their slots.
    """

    found: disco_client.RefFuture
    wanting: list[Request]
    scoring: dict[int, Request]


class Engine:
    """Answers requests with one session; an asynchronous context manager.

    Args:
        checkpoint: The model, whose files are at the same path on every worker.
        ends: The tokens that end an answer.
        settings: How much it does at a time.
        counts: Where to count what is done; None for anew.
        progress: Whether loading shows how far it is; None for on a terminal.
        session: How the session is opened: the arguments of `disco_client.connect`.

    Attributes:
        counts: What was done.
        pool: The blocks of the cache.
        lost: Why it cannot go on; None while it can.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        ends: set[int],
        settings: Settings | None = None,
        *,
        counts: Counts | None = None,
        progress: bool | None = None,
        **session: object,
    ) -> None:
        self._checkpoint = checkpoint
        self._ends = ends
        self._settings = settings or Settings()
        self._progress = progress
        workers = session["num_workers"]
        assert isinstance(workers, int)  # noqa: S101
        count = blocks_within(checkpoint, workers, self._settings.cache_bytes)
        if count < 1:
            msg = f"a cache of {self._settings.cache_bytes} bytes has no room for a block"
            raise TooLong(msg)
        self.pool = BlockPool(count)
        self.counts = counts or Counts()
        self.lost: BaseException | None = None
        self._opening = disco_client.aconnect(recover=self._make_model, **session)  # type: ignore[arg-type]
        self._session: disco_client.Session | None = None
        self._model: Model | None = None
        self._computing: Model | None = None
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._issued: list[Piece] = []
        self._slots = list(range(self._settings.slots))
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Its session -------------------------------------------------------------------------

    @property
    def session(self) -> disco_client.Session:
        """The session; there is one inside the ``async with`` block."""
        assert self._session is not None  # noqa: S101
        return self._session

    @property
    def model(self) -> Model:
        """The model that computes steps.

        When workers were replaced it stays the former one, whose steps are errors, until every
        sequence has begun anew: so none goes on from a cache that is gone.
        """
        assert self._computing is not None  # noqa: S101
        return self._computing

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Opens the session and loads the model; once."""
        self._session = await self._opening
        try:
            await asyncio.to_thread(self._make_model, self._session)
        except BaseException:
            await self._shut_down()
            raise
        self._computing = self._model
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Ends what still runs, and the session."""
        assert self._task is not None  # noqa: S101
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._end_all(disco_client.SessionClosed("the engine was closed"))
        await self._shut_down()

    async def _shut_down(self) -> None:
        with contextlib.suppress(disco_client.DiscoError):
            await asyncio.to_thread(self.session.shutdown)

    def _make_model(self, session: disco_client.Session) -> None:
        """Makes the state of the workers, also of those that take the place of lost ones."""
        self._model = Model(
            session,
            self._checkpoint,
            blocks=self.pool.count,
            slots=self._settings.slots,
            compute=self._settings.compute,
            progress=self._progress,
        )

    @property
    def computed_by(self) -> str:
        """What computes the products, in words; empty before the workers have the model."""
        return "" if self._computing is None else self._computing.computed_by

    # Requests ----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """How many requests have not begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return len(self._running)

    @property
    def room(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return min(self._checkpoint.config.context, self.pool.count * BLOCK)

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: Sampling | None = None,
        *,
        leader: Request | None = None,
    ) -> Request:
        """Asks for an answer.

        Args:
            prompt: The tokens of the prompt; one or more.
            max_tokens: The most tokens of the answer; with 0 it has one, behind which nothing is
                computed, so that it takes no room.
            sampling: How tokens are chosen; by default the likeliest.
            leader: An earlier request for the same prompt, whose blocks this one shares.

        Raises:
            TooLong: They do not fit into the model's context, or into the cache.
            Busy: Too many requests wait.
            disco_client.DiscoError: The session was lost.
        """
        if self.lost is not None:
            raise self.lost
        if not prompt or max_tokens < 0:
            msg = f"expected a prompt of one token or more and an answer, got {len(prompt)} tokens "
            msg += f"and max_tokens {max_tokens}"
            raise TooLong(msg)
        limit = len(prompt) + max_tokens
        if limit > self.room:
            msg = (
                f"a prompt of {len(prompt)} tokens and an answer of {max_tokens} do not fit into "
                f"{self.room}, which is what the model and its cache have room for"
            )
            raise TooLong(msg)
        if len(self._waiting) >= self._settings.queue:
            msg = f"{len(self._waiting)} requests wait already, which is as many as may"
            raise Busy(msg)
        limit = max(limit, len(prompt) + 1)
        request = Request(prompt, limit, sampling or Sampling(), leader)
        self._waiting.append(request)
        self._wake.set()
        return request

    def cancel(self, request: Request) -> None:
        """Ends an answer that nobody wants any more; idempotent."""
        if not request.reason:
            with contextlib.suppress(ValueError):
                self._waiting.remove(request)
            self._finish(request, "cancelled")

    async def logits(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        """[tokens, vocabulary], float32: what follows each of some tokens.

        Raises:
            TooLong: The cache has no room for them now.
            disco_client.DiscoError: The session was lost.
        """
        needed, pool = -(-len(tokens) // BLOCK), self.pool
        if needed > pool.available:
            raise TooLong(f"{len(tokens)} tokens do not fit into what is left of the cache")
        blocks, chunk = pool.take(needed), self._settings.chunk
        try:
            parts: list[np.ndarray[Any, Any]] = []
            for start in range(0, len(tokens), chunk):
                await self.session.ready()
                piece = Piece(0, start, tokens[start : start + chunk], blocks, wants=False)
                parts.append(await self.model.logits([piece]))
            return np.concatenate(parts)
        finally:
            pool.release(blocks)

    # Steps -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Issues steps while there are sequences."""
        under_way: deque[_Step] = deque()
        while True:
            try:
                await self._turn(under_way)
            except disco_client.WorkersReplaced as replaced:
                _logger.warning("workers were replaced: %s", replaced)
                for step in under_way:
                    step.found.cancel()
                under_way.clear()
                self._begin_anew()
            except Exception as error:  # noqa: BLE001  (nobody else could tell those who wait)
                # Whatever else fails in a step leaves a cache of which nobody knows the state.
                _logger.error("the session has failed: %s", error)  # noqa: TRY400  (the text says it)
                self.lost = error
                self._end_all(error)
                return

    async def _turn(self, under_way: deque[_Step]) -> None:
        self._admit()
        pieces, wanting = self._plan()
        if pieces:
            scoring = {
                piece.slot: self._running[piece.slot]
                for piece in pieces
                if piece.told and self._running[piece.slot].unscored
            }
            under_way.append(_Step(await self._issue(pieces), wanting, scoring))
            self.counts.steps += 1
            if len(under_way) < _AHEAD:
                return
        if not under_way:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)
            await self.session.ready()
            return
        step = under_way.popleft()
        found, notes, scores = _parts(await step.found)
        for slot, first, told in scores:
            step.scoring[slot].scores.update(enumerate(told, first))
        for n, (request, token) in enumerate(zip(step.wanting, found.tolist(), strict=True)):
            self._found(request, token, notes.get(n))

    async def _issue(self, pieces: list[Piece]) -> disco_client.RefFuture:
        """Issues a step and asks for its tokens: what came in between would delay the answer."""
        model = self.model
        await self.session.ready()
        # The workers know what follows where every sequence goes on, and need not be told.
        goes_on = _follow(pieces, self._issued)

        def issue() -> disco_client.RefFuture:
            return (model.next_step() if goes_on else model.step(pieces)).future()

        self._issued = pieces
        try:
            with self.session.batch():  # a step and its question are one message
                return issue()
        except disco_client.WouldBlock:  # others are taking the place of workers just now
            return await asyncio.to_thread(issue)

    def _admit(self) -> None:
        """Lets requests begin, in the order in which they came, while there is room."""
        held: list[Request] = []
        while self._waiting and self._slots:
            request = self._waiting.popleft()
            if request.is_held:
                held.append(request)
            elif not self._begin(request):
                self._waiting.appendleft(request)
                break
        self._waiting.extendleft(reversed(held))

    def _begin(self, request: Request) -> bool:
        """Gives a request what it needs of the cache; returns whether there is room."""
        # Behind the last token of an answer nothing is computed.
        needed = -(-(request.limit - 1) // BLOCK)
        # Its last token has to be computed: what follows it is what is asked for. Of a prompt that
        # is to be scored that holds for all tokens.
        known = request.tokens(0, 0 if request.unscored else request.known - 1)
        place = CachePlace()
        place.blocks, place.name = self.pool.share(known)
        place.named = len(place.blocks)
        if needed - place.named > self.pool.available:
            self.pool.release(place.blocks)
            return False
        place.issued = place.named * BLOCK
        if not request.found:  # else it goes on, after workers were replaced
            request.shared = place.issued
            self.counts.shared_tokens += request.shared
        place.blocks += self.pool.take(needed - place.named)
        place.slot = self._slots.pop()
        request.place = place
        self._running[place.slot] = request
        return True

    def _plan(self) -> tuple[list[Piece], list[Request]]:
        """The next step: one token of each answer first, then prompts."""
        pieces: list[Piece] = []
        wanting: list[Request] = []
        left = self._settings.chunk
        by_length = sorted(self._running.values(), key=lambda request: request.missing > 1)
        for request in by_length:
            place, known = request.place, request.known
            if known + place.coming >= request.limit or place.coming >= _AHEAD:
                continue
            start = place.issued
            if place.coming:
                tokens = [-1]
            elif (missing := known - start) == 1:
                tokens = request.tokens(start, known)
            else:
                tokens = request.tokens(start, start + min(missing, left))
                left -= len(tokens)
                self.counts.prompt_tokens += len(tokens)
                if not tokens:
                    continue
            place.issued = end = start + len(tokens)
            wants = end >= known + place.coming
            pieces.append(self._piece(request, start, tokens, wants=wants))
            if wants:
                place.coming += 1
                wanting.append(request)
            self._name_blocks(request)
        return pieces, wanting

    def _piece(self, request: Request, start: int, tokens: Sequence[int], *, wants: bool) -> Piece:
        """What a sequence brings to a step; its first piece tells the workers its history."""
        sampling, place = request.sampling, request.place
        history = None
        if sampling.needs_history and not place.told:
            ends = {*sampling.ends, *(() if sampling.ignore_eos else self._ends)}
            told = replace(sampling, ends=tuple(sorted(ends)), scores_prompt=request.unscored)
            history = told, request.tokens(0, request.known), len(request.prompt)
        place.told = sampling.needs_history
        return Piece(
            place.slot,
            start,
            tokens,
            place.blocks,
            wants,
            sampling.temperature,
            sampling.top_p,
            sampling.seed,
            place.told,
            history,
        )

    def _name_blocks(self, request: Request) -> None:
        """Notes what full blocks hold, so that others can share them."""
        place = request.place
        while (end := (place.named + 1) * BLOCK) <= min(place.issued, request.known):
            tokens = request.tokens(end - BLOCK, end)
            place.name = self.pool.remember(place.blocks[place.named], tokens, place.name)
            place.named += 1

    def _found(self, request: Request, token: int, noted: Note | None) -> None:
        if request.reason:  # it has ended meanwhile
            return
        request.place.coming -= 1
        if noted is not None:
            request.notes.append(noted)
        if token in request.sampling.ends or (
            token in self._ends and not request.sampling.ignore_eos
        ):
            request.ended_by = token
            self._finish(request, "stop")
            return
        request.add(token)
        self.counts.answer_tokens += 1
        self._name_blocks(request)
        if request.known >= request.limit:
            self._finish(request, "length")

    def _finish(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """Ends a sequence. What it has is free for steps that are issued from now on."""
        if self._running.pop(request.place.slot, None) is not None:
            self._slots.append(request.place.slot)
            self.pool.release(request.place.blocks)
        request.end(reason, error)
        self._wake.set()

    def _begin_anew(self) -> None:
        """Lets every sequence go on from its tokens, in a cache that is empty."""
        if self._computing is not self._model:
            self._computing = self._model
            self.counts.recoveries += 1
        self.pool = BlockPool(self.pool.count)
        self._issued = []
        # What shared blocks may need more of them now than there are: then some wait.
        self._waiting.extendleft(reversed(self._running.values()))
        self._slots += self._running
        for request in self._running.values():
            request.place = CachePlace()
        self._running.clear()

    def _end_all(self, error: BaseException) -> None:
        for request in [*self._running.values(), *self._waiting]:
            self._finish(request, "error", error)
        self._waiting.clear()


def _parts(
    found: Any,
) -> tuple[np.ndarray[Any, Any], dict[int, Note], list[tuple[int, int, list[Note]]]]:
    """The tokens of a step, their notes by their numbers, and the scores of prompts."""
    if not isinstance(found, tuple):
        return found, {}, []
    tokens, notes, scores = cast("Found", found)
    return tokens, dict(notes), scores


def _follow(pieces: list[Piece], former: list[Piece]) -> bool:
    """Whether a step has one token more of each sequence of the step before, and nothing else."""
    return len(pieces) == len(former) and all(
        piece.blocks is before.blocks  # it is the same sequence
        and piece.start == before.start + len(before.tokens)
        and before.wants
        and piece.tokens == [-1]
        for piece, before in zip(pieces, former, strict=True)
    )


async def text_of(
    engine: Engine,
    text: Text,
    request: Request,
    stop: Sequence[str] = (),
    *,
    continues: bool = False,
) -> AsyncGenerator[str, None]:
    """Yields an answer as text, piece by piece, up to a stop string; see `pieces_of`."""
    pieces = pieces_of(engine, text, request, stop, continues=continues)
    async with contextlib.aclosing(pieces):
        async for piece, _ in pieces:
            yield piece


async def pieces_of(
    engine: Engine,
    text: Text,
    request: Request,
    stop: Sequence[str] = (),
    *,
    continues: bool = False,
) -> AsyncGenerator[tuple[str, int], None]:
    """Yields an answer's text, piece by piece, and how many tokens it took up to there.

    It ends before a stop string, and may be one that `continues` the text of the prompt (see
    `Text.stream`). Leaving the iteration ends the request.

    Raises:
        disco_client.DiscoError: See `Request.__anext__`.
    """
    least = request.sampling.min_tokens
    stream, count = text.stream(stop, continues=continues, least=least), 0
    try:
        async for token in request:
            count += 1
            if piece := stream.feed(token):
                yield piece, count
            if stream.stopped:
                return
        if rest := stream.end():
            yield rest, count
    finally:
        engine.cancel(request)
        if stream.stopped:
            request.reason = "stop"
