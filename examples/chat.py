"""A chat with a language model whose layers are split over the workers of a session.

::

    disco local --nodes 2 --slots 2 -- python examples/chat.py
    disco local --nodes 2 --slots 2 -- \
        python examples/chat.py --workers 4 --greedy --max-tokens 48 --json < prompts.txt

On a terminal it is a conversation, in which Ctrl-C stops an answer and Ctrl-D ends the chat.
With ``--json`` each line of standard input is a conversation of its own, and its answer is a line
of JSON. Exit codes: 0, or 1 where a cluster failed or a check did, or 2 where the input, the
model or the number of workers was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.commands import InputError, options_of, run_command
from llm.config import ModelError, find_model, open_checkpoint
from llm.engine import Engine, Sampling, Settings, TooLong, text_of
from llm.model import COMPUTE
from llm.plain import Plain
from llm.report import Times, describe, step_times
from llm.shares import TooManyWorkers, divide
from llm.text import TemplateError, Text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator, Sequence

    from llm.config import Checkpoint
    from llm.engine import Request

_NAME = "chat"
_TELL_S = 2.0
_AT_ONCE = 32
"""How many lines are answered at a time."""

_BYE = "Ctrl-D ends the chat."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    refused = ModelError, TooManyWorkers, TooLong, TemplateError
    return run_command(_NAME, lambda: asyncio.run(_run(options)), *refused)


async def _run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    if options.check and not (options.greedy and options.prompt is not None):
        raise InputError("--check compares one answer with a plain forward: add --prompt, --greedy")
    checkpoint = open_checkpoint(find_model(options.model))
    divide(checkpoint.config, options.workers)  # refuses before it looks for a cluster
    text = Text(checkpoint)
    if not options.json:
        _tell_of_start(checkpoint, options.workers)
    engine = Engine(
        checkpoint,
        text.ends,
        Settings(
            cache_bytes=options.cache_mib << 20,
            slots=_AT_ONCE,
            queue=_AT_ONCE,
            compute=options.compute,
        ),
        address=options.address,
        num_workers=options.workers,
        name=_NAME,
        timeout=options.timeout,
    )
    async with contextlib.AsyncExitStack() as stack:
        with _telling("starting", silent=options.json):
            await stack.enter_async_context(engine)
        if not options.json:
            print(f"computing with {engine.computed_by}", file=sys.stderr, flush=True)
        talk = _Talk(engine, text, checkpoint, options, time.perf_counter() - began)
        if options.json:
            return await talk.answer_lines()
        if options.prompt is not None:
            return await talk.answer_once(options.prompt)
        await talk.converse()
    return 0


def _tell_of_start(checkpoint: Checkpoint, workers: int) -> None:
    """Says what takes the first seconds."""
    path = checkpoint.path
    files = [path] if checkpoint.is_gguf else path.glob("*.safetensors")
    size = sum(file.stat().st_size for file in files) / 1e6
    each = "one worker loads it" if workers == 1 else f"{workers} workers load a share each"
    print(f"starting {path.name}, {size:.0f} MB: {each} ...", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _telling(what: str, *, silent: bool = False) -> Generator[None]:
    """Says now and then, on standard error, that something still goes on."""
    done, began = threading.Event(), time.perf_counter()

    def tell() -> None:
        while not done.wait(_TELL_S):
            seconds = time.perf_counter() - began
            print(f"  {what}, {seconds:.0f} s so far", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    if not silent:
        teller.start()
    try:
        yield
    finally:
        done.set()


class _Talk:
    """Answers what a person or a program asks.

    Args:
        engine: What answers.
        text: The model's tokenizer and template.
        checkpoint: The model.
        options: The command line.
        start: How many seconds it took until the workers had the model.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        checkpoint: Checkpoint,
        options: argparse.Namespace,
        start: float,
    ) -> None:
        self._engine, self._text, self._checkpoint = engine, text, checkpoint
        self._options, self._start = options, start
        self._seed: int = secrets.randbits(31) if options.seed is None else options.seed

    def _submit(self, messages: list[dict[str, str]]) -> Request:
        options = self._options
        system = [{"role": "system", "content": options.system}] if options.system else []
        ids = self._text.conversation([*system, *messages])
        sampling = Sampling()
        if not options.greedy:
            sampling = Sampling(options.temperature, options.top_p, self._seed)
        return self._engine.submit(ids, options.max_tokens, sampling)

    # Lines of a program --------------------------------------------------------------------

    async def answer_lines(self) -> int:
        """Answers each line of standard input, several at a time, in their order; the exit code.

        What is wrong with a line is said in its answer, and the others are answered.
        """
        answers: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue(_AT_ONCE)
        reading = asyncio.create_task(self._read_lines(answers))
        code = 0
        while (task := await answers.get()) is not None:
            answer = await task
            code = 2 if "error" in answer else code
            print(json.dumps(answer, ensure_ascii=False), flush=True)
        await reading
        return code

    async def _read_lines(
        self, answers: asyncio.Queue[asyncio.Task[dict[str, Any]] | None]
    ) -> None:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            prompt = line.removesuffix(b"\n").removesuffix(b"\r")
            await answers.put(asyncio.create_task(self._answer_line(prompt)))
        await answers.put(None)

    async def _answer_line(self, line: bytes) -> dict[str, Any]:
        prompt = line.decode("utf-8", "replace")
        try:
            line.decode()
            request = self._submit([{"role": "user", "content": prompt}])
        except (UnicodeDecodeError, TooLong, TemplateError) as error:
            return {"prompt": prompt, "text": "", "tokens": [], "error": str(error)}
        said = "".join([piece async for piece in text_of(self._engine, self._text, request)])
        return {"prompt": prompt, "text": said, "tokens": request.found}

    # One question --------------------------------------------------------------------------

    async def answer_once(self, prompt: str) -> int:
        """Answers one question as it comes, and says where the time went; the exit code."""
        print(f"> {prompt}\n", flush=True)
        asked = time.perf_counter()
        request = self._submit([{"role": "user", "content": prompt}])
        await self._print(request)
        done = time.perf_counter()
        print()
        times = Times(
            self._options.workers,
            await asyncio.to_thread(self._engine.model.count_cores),
            self._start,
            request.first_token_at - asked if request.found else done - asked,
            done - request.first_token_at if request.found else 0.0,
            len(request.found),
        )
        flight = await asyncio.to_thread(self._engine.session.flight)
        print(describe(times, step_times(flight.ranks)))
        return await self._check(request) if self._options.check else 0

    async def _check(self, request: Request) -> int:
        """Compares with one process's plain forward of prompt and answer; the exit code."""
        tokens = request.prompt + request.found
        with _telling("computing the plain forward"):
            ours = await self._engine.logits(tokens)
            plain = await asyncio.to_thread(lambda: Plain(self._checkpoint).logits(tokens))
        worst = float(np.abs(ours - plain).max())
        likeliest = plain[len(request.prompt) - 1 : -1].argmax(axis=1).tolist()
        good = likeliest == request.found and worst < _WORST
        what = "the same tokens as" if likeliest == request.found else "other tokens than"
        verdict = "passed" if good else "FAILED"
        print(f"check {verdict}: {what} a plain forward in one process, logits within {worst:.1e}")
        return 0 if good else 1

    async def _print(self, request: Request) -> None:
        async for piece in text_of(self._engine, self._text, request):
            print(piece, end="", flush=True)
        print(flush=True)

    # A conversation ------------------------------------------------------------------------

    async def converse(self) -> None:
        """Talks to a person until the input ends."""
        answering: list[Request] = []
        person = sys.stdin.isatty()

        def interrupt() -> None:
            if answering:
                self._engine.cancel(answering[0])
            else:
                print(f"\n{_BYE}\n> ", end="", file=sys.stderr, flush=True)

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)
        if person:
            print(
                f"{self._checkpoint.path.name} on {self._options.workers} workers, there after "
                f"{self._start:.1f} s. Ctrl-C stops an answer. {_BYE}",
                file=sys.stderr,
            )
        messages: list[dict[str, str]] = []
        while (said := await asyncio.to_thread(_ask, person)) is not None:
            messages.append({"role": "user", "content": said})
            try:
                request = self._submit(messages)
            except TooLong as error:
                print(f"{_NAME}: {error}. The conversation begins anew.", file=sys.stderr)
                messages.clear()
                continue
            answering.append(request)
            await self._print(request)
            answering.clear()
            self._seed += 1  # so that a question that is asked again gets another answer
            messages.append({"role": "assistant", "content": self._text.decode(request.found)})


def _ask(person: bool) -> str | None:
    """The next line of the person, or None at the end."""
    with contextlib.suppress(EOFError):
        return input("> " if person else "")
    return None


_WORST = 1e-3
"""Logits that differ by more are another model's: float32 differs in other orders of adding up."""


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = options_of(_NAME, "A chat with a language model.", 4)
    add = parser.add_argument
    add("--model", metavar="PATH", help="GGUF file or folder (default: SmolLM2-135M-Instruct)")
    add("--prompt", metavar="TEXT", help="answer this, say where the time went, and end")
    add("--json", action="store_true", help="answer each line of standard input with one of JSON")
    add("--max-tokens", type=int, default=512, metavar="N", help="of an answer (default: 512)")
    add("--greedy", action="store_true", help="always the likeliest token; else drawn")
    add("--temperature", type=float, default=0.2, metavar="T", help="default: 0.2")
    add("--top-p", type=float, default=0.9, metavar="P", help="default: 0.9")
    add("--seed", type=int, metavar="N", help="of what is drawn (default: another each time)")
    add("--system", metavar="TEXT", help="a system message (default: the model's own)")
    add("--cache-mib", type=int, default=256, metavar="N", help="on each worker (default: 256)")
    add(
        "--compute",
        choices=COMPUTE,
        default="auto",
        help="what multiplies (default: numba on the file's blocks, where it is installed)",
    )
    add("--check", action="store_true", help="compare the answer with a plain forward")
    options = parser.parse_args(arguments)
    if options.temperature <= 0 or not 0 < options.top_p <= 1:
        parser.error("expected --temperature above 0, and --top-p above 0 and at most 1")
    if options.max_tokens < 1 or (options.seed is not None and not 0 <= options.seed < 2**63):
        parser.error("expected --max-tokens of at least 1, and --seed from 0 to 2**63 - 1")
    if options.device != "cpu":
        parser.error("this model is computed on CPUs")
    return options


if __name__ == "__main__":
    sys.exit(main())
