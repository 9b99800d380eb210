"""Embeds sentences with a language model that is split over the workers of a session.

Reads one sentence a line from standard input::

    disco local --nodes 2 --slots 2 -- python examples/embed.py --workers 4 < examples/sentences.txt
    python examples/embed.py --workers 2 --device cuda < examples/sentences.txt

Exit codes: 0, or 1 where a cluster failed or a check did, or 2 where the input,
the model, the number of workers or the device was refused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from embedding.embedder import Embedder
from embedding.plain import PlainModel
from embedding.report import Timings, describe_timings, similarity_table
from embedding.sessions import BATCHES, DEVICES, DeviceRefused, open_session
from embedding.settings import ModelError, ModelSettings, read_settings, refuse_worker_count
from embedding.tokens import make_batches, tokenize

from disco_client import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embedding.numerics import Floats

_LEAST_COSINE = 0.9999


class InputError(Exception):
    """Standard input holds nothing that could be embedded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    try:
        return _run(options)
    except (DeviceRefused, InputError, ModelError) as error:
        return _complain(str(error), 2)
    except errors.DiscoError as error:
        return _complain(_explain(error), 1)
    except KeyboardInterrupt:
        return _complain("Interrupted.", 130)
    except BrokenPipeError:
        # The reader of the output has seen enough. Python would complain once more
        # when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(options: argparse.Namespace) -> int:
    settings = read_settings(options.model)
    refuse_worker_count(settings, options.workers)
    sentences = _read_sentences()
    timings = Timings(sentences=len(sentences), device=options.device)
    clock = time.perf_counter
    started = clock()
    tokens = tokenize(settings, sentences)
    timings.tokens = sum(map(len, tokens))
    tokenized = clock()
    with open_session(
        options.device, options.workers, address=options.address, timeout=options.timeout
    ) as session:
        connected = clock()
        # The installed model lies wherever each worker's own Python has it.
        embedder = Embedder(session, str(settings.folder) if options.model else None)
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


def _explain(error: errors.DiscoError) -> str:
    """Makes one sentence and a hint of an error."""
    lines = str(error).splitlines() or [type(error).__name__]
    first = lines[0].rstrip(". ")
    if isinstance(error, errors.RemoteError):
        first += f" (on worker {error.worker}{f' of node {error.node}' if error.node else ''})"
    if isinstance(error, errors.ConnectionFailed):
        # What follows the semicolon is advice for programs in general.
        first = first.partition("; ")[0]
    hints: dict[type[errors.DiscoError], str] = {
        errors.ConnectionFailed: (
            "Start a cluster around this command with "
            "'disco local --nodes 2 --slots 2 -- python examples/embed.py'."
        ),
        errors.NoSlots: "Use fewer --workers, or start more worker daemons.",
        errors.NotAllowed: (
            "Start the worker daemons with --allow-module 'embedding.*' and with the "
            "examples folder on PYTHONPATH."
        ),
        errors.CclError: (
            "Each worker needs a GPU of its own; 'disco doctor --gpu' says what is missing."
        ),
        errors.RemoteError: "The model and the examples folder must be present on every worker.",
        errors.SessionLost: "See the logs of the worker daemons.",
    }
    hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "")
    return f"{first}. {hint}".rstrip()


def _complain(message: str, status: int) -> int:
    print(f"embed: {message}", file=sys.stderr)
    return status


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="embed", description="Embeds sentences, one a line of standard input."
    )
    parser.add_argument(
        "--workers", type=int, default=4, metavar="N", help="over how many workers (default: 4)"
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the controller (default: $DISCO_ADDRESS, else 127.0.0.1:7600)",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="what the workers compute on; without an address and $DISCO_ADDRESS, cuda and rocm "
        "take the first N GPUs of this machine (default: cpu)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the controller and for workers (default: 30)",
    )
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
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
