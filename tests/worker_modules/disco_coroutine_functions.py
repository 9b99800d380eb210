"""Coroutine functions that the conformance suite runs on workers of every session kind.

Workers may be threads of one process, so what is kept is kept by worker.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from disco_interrupt_functions import spin, tell_begin

import disco_server

__all__ = ["doubled", "kept"]

_kept = defaultdict(list)
_held = {}


def _me():
    return disco_server.current_worker().worker_id


def _keep(*what):
    _kept[_me()].extend(what)


@disco_server.register_func("coroutine.kept")
def kept():
    """What was noted here since the last look."""
    return _kept.pop(_me(), [])


@disco_server.register_func("coroutine.doubled")
async def doubled(value, seconds=0.0):
    """Twice a value, after a while."""
    await asyncio.sleep(seconds)
    _keep(value)
    return value * 2


class Called:
    """An object whose call is a coroutine."""

    async def __call__(self, value):
        """Twice the value."""
        return await doubled(value)


disco_server.register_func("coroutine.called")(Called())
disco_server.register_func("coroutine.partial")(functools.partial(doubled, 21))
disco_server.register_func("coroutine.lambda")(lambda value: doubled(value, 0.0))


@disco_server.register_func("coroutine.where")
async def where():
    """The loop, the thread and the worker in which it runs, and those of tasks that it makes."""

    async def here():
        await asyncio.sleep(0)
        return [id(asyncio.get_running_loop()), threading.get_ident(), _me()]

    own = await here()
    assert own == await asyncio.create_task(here())
    assert [own, own] == await asyncio.gather(here(), here())
    return own


@disco_server.register_func("coroutine.thread")
def thread():
    """The thread of the worker."""
    return threading.get_ident()


@disco_server.register_func("coroutine.fails")
async def fails(how):
    """Fails in itself, in a task, or in one of a group."""
    if how == "itself":
        raise ValueError("told to fail")
    if how == "task":
        await asyncio.create_task(fails("itself"))
    if how == "cancelled":
        raise asyncio.CancelledError("by itself")
    async with asyncio.TaskGroup() as group:
        group.create_task(fails("itself"))


@disco_server.register_func("coroutine.returning")
async def returning():
    """Returns what has yet to be computed."""
    return doubled(1)


@disco_server.register_func("coroutine.allreduced")
async def allreduced(part):
    """The sum of all workers' parts."""
    await asyncio.sleep(0)
    return disco_server.current_worker().allreduce(part, in_group=False)


@disco_server.register_func("coroutine.complaints")
def complaints():
    """What Python says of objects that are collected now."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gc.collect()
    return [str(each.message) for each in said if "never awaited" in str(each.message)]


# What takes long -----------------------------------------------------------------------


async def _noting(work):
    try:
        await work
    except BaseException as error:
        _keep(type(error).__name__)
        raise
    finally:
        await asyncio.sleep(0)
        _keep("cleaned up")


async def _spin(seconds):
    spin(seconds)


@disco_server.register_func("coroutine.waits")
async def waits(how, seconds):
    """Awaits for so long, or runs Python, in itself or in a task; notes what ended it."""
    if how == "sleep":
        await _noting(asyncio.sleep(seconds))
    elif how == "spin":
        await _noting(_spin(seconds))
    elif how == "lock":
        lock = asyncio.Lock()
        await lock.acquire()
        await _noting(lock.acquire())
    elif how == "gather":
        await _noting(asyncio.gather(_spin(seconds), asyncio.sleep(seconds)))
    elif how == "beside":  # a task runs Python, for which this one does not wait
        _held[_me(), "beside"] = asyncio.create_task(_spin(seconds))
        await _noting(asyncio.sleep(seconds))
    elif how == "collective":
        worker = disco_server.current_worker()
        if worker.worker_id == 0:
            await _noting(asyncio.sleep(seconds))
        worker.allreduce(np.ones(2), in_group=False)


@disco_server.register_func("coroutine.catches")
async def catches(seconds):
    """Returns what ended its sleep."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as error:
        return type(error).__name__


def _is_there(path):
    return Path(path).exists()


@disco_server.register_func("coroutine.swallows")
async def swallows(path):
    """Goes on until there is a file, whatever ends it; tells by another file that it has begun."""
    over = False
    while not over:
        try:
            tell_begin(path)
            over = _is_there(path)
            await asyncio.sleep(0.01)
        except BaseException:  # noqa: BLE001  (an interrupt may come in a step, too)
            _keep("swallowed")


@disco_server.register_func("coroutine.steps")
async def steps(count):
    """Goes through the loop so many times."""
    for _ in range(count):
        await asyncio.sleep(0)
    return count


# What a call leaves for the next -------------------------------------------------------


def _note_end(path):
    Path(f"{path}.{_me()}").write_text("cancelled")


@disco_server.register_func("coroutine.leaves")
async def leaves(path=""):
    """Leaves a task that counts its turns, and writes to a file when it is cancelled."""

    async def count():
        turns = 0
        try:
            while True:
                turns += 1
                _held[_me(), "turns"] = turns
                await asyncio.sleep(0)
        finally:
            if path:
                await asyncio.sleep(0.01)
                _note_end(path)

    _held[_me(), "task"] = asyncio.create_task(count())


@disco_server.register_func("coroutine.turns")
def turns():
    """How often that task had its turn."""
    return _held[_me(), "turns"]


@disco_server.register_func("coroutine.ended")
async def ended():
    """Cancels that task; whether it goes on until then."""
    task = _held.pop((_me(), "task"))
    went_on = not task.done()
    task.cancel()
    await asyncio.wait([task])
    return went_on


@disco_server.register_class("coroutine.Client")
class Client:
    """Has a lock, which one call takes and another one frees."""

    def __init__(self):
        self.lock = asyncio.Lock()
        self.answers = asyncio.Queue()

    async def take(self):
        """Takes the lock; leaves a task that waits for it."""
        await self.lock.acquire()
        self.waiting = asyncio.create_task(self._answer())

    async def _answer(self):
        async with self.lock:
            await self.answers.put(_me())

    async def free(self):
        """Frees it; what the task says."""
        self.lock.release()
        return await self.answers.get()

    @staticmethod
    async def static(value):
        """Twice the value."""
        return await doubled(value)

    def plain(self):
        """Returns a coroutine."""
        return doubled(4)
