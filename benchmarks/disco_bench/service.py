"""A web service on a session, with many clients of whose requests one in three is bad."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from statistics import median
from typing import TYPE_CHECKING

import aiohttp

from disco_bench.bench import NODES, SLOTS, WORKERS
from disco_bench.child import Child
from disco_bench.sampling import alternate, rotate
from disco_bench.table import Limit, Measured, Spec
from disco_server.cli.local import LocalCluster

if TYPE_CHECKING:
    from disco_bench.bench import Bench

__all__ = ["SERVICE", "measure_service"]

_CLIENTS, _WIDTH = 64, 1024
_ANSWER_S = 60.0

SERVICE = (
    Spec(
        "service.stretch",
        f"longest stretch of the loop on a processor, {_CLIENTS} clients, 1/3 bad",
        "s",
        "handlers that only echo",
        Limit("excess", must=0.02),
    ),
    Spec(
        "service.good",
        "good requests/s, 1/3 of all bad",
        "1/s",
        "the same without bad ones",
        Limit("ratio", must=0.8, aim=0.95, least=True),
    ),
)


class _Load:
    """Requests of many clients, each of which sends the next when it has the answer.

    Args:
        seconds: For how long they send.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._good = {"inputs": [0.5] * _WIDTH}
        self._bad = {"inputs": [0.5] * (_WIDTH + 1)}

    async def _client(self, url: str, end: float, *, with_bad: bool) -> int:
        good, sent = 0, 1
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            while time.perf_counter() < end:
                bad = with_bad and sent % 3 == 0
                async with http.post(url, json=self._bad if bad else self._good) as answer:
                    await answer.read()
                    expected = HTTPStatus.BAD_REQUEST if bad else HTTPStatus.OK
                    if answer.status != expected:
                        msg = f"expected {expected!r} from {url}, got {answer.status}"
                        raise RuntimeError(msg)
                good += not bad
                sent += 1
        return good

    async def _clients(self, port: int, *, with_bad: bool) -> float:
        url, began = f"http://127.0.0.1:{port}/predict", time.perf_counter()
        end = began + self._seconds
        clients = [self._client(url, end, with_bad=with_bad) for _ in range(_CLIENTS)]
        good = await asyncio.gather(*clients)
        return sum(good) / (time.perf_counter() - began)

    def send(self, port: int, *, with_bad: bool) -> float:
        """Sends requests to a port; returns how many good ones were answered a second."""
        return asyncio.run(self._clients(port, with_bad=with_bad))


def _program(address: str) -> list[str]:
    return ["-m", "disco_bench.web_service", address, str(WORKERS), str(_WIDTH)]


def _medians(rounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    first, second = zip(*rounds, strict=True)
    return median(first), median(second)


def measure_service(bench: Bench) -> None:
    """Measures the event loop of the service, and what bad requests cost the good ones."""
    rounds, load = bench.pick(5, 1), _Load(bench.pick(3.0, 0.3))
    with LocalCluster(NODES, SLOTS) as cluster, Child(_program(cluster.address)) as child:
        service, idle = map(int, child.read_line(_ANSWER_S).split())

        def stretch(port: int) -> tuple[float, float]:
            child.ask("", _ANSWER_S)
            load.send(port, with_bad=True)
            longest, with_waiting = map(float, child.ask("", _ANSWER_S).split())
            return longest, with_waiting

        ours, theirs = rotate((lambda: stretch(service), lambda: stretch(idle)), rounds)
        (own, raw), (echo, raw_echo) = (_medians(each) for each in (ours, theirs))
        note = f"with waits for a processor {raw * 1e3:.0f} ms, {raw_echo * 1e3:.0f} ms"
        bench.record("service.stretch", Measured(own, echo, note=note))
        pair = alternate(
            lambda: load.send(service, with_bad=True),
            lambda: load.send(service, with_bad=False),
            rounds,
        )
        bench.record("service.good", pair.measured())
