"""Functions that tests run on workers; imported there by its name."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

import disco_server
from disco_client.uncollected import current_frames
from disco_server.rank.worker import Worker


@disco_server.register_func("tests.echo")
def echo(*args):
    """Returns its one argument, or all of them."""
    return args[0] if len(args) == 1 else list(args)


@disco_server.register_func("tests.unaccounted")
def unaccounted():
    """How many descriptors of arrays' memory nothing here keeps; where calls are watched."""
    return sys.modules["fault_tools_calls"].unaccounted()


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


_counts: WeakKeyDictionary[Worker, int] = WeakKeyDictionary()


@disco_server.register_func("tests.count")
def count() -> int:
    """How often this was called on this worker."""
    worker = disco_server.current_worker()
    _counts[worker] = _counts.get(worker, 0) + 1
    return _counts[worker]


@disco_server.register_func("tests.sleep")
def sleep(seconds):
    """Keeps the worker busy."""
    time.sleep(seconds)


@disco_server.register_func("tests.sleep_on")
def sleep_on(worker_id, seconds):
    """Keeps one worker busy."""
    if disco_server.current_worker().worker_id == worker_id:
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


@disco_server.register_func("tests.crash_deep")
def crash_deep(depth):
    """The same, under many frames of its own."""
    if depth:
        crash_deep(depth - 1)
    else:
        ctypes.string_at(0)


@disco_server.register_func("tests.hog_on")
def hog_on(worker_id):
    """Takes memory on one worker, until there is no more."""
    kept = []
    while disco_server.current_worker().worker_id == worker_id:
        kept.append(np.ones(1 << 20))


@disco_server.register_func("tests.stop_when_pmi_begins")
def stop_when_pmi_begins(worker_id, number=int(signal.SIGSTOP)):
    """Lets one worker be stopped, or whatever the signal does, when MPI's start begins.

    One that is let go on then starts MPI as its peers do.
    """
    if disco_server.current_worker().worker_id == worker_id:
        from disco_server.collectives import select

        open_groups = select.open_groups

        def stop_and_open(*args, **named):
            os.kill(os.getpid(), number)
            return open_groups(*args, **named)

        select.open_groups = stop_and_open


@disco_server.register_func("tests.mismatch_on")
def mismatch_on(worker_id, call):
    """All workers reduce two ones, but one does something else."""
    worker = disco_server.current_worker()
    ones = np.ones(2, "float32")
    if worker.worker_id != worker_id:
        worker.allreduce(ones, np.empty(2, "float32"))
    elif call == "tests.gather_instead":
        worker.allgather(ones)
    else:
        odd = {
            "tests.sum_shape": (np.ones(3, "float32"), "sum"),
            "tests.sum_dtype": (np.ones(2), "sum"),
            "tests.sum_op": (ones, "max"),
        }
        array, op = odd[call]
        worker.allreduce(array, op=op)


@disco_server.register_func("tests.flood")
def flood(gate, mib):
    """Prints so much, in lines of 16 KiB, once there is a file of that name."""
    print("about to print much")
    while not Path(gate).exists():
        time.sleep(0.01)
    line = "flooding" + "." * (16 * 1024 - 9)
    for _ in range(64 * mib):
        print(line)
    Path(f"{gate}.over").touch()


@disco_server.register_func("tests.chatter")
def chatter(lines):
    """Prints so many short lines, as fast as it can."""
    for _ in range(lines // 1000):
        sys.stdout.write("x\n" * 1000)
    return lines


@disco_server.register_func("tests.slow_sum")
def slow_sum(seconds, array):
    """The sum of an array, after a while."""
    time.sleep(seconds)
    return float(array.sum())


@disco_server.register_func("tests.now")
def now():
    """What time it is, as this worker's wall clock says."""
    return time.time()


@disco_server.register_func("tests.leave_child")
def leave_child():
    """Starts a process that would outlive its worker, and says which."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return child.pid


@disco_server.register_func("tests.leave_grandchild")
def leave_grandchild():
    """Starts a process as daemons start: in a session of its own, and nobody's child here."""
    program = (
        "import os, subprocess, sys; os.setsid();"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " stdin=-3, stdout=-3, stderr=-3); print(left.pid)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return int(done.stdout)


@disco_server.register_func("tests.environment")
def environment(name):
    """One variable of the worker's environment."""
    return os.environ.get(name)


@disco_server.register_func("tests.hash_of")
def hash_of(text):
    """The hash of a text in this worker's interpreter."""
    return hash(text)


@disco_server.register_func("tests.total")
def total(array):
    """The sum of a large array's elements, its shape and whether it can be written."""
    return [float(array.sum()), list(array.shape), bool(array.flags.writeable)]


class Shy:
    """An object that does not even say what it is."""

    def __repr__(self):
        msg = "no comment"
        raise RuntimeError(msg)


class ShyError(Exception):
    """An exception that does not say what happened."""

    def __str__(self):
        msg = "no comment"
        raise RuntimeError(msg)


@disco_server.register_func("tests.shy")
def shy(raises):
    """Returns or raises what cannot be described."""
    if raises:
        raise ShyError
    return Shy()


@disco_server.register_func("tests.raise_text")
def raise_text(kind):
    """Raises an error whose text is hard to send."""
    texts = {"surrogate": "snow\udce9", "long": "x" * 100_000 + "end", "empty": ""}
    texts["huge"] = "x" * 1_000_000
    raise ValueError(texts[kind])


@disco_server.register_func("tests.text_of_bytes")
def text_of_bytes(count):
    """A text of this many bytes."""
    return "x" * count


@disco_server.register_func("tests.describe")
def describe(value):
    """What a worker sees of an array: dtype, shape, flags, sum."""
    return [str(value.dtype), list(value.shape), bool(value.flags.writeable), float(value.sum())]


@disco_server.register_func("tests.noncontiguous")
def noncontiguous(rows, columns):
    """A transposed array that counts."""
    return np.arange(rows * columns, dtype="float64").reshape(columns, rows).T


@disco_server.register_func("tests.counting_array")
def counting_array(nbytes, dtype):
    """A large array that counts."""
    dtype = np.dtype(dtype)
    return np.arange(nbytes // dtype.itemsize).astype(dtype)


@disco_server.register_func("tests.ring")
def ring(array):
    """Sends an array around all workers, one after the other; returns what came."""
    worker = disco_server.current_worker()
    me, size = worker.worker_id, worker.num_workers
    got = np.empty_like(array)
    if me % 2 == 0:
        worker.world.send(array, (me + 1) % size)
        worker.world.recv(got, (me - 1) % size)
    else:
        worker.world.recv(got, (me - 1) % size)
        worker.world.send(array, (me + 1) % size)
    return got


_SEND_ON = "runtime.disco.send_to_next_group", "runtime.disco.recv_from_prev_group"


@disco_server.register_func("tests.hand_to_next_group")
def hand_to_next_group(array):
    """The first group sends, the second one receives; returns what each then has."""
    from disco_server.rank.functions import resolve

    worker = disco_server.current_worker()
    send, receive = (resolve(name, ()) for name in _SEND_ON)
    (send if worker.worker_id < worker.group_size else receive)(array)
    return array


@disco_server.register_func("tests.two_sends_to_zero")
def two_sends_to_zero(array):
    """Worker 2 sends, worker 0 receives, the others look on."""
    from disco_server.rank.functions import resolve

    me = disco_server.current_worker().worker_id
    if me == 2:
        resolve("runtime.disco.send_to_worker", ())(array, 0)
    elif me == 0:
        resolve("runtime.disco.recv_from_worker", ())(array, 2)
    return array


@disco_server.register_func("tests.add_twice")
def add_twice(first, second):
    """The argument of a call that is another call's result."""
    return [first, second]


@disco_server.register_func("tests.print_error")
def print_error(text):
    """Prints a line to each worker's standard error."""
    print(text, file=sys.stderr)


@disco_server.register_func("tests.loop_forever")
def loop_forever():
    """Never returns, but for what its own thread or process is sent."""
    while True:
        time.sleep(0.01)


@disco_server.register_func("tests.make_list")
def make_list(length):
    """A list that each worker holds."""
    return [*range(length), len]


@disco_server.register_func("tests.affinity")
def affinity():
    """The cores on which this worker may run."""
    return sorted(os.sched_getaffinity(0))


@disco_server.register_func("tests.stuck")
def stuck():
    """Stays outside of Python for long."""
    time.sleep(600)


@disco_server.register_func("tests.wait_alone")
def wait_alone():
    """Worker 1 waits in a collective that nobody else enters."""
    worker = disco_server.current_worker()
    if worker.worker_id == 1:
        worker.barrier()
    else:
        while True:
            time.sleep(0.01)


GATE = None


@disco_server.register_func("tests.call_back")
def call_back():
    """Waits until the test opens the gate; for workers of its own process."""
    GATE.wait(30)


@disco_server.register_func("tests.scale_into")
def scale_into(array, out):
    """Fills an array with another one, times the worker's number plus one."""
    np.multiply(array, disco_server.current_worker().worker_id + 1, out=out)


@disco_server.register_func("tests.refuse")
def refuse(array):
    """Raises what cannot be described."""
    raise ShyError(array.shape)


@disco_server.register_func("tests.wait_for_file_on")
def wait_for_file_on(worker_id, path):
    """Keeps one worker busy until a file is there."""
    while disco_server.current_worker().worker_id == worker_id and not os.path.exists(path):  # noqa: PTH110  (as short as it can be)
        time.sleep(0.005)


@disco_server.register_func("tests.kill_once_on")
def kill_once_on(worker_id, path, number=int(signal.SIGKILL)):
    """Ends one worker's process by a signal, unless a file says that this has been done."""
    mark = Path(path)
    if disco_server.current_worker().worker_id == worker_id and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), number)
        time.sleep(60)


class _Fading:
    """How data moves on a rank, one of whose operations has a rank that dies in its middle.

    The process of that rank becomes another program there: its memory and connections
    are gone, as those of a killed process, and only later it is killed. The other ranks
    come when that has begun, so they meet what is left of it.
    """

    def __init__(self, moves, mark, *, fades):
        self._moves, self._mark, self._fades = moves, mark, fades

    def __getattr__(self, name):
        operation = getattr(self._moves, name)

        def run(*given):
            if self._fades:
                mine = threading.get_ident()
                threading.Thread(target=self._fade, args=(mine,), daemon=True).start()
            else:
                while not self._mark.exists():
                    time.sleep(0.005)
            operation(*given)

        return run

    def _fade(self, moving):
        place = None
        while place is None or place != self._place(moving):  # it waits inside the library
            place = self._place(moving)
            time.sleep(0.05)
        program = (
            "import os, pathlib, signal, sys, time\n"
            "pathlib.Path(sys.argv[1]).touch()\n"
            "time.sleep(1)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        os.execv(sys.executable, [sys.executable, "-c", program, str(self._mark)])

    @staticmethod
    def _place(thread):
        """Where a thread is in the operation; None before that."""
        frame = current_frames()[thread]
        return None if frame.f_code.co_filename == __file__ else (id(frame), frame.f_lasti)


@disco_server.register_func("tests.fade_in_the_next_on")
def fade_in_the_next_on(worker_id, path):
    """Lets one worker die in the next large collective, unless a file says that one has."""
    worker, mark = disco_server.current_worker(), Path(path)
    if not mark.exists():
        group = worker.group
        group.backend = _Fading(group.backend, mark, fades=worker.worker_id == worker_id)


@disco_server.register_func("tests.misuse_mpi_on")
def misuse_mpi_on(worker_id):
    """Asks MPI on one worker for a rank that is not there."""
    if disco_server.current_worker().worker_id == worker_id:
        from mpi4py import MPI

        MPI.COMM_WORLD.Send([np.zeros(1), MPI.DOUBLE], 1000)


@disco_server.register_func("tests.fail_once_on")
def fail_once_on(worker_id, path):
    """Raises on one worker, unless a file says that this has been done."""
    mark = Path(path)
    if disco_server.current_worker().worker_id == worker_id and not mark.exists():
        mark.touch()
        msg = "told to fail once"
        raise ValueError(msg)


@disco_server.register_func("tests.note_in")
def note_in(path, text):
    """Adds a line to a file, from worker 0."""
    if disco_server.current_worker().worker_id == 0:
        with Path(path).open("a") as file:
            file.write(f"{text}\n")


@disco_server.register_func("tests.make_object")
def make_object():
    """An object that only the workers know."""
    return type("Cache", (), {})()


@disco_server.register_func("tests.make_adder")
def make_adder(array):
    """A function that adds an array, made of it."""
    held = np.array(array)
    return lambda other: held + other


@disco_server.register_class("tests.Learner")
class Learner:
    """An object that adds up, and says what it consists of."""

    def __init__(self, start, note):
        self.weight, self.total, self.other = np.full(2, start), 0.0, None
        if note is not None:
            with Path(note).open("a") as file:
                file.write("made\n")

    def step(self, by):
        """Adds to the weight, and to the total."""
        self.weight += by
        self.total += by
        return self.weight

    def spoil(self):
        """Makes it hold what cannot travel."""
        self.other = object()

    def __disco_state__(self):
        return {"weight": self.weight, "rest": [self.total, self.other]}

    def __disco_load__(self, state):
        self.weight, (self.total, self.other) = state["weight"], state["rest"]


@disco_server.register_class("tests.Bare")
class Bare:
    """An object that does not say what it consists of."""


@disco_server.register_class("tests.BareFunction")
class BareFunction(Bare):
    """One that can be called, too."""

    def __call__(self):
        return 1
