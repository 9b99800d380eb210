"""A yardstick in a process of its own, which may hang or die without harm to the run."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from disco_bench.table import Unavailable

__all__ = ["BENCHMARKS", "Child", "ChildFailed", "peer_python", "with_path"]

BENCHMARKS = Path(__file__).resolve().parents[1]
_END_S = 2.0
_LAST_WORDS = 400


class ChildFailed(Exception):
    """A child ended, or did not answer in time."""


def with_path(*folders: Path | str) -> dict[str, str]:
    """This process's environment, in which Python searches some folders first."""
    path = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part)}


def peer_python(peer: str, target: str) -> Path:
    """The interpreter of the environment that has a peer.

    Args:
        peer: Its name; ``DISCO_BENCH_<PEER>`` names another interpreter.
        target: What installs it.

    Raises:
        Unavailable: There is none.
    """
    variable = f"DISCO_BENCH_{peer.upper()}"
    folder = BENCHMARKS.parent / f".venv-{peer}"
    found = Path(os.environ.get(variable) or folder / "bin" / "python")
    if not found.exists():
        msg = (
            f"{peer} is not installed at {found}; `make {target}` installs it in {folder.name}, or"
            f" {variable} names a Python that has it"
        )
        raise Unavailable(msg)
    return found


def _unnamed_file() -> int:
    """Opens a file that is gone when it is closed; returns its descriptor."""
    descriptor, path = tempfile.mkstemp()
    Path(path).unlink()
    return descriptor


class Child:
    """A Python process that answers one line for each line it is sent; a context manager.

    Args:
        arguments: What follows the interpreter on its command line.
        environ: Its environment; None for this one's with the benchmarks' folder
            on the path.
        python: The interpreter; None for this one.
        end_s: How long it may take to end after its input has.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str] | None = None,
        python: Path | None = None,
        end_s: float = _END_S,
    ) -> None:
        self._end_s = end_s
        self._name = " ".join(arguments)
        self._buffer = b""
        self._errors = _unnamed_file()
        self._process = subprocess.Popen(
            [str(python or sys.executable), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=with_path(BENCHMARKS) if environ is None else environ,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ask(self, line: str, timeout: float) -> str:
        """Sends a line and returns the answer.

        Raises:
            ChildFailed: No answer came within ``timeout`` seconds.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            raise self._ended() from None
        return self.read_line(timeout)

    def read_line(self, timeout: float) -> str:
        """Returns the next line that the child prints.

        Raises:
            ChildFailed: It printed none within ``timeout`` seconds.
        """
        assert self._process.stdout is not None
        stream = self._process.stdout
        coming = select.poll()
        coming.register(stream, select.POLLIN)
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not coming.poll(left * 1000):
                msg = f"{self._name} gave no answer within {timeout:.0f} s"
                raise ChildFailed(msg)
            data = os.read(stream.fileno(), 1 << 16)
            if not data:
                raise self._ended()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def _ended(self) -> ChildFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        size = os.fstat(self._errors).st_size
        raw = os.pread(self._errors, _LAST_WORDS, max(0, size - _LAST_WORDS))
        last = raw.decode(errors="replace").strip()
        status = self._process.returncode
        return ChildFailed(f"{self._name} ended with status {status}: {last or 'silently'}")

    def close(self) -> None:
        """Ends the child and what it started; idempotent."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()  # the child ends at the end of its input
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._end_s)
        # What it started is in its group, and may be there when it is not.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None and not process.stdout.closed:
            process.stdout.close()
            os.close(self._errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
