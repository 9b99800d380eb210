"""What handlers of a session's functions raise, at any bytecode of the guard between them."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

import pytest

from disco_server.observe.flight import SLOT_MASK
from disco_server.rank.signals import CallGuard, CommandInterrupted


@pytest.fixture
def guard(monkeypatch):
    """A guard whose handlers are installed by ``signal.signal``, as in a rank."""
    for name in ("signal", "getsignal"):
        monkeypatch.setattr(signal, name, getattr(signal, name))
    guard = CallGuard()
    guard.install()
    before = signal.getsignal(signal.SIGUSR1)

    def late(_number, _frame):
        raise TimeoutError("it is late")

    signal.signal(signal.SIGUSR1, late)
    yield guard
    signal.signal(signal.SIGUSR1, before)


def interrupted_at(number, function):
    """Calls a function and sends a signal at a bytecode; whether it has so many, and the error."""
    left, error = number, None

    def step(frame, event, _arg):
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return step

    # Python 3.12 traces bytecodes only if a frame wished it before tracing began.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(step)
    try:
        function()
    except TimeoutError as raised:
        error = raised
    finally:
        sys.settrace(None)
    return left <= 0, error


def test_a_handler_may_raise_at_any_bytecode_of_the_guard(guard, capsys):
    """It is raised in the call, once; and the next one, between calls, is logged."""

    def own_work():
        with guard:
            pass

    hit, number = True, 0
    while hit:
        number += 1
        guard.calling = True
        hit, error = interrupted_at(number, own_work)
        guard.calling = False
        assert (error is not None) is hit
        assert not capsys.readouterr().err
        signal.raise_signal(signal.SIGUSR1)
        assert "while the worker ran no call; it goes on" in capsys.readouterr().err
    assert number > 20


def look_for_raised():
    """The interpreter does where a loop goes back, and may forget it for a while."""
    for _ in range(10_000):
        pass


@pytest.mark.parametrize("place", range(12))
def test_a_call_may_end_wherever_another_thread_is_that_interrupts_it(place):
    """Nothing is raised after the call, though the interpreter may change threads at each place."""
    guard = CallGuard()
    begun, over, returned, gone_on = (threading.Event() for _ in range(4))
    guard.position, guard.cancelled = 1, [-1] * (SLOT_MASK + 1)
    late: list[BaseException] = []

    def call():
        begun.set()
        while not over.is_set():
            pass

    def rank():
        try:
            with contextlib.suppress(CommandInterrupted):
                guard.run(call)
            returned.set()
            look_for_raised()
            gone_on.wait()
            look_for_raised()
        except CommandInterrupted as error:
            late.append(error)

    left = place

    def change_threads(_frame, event, _arg):
        nonlocal left
        left -= event in ("call", "c_return")
        if left == -1:
            over.set()
            returned.wait()

    thread = threading.Thread(target=rank)
    thread.start()
    begun.wait()
    guard.cancelled[1] = 1
    sys.setprofile(change_threads)
    try:
        guard.interrupt_thread(thread.ident, 0, 0)
    finally:
        sys.setprofile(None)
    over.set()
    gone_on.set()
    thread.join()
    assert not late
