"""llama.cpp continuing prompts at once, for the section ``llama``.

Started with a model's file, a number of threads and of sequences, with xllamacpp installed. Each
line of standard input is JSON: ``prompts``, lists of tokens, and ``count``, how many tokens are to
follow each. The answer is JSON too: ``seconds``, from the question until all had them, and of the
first prompt ``prompt_seconds`` and ``token_seconds``, what it and one of its tokens took.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["main"]

_POSITIONS = 1024
"""Of each sequence."""


def main() -> int:
    """Answers lines until standard input ends; returns the exit code."""
    path, threads, sequences = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.verbosity = _POSITIONS * sequences, sequences, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    with ThreadPoolExecutor(sequences) as pool:
        for line in sys.stdin:
            asked = json.loads(line)
            fixed = {"n_predict": asked["count"], "temperature": 0, "ignore_eos": True}
            requests = [
                {"prompt": prompt, "cache_prompt": False, **fixed} for prompt in asked["prompts"]
            ]
            began = time.perf_counter()
            answers = list(pool.map(server.handle_completions, requests))
            seconds, timings = time.perf_counter() - began, answers[0]["timings"]
            found = {
                "seconds": seconds,
                "prompt_seconds": timings["prompt_ms"] / 1e3,
                "token_seconds": timings["predicted_ms"] / timings["predicted_n"] / 1e3,
            }
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
