"""The core of a session, and the session that programs hold."""

from __future__ import annotations

import gc
import weakref

import pytest

from disco_client import ConfigError, Session, ThreadedSession
from disco_client.core import core_of
from disco_server import register_class, register_func


def test_a_reference_alone_keeps_its_session_open():
    """Whoever lets go of the session itself gets it back from any reference."""
    session = ThreadedSession(2)
    ref = session.get_global_func("builtins.abs")(-3)
    core, face = weakref.ref(core_of(session)), weakref.ref(session)
    assert ref.session is session
    del session
    gc.collect()
    assert ref.debug_get_from_remote(1) == 3
    assert ref.session is face()
    assert type(ref.session) is ThreadedSession
    ended = core_of(ref).log
    assert ended.closed is None
    # The last reference ends it at once: nothing of it is in a circle.
    gc.disable()
    try:
        del ref
        assert core() is None
        assert face() is None
    finally:
        gc.enable()
    assert "was shut down" in str(ended.closed)


def test_what_is_registered_is_given_by_its_name():
    """Instead of what workers cannot find; the error says that name."""

    @register_func("tests.given_itself", override=True)
    def given():
        pass

    kind = register_class("tests.GivenItself", override=True)(type("GivenItself", (), {}))
    with ThreadedSession(1) as session:
        for give, words in (
            (
                lambda: session.get_global_func(given),
                "a str, .* registered as 'tests.given_itself'",
            ),
            (lambda: session.call_packed(given), "registered as 'tests.given_itself'"),
            (
                lambda: session.get_global_func(len),
                "a str, got <built-in function len> of type .*method$",
            ),
        ):
            with pytest.raises(TypeError, match=words):
                give()
        # A class may be given, where workers find it by its module.
        with pytest.raises(ConfigError, match=r"registered as 'tests.GivenItself'"):
            session.create(kind)


def test_the_session_of_references_made_in_a_capture_is_one():
    """It is what records; it is a Session, and ending it ends the session itself."""
    with ThreadedSession(1) as session:
        with session.capture("step") as program:
            first, second = program.input("x"), program.input("y")
            inside = first.session
            assert inside is second.session
            assert inside is not session
            assert isinstance(inside, Session)
            assert repr(inside).startswith("<capture of program 'step' on <Session ")
            program.output(first)
        inside.shutdown()
        with pytest.raises(Exception, match="was shut down"):
            session.sync_all()


def test_one_is_not_several():
    """A session of one worker says so, in itself, in reports and in errors."""
    with ThreadedSession(1) as session:
        assert repr(session).endswith(": 1 worker on 1 node, open>")
        assert "in 1 group<" in session._repr_html_()
        assert "on each of 1 worker<" in session.get_global_func("builtins.abs")._repr_html_()
        assert ": 1 worker, " in str(session.diagnose())
        row = session.distribute([1.0, 2.0])
        for wrong, words in (
            (lambda: row[0, 0], "a tensor of 1 axis cannot"),
            (lambda: row.sum(axis=2), "a tensor of 1 axis has no axis 2"),
            (lambda: session.mesh((2,)), "the session has 1 worker$"),
            (lambda: ThreadedSession(1, 2), "divide the 1 worker evenly"),
        ):
            with pytest.raises(ConfigError, match=words):
                wrong()


def test_parts_of_a_session_are_made_once():
    """One engine for a session, whoever asks for it."""
    with ThreadedSession(1) as session:
        core = core_of(session)

        class Part:
            def __init__(self, of):
                self.of = of

        assert core.part(Part) is core.part(Part)
        assert core.part(Part).of is core
