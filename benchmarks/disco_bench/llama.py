"""A language model from its file of 4-bit blocks, beside llama.cpp on as many threads."""

from __future__ import annotations

import contextlib
import importlib
import json
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import disco_client
from disco_bench import worker_functions
from disco_bench.bench import Bench, variable
from disco_bench.child import Child, peer_python
from disco_bench.collectives import CALLS, capture_allreduces
from disco_bench.llm import LlmExample
from disco_bench.sampling import alone, alternate
from disco_bench.table import Limit, Spec, Unavailable

__all__ = ["LLAMA", "measure_llama"]

_LIMIT_S = 300.0
_PEER = "llama.cpp, {} thread{}, the same file"
_STREAMS = 16
_PROMPT = 512
_READ = 1 << 28
"""Bytes of an array that no cache holds."""
_OVERHEAD_S, _OVERHEAD_SHARE = 0.8e-3, 0.08


def _even(must: float = 1.0) -> Limit:
    return Limit("ratio", must=must, least=True)


def _specs(workers: int) -> list[Spec]:
    peer = _PEER.format(workers, "s" if workers > 1 else "")
    return [
        Spec(
            f"llama.one.{workers}", f"tokens/s, one stream, {workers} workers", "1/s", peer, _even()
        ),
        Spec(
            f"llama.prompt.{workers}",
            f"tokens/s of a prompt of {_PROMPT}, {workers} workers",
            "1/s",
            peer,
            _even(),
        ),
        Spec(
            f"llama.many.{workers}",
            f"tokens/s, {_STREAMS} streams, {workers} workers",
            "1/s",
            "llama.cpp, as many threads, Q8_0",
            _even(1.2),
        ),
    ]


LLAMA = (
    *_specs(1),
    *_specs(2),
    Spec("llama.memory", "memory of the weights, 1 worker", "B", "the file", Limit("ratio", 1.15)),
    Spec(
        "llama.reading",
        "weights that are read in a second, one stream, 1 worker",
        "B/s",
        "reading memory with one core",
        Limit("ratio", must=0.25, aim=0.5, least=True),
    ),
    *(
        Spec(
            f"llama.overhead.{kind}",
            f"control and sums of a token, 2 workers that compute equally long, {where}",
            "s",
            "0.8 ms or 8 % of the token, the larger",
            limit,
        )
        for kind, where, limit in (
            ("process", "ProcessSession", Limit("ratio", 1.0)),
            ("cluster", "2 daemons", None),
        )
    ),
)


def measure_llama(bench: Bench) -> None:
    """Measures the example's model, beside llama.cpp.

    Raises:
        Unavailable: The example's model or llama.cpp is not installed.
    """
    llm = LlmExample()
    python = peer_python("llama", "bench-llama")
    with tempfile.TemporaryDirectory() as folder:
        wide = Path(folder) / "wide.gguf"
        _write_wide(llm.checkpoint.path, wide)
        for workers in (1, 2):
            _measure(bench, llm, workers, python, wide)
    with bench.session(2) as session:
        _record_overhead(bench, llm, _load(llm, session), "cluster")


def _measure(bench: Bench, llm: LlmExample, workers: int, python: Path, wide: Path) -> None:
    rounds, tokens = bench.pick((5, 64), (1, 2))
    with _model(llm, workers) as model:
        one = [str(llm.checkpoint.path), str(workers), "1"]
        with Child(["-m", "disco_bench.llama_peer", *one], python=python) as peer:
            ask = {"prompts": [list(llm.prompt)], "count": tokens}
            pair = alternate(
                lambda: 1 / llm.decode(model, tokens),
                lambda: 1 / _ask(peer, ask)["token_seconds"],
                rounds,
            )
            bench.record(f"llama.one.{workers}", pair.measured(model.computed_by))
            prompt = [100 + 7 * n for n in range(_PROMPT)]
            ask_prompt = {"prompts": [prompt], "count": 1}
            pair = alternate(
                lambda: _PROMPT / _read_prompt(llm, model, prompt),
                lambda: _PROMPT / _ask(peer, ask_prompt)["prompt_seconds"],
                rounds,
            )
            bench.record(f"llama.prompt.{workers}", pair.measured())
        if workers == 1:
            held = sum(model.weight_bytes())
            bench.record("llama.memory", alone([held], llm.checkpoint.path.stat().st_size))
            _record_reading(bench, llm, model, held)
        else:
            _record_overhead(bench, llm, model, "process")
        many = [str(wide), str(workers), str(_STREAMS)]
        with Child(["-m", "disco_bench.llama_peer", *many], python=python) as peer:
            prompts = [[500 + n, *llm.prompt] for n in range(_STREAMS)]
            ask_many = {"prompts": prompts, "count": tokens}
            pair = alternate(
                lambda: _STREAMS * tokens / _continue(llm, model, prompts, tokens),
                lambda: _STREAMS * tokens / _ask(peer, ask_many)["seconds"],
                rounds,
            )
            bench.record(f"llama.many.{workers}", pair.measured())


def _record_reading(bench: Bench, llm: LlmExample, model: Any, held: int) -> None:
    """How fast one stream reads the weights, all of them for each token."""
    rounds, tokens = bench.pick((5, 64), (1, 2))
    model.session.import_python_module(worker_functions.__name__)
    read = model.session.get_global_func("bench.read_array")
    pair = alternate(
        lambda: held / llm.decode(model, tokens),
        lambda: bench.pick(_READ, _READ >> 8) / read(bench.pick(_READ, _READ >> 8)).numpy(),
        rounds,
    )
    bench.record("llama.reading", pair.measured())


def _record_overhead(bench: Bench, llm: LlmExample, model: Any, kind: str) -> None:
    """What a token costs besides its arithmetic: its control, and as many sums as it has."""
    # So many that the flight recorders have nothing but steps of this very answer.
    llm.decode(model, bench.pick(128, 2))
    times = llm.report.step_times(model.session.flight().ranks)
    config = llm.checkpoint.config
    summed = capture_allreduces(model.session, 4 * config.width, bench.pick(20, 1))
    share = (2 * config.layers + 1) / CALLS
    figures = [share * summed() + times.control for _ in range(bench.pick(9, 1))]
    token = times.compute + times.collectives + times.control
    limit = max(_OVERHEAD_S, _OVERHEAD_SHARE * token)
    note = f"with waits for the slower worker {1e3 * (times.collectives + times.control):.2f} ms"
    bench.record(f"llama.overhead.{kind}", alone(figures, limit, note))


@contextlib.contextmanager
def _model(llm: LlmExample, workers: int) -> Generator[Any]:
    # One core each, as llama.cpp has one for a thread.
    with (
        variable("OPENBLAS_NUM_THREADS", "1"),
        variable("OMP_NUM_THREADS", "1"),
        disco_client.ProcessSession(workers) as session,
    ):
        yield _load(llm, session)


def _load(llm: LlmExample, session: disco_client.Session) -> Any:
    blocks = 16 * _STREAMS
    return llm.model.Model(session, llm.checkpoint, blocks=blocks, slots=_STREAMS, progress=False)


def _ask(peer: Child, question: dict[str, Any]) -> dict[str, float]:
    return json.loads(peer.ask(json.dumps(question), _LIMIT_S))


def _read_prompt(llm: LlmExample, model: Any, prompt: Sequence[int]) -> float:
    """The seconds from a prompt to the token that follows it, with chunks as the service has."""
    piece, block, chunk = llm.model.Piece, llm.model.BLOCK, 64
    blocks = range(-(-len(prompt) // block) + 1)
    began = time.perf_counter()
    chunks = [
        piece(0, first, prompt[first : first + chunk], blocks, first + chunk >= len(prompt))
        for first in range(0, len(prompt), chunk)
    ]
    [model.step([each]) for each in chunks][-1].numpy()
    return time.perf_counter() - began


def _continue(llm: LlmExample, model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> float:
    """The seconds from some prompts until as many tokens follow each of them."""
    piece, each = llm.model.Piece, 16
    pieces = [
        piece(n, 0, prompt, range(each * n, each * (n + 1))) for n, prompt in enumerate(prompts)
    ]
    began = time.perf_counter()
    ahead = model.step(pieces).future()
    for _ in range(tokens - 1):
        with model.session.batch():
            following = model.next_step().future()
        ahead.result()
        ahead = following
    ahead.result()
    return time.perf_counter() - began


def _write_wide(path: Path, wide: Path) -> None:
    """Writes a model's file again with blocks of 8 bits, as llama.cpp's fastest."""
    try:
        gguf: Any = importlib.import_module("gguf")
    except ImportError as error:
        raise Unavailable(f"the package gguf is not installed: {error}") from None
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(wide, "llama")
    for name, part in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = part.types[0]
            inner = part.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, part.contents(), kind, inner)
    form = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:  # a norm
            writer.add_tensor(tensor.name, numbers)
        else:
            writer.add_tensor(tensor.name, gguf.quantize(numbers, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
