"""A daemon's HTTP port."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request

import pytest

from disco_client.errors import ConfigError
from disco_server.observe.http import HttpListener
from disco_server.settings import Address


def fetch(url):
    """Status, type and text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


async def visit(door, *paths):
    """Opens a door, asks for pages, closes it."""
    url = await door.open()
    try:
        return url, [await asyncio.to_thread(fetch, url + path) for path in paths]
    finally:
        await door.close()


def test_metrics_and_health_are_served():
    """Readiness says why it is not there; other pages are not there at all."""
    why = ""
    door = HttpListener(Address("127.0.0.1", 0), lambda: b"disco_x 1\n", lambda: why)
    paths = ("/metrics", "/healthz", "/readyz", "/", "/../etc/passwd")
    _, (metrics, health, ready, *others) = asyncio.run(visit(door, *paths))
    assert metrics[0] == 200
    assert metrics[1].startswith("text/plain; version=0.0.4")
    assert metrics[2] == "disco_x 1\n"
    assert (health[0], health[2]) == (200, "ok\n")
    assert (ready[0], ready[2]) == (200, "ready\n")
    assert [status for status, _, _ in others] == [404, 404]
    why = "draining"
    _, ((status, _, text), (alive, _, _)) = asyncio.run(visit(door, "/readyz", "/healthz"))
    assert (status, text, alive) == (503, "draining\n", 200)


def test_an_address_that_is_taken_is_refused_if_it_was_asked_for():
    """With what to do; the default gives way to a free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        with pytest.raises(ConfigError, match=r"cannot serve HTTP at .*choose another.*--http"):
            asyncio.run(HttpListener(address, bytes).open())


def test_without_an_address_two_daemons_find_room_on_one_machine():
    """Both on the loopback address only."""

    async def both():
        doors = [HttpListener(None, bytes), HttpListener(None, bytes)]
        urls = [await door.open() for door in doors]
        for door in doors:
            await door.close()
        return urls

    urls = asyncio.run(both())
    assert len(set(urls)) == 2
    assert all(url.startswith("http://127.0.0.1:") for url in urls)
