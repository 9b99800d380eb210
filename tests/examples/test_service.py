"""The web service, with many clients at once, of whose requests one in three is bad."""

from __future__ import annotations

import asyncio

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from disco_server.cli.local import LocalCluster

CLIENTS, REQUESTS, WIDTH = 64, 6, 32


async def ask(http, url, client, number):
    """Sends one request; returns what is wrong with its answer, if anything."""
    from service import predict_alone

    place = client * REQUESTS + number
    bad = place % 3 == 2
    inputs = np.random.default_rng(place).standard_normal(WIDTH + 1 + place if bad else WIDTH)
    async with http.post(f"{url}/predict", json={"inputs": inputs.tolist()}) as response:
        answer = await response.json()
    if bad:
        mine = f"expected {WIDTH} numbers, got an array of shape [{len(inputs)}]"
        return None if (response.status, answer) == (400, {"error": mine}) else (place, answer)
    right = predict_alone(inputs.astype("float32"))
    close = response.status == 200 and np.allclose(answer["outputs"], right, atol=1e-4)
    return None if close else (place, answer)


async def serve_and_ask(address):
    from service import application

    runner = web.AppRunner(application(address, 4, WIDTH))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

        async def client(which):
            # One connection a client: aiohttp's task of it serves all of its requests.
            connector = aiohttp.TCPConnector(limit=1)
            async with aiohttp.ClientSession(connector=connector) as http:
                return [await ask(http, url, which, number) for number in range(REQUESTS)]

        answers = await asyncio.gather(*map(client, range(CLIENTS)))
        async with aiohttp.ClientSession() as http, http.post(f"{url}/predict", data=b"{") as no:
            assert no.status == 400
        return [wrong for each in answers for wrong in each if wrong is not None]
    finally:
        await runner.cleanup()


@pytest.mark.timeout(120)
def test_no_client_gets_a_wrong_answer_or_the_error_of_another():
    """Each bad request is told what is wrong with it, and the good ones are right."""
    with LocalCluster(2, 2, listen="127.0.0.1:0") as cluster:
        assert asyncio.run(serve_and_ask(cluster.address)) == []
