"""Puts the stand-in in the place of cupy, for one test at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STANDIN = Path(__file__).parent


def is_cupy(name: str) -> bool:
    return name == "cupy" or name.startswith("cupy.")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, freshly imported; nothing of it can be imported after the test."""
    for name in [*os.environ]:
        if name.startswith("STANDIN_") or name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            monkeypatch.delenv(name)
    before = {name: sys.modules.pop(name) for name in [*sys.modules] if is_cupy(name)}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(STANDIN), *sys.path])
        import cupy  # pyright: ignore[reportMissingImports]

        assert cupy.STANDIN
        yield cupy
    for name in [name for name in sys.modules if is_cupy(name)]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def nccl(cupy: Any) -> Any:
    """The stand-in for NCCL."""
    from cupy.cuda import nccl  # pyright: ignore[reportMissingImports]

    return nccl


class Rank:
    """One rank: a thread with a device, two streams and a communicator.

    Attributes:
        cupy: The stand-in.
        index: Which rank it is.
        comm: Its communicator.
        compute: The stream that is current.
        stream: The stream for collectives.
    """

    def __init__(self, cupy: Any, nccl: Any, index: int, size: int, unique_id: bytes) -> None:
        self.cupy = cupy
        self.index = index
        cupy.cuda.Device(index).use()
        self.compute = cupy.cuda.Stream(non_blocking=True).use()
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._event = cupy.cuda.Event(disable_timing=True)
        self.comm = nccl.NcclCommunicator(size, unique_id, index)

    def enter(self) -> int:
        """Lets the stream for collectives wait for what was computed; its pointer."""
        self._event.record(self.compute)
        self.stream.wait_event(self._event)
        return self.stream.ptr

    def leave(self) -> None:
        """Lets what is computed from now on wait for the collectives."""
        self._event.record(self.stream)
        self.compute.wait_event(self._event)


@pytest.fixture
def on_ranks(cupy: Any, nccl: Any) -> Callable[..., list[Any]]:
    """Runs a function on each of several ranks, and returns what they returned or raised."""

    def run(size: int, function: Callable[[Rank], Any]) -> list[Any]:
        unique_id = nccl.get_unique_id()
        results: list[Any] = [None] * size

        def one(index: int) -> None:
            try:
                results[index] = function(Rank(cupy, nccl, index, size, unique_id))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                results[index] = error

        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a rank hangs"
        return results

    return run


@pytest.fixture
def run_ranks(tmp_path):
    """Runs a function of the rank program on several ranks; rank N gets device N.

    Returns what each printed, or the code with which it ended.
    """
    started = []
    short = tempfile.mkdtemp()  # the name of a socket cannot be long

    def run(size, what, *, each=lambda rank: {}, sockets=False, **env):
        for rank in range(size):
            environ = {
                **{k: v for k, v in os.environ.items() if not k.startswith("STANDIN_")},
                "PYTHONPATH": str(STANDIN),
                "STANDIN_DEVICE": str(rank),
                **({"STANDIN_SOCKETS": short} if sockets else {}),
                **env,
                **each(rank),
            }
            program = STANDIN / "rank_program.py"
            command = [sys.executable, program, str(rank), str(size), tmp_path / "id", what]
            started.append(
                subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
            )
        found = []
        for process in started:
            output, _ = process.communicate(timeout=40)
            found.append(process.returncode or json.loads(output.splitlines()[-1]))
        return found

    run.started = started
    yield run
    for process in started:
        process.kill()
        process.communicate()
    shutil.rmtree(short)
