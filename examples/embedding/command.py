"""The command that embeds sentences, for whatever embeds them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cluster.commands import InputError, options_of, run_command
from cluster.sessions import open_session
from embedding.plain import PlainModel
from embedding.report import Timings, describe_timings, similarity_table
from embedding.settings import ModelError, ModelSettings, read_settings, refuse_worker_count
from embedding.tokens import BATCHES, make_batches, tokenize

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    import disco_client
    from embedding.numerics import Floats
    from embedding.report import Share
    from embedding.tokens import Batch

__all__ = ["AnyEmbedder", "MakeEmbedder", "embed_command"]

_LEAST_COSINE = 0.9999


class AnyEmbedder(Protocol):
    """A model on the workers of a session.

    Attributes:
        seconds: How long the latest ``embed`` took.
        shares: How that time divides, one entry a worker; empty where that is not known.
    """

    seconds: float
    shares: list[Share]

    def embed(self, batches: Iterable[Batch]) -> Floats:
        """Embeds the sentences of all batches: [sentences, H], in the sentences' order."""
        ...


MakeEmbedder = Callable[["disco_client.Session", "str | None"], AnyEmbedder]
"""Takes a session, and the model's folder or None for the one that is installed."""


def embed_command(name: str, make: MakeEmbedder, arguments: Sequence[str] | None) -> int:
    """Runs a command that reads sentences from standard input; returns its exit code.

    Args:
        name: The command's.
        make: Makes what embeds.
        arguments: The command line; None for that of the process.
    """
    parser = options_of(name, "Embeds sentences, one a line of standard input.", workers=4)
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="a BERT-style Hugging Face folder (default: all-MiniLM-L6-v2)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one embedding a line; timings go to stderr"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with a plain single-process forward"
    )
    options = parser.parse_args(arguments)
    return run_command(name, lambda: _run(name, make, options), ModelError)


def _run(name: str, make: MakeEmbedder, options: argparse.Namespace) -> int:
    settings = read_settings(options.model)
    refuse_worker_count(settings, options.workers)
    sentences = _read_sentences()
    timings = Timings(len(sentences), options.workers, options.device)
    clock = time.perf_counter
    started = clock()
    tokens = tokenize(settings, sentences)
    timings.tokens = sum(map(len, tokens))
    tokenized = clock()
    with open_session(
        name, options.device, options.workers, address=options.address, timeout=options.timeout
    ) as session:
        connected = clock()
        # The installed model lies wherever each worker's own Python has it.
        embedder = make(session, str(settings.folder) if options.model else None)
        loaded = clock()
        embeddings = embedder.embed(make_batches(tokens, BATCHES[options.device]))
        timings.embed = embedder.seconds
        timings.shares = embedder.shares
    timings.tokenize = tokenized - started
    timings.connect = connected - tokenized
    timings.load = loaded - connected

    if options.json:
        for row in embeddings:
            # Eight decimals are finer than the error of float32 arithmetic.
            print(json.dumps([round(float(value), 8) for value in row]))
        sys.stdout.flush()
    else:
        print(similarity_table(sentences, embeddings), end="\n\n")
    remarks = sys.stderr if options.json else sys.stdout
    print(describe_timings(timings), file=remarks)
    return _check(settings, tokens, embeddings) if options.check else 0


def _read_sentences() -> list[str]:
    if sys.stdin.isatty():
        print("Type sentences, one a line, and end with Ctrl-D:", file=sys.stderr)
    # Whatever the locale says; and only line feeds part sentences, which may hold
    # the other signs that Python takes for line ends.
    content = sys.stdin.buffer.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"Line {line} of the input is not UTF-8. Convert it first, for example with iconv."
        ) from error
    if not text:
        raise InputError(
            "There is nothing to embed: standard input is empty. "
            "Give one sentence a line, for example with '< examples/sentences.txt'."
        )
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _check(settings: ModelSettings, tokens: list[list[int]], embeddings: Floats) -> int:
    """Compares with the plain forward, on standard error, and returns the exit code."""
    model = PlainModel(settings)
    cosines = [float(model.embed(ids) @ row) for ids, row in zip(tokens, embeddings, strict=True)]
    # In this order, a not-a-number counts as worst too.
    worst = min(range(len(cosines)), key=lambda place: (cosines[place] >= -1, cosines[place]))
    good = cosines[worst] >= _LEAST_COSINE
    print(
        f"check         {'passed' if good else 'FAILED'}: the worst cosine with the plain "
        f"single-process forward is {cosines[worst]:.7f}, of sentence {worst + 1}",
        file=sys.stderr,
    )
    return 0 if good else 1
