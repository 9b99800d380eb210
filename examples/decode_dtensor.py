"""Generates text, byte by byte, with a small transformer split over the workers of a session.

The model has random weights, from a seed, so what it says means nothing; how it is
computed does: grouped-query attention, rotary positions and a cache of keys and values,
all of it distributed tensors, and a step that is captured once and is then one command::

    disco local --nodes 2 --slots 2 -- python examples/decode_dtensor.py --workers 4 --check

The tokens are the same on any number of workers. Exit codes: 0, or 1 where a cluster
failed or a check did, or 2 where the prompt, the number of workers or the device was
refused.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from cluster.commands import InputError, options_of, run_command
from cluster.sessions import open_session
from decoder.model import Decoder
from decoder.plain import generate
from decoder.settings import DecoderSettings, SettingsError, random_weights, refuse_workers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from decoder.settings import Floats
    from disco_client.distributed import DTensor

_NAME = "decode_dtensor"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    return run_command(_NAME, lambda: _run(options), SettingsError)


def _run(options: argparse.Namespace) -> int:
    settings = DecoderSettings()
    refuse_workers(settings, options.workers)
    prompt = options.prompt.encode()
    _refuse(prompt, options.tokens, settings.context)
    weights = random_weights(settings, options.seed)
    with open_session(
        _NAME, options.device, options.workers, address=options.address, timeout=options.timeout
    ) as session:
        model = Decoder(session, session.mesh(), settings, weights)
        session.sync_all()
        times = [time.perf_counter()]
        tokens: list[int] = []
        for token in _generate(model, prompt, options.tokens):
            times.append(time.perf_counter())
            print(token, end=" ", flush=True)
            tokens.append(token)
        print()
    print(_describe(times, model, f"{options.workers} workers ({options.device})"), file=sys.stderr)
    return _check(settings, weights, prompt, tokens) if options.check else 0


def _generate(model: Decoder, prompt: bytes, count: int) -> Iterator[int]:
    """Yields tokens; the workers are a step ahead of the one that is fetched."""
    state = model.prefill(list(prompt))
    for _ in range(count - 1):
        following = model.step(state)
        yield _fetch(state.token)
        state = following
    yield _fetch(state.token)


def _describe(times: list[float], model: Decoder, where: str) -> str:
    """Says how long the first token took, from which on a step is one command, and the others."""
    text = f"{len(times) - 1} tokens on {where}: the first after {times[1] - times[0]:.3f} s"
    if model.program is None:
        return text
    each = 1000 * (times[-1] - times[1]) / (len(times) - 2)
    steps = model.program.num_steps
    return f"{text}, then {each:.1f} ms each; a step of {steps} commands is one"


def _fetch(token: DTensor) -> int:
    return int(token.numpy()[0])


def _refuse(prompt: bytes, tokens: int, context: int) -> None:
    if not prompt:
        raise InputError("There is nothing to begin with. Give a --prompt of one letter or more.")
    if tokens < 1 or len(prompt) + tokens > context:
        raise InputError(
            f"A prompt of {len(prompt)} bytes and {tokens} tokens do not fit into the model's "
            f"{context}. Choose --tokens from 1 to {max(context - len(prompt), 1)}."
        )


def _check(
    settings: DecoderSettings, weights: dict[str, Floats], prompt: bytes, tokens: list[int]
) -> int:
    """Compares with plain numpy in this process, on standard error; returns the exit code."""
    wanted = generate(settings, weights, list(prompt), len(tokens))
    good = tokens == wanted
    what = "the same tokens as" if good else f"expected {wanted} as"
    print(f"check {'passed' if good else 'FAILED'}: {what} in one process", file=sys.stderr)
    return 0 if good else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_of(_NAME, "Generates tokens with a small decoder of random weights.", 4)
    parser.add_argument(
        "--prompt", default="Once upon a time", metavar="TEXT", help="what to begin with"
    )
    parser.add_argument(
        "--tokens", type=int, default=32, metavar="N", help="how many to generate (default: 32)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the weights (default: 0)"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with plain numpy in this process"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
