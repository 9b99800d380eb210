"""Functions that the conformance suite runs on workers of every session kind.

Workers may be threads of one process, so what a function keeps is kept by worker.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import disco_array_functions  # noqa: F401  (registers functions)
import disco_coroutine_functions
import disco_interrupt_functions  # noqa: F401  (registers functions)
import disco_library_functions  # noqa: F401  (registers functions)
import disco_raising_functions  # noqa: F401  (registers functions)
import disco_reentry_functions  # noqa: F401  (registers functions)
import disco_saving_functions  # noqa: F401  (registers functions)
import disco_stream_functions
import disco_value_classes  # noqa: F401  (registers functions)
import numpy as np

import disco_server
from disco_client.arrays.mapped_memory import MappedMemory
from disco_server.collectives.types import AbortedError, MismatchError, ReduceOp
from disco_server.rank.functions import resolve, writes_into

_copies = {}


def _me():
    return disco_server.current_worker().worker_id


@disco_server.register_func("conformance.echo")
def echo(*args):
    """Returns its one argument, or all of them."""
    return args[0] if len(args) == 1 else list(args)


async def awaited(value):
    """Doubles a value, and is found by the name of its module."""
    return await disco_coroutine_functions.doubled(value)


def streamed(number):
    """Yields numbers, and is found by the name of its module."""
    yield from disco_stream_functions.count(number)


@disco_server.register_func("conformance.named")
def named(*args, **keywords):
    """Returns its arguments, those with names too."""
    return [list(args), keywords]


@disco_server.register_func("conformance.scale_into")
@writes_into(1)
def scale_into(source, out, rate=1.0, *, failing=False):
    """Overwrites one array with multiples of another one."""
    if failing:
        raise ValueError("told to fail")
    out[...] = source * rate


@disco_server.register_func("conformance.participants")
def participants():
    """The workers that execute this call."""
    return list(disco_server.current_worker().participants)


@disco_server.register_func("conformance.barrier_twice")
def barrier_twice(team):
    """Enters a collective of all, and after its error one of a team; the names of the errors."""
    errors = []
    for enter in (disco_server.current_worker().barrier, team.barrier):
        try:
            enter()
        except AbortedError as error:
            errors.append(type(error).__name__)
    return errors


@disco_server.register_func("conformance.kind")
def kind(value):
    """The name of the argument's type, as the worker sees it."""
    return type(value).__name__


@disco_server.register_func("conformance.kinds")
def kinds(*values):
    """The names of the types of several arguments."""
    return [type(value).__name__ for value in values]


@disco_server.register_func("conformance.keys")
def keys(mapping, inside, **named):
    """The keys of three dicts in their order: one, one inside others, the keywords."""
    return [list(mapping), list(inside[0]["deep"]), list(named)]


@disco_server.register_func("conformance.reduce_each")
def reduce_each(tensors):
    """Adds up each tensor of a dict over all workers, in the order of the dict."""
    worker = disco_server.current_worker()
    return {key: worker.allreduce(tensor) for key, tensor in tensors.items()}


@disco_server.register_func("conformance.add")
def add(first, second):
    """The sum of two values."""
    return first + second


@disco_server.register_func("conformance.by_rank")
def by_rank(values):
    """The value at this worker's place in a list."""
    return values[_me()]


@disco_server.register_func("conformance.append")
def append(shape, *more):
    """A shape with more dimensions."""
    return type(shape)((*shape, *more))


@disco_server.register_func("conformance.fail_on")
def fail_on(workers, text):
    """Raises on some workers; the others get their number."""
    if _me() in workers:
        raise ValueError(text)
    return _me()


@disco_server.register_func("conformance.gather_in_team")
def gather_in_team(team, part, failing=-1):
    """Collects parts of any size in a team; one worker may fail before it comes."""
    if _me() == failing:
        raise ValueError("told to fail")
    if team is None:
        return None
    worker = disco_server.current_worker()
    counts = worker.arrays.from_host(np.zeros(team.size, "int64"))
    team.allgather(worker.arrays.from_host(np.array([part.size])), counts, [1] * team.size)
    sizes = worker.arrays.to_host(counts).tolist()
    whole = worker.arrays.empty((sum(sizes),), part.dtype)
    team.allgather(part, whole, sizes)
    return whole


@disco_server.register_func("conformance.fail_before_allreduce")
def fail_before_allreduce(array, worker_id):
    """Raises on one worker, while its peers enter a collective."""
    worker = disco_server.current_worker()
    if worker.worker_id == worker_id:
        msg = "told to fail"
        raise ValueError(msg)
    return worker.allreduce(array, in_group=False)


@disco_server.register_func("conformance.hashes")
def hashes():
    """How this worker hashes texts, and in which order it goes through sets of them."""
    names = [f"layer.{number}.weight" for number in range(40)]
    return [hash("x"), hash(b"x"), list(set(names)), list(frozenset(names))]


@disco_server.register_func("conformance.reduce_by_name")
def reduce_by_name(names):
    """Adds up a tensor of each name, in the order of their set; the sums in that of the names."""
    sums = {}
    for name in set(names):
        tensor = _zeros(2, float)
        tensor += names.index(name)
        sums[name] = disco_server.current_worker().allreduce(tensor, in_group=False)
    to_host = disco_server.current_worker().arrays.to_host
    return [float(to_host(sums[name])[0]) for name in names]


def _zeros(size, dtype):
    """An array on this worker's device."""
    return disco_server.current_worker().arrays.from_host(np.zeros(size, dtype))


def _tagged_calls(worker, tag):
    """Each way in which a function enters a collective of all workers, with a tag."""
    world, add = worker.world, ReduceOp.SUM
    part, whole = _zeros(2, "float32"), _zeros(2 * worker.num_workers, "float32")
    return {
        "worker.allreduce": lambda: worker.allreduce(part, in_group=False, tag=tag),
        "worker.allgather": lambda: worker.allgather(part, in_group=False, tag=tag),
        "worker.barrier": lambda: worker.barrier(tag=tag),
        "allreduce": lambda: world.allreduce(part, part, add, tag=tag),
        "allgather": lambda: world.allgather(part, whole, tag=tag),
        "broadcast": lambda: world.broadcast(part, part, tag=tag),
        "scatter": lambda: world.scatter(whole, part, tag=tag),
        "gather": lambda: world.gather(part, whole, tag=tag),
        "reduce_scatter": lambda: world.reduce_scatter(whole, part, add, tag=tag),
        "all_to_all": lambda: world.all_to_all(whole, whole, tag=tag),
        "barrier": lambda: world.barrier(tag=tag),
        "runtime.disco.barrier": lambda: resolve("runtime.disco.barrier", ())(False, tag=tag),
    }


@disco_server.register_func("conformance.tagged")
def tagged(tags):
    """Enters every collective with this worker's tag; those that were refused, with the words."""
    refused = {}
    for name, enter in _tagged_calls(disco_server.current_worker(), tags[_me()]).items():
        try:
            enter()
        except MismatchError as error:
            refused[name] = str(error)
    return refused


def lead(world, array):
    """Enters a broadcast as its root."""
    world.broadcast(array, array, tag="start")


def join(world, array):
    """Enters a broadcast as one of the others."""
    world.broadcast(None, array, tag="start")


@disco_server.register_func("conformance.mixed_up")
def mixed_up():
    """Enters a broadcast on all workers but one, which is in an allreduce."""
    worker = disco_server.current_worker()
    array = _zeros(3, "float32")
    if _me() == 2:
        odd = _zeros(4, "int32")
        worker.allreduce(odd, odd, in_group=False)
    else:
        (join if _me() else lead)(worker.world, array)


@disco_server.register_func("conformance.wait_for_file")
def wait_for_file(path):
    """Keeps the worker busy until a file is there."""
    while not Path(path).exists():
        time.sleep(0.005)


@disco_server.register_func("conformance.wait_on")
def wait_on(worker_id, path):
    """Keeps one worker busy until a file is there."""
    if disco_server.current_worker().worker_id == worker_id:
        wait_for_file(path)


@disco_server.register_func("conformance.nap")
def nap(seconds):
    """Takes its time."""
    time.sleep(seconds)


@disco_server.register_func("conformance.hold_interpreter_on")
def hold_interpreter_on(worker_id):
    """Keeps one worker in C for ever, with the interpreter's lock and deaf to signals."""
    if disco_server.current_worker().worker_id == worker_id:
        sum(itertools.repeat(0))


@disco_server.register_func("conformance.pid")
def pid():
    """The process of this worker."""
    return os.getpid()


class Counted:
    """An object that cannot travel; how many of them each worker has is counted."""

    alive: ClassVar[Counter[int]] = Counter()

    def __init__(self):
        self.worker = _me()
        Counted.alive[self.worker] += 1

    def __del__(self):
        Counted.alive[self.worker] -= 1

    def __call__(self):
        """What makes it a function."""
        return self.worker


@disco_server.register_func("conformance.counted")
def counted():
    """A new object."""
    return Counted()


@disco_server.register_func("conformance.alive")
def alive():
    """How many of those objects live on this worker."""
    return Counted.alive[_me()]


@disco_server.register_func("conformance.module")
def module():
    """A module, as a loader would return it."""
    return np


@disco_server.register_func("conformance.say")
def say(text):
    """Prints a line."""
    print(text)


@disco_server.register_func("conformance.affinity")
def affinity():
    """The cores on which this worker may run."""
    return sorted(os.sched_getaffinity(0))


@disco_server.register_func("conformance.kill_on")
def kill_on(worker_id, number):
    """Ends one worker's process by a signal."""
    if _me() == worker_id:
        os.kill(os.getpid(), number)
        time.sleep(60)


@disco_server.register_func("conformance.on")
def on(workers, name, *args):
    """Calls a function on some workers only; the others do nothing."""
    return resolve(name, ())(*args) if _me() in workers else None


@disco_server.register_func("conformance.pass_on")
def pass_on(array, sender, receiver):
    """One worker sends, one receives, the others look on; returns what each then has."""
    if _me() == sender:
        resolve("runtime.disco.send_to_worker", ())(array, receiver)
    elif _me() == receiver:
        resolve("runtime.disco.recv_from_worker", ())(array, sender)
    return array


@disco_server.register_func("conformance.from_worker0")
def from_worker0(array):
    """Worker 0 sends to each of the others."""
    if _me() == 0:
        for receiver in range(1, disco_server.current_worker().num_workers):
            resolve("runtime.disco.send_to_worker", ())(array, receiver)
    else:
        resolve("runtime.disco.recv_from_worker0", ())(array)
    return array


@disco_server.register_func("conformance.hand_to_next_group")
def hand_to_next_group(array):
    """The first group sends, the second one receives; returns what each then has."""
    worker = disco_server.current_worker()
    first = worker.worker_id < worker.group_size
    name = "send_to_next_group" if first else "recv_from_prev_group"
    resolve(f"runtime.disco.{name}", ())(array)
    return array


@disco_server.register_func("conformance.break_copies")
def break_copies(pieces, how):
    """Lets this worker's copies to the client fail after so many pieces, or die; or stop that."""
    where, name = MappedMemory, "write"
    if not disco_server.current_worker().arrays.on_host:
        where, name = import_module("cupy").cuda.runtime, "memcpyAsync"
    copy = _copies.setdefault(name, getattr(where, name))
    left = pieces

    def broken(*args):
        nonlocal left
        left -= 1
        if left < 0 and how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if left < 0:
            raise RuntimeError("the device is lost")
        return copy(*args)

    setattr(where, name, broken if how else copy)


@disco_server.register_class("conformance.Model")
class Model:
    """A model that learns one number; each worker has another share of the data."""

    kind = "model"

    def __init__(self, start, *, rate=0.5):
        self.weight = np.full(2, float(start))
        self.rate = rate
        self.losses = []
        self.run = os.system  # what no session gets

    @property
    def loss(self):
        """The last one."""
        return self.losses[-1] if self.losses else None

    def step(self, target, *, rate=None, failing=()):
        """Goes towards a target, which is reduced over all workers where a rate is given."""
        if _me() in failing:
            raise ValueError("told to fail")
        self.weight += (self.rate if rate is None else rate) * (target - self.weight)
        self.losses.append(float(abs(target - self.weight).sum()))
        return self.weight.copy()

    def total(self):
        """The weights of all workers together."""
        return disco_server.current_worker().allreduce(self.weight, in_group=False)

    @classmethod
    def name_of(cls):
        """A method of the class."""
        return cls.__name__

    @staticmethod
    def twice(value):
        """A method that needs no object."""
        return 2 * value

    def __disco_state__(self):
        """What a checkpoint holds."""
        return {"weight": self.weight, "rate": self.rate, "losses": self.losses}

    def __disco_load__(self, state):
        """Puts it back."""
        self.weight, self.rate, self.losses = state["weight"], state["rate"], state["losses"]


@disco_server.register_func("conformance.set_default_timeout")
def set_default_timeout(seconds):
    """Sets how long new sockets of this process wait."""
    socket.setdefaulttimeout(seconds)
