"""Owners that take much of a daemon: each has its share, and a quiet owner is served beside it."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket

import pytest

from disco_client import errors


@pytest.fixture(scope="module")
def carrier():
    """Frames, where a test says nothing else: these tests are about what is counted."""
    return "frames"


@pytest.fixture
def controller(daemons, tokens):
    """One that asks for tokens and has a dashboard, and a node with a small cache of modules."""
    started = daemons.controller("--auth-token-file", tokens.path, "--http", "127.0.0.1:0")
    daemons.worker(
        started.address,
        *("--slots", "3", "--auth-token-file", tokens.of("pool"), "--allow-module", "*"),
        *("--allow-load", "uploads", "--module-cache", "cache", "--module-cache-mib", "1"),
    )
    return started


class UnreadAnswers:
    """Asks a dashboard, and reads no more than the heads of its answers.

    Args:
        daemon: The controller.
        token: Of who asks.
    """

    def __init__(self, daemon, token):
        found = re.search(r"the dashboard at http://([\d.]+):(\d+)/", daemon.stderr)
        self._where = found[1], int(found[2])
        self._headers = {"Authorization": f"Bearer {token}"}
        self._open = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._open.close()

    def ask(self, path):
        """The answer, whose body is on its way as far as a small buffer takes it."""
        asked = http.client.HTTPConnection(*self._where)
        asked.sock = socket.socket()
        asked.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asked.sock.settimeout(20)
        asked.sock.connect(self._where)
        self._open.callback(asked.close)
        asked.request("GET", path, headers={**self._headers, "Connection": "close"})
        return asked.getresponse()  # closing it closes the connection

    def status(self, path):
        """The status of an answer that is left as soon as it has begun."""
        with contextlib.closing(self.ask(path)) as answer:
            return answer.status


@pytest.fixture
def viewer(controller, tokens):
    """Asks the dashboard in the name of an owner."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(UnreadAnswers(controller, tokens.tokens[name]))


def test_an_owner_reads_32_streams_and_others_theirs(viewer, eventually):
    """The 33rd is refused in words; other owners look on, and who leaves makes room."""
    alice, bob, eye = (viewer(name) for name in ("alice", "bob", "eye"))
    opened = [alice.ask("/events") for _ in range(32)]
    assert {answer.status for answer in opened} == {200}
    refused = alice.ask("/events")
    assert refused.status == 429
    assert b"32 streams of yours are read already" in refused.read()
    assert bob.status("/events") == eye.status("/events") == 200
    opened[0].close()
    eventually(lambda: alice.status("/events") == 200, what="room")


def test_an_owner_leaves_eight_files_unread_and_others_get_theirs(
    controller, connect, viewer, tokens, eventually
):
    """The ninth is refused in words until one of them has been read; it then is all there."""
    session = connect(controller.address, token_file=tokens.of("alice"))
    session.import_python_module("disco_test_functions")
    session.get_global_func("tests.say")("\n".join(["x" * 1000] * 900))
    session.sync_all()
    quiet = connect(controller.address, token_file=tokens.of("bob"))
    quiet.sync_all()
    alice, bob = viewer("alice"), viewer("bob")
    path = f"/logs?session={session.name}"
    eventually(lambda: alice.ask(path).read().count(b"x" * 1000) == 900, what="what was printed")
    opened = [alice.ask(path) for _ in range(8)]
    assert {answer.status for answer in opened} == {200}
    refused = alice.ask(path)
    assert refused.status == 429
    assert b"8 files of yours are on their way" in refused.read()
    assert bob.status(f"/logs?session={quiet.name}") == 200
    assert opened[0].read().count(b"x" * 1000) == 900
    eventually(lambda: alice.status(path) == 200, what="room")


def test_an_owner_s_modules_pin_half_of_the_cache_and_others_bring_theirs(
    controller, connect, tokens, tmp_path, eventually
):
    """What its sessions use counts together; the error says what to do, and they work on."""

    def file(name, kib):
        path = tmp_path / f"{name}.py"
        path.write_text(f"def f(): return {kib}\n#{name}" + "x" * (kib << 10))
        return path

    def used(session, path):
        return session.load_vm_module(path)["f"]().debug_get_from_remote(0)

    loud = [connect(controller.address, token_file=tokens.of("alice")) for _ in range(2)]
    assert used(loud[0], file("first", 200)) == used(loud[1], file("second", 200)) == 200
    for session in loud:
        with pytest.raises(errors.BadFile, match=r"an owner's sessions may use .* end some of"):
            session.load_vm_module(file("third", 200))
        session.sync_all()
    quiet = connect(controller.address, token_file=tokens.of("bob"))
    assert used(quiet, file("fourth", 500)) == 500
    loud[0].shutdown()
    third = file("third", 200)

    def room():
        with contextlib.suppress(errors.BadFile):
            return used(loud[1], third) == 200

    eventually(room, what="the other session's end")
