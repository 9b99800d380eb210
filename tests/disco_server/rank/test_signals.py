"""What handlers of a session's functions raise, at any bytecode of the guard between them."""

from __future__ import annotations

import signal
import sys

import pytest

from disco_server.rank.signals import CallGuard


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
