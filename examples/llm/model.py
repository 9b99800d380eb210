"""The model on the workers of a session: its weights, and a step of it as one command."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm.blocks import FORMATS
from llm.config import ModelError
from llm.fused import FUSED
from llm.layers import BLOCK
from llm.shares import divide, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import disco_client
    from llm.choosing import Sampling
    from llm.config import Checkpoint
    from llm.shares import Shares

__all__ = ["COMPUTE", "Model", "Piece", "blocks_within"]

COMPUTE = ("auto", "numba", "numpy")
"""What may multiply; see `Model`."""
_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """What one sequence brings to a step: consecutive tokens of it.

    Attributes:
        slot: The sequence's place in the model's memory of newest tokens.
        start: The position of its first token here.
        tokens: The tokens; [-1] for the one that the step before found, which only the workers
            may know yet.
        blocks: The cache's blocks of the sequence, at least as many as its positions need.
        wants: Whether the token behind the last one is wanted.
        temperature: 0 for the likeliest token.
        top_p: See `llm.choosing.choose`.
        seed: Likewise; from 0 to 2**63 - 1.
        told: Whether the workers know more of the sequence: its `llm.choosing.History`.
        history: What that is made of where this is the sequence's first piece: its sampling, its
            tokens so far, and how many of them are the prompt's; else None.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    blocks: Sequence[int]
    wants: bool = True
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    told: bool = False
    history: tuple[Sampling, list[int], int] | None = None


def blocks_within(checkpoint: Checkpoint, workers: int, nbytes: int) -> int:
    """How many blocks of cache take at most so many bytes on the worker that has most of each."""
    config, shares = checkpoint.config, divide(checkpoint.config, workers)
    kv_heads = max(end - first for first, end in shares.kv_heads)
    each = config.layers * 2 * kv_heads * BLOCK * config.head * np.float32().nbytes
    return nbytes // each


class Model:
    """A model on all workers of a session.

    Args:
        session: Its workers compute.
        checkpoint: The model's files, which are at the same path on every worker.
        blocks: How many blocks of `llm.layers.BLOCK` positions the cache has.
        slots: How many sequences there can be at a time.
        compute: ``numba`` computes on blocks of 4 and 8 bits as they lie in a GGUF file, as far as
            no worker would have a part of one; ``numpy`` computes on float32; ``auto`` does the
            former where all workers have numba.
        progress: Whether to show how far loading is; None for on a terminal.

    Attributes:
        session: See above.
        shares: Which worker has what.
        slots: See above.
        blocks: See above.
        computed_by: What computes the products, in words.

    Raises:
        TooManyWorkers: There are more workers than query heads.
        ModelError: A tensor is not there, or has another shape, or no numbers in floating point;
            or the files hold one that the model would leave out.
        disco_client.DiscoError: The session has failed, or may not read the files.
    """

    def __init__(
        self,
        session: disco_client.Session,
        checkpoint: Checkpoint,
        *,
        blocks: int,
        slots: int,
        compute: str = "auto",
        progress: bool | None = None,
    ) -> None:
        import disco_client

        self.session = session
        self._config = checkpoint.config
        self.shares: Shares = divide(checkpoint.config, session.num_workers)
        self.slots, self.blocks = slots, blocks
        session.include(_FOLDER)  # what the layers import
        session.load_source(_FOLDER / "layers.py")
        names = checkpoint.names
        compiler = self._find_compiler(compute)
        try:
            loaded = session.load_weights(
                checkpoint.path,
                plan(checkpoint, self.shares),
                dtype="float32",
                keep_blocks=FORMATS if compiler else (),
                expect={names[ours]: shape for ours, shape in _shapes(checkpoint).items()},
                progress=progress,
            )
        except disco_client.WeightsMismatch as error:
            raise ModelError(str(error)) from None
        kept = {
            ours: checkpoint.formats.get(theirs, "")
            for ours, theirs in names.items()
            if loaded[theirs].dtype == "uint8"
        }
        for ours, theirs in names.items():
            if loaded[theirs].dtype != "float32" and kept.get(ours) not in FORMATS:
                found = loaded[theirs].dtype
                raise ModelError(f"{theirs} is {found}; expected numbers in floating point.")
        self.computed_by = _describe(compiler, set(kept.values()))
        config, shares = dataclasses.asdict(self._config), dataclasses.asdict(self.shares)
        weights = {ours: loaded[theirs] for ours, theirs in names.items()}
        self._share = self._function("share")(config, shares, weights, kept)
        self._cache = self._function("cache")(self._share, blocks)
        self._latest = self._function("latest")(slots)
        given = ("ids", "spans", "tables", "sampling", "told")
        self._step = self._capture("step", "begin", given)
        self._next_step = self._capture("next_step", "follow", ())
        self._all_logits = self._capture("logits", "begin", given, all_logits=True)
        # The first steps open what the workers talk through, and compile what multiplies a row and
        # what multiplies several. No question should wait for that.
        for tokens in ([0], [0] * BLOCK):
            self.step([Piece(0, 0, tokens, [0])]).numpy()

    def count_cores(self) -> int:
        """How many cores the workers have together."""
        return sum(dict(self._function("machine")().get_all()).values())

    def weight_bytes(self) -> list[int]:
        """The bytes that each worker's weights take."""
        return [int(nbytes) for nbytes in self._function("weight_bytes")(self._share).get_all()]

    def _find_compiler(self, compute: str) -> str:
        """What compiles products on all workers; empty where it is not there, or not wanted."""
        if compute == "numpy":
            return ""
        found = set(self._function("compiler")().get_all())
        if all(found):
            return " and ".join(sorted(found))
        if compute == "numba":
            msg = "numba is not installed on all workers: pip install 'disco-runtime[kernels]'"
            raise ModelError(msg)
        return ""

    def _function(self, name: str) -> Any:
        return self.session.get_global_func(f"llm.{name}")

    def _capture(
        self, name: str, begin: str, given: Sequence[str], *, all_logits: bool = False
    ) -> disco_client.Program:
        """Writes down a step: 2 allreduces a layer, and one for the embedding."""
        session, share = self.session, self._share
        with session.capture(f"llm.{name}") as program:
            inputs = [program.input(each) for each in given]
            batch = self._function(begin)(share, self._latest, *inputs)
            attend, feed_forward = self._function("attend"), self._function("feed_forward")
            x = self._function("embed")(share, batch)
            session.allreduce(x, x)
            more = None
            for layer in range(self._config.layers):
                more = attend(share, self._cache, batch, x, more, layer)
                session.allreduce(more, more)
                more = feed_forward(share, x, more, layer)
                session.allreduce(more, more)
            if all_logits:
                program.output(self._function("logits")(share, x, more))
            else:
                program.output(self._function("next")(share, self._latest, batch, x, more))
        return program

    def step(self, pieces: Sequence[Piece]) -> disco_client.DRef:
        """Issues a step, which is one message, and returns at once.

        Returns:
            [pieces that want one], integers: the next tokens, to be fetched; or
            `llm.steps.Found`, where a sequence asked for it.
        """
        return self._step(*_arrays(pieces))

    def next_step(self) -> disco_client.DRef:
        """Issues the step behind the last one, with one token more of each of its sequences.

        Each of them must have wanted a token there, and brought the blocks for this one.

        Returns:
            As `step`.
        """
        return self._next_step()

    def logits(self, pieces: Sequence[Piece]) -> disco_client.DRef:
        """Issues a step that only computes logits: [rows, vocabulary], float32, of all rows."""
        return self._all_logits(*_arrays(pieces))


def _describe(compiler: str, formats: set[str]) -> str:
    """What computes the products, in words."""
    if formats:
        return f"{compiler}, on blocks of {', '.join(sorted(formats))}"
    return "numpy, on float32"


def _arrays(pieces: Sequence[Piece]) -> tuple[Any, ...]:
    widest = max(len(piece.blocks) for piece in pieces)
    tables = np.zeros((len(pieces), widest), np.int32)
    for row, piece in zip(tables, pieces, strict=True):
        row[: len(piece.blocks)] = piece.blocks
    ids = np.concatenate([np.asarray(piece.tokens, np.int32) for piece in pieces])
    spans = [
        (piece.slot, piece.start, len(piece.tokens), piece.wants, piece.seed, piece.told)
        for piece in pieces
    ]
    draws = [(piece.temperature, piece.top_p) for piece in pieces]
    told = [
        (piece.slot, dataclasses.asdict(sampling), np.array(tokens, np.int32), prompt)
        for piece in pieces
        if piece.history is not None
        for sampling, tokens, prompt in [piece.history]
    ]
    return ids, np.array(spans, np.int64), tables, np.array(draws, np.float64), told


def _shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    config = checkpoint.config
    queries, kv = config.heads * config.head, config.kv_heads * config.head
    inner: dict[str, tuple[int, ...]] = {
        "norm": (config.width,),
        "query": (queries, config.width),
        "key": (kv, config.width),
        "value": (kv, config.width),
        "out": (config.width, queries),
        "inner_norm": (config.width,),
        "gate": (config.inner, config.width),
        "up": (config.inner, config.width),
        "down": (config.width, config.inner),
    }
    inner |= {f"{name}_bias": inner[name][:1] for name in config.biases}
    inner |= {"query_norm": (config.head,), "key_norm": (config.head,)}
    inner |= {"after_norm": (config.width,), "inner_after_norm": (config.width,)}
    for name, parts in FUSED.items():
        inner[name] = (sum(inner[part][0] for part in parts), config.width)
    shapes: dict[str, tuple[int, ...]] = {
        name: inner[name.partition(".")[2]] for name in checkpoint.names if "." in name
    }
    shapes |= {"embedding": (config.vocabulary, config.width), "norm": (config.width,)}
    if not config.tied:
        shapes["output"] = (config.vocabulary, config.width)
    return shapes
