"""Generator functions that the conformance suite runs on workers of every session kind.

Workers may be threads of one process, so what is kept is kept by worker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import numpy as np
from disco_interrupt_functions import spin

import disco_server

_kept = defaultdict(list)


def _me():
    return disco_server.current_worker()


def _keep(what):
    _kept[_me().worker_id].append(what)


@disco_server.register_func("stream.kept")
def kept():
    """What was noted here since the last look."""
    return _kept.pop(_me().worker_id, [])


@disco_server.register_func("stream.count")
def count(number):
    """Yields so many numbers, more on each further worker; notes each, and its end."""
    try:
        for each in range(number):
            _keep(each)
            yield each + 100 * _me().worker_id
    finally:
        _keep("closed")
    return "ignored"


@disco_server.register_func("stream.count_async")
async def count_async(number):
    """The same, on the event loop."""
    try:
        for each in range(number):
            await asyncio.sleep(0)
            _keep(each)
            yield each + 100 * _me().worker_id
    finally:
        await asyncio.sleep(0.001)
        _keep("closed")


def _is_there(path):
    return Path(path).exists()


@disco_server.register_func("stream.gated")
def gated(path):
    """Yields once before there is a file, and once after."""
    yield "before"
    while not _is_there(path):
        spin(0.002)
    yield "after"


@disco_server.register_func("stream.reduced")
def reduced(steps):
    """In each step all workers meet; some have more steps than others."""
    part = np.full(2, 1.0 + _me().worker_id)
    for step in range(steps[_me().worker_id]):
        yield _me().allreduce(part * step, in_group=False)


@disco_server.register_func("stream.reduced_async")
async def reduced_async(steps):
    """The same, on the event loop."""
    for item in reduced(steps):
        await asyncio.sleep(0)
        yield item


@disco_server.register_func("stream.reuses")
def reuses(size):
    """Yields one array again and again, with other content."""
    array = np.zeros(size)
    for step in range(3):
        array[:] = step
        yield array


@disco_server.register_func("stream.fails")
def fails(number):
    """Raises after so many items."""
    yield from range(number)
    raise ValueError("told to fail")


@disco_server.register_func("stream.fails_async")
async def fails_async(number):
    """The same, on the event loop."""
    for each in range(number):
        yield each
    raise ValueError("told to fail")


@disco_server.register_func("stream.waits")
def waits(seconds):
    """Runs Python for so long before its second item; notes what ended it."""
    yield 0
    try:
        spin(seconds)
        yield 1
    except BaseException as error:
        _keep(type(error).__name__)
        raise


@disco_server.register_func("stream.waits_async")
async def waits_async(seconds):
    """The same, on the event loop."""
    yield 0
    try:
        await asyncio.sleep(seconds)
        yield 1
    except BaseException as error:
        _keep(type(error).__name__)
        raise


@disco_server.register_func("stream.returning")
async def returning(number):
    """A coroutine that returns a generator."""
    return count(number)


@disco_server.register_func("stream.total")
def total(generator):
    """Goes through a generator on the worker."""
    return sum(generator)


@disco_server.register_func("stream.odd")
def odd():
    """Yields values that do not all travel."""
    yield None
    yield {"a": (1, 2)}
    yield np.add
    yield object


@disco_server.register_class("stream.Model")
class Model:
    """Has methods that yield."""

    def __init__(self, size):
        self.size = size

    def tokens(self, prompt):
        """Yields words."""
        for each in range(self.size):
            yield f"{prompt}{each}"

    async def stream(self, prompt):
        """The same, on the event loop, under a name that references have."""
        for token in self.tokens(prompt):
            yield token
