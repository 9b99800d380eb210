"""One cluster of a real controller and pretended peers, and what its controller has used."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil
from disco_bench.child import Child

__all__ = ["Cost", "ScaledCluster"]

_LONG_S = 300.0
_SETTLE_S = 0.05
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """What something has cost, once.

    Attributes:
        controller: Milliseconds of the controller's processor time.
        client: The same of this process.
        stretch: The longest time in which the controller read nothing, likewise.
    """

    controller: float
    client: float
    stretch: float


class ScaledCluster:
    """A controller, and one process that is all of its nodes and of its programs but this one.

    A context manager that ends both.

    Args:
        options: Of the controller.
        frames: Whether the controller takes frames; its peers choose as real ones do.
    """

    def __init__(self, *options: str, frames: bool = True) -> None:
        self._carrier = "frames" if frames else "grpc"
        options = (*options, "--listen", "127.0.0.1:0", "--http", "off", "--log-level", "warning")
        # A start that takes seconds must not make nodes that wait for it count as lost.
        limits = ("--max-workers", "65536", "--max-sessions", "4096", "--node-lease", "120")
        carried = ("--frames", "on" if frames else "off")
        self._controller = Child(["-m", "disco_scale.controller", *options, *limits, *carried])
        self.address = self._controller.read_line(_LONG_S).rsplit(" ", 1)[-1]
        self._peers = Child(["-m", "disco_scale.peers", self.address])
        self._process = psutil.Process(self._controller.pid)
        # The processor time of another process, in nanoseconds: see clock_getcpuclockid(3).
        self._clock = ~self._controller.pid << 3 | 2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._peers.close()
        self._controller.close()

    def tell(self, *command: object) -> Any:
        """Lets the peers follow a command; returns their answer."""
        said = self._peers.ask(" ".join(map(str, command)), _LONG_S)
        if said.startswith('{"error"'):
            raise RuntimeError(f"a pretended peer failed: {said}")
        return json.loads(said)

    def check_carriers(self) -> None:
        """Makes sure that the streams of all peers are carried as they should be.

        Raises:
            RuntimeError: Some are not.
        """
        found = self.tell("carriers")
        if set(found) != {self._carrier}:
            msg = f"expected streams over {self._carrier} alone, got {found}"
            raise RuntimeError(msg)

    def cpu_s(self) -> float:
        """The processor time that the controller has used."""
        return time.clock_gettime(self._clock)

    def memory(self) -> int:
        """How many bytes of memory the controller has for itself."""
        return self._process.memory_full_info().uss

    def stretch_ms(self) -> float:
        """The longest time in which the controller read nothing since this was last called."""
        return float(self._controller.ask("stretch", _LONG_S))

    def cost(self, what: Callable[[], object], times: int = 1, rounds: int = _ROUNDS) -> Cost:
        """Measures what something costs each time, in the round in which it cost the least.

        What the controller does afterwards counts too, so it is waited for a moment.
        """
        found: list[Cost] = []
        for _ in range(rounds):
            self.stretch_ms()
            began = self.cpu_s(), time.process_time()
            for _ in range(times):
                what()
            time.sleep(_SETTLE_S)
            controller, client = self.cpu_s() - began[0], time.process_time() - began[1]
            scale = 1e3 / times
            found.append(Cost(controller * scale, client * scale, self.stretch_ms()))
        return Cost(
            min(each.controller for each in found),
            min(each.client for each in found),
            min(each.stretch for each in found),
        )
