"""llama.cpp decoding one sequence of the example's model, for the section ``llm``.

Started with the model's file and a number of threads, with xllamacpp installed. Each line of
standard input, ``COUNT TOKEN TOKEN ...``, is a prompt to be continued by COUNT tokens; the answer
is the seconds that one of them took, those of the prompt left out.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["main"]

_POSITIONS = 1024


def main() -> int:
    """Answers lines until standard input ends; returns the exit code."""
    path, threads = sys.argv[1], int(sys.argv[2])
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.n_parallel, params.verbosity = _POSITIONS, 1, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    for line in sys.stdin:
        count, *prompt = map(int, line.split())
        request = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True}
        answer = server.handle_completions(request | {"cache_prompt": False})
        timings = answer["timings"]
        print(timings["predicted_ms"] / timings["predicted_n"] / 1000, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
