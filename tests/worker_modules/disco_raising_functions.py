"""Functions of the conformance suite that raise, or let something be raised in their worker."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import disco_server


class Halt(BaseException):
    """What a function may raise that nobody is meant to catch."""


class Unprintable(Halt):
    """One whose text raises as well."""

    def __str__(self):
        raise Halt("in the text")


KINDS = {
    "Halt": lambda: Halt("enough"),
    "Unprintable": Unprintable,
    "KeyboardInterrupt": lambda: KeyboardInterrupt("enough"),
    "GeneratorExit": lambda: GeneratorExit("enough"),
    "CancelledError": lambda: asyncio.CancelledError("enough"),
    "Failed": lambda: pytest.fail.Exception("enough"),
    "Skipped": lambda: pytest.skip.Exception("enough"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("enough", [Halt("one"), SystemExit(3)]),
    "MemoryError": lambda: MemoryError("enough"),
}


@disco_server.register_func("raising.on")
def raise_on(worker_id, kind):
    """Raises on one worker; a number is an exit code."""
    if disco_server.current_worker().worker_id == worker_id:
        raise KINDS[kind]() if kind in KINDS else SystemExit(kind)
    return worker_id


@disco_server.register_class("raising.Model")
class Raising:
    """An object that raises in its constructor, its methods and its properties."""

    def __init__(self, failing=False):
        if failing:
            raise Halt("in __init__")

    def step(self):
        """A method."""
        raise Halt("in step")

    @property
    def loss(self):
        """A property."""
        raise Halt("in loss")


class Ending:
    """What raises when its register is used for something else."""

    def __del__(self):
        raise Halt("in __del__")

    def __repr__(self):
        raise Halt("in __repr__")


@disco_server.register_func("raising.ending")
def ending():
    """Such an object."""
    return Ending()


@disco_server.register_func("raising.in_callback")
def in_callback():
    """Raises in a function that C code calls."""

    def fail(_x):
        raise Halt("in the callback")

    return np.frompyfunc(fail, 1, 1)(np.arange(3))


@disco_server.register_func("raising.in_logger")
def in_logger():
    """Raises in a handler of the function's own logger."""

    class Loud(logging.Handler):
        def emit(self, record):
            raise Halt(record.getMessage())

    logger = logging.getLogger(f"raising-{threading.get_ident()}")
    logger.propagate = False
    logger.handlers = [Loud()]
    logger.error("in the logger")


# What comes from outside the call ---------------------------------------------------------

_handled = []


def _raise(_number, _frame):
    _handled.append(time.monotonic())
    raise TimeoutError("it is late")


@disco_server.register_func("raising.handle")
def handle():
    """Installs a handler that raises; whether it is found there, and the process."""
    signal.signal(signal.SIGALRM, _raise)
    return [signal.getsignal(signal.SIGALRM) is _raise, os.getpid()]


@disco_server.register_func("raising.handled")
def handled():
    """How often it was called."""
    return len(_handled)


@disco_server.register_func("raising.alarm")
def alarm(seconds, interval):
    """Has it called in so many seconds, and again; 0 for never."""
    signal.setitimer(signal.ITIMER_REAL, seconds, interval)


@disco_server.register_func("raising.sleep")
def sleep(seconds):
    """Sleeps."""
    time.sleep(seconds)


@disco_server.register_func("raising.from_thread")
def from_thread(go, done):
    """Lets another thread raise in this one when a file is there; writes one afterwards."""
    ident, worker = threading.get_ident(), disco_server.current_worker().worker_id

    def wait():
        while not Path(go).exists():
            time.sleep(0.01)
        raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ident), ctypes.py_object(Halt)
        )
        Path(f"{done}-{worker}").write_text(str(raised))

    threading.Thread(target=wait, daemon=True).start()
