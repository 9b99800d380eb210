"""A web service on a session, with many clients of whom some send bad requests, or give up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from statistics import median, quantiles
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
_GIVE_UP_S = 0.05

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
    Spec(
        "service.given_up",
        f"p95 of a request, a third of {_CLIENTS} clients give up after {_GIVE_UP_S * 1e3:.0f} ms",
        "s",
        "the same, none gives up",
        Limit("ratio", must=1.2, aim=1.0),
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

    async def _patient(self, url: str, end: float) -> list[float]:
        """How long each request took, in seconds, of a client that waits for all answers."""
        took: list[float] = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            while (began := time.perf_counter()) < end:
                async with http.post(url, json=self._good) as answer:
                    await answer.read()
                took.append(time.perf_counter() - began)
        return took

    async def _impatient(self, url: str, end: float) -> int:
        """How many requests were given up, of a client that gives up soon."""
        given_up = 0
        request = self._good | {"timeout": _GIVE_UP_S}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:
            while time.perf_counter() < end:
                async with http.post(url, json=request) as answer:
                    await answer.read()
                    given_up += answer.status == HTTPStatus.GATEWAY_TIMEOUT
        return given_up

    async def _mixed(self, port: int, impatient: int) -> tuple[float, int]:
        url, end = f"http://127.0.0.1:{port}/predict", time.perf_counter() + self._seconds
        took, given_up = await asyncio.gather(
            asyncio.gather(*(self._patient(url, end) for _ in range(_CLIENTS - impatient))),
            asyncio.gather(*(self._impatient(url, end) for _ in range(impatient))),
        )
        return quantiles([each for client in took for each in client], n=20)[-1], sum(given_up)

    def wait(self, port: int, impatient: int = 0) -> tuple[float, int]:
        """Sends requests of which some clients give up those that take long.

        Returns:
            The time in seconds within which 95 of 100 requests of the others were answered, and
            how many requests were given up.
        """
        return asyncio.run(self._mixed(port, impatient))

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

        given_up = 0

        def disturbed() -> float:
            nonlocal given_up
            seconds, count = load.wait(service, _CLIENTS // 3)
            given_up += count
            return seconds

        measured = alternate(disturbed, lambda: load.wait(service)[0], rounds).measured()
        note = f"{given_up} requests were given up"
        bench.record("service.given_up", replace(measured, note=note))
