"""Serves a language model, split over the workers of a session, by OpenAI's API.

::

    disco local --slots 4 -- python examples/serve.py --workers 4 --port 8000
    curl -s localhost:8000/v1/chat/completions \
        -d '{"messages": [{"role": "user", "content": "What is a tensor?"}]}'

SIGTERM and Ctrl-C let the running answers end; a second one ends at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from aiohttp import web

from llm.config import ModelError, find_model, open_checkpoint
from llm.engine import Settings, TooLong
from llm.model import COMPUTE
from llm.service import Service, application
from llm.shares import TooManyWorkers
from llm.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "parse"]

_KEY = "DISCO_SERVE_API_KEY"
_CLOSE_S = 5.0
"""How long to wait for clients that read slowly, when all is over."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads a command line; that of the process without one."""
    parser = argparse.ArgumentParser(description="Serves a language model by OpenAI's API.")
    settings = Settings()
    parser.add_argument("--address", help="the controller; else DISCO_ADDRESS")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--model", metavar="PATH", help="a GGUF file, or a folder; else SmolLM2")
    parser.add_argument(
        "--served-model-name",
        nargs="+",
        default=[],
        metavar="NAME",
        help="what requests may call the model, answers by the first one; else the file's name",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one")
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"what requests have to bring, repeatable; else {_KEY}, which others of this machine "
        "cannot read; else none. Health and metrics need no key",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="whose pages may use the service from a browser, repeatable; * for all",
    )
    parser.add_argument(
        "--cache-mib", type=int, default=settings.cache_bytes >> 20, help="on each worker"
    )
    parser.add_argument(
        "--compute",
        choices=COMPUTE,
        default=settings.compute,
        help="what multiplies; auto: numba on the file's blocks, where it is installed",
    )
    parser.add_argument(
        "--slots", type=int, default=settings.slots, help="how many are answered at a time"
    )
    parser.add_argument("--queue", type=int, default=settings.queue, help="how many may wait")
    parser.add_argument(
        "--chunk", type=int, default=settings.chunk, help="tokens of prompts in a step"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=512, help="of an answer whose request does not say"
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds to wait for workers, also for others"
    )
    parser.add_argument(
        "--drain-s", type=float, default=30.0, help="how long running answers may take at the end"
    )
    options = parser.parse_args(arguments)
    if options.api_key is None:
        options.api_key = [os.environ[_KEY]] if _KEY in os.environ else []
    # An empty variable of a deployment must not mean that everybody may.
    if not all(key.strip() for key in options.api_key):
        parser.error(f"--api-key or {_KEY}: expected a key, got an empty one")
    return options


async def _serve(service: Service, options: argparse.Namespace) -> int:
    ending, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        if ending.is_set():
            os._exit(1)
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    # A client that leaves ends its handler, and that the request.
    runner = web.AppRunner(
        application(service, options.api_key, options.allow_origin),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_CLOSE_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        await runner.cleanup()
        print(f"serve.py: {options.host}:{options.port}: {error.strerror}", file=sys.stderr)
        return 2
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{runner.addresses[0][1]}"
    logging.getLogger("llm.serve").info("listening at %s", url)
    keeping = asyncio.create_task(service.keep())

    async def say_ready() -> None:
        await service.loaded.wait()
        print(f"serving {service.name} at {url}", flush=True)

    saying = asyncio.create_task(say_ready())
    await asyncio.wait(
        [keeping, asyncio.create_task(ending.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    await service.drain(options.drain_s)
    saying.cancel()
    keeping.cancel()
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
    finally:
        await service.close()
        await runner.cleanup()
    return 0


def main() -> int:
    """Serves until it is told to end; returns the exit code."""
    options = parse()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    session = {
        "address": options.address,
        "num_workers": options.workers,
        "timeout": options.timeout,
    }
    settings = Settings(
        options.cache_mib << 20, options.slots, options.chunk, options.queue, options.compute
    )
    try:
        checkpoint = open_checkpoint(find_model(options.model))
        service = Service(
            checkpoint,
            Text(checkpoint),
            settings,
            session,
            options.max_tokens,
            options.served_model_name,
        )
    except (ModelError, TooManyWorkers, TooLong) as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 2
    try:
        code = asyncio.run(_serve(service, options))
    except ModelError as error:
        print(f"serve.py: {error}", file=sys.stderr)
        code = 2
    # A session that was being opened may still wait for slots, in a thread.
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
