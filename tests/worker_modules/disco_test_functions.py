"""Functions that tests run on workers; imported there by its name."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time

import numpy as np

import disco_server


@disco_server.register_func("tests.echo")
def echo(*args):
    """Returns its one argument, or all of them."""
    return args[0] if len(args) == 1 else list(args)


@disco_server.register_func("tests.kind")
def kind(value):
    """The name of the argument's type, as the worker sees it."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


@disco_server.register_func("tests.add")
def add(first, second):
    """The sum of two values."""
    return first + second


@disco_server.register_func("tests.fail_on")
def fail_on(worker_id, text="told to fail"):
    """Raises on one worker; the others get their number."""
    me = disco_server.current_worker().worker_id
    if me == worker_id:
        raise ValueError(text)
    return me


@disco_server.register_func("tests.fail_before_allreduce")
def fail_before_allreduce(array, worker_id):
    """Raises on one worker, while its peers enter a collective."""
    worker = disco_server.current_worker()
    if worker.worker_id == worker_id:
        msg = "told to fail"
        raise ValueError(msg)
    return worker.allreduce(array, in_group=False)


@disco_server.register_func("tests.kill_on")
def kill_on(worker_id, number=int(signal.SIGKILL)):
    """Ends one worker's process by a signal."""
    if disco_server.current_worker().worker_id == worker_id:
        os.kill(os.getpid(), number)
        time.sleep(60)


@disco_server.register_func("tests.exit_on")
def exit_on(worker_id, code):
    """Ends one worker's process with an exit code, after some last words."""
    if disco_server.current_worker().worker_id == worker_id:
        print("these are my last words", file=sys.stderr)
        sys.exit(code)


@disco_server.register_func("tests.say")
def say(text):
    """Prints a line on each worker."""
    print(text)


@disco_server.register_func("tests.sleep")
def sleep(seconds):
    """Keeps the worker busy."""
    time.sleep(seconds)


@disco_server.register_func("tests.rank_array")
def rank_array(shape, dtype, factor=1):
    """An array filled with the worker's number plus one."""
    me = disco_server.current_worker().worker_id
    return np.full(tuple(shape), (me + 1) * factor, dtype)


@disco_server.register_func("tests.shape_for")
def shape_for(worker_id, odd, ordinary):
    """An array of ones whose shape differs on one worker."""
    me = disco_server.current_worker().worker_id
    return np.ones(tuple(odd if me == worker_id else ordinary), "float32")


@disco_server.register_func("tests.registers")
def registers():
    """How many registers this worker's file has, and how many of them hold something."""
    (file,) = [found for found in gc.get_objects() if type(found).__name__ == "RegisterFile"]
    return list(file.statistics())


@disco_server.register_func("tests.crash_on")
def crash_on(worker_id):
    """Ends one worker's process by reading memory that it does not have."""
    if disco_server.current_worker().worker_id == worker_id:
        ctypes.string_at(0)


@disco_server.register_func("tests.leave_child")
def leave_child():
    """Starts a process that would outlive its worker, and says which."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return child.pid


@disco_server.register_func("tests.environment")
def environment(name):
    """One variable of the worker's environment."""
    return os.environ.get(name)


@disco_server.register_func("tests.total")
def total(array):
    """The sum of a large array's elements, its shape and whether it can be written."""
    return [float(array.sum()), list(array.shape), bool(array.flags.writeable)]
