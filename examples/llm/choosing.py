"""How the next token is chosen of all tokens, and how likely each of them was.

What is done to the logits, and in which order, is what vLLM documents of its sampler
(docs.vllm.ai, vllm.v1.sample.sampler, 0.22). Tokens that would end the answer too early are left
out; biases are added; then come the penalties for repetition, frequency and presence. The likeliest
token is the likeliest of these. A draw divides by the temperature, leaves out what ``min_p`` does
and then what ``top_k`` does, and takes ``top_p`` of the probability that is left. In transformers
``min_p`` comes last, which differs where both ``min_p`` and ``top_p`` are given. Log
probabilities are those of the model, before all of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["History", "Note", "Sampling", "choose", "note"]

Array = np.ndarray[Any, Any]
Note = tuple[Array, Array]
"""Tokens and their log probabilities: the token that stands there, then the likeliest ones."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 for the likeliest one.
        top_p: Only of the likeliest ones that together have this probability.
        seed: What is drawn depends on it and on the position; from 0 to 2**63 - 1.
        top_k: Only of so many of the likeliest ones; 0 for all.
        min_p: Only of those with at least this share of the likeliest one's probability.
        presence: Subtracted from the logits of tokens that the answer has.
        frequency: Likewise, for each time.
        repetition: Positive logits of tokens that prompt or answer have are divided by it,
            negative ones multiplied.
        bias: What is added to the logits of some tokens.
        min_tokens: Before the answer has so many tokens, none may end it.
        ends: The tokens that end this answer, besides those that the model's answers end with.
        ignore_eos: Whether those do not.
        logprobs: How many of the likeliest tokens are told with each token's log
            probability; None to tell nothing.
        scores_prompt: Whether the prompt's tokens are told likewise.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ends: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    scores_prompt: bool = False

    @property
    def needs_history(self) -> bool:
        """Whether the workers have to know more than temperature, top-p and seed."""
        return (
            self.top_k > 0
            or self.min_p > 0
            or (self.presence, self.frequency, self.repetition) != (0, 0, 1)
            or bool(self.bias)
            or self.min_tokens > 0
            or self.logprobs is not None
        )


class History:
    """What choosing needs of one sequence besides its logits: its options, and its tokens.

    It follows from the tokens alone, so that other workers can make it anew.

    Args:
        sampling: The fields of a `Sampling`, of which ``ends`` are all tokens that end it.
        tokens: Those of the prompt and of the answer so far.
        prompt: How many of them are the prompt's.

    Attributes:
        sampling: As given.
        tokens: Likewise; grows.
        prompt: As given.
    """

    def __init__(self, sampling: Sampling, tokens: Sequence[int], prompt: int) -> None:
        self.sampling = sampling
        self.tokens = list(tokens)
        self.prompt = prompt
        self._bias = np.array([token for token, _ in sampling.bias], np.int64)
        self._biases = np.array([more for _, more in sampling.bias], np.float64)
        self._ends = np.array(sampling.ends, np.int64)

    def add(self, token: int) -> None:
        """Takes the answer's next token."""
        self.tokens.append(token)

    def process(self, logits: Array) -> Array:
        """What the token is chosen by: [tokens], float64, of [tokens]; see the module."""
        asked, given = self.sampling, logits.astype(np.float64)
        if len(self.tokens) - self.prompt < asked.min_tokens:
            given[self._ends] = -np.inf
        given[self._bias] += self._biases
        if asked.repetition != 1:
            seen = np.unique(self.tokens)
            found = given[seen]
            given[seen] = np.where(found > 0, found / asked.repetition, found * asked.repetition)
        if asked.presence or asked.frequency:
            seen, counts = np.unique(
                np.array(self.tokens[self.prompt :], np.int64), return_counts=True
            )
            given[seen] -= asked.frequency * counts + asked.presence
        return given

    def next_token(self, logits: Array, seed: int, position: int) -> int:
        """Chooses the next token: the likeliest one, or a draw; see `choose`."""
        asked, given = self.sampling, self.process(logits)
        if not asked.temperature:
            return int(given.argmax())
        ways = asked.temperature, asked.top_p, asked.top_k, asked.min_p
        return choose(given, seed, position, *ways)


def choose(
    logits: Array,
    seed: int,
    position: int,
    temperature: float,
    top_p: float,
    top_k: int = 0,
    min_p: float = 0.0,
) -> int:
    """Draws a token: of the likeliest ones that together have the probability `top_p`.

    The draw depends on seed and position alone, so it is the same whatever else is in the step,
    and when the sequence is computed once more (Philox, Salmon et al., SC 2011: a counter).

    Args:
        logits: [tokens].
        seed: The sequence's.
        position: The token's place in the sequence.
        temperature: What the logits are divided by, above 0.
        top_p: Above 0, at most 1 (Holtzman et al., arXiv:1904.09751).
        top_k: See `Sampling`; as many more as are as likely as the last of them.
        min_p: See `Sampling` (Nguyen et al., arXiv:2407.01082).
    """
    scaled = logits.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    falling = scaled[order]
    shares = np.exp(falling - falling[0])
    kept = len(order)
    if min_p > 0:
        kept = int((shares >= min_p).sum())
    if 0 < top_k < kept:
        kept = min(kept, int((falling >= falling[top_k - 1]).sum()))
    reach: Any = np.cumsum(shares[:kept])
    kept = int(reach.searchsorted(top_p * reach[-1])) + 1
    draw = np.random.Generator(np.random.Philox(key=seed, counter=position)).random()
    return int(order[min(int(reach[:kept].searchsorted(draw * reach[kept - 1])), kept - 1)])


def note(logits: Array, token: int, count: int) -> Note:
    """How likely a token was, by the model alone, and which were the likeliest.

    Args:
        logits: [tokens].
        token: The one that stands there.
        count: How many of the likeliest to name; among equals the lowest numbers.

    Returns:
        [1 + count] integers, the token first, and [1 + count] float64, the natural logarithms of
        their probabilities.
    """
    given = logits.astype(np.float64)
    highest = given.max()
    whole = highest + np.log(np.exp(given - highest).sum())
    count = min(count, len(given))
    least = np.partition(given, -count)[-count] if count else np.inf
    likely = np.flatnonzero(given >= least)
    likely = likely[np.argsort(-given[likely], kind="stable")][:count]
    tokens = np.concatenate([[token], likely]).astype(np.int64)
    return tokens, given[tokens] - whole
