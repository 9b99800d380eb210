"""Proxies in a process of their own, which run on while the program is stopped."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

__all__ = ["Ways"]

_SUPPORT = str(Path(__file__).parents[2] / "tests" / "support")


class Ways:
    """Some ways to one address; a context manager.

    Args:
        address: Where they lead, ``HOST:PORT``.
        count: How many there are.
        frames: The port for frames there; 0 where they lead to none.

    Attributes:
        addresses: Where each of them begins.
    """

    def __init__(self, address: str, count: int, frames: int = 0) -> None:
        path = os.pathsep.join(filter(None, (_SUPPORT, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, __file__, address, str(count), str(frames)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.addresses = self._said().split()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, way: int, what: str, *values: float) -> None:
        """Makes a way ``cut``, ``heal``, ``swallow`` (1 or 0) or ``delay`` (seconds each way)."""
        assert self._process.stdin is not None
        print(way, what, *values, file=self._process.stdin, flush=True)
        self._said()


def _serve(address: str, count: int, frames: int) -> None:
    from fault_tools.proxy import Proxy

    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(address, frames)) for _ in range(count)]
        print(*(proxy.address for proxy in proxies), flush=True)
        for line in sys.stdin:
            number, what, *values = line.split()
            proxy = proxies[int(number)]
            for way in proxy.ways:
                if what == "swallow":
                    way.dropped = bool(float(values[0]))
                elif what == "delay":
                    way.delay = float(values[0])
            if what in ("cut", "heal"):
                getattr(proxy, what)()
            print("done", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
