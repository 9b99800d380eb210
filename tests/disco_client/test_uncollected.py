"""What finalizers come in between of: looks at all threads, and variables of the context."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from disco_client.uncollected import frames_of

PROGRAM = """
import gc, sys, threading, time, weakref
from disco_client.uncollected import current_frames, frames_of

class Node:
    pass

def called_for_the_dead(_):
    for _ in range(50):
        pass  # long enough to give way to another thread

def leave_garbage():
    node = Node()
    node.itself = node
    references.append(weakref.ref(node, called_for_the_dead))
    if len(references) > 200:
        references.clear()

def look():
    while time.monotonic() < end:
        leave_garbage()
        assert threading.get_ident() in current_frames()
        assert look.__code__ in [each.f_code for each in frames_of(threading.get_ident())]

def start_others():
    while time.monotonic() < end:
        other = threading.Thread(target=int)
        other.start()
        other.join()

references = []
sys.setswitchinterval(1e-6)
gc.set_threshold(1, 1, 1)
if sys.argv[1] == "off":
    gc.disable()
end = time.monotonic() + 1
threads = [threading.Thread(target=each) for each in (look, look, start_others, start_others)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print("on" if gc.isenabled() else "off")
"""


SETTING = """
import faulthandler, gc, sys, time
import numpy as np
import disco_client

class Garbage:
    def __init__(self):
        self.itself = self

    def __del__(self):
        if time.monotonic() < end:
            with session.scope():
                pass
            Garbage()

faulthandler.enable()
session = disco_client.ThreadedSession(1)
others = [contextvars.ContextVar(f"{n}") for n in range(40)]
for other in others:
    other.set(None)
gc.collect()
gc.freeze()
end = time.monotonic() + 3
gc.set_threshold(1)
Garbage()
while time.monotonic() < end:
    for other in others:
        with np.errstate(all="ignore"):
            other.reset(other.set([]))
gc.set_threshold(700)
session.shutdown()
print("lives")
"""


def test_finalizers_may_have_scopes_while_a_variable_of_the_context_is_set():
    """Which any program does, and numpy; Python 3.11 collects garbage in the middle of that."""
    done = subprocess.run(
        [sys.executable, "-c", "import contextvars" + SETTING],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "lives"), done.stderr[-2000:]


@pytest.mark.parametrize("collects", ["on", "off"])
def test_threads_start_while_others_look_where_all_are(collects):
    """Also where garbage is collected at every step, which the program may have switched off."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, collects],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == collects


def test_the_frames_of_a_thread_are_its_calls():
    """The innermost first, for another thread as for this one; of a thread that is over, none."""
    begun, over = threading.Event(), threading.Event()

    def outer():
        inner()

    def inner():
        begun.set()
        over.wait(20)

    other = threading.Thread(target=outer)
    other.start()
    begun.wait(20)
    found = [frame.f_code for frame in frames_of(other.ident)]
    assert found.index(inner.__code__) + 1 == found.index(outer.__code__)
    over.set()
    other.join()
    assert frames_of(other.ident) == []
    mine, frame = frames_of(threading.get_ident()), sys._getframe()
    for each in mine[mine.index(frame) :]:
        assert each is frame
        frame = frame.f_back
    assert frame is None
