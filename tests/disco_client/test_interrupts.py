"""Ctrl-C at moments when it would tear something."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from disco_client.interrupts import HeldInterrupts


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    signal.sigtimedwait([], 0)  # any call lets Python look for signals


def test_an_interrupt_waits_for_the_end_of_the_work():
    """It is delivered then, by the handler of before."""
    steps = []

    def work():
        with HeldInterrupts():
            interrupt()
            steps.append("done")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["done"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_open_moment_lets_it_through():
    """Once; the next one finds the work closed again."""
    steps = []

    def work():
        with HeldInterrupts() as held:
            held.open = True
            try:
                interrupt()
                steps.append("not reached")
            finally:
                steps.append((held.delivered, held.open))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [(True, False)]


def test_a_handler_of_the_program_is_called_and_kept(monkeypatch):
    """Whatever it does."""
    calls = []
    before = signal.signal(signal.SIGINT, lambda *_: calls.append("called"))
    try:
        mine = signal.getsignal(signal.SIGINT)
        with HeldInterrupts():
            interrupt()
            assert calls == []
        assert calls == ["called"]
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_never_interrupted_anyway():
    """Nothing is changed for them."""
    seen = []

    def work():
        with HeldInterrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_handler_that_is_not_of_python_is_left_alone(monkeypatch):
    """As where another program embeds Python: it could not be put back, so it stays."""
    monkeypatch.setattr("_signal.getsignal", lambda _number: None)
    steps = []

    def work():
        with HeldInterrupts():
            interrupt()
            steps.append("not reached")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == []
