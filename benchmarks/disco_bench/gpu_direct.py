"""What Disco does on a GPU, done by cupy alone, in a process of its own; run as a program.

It answers each line of its input with a number: seconds, or bytes a second. All that
is timed ends with a wait for the GPU.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from disco_bench.child import BENCHMARKS

__all__ = ["main"]

_EXAMPLES = BENCHMARKS.parent / "examples"


class _Direct:
    """The GPU with the number 0, and what was made there."""

    def __init__(self) -> None:
        self._cupy: Any = import_module("cupy")
        self._cupy.cuda.Device(0).use()
        # As the stream on which a worker computes.
        self._stream: Any = self._cupy.cuda.Stream(non_blocking=True).use()
        self.answers: dict[str, Callable[..., float]] = {
            "add": self._add,
            "matmul": self._matmul,
            "up": self._up,
            "down": self._down,
            "embed": self._embed,
        }

    def _repeat(self, call: Callable[[], object], count: int) -> float:
        """Seconds of a call, of many that are enqueued before one wait for the GPU."""
        self._stream.synchronize()
        started = time.perf_counter()
        for _ in range(count):
            call()
        self._stream.synchronize()
        return (time.perf_counter() - started) / count

    @functools.cache  # noqa: B019  (there is one, until the end)
    def _arrays(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any, Any]:
        host = np.random.default_rng(1).random(shape, np.float32).astype(dtype)
        arrays = self._cupy.asarray(host), self._cupy.asarray(host)
        return *arrays, self._cupy.empty_like(arrays[0])

    def _add(self, elements: str, count: str) -> float:
        first, second, out = self._arrays((int(elements),), "float32")
        return self._repeat(lambda: self._cupy.add(first, second, out), int(count))

    def _matmul(self, extent: str, dtype: str, count: str) -> float:
        first, second, out = self._arrays((int(extent), int(extent)), dtype)
        return self._repeat(lambda: self._cupy.matmul(first, second, out=out), int(count))

    @functools.cache  # noqa: B019  (there is one, until the end)
    def _buffers(self, nbytes: int) -> tuple[Any, Any]:
        """Pinned memory of the host, and memory of the device."""
        pinned = self._cupy.cuda.alloc_pinned_memory(nbytes)
        np.frombuffer(pinned, np.uint8, nbytes)[:] = 1
        return pinned, self._cupy.zeros(nbytes, np.uint8)

    def _copy(self, nbytes: int, *, up: bool) -> float:
        pinned, device = self._buffers(nbytes)
        runtime = self._cupy.cuda.runtime
        ends = (device.data.ptr, pinned.ptr) if up else (pinned.ptr, device.data.ptr)
        kind = runtime.memcpyHostToDevice if up else runtime.memcpyDeviceToHost
        stream = self._stream.ptr
        return nbytes / self._repeat(lambda: runtime.memcpyAsync(*ends, nbytes, kind, stream), 1)

    def _up(self, nbytes: str) -> float:
        return self._copy(int(nbytes), up=True)

    def _down(self, nbytes: str) -> float:
        return self._copy(int(nbytes), up=False)

    @functools.cached_property
    def _model(self) -> tuple[Any, Any]:
        sys.path.insert(0, str(_EXAMPLES))
        settings = import_module("embedding.settings").read_settings()
        return settings, import_module("embedding.bert").BertSlice(settings, 0, 1, self._cupy)

    @functools.cache  # noqa: B019  (there is one, until the end)
    def _batches(self, copies: int, size: int) -> list[Any]:
        settings, _ = self._model
        tokens = import_module("embedding.tokens")
        text = (_EXAMPLES / "sentences.txt").read_text(encoding="utf-8")
        sentences = text.splitlines() * copies
        return list(tokens.make_batches(tokens.tokenize(settings, sentences), size))

    def _embed(self, copies: str, size: str) -> float:
        _, model = self._model
        batches = self._batches(int(copies), int(size))
        started = time.perf_counter()
        for batch in batches:
            ids = self._cupy.asarray(batch.ids)
            # The copy waits for the GPU, as fetching a result does.
            model.forward(ids, batch.lengths, _nobody_else).get()
        return time.perf_counter() - started


def _nobody_else(_summand: Any) -> None:
    """Adds up over one rank."""


def main() -> None:
    """Answers until the input ends."""
    direct = _Direct()
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(direct.answers[name](*arguments), flush=True)


if __name__ == "__main__":
    main()
