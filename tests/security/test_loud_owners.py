"""Owners that take much of a daemon: each has its share, and a quiet owner is served beside it."""

from __future__ import annotations

import collections
import contextlib
import http.client
import os
import queue
import re
import signal
import socket
import threading

import grpc
import psutil
import pytest

from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.admin import ask_for_inspection
from disco_client.transport.channel import ReloadingChannel, target
from disco_client.transport.credentials import Credentials
from disco_client.transport.grpc_options import CHANNEL_OPTIONS
from disco_client.transport.sent_log import SentLog
from disco_client.wire.codec import (
    PROTOCOL,
    Action,
    EncodedBatch,
    EncodedCommand,
    EnvelopeKind,
    envelope,
    envelopes_in,
)

MIB = 1 << 20


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


class CarelessClient:
    """A session whose client sends what it likes and need not read.

    Args:
        daemon: The controller.
        token: Of its owner.
        num_workers: How many workers the session has.
    """

    def __init__(self, daemon, token, num_workers=1):
        self._sent = queue.SimpleQueue()
        self._came = collections.deque()
        self._channel = grpc.insecure_channel(target(daemon.address), CHANNEL_OPTIONS)
        bearer = [("authorization", f"Bearer {token}")]
        opened = self._channel.stream_stream("/disco.v1.SessionService/Open")
        self._call = opened(iter(self._sent.get, None), metadata=bearer)
        wish = controller_pb2.CreateSession(
            protocol=PROTOCOL, num_workers=num_workers, num_groups=1, timeout_s=20
        )
        self.say(EnvelopeKind.CREATE, wish.SerializeToString())
        payload = self.await_kind(EnvelopeKind.READY).payload
        self.ready = controller_pb2.SessionReady.FromString(payload)
        self.pid = self.ready.ranks[0].pid
        self.issued = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._sent.put(None)
        self._call.cancel()
        self._channel.close()

    def say(self, kind, payload=b"", **fields):
        self._sent.put(envelope(kind, payload, **fields))

    def issue(self, count=1, nbytes=0, action=Action.KILL_REG, reg=0):
        """Sends a batch of commands, which are all alike."""
        command = EncodedCommand(action=int(action), reg=reg)
        if nbytes:
            command.args.add().bytes = bytes(nbytes)
        payload = EncodedBatch(commands=[command] * count).SerializeToString()
        self.send(self.issued + 1, self.issued + count, payload)

    def send(self, first, last, payload):
        self.issued = last
        session = self.ready.session
        self.say(EnvelopeKind.BATCH, payload, session=session, first_seq=first, last_seq=last)

    def await_kind(self, wanted):
        """Reads until there is an envelope of this kind."""
        while True:
            while self._came:
                if (received := self._came.popleft()).kind == wanted:
                    return received
            self._came.extend(received for _, received in envelopes_in(next(self._call)))

    def await_end(self):
        """Why the session ended."""
        payload = self.await_kind(EnvelopeKind.ENDED).payload
        return controller_pb2.SessionEnded.FromString(payload)

    def read_replies(self, count):
        """The numbers and the sizes of so many replies of each worker."""
        numbers = {rank.worker: [] for rank in self.ready.ranks}
        nbytes = 0
        while any(len(each) < count for each in numbers.values()):
            received = self.await_kind(EnvelopeKind.REPLY)
            numbers[received.worker_plus_one - 1].append(received.first_seq)
            nbytes += len(received.payload)
        return {worker: each[:count] for worker, each in numbers.items()}, nbytes

    def await_command(self, seq):
        """Reads until the rank is done with a command."""
        while self.await_kind(EnvelopeKind.REPLY).last_seq < seq:
            pass


@pytest.fixture
def careless(controller, tokens):
    """A client of the loud owner whose rank stands still."""
    with CarelessClient(controller, tokens.tokens["alice"]) as client:
        os.kill(client.pid, signal.SIGSTOP)
        yield client
        with contextlib.suppress(ProcessLookupError):
            os.kill(client.pid, signal.SIGCONT)


@contextlib.contextmanager
def served(session):
    """The session of another owner, before and after what a test does."""
    add = session.get_global_func("numpy.add")
    assert add(2, 3).debug_get_from_remote(0) == 5
    yield session
    assert add(3, 4).debug_get_from_remote(0) == 7


@pytest.fixture
def quiet(controller, connect, tokens):
    """The session of another owner on the same node, and it is served."""
    with served(connect(controller.address, token_file=tokens.of("bob"))) as session:
        yield session


def test_a_client_that_ignores_its_window_of_commands_loses_its_session(careless, quiet):
    """At one and a half of it; the reason says how many there were and what the window is."""
    for _ in range(100):
        careless.issue(2048)
    ended = careless.await_end()
    assert ended.reason == controller_pb2.END_REASON_WINDOW
    assert "100,352 commands of" in ended.message
    assert "window of 65,536 commands and 32 MiB" in ended.message
    assert quiet.get_global_func("numpy.add")(1, 1).debug_get_from_remote(0) == 2


def test_a_client_that_ignores_its_window_of_bytes_does_not_grow_a_daemon(daemons, careless, quiet):
    """200 MiB in commands: controller and worker daemon hold less than half of that."""
    processes = [psutil.Process(daemon.process.pid) for daemon in daemons.started]
    before = [process.memory_info().rss for process in processes]
    for _ in range(29):
        careless.issue(nbytes=7 * MIB)
    ended = careless.await_end()
    assert ended.reason == controller_pb2.END_REASON_WINDOW
    assert "7 commands of 49 MiB under way" in ended.message
    grown = [p.memory_info().rss - rss for p, rss in zip(processes, before, strict=True)]
    assert max(grown) < 100 * MIB


def test_a_batch_that_is_sent_again_counts_once_in_the_window(careless, quiet):
    """140 MiB, of which the node takes 7: the session goes on."""
    careless.issue(nbytes=7 * MIB)
    batch = EncodedBatch(commands=[EncodedCommand(action=int(Action.KILL_REG))])
    for _ in range(19):
        careless.send(1, 1, bytes(7 * MIB))
    careless.send(2, 2, batch.SerializeToString())
    os.kill(careless.pid, signal.SIGCONT)
    careless.issue(action=Action.SYNC_WORKER)
    careless.await_command(3)


def test_a_client_of_disco_waits_at_the_window_that_the_daemons_choose(
    daemons, connect, tokens, quiet
):
    """That of the node, where that is less than the controller's; nothing is ended or lost."""
    options = ("--auth-token-file", tokens.path)
    controller = daemons.controller(*options, "--window", "8192")
    own = ("--slots", "1", "--auth-token-file", tokens.of("pool"), "--window", "4096")
    daemons.worker(controller.address, *own, "--allow-module", "*")
    session = connect(controller.address, token_file=tokens.of("alice"))
    session.import_python_module("disco_test_functions")
    count = session.get_global_func("tests.count")
    session.sync_all()
    pid = session._core.transport.welcome.ranks[0].pid
    os.kill(pid, signal.SIGSTOP)
    log = session._core.log
    start = log.acked

    def issue():
        for _ in range(20_000):
            count()

    thread = threading.Thread(target=issue)
    thread.start()
    try:
        while not log.is_full():
            thread.join(0.01)
        assert log.acked == start
        assert 4096 <= log.last_seq - start < 4196  # what frees registers does not wait
    finally:
        os.kill(pid, signal.SIGCONT)
        thread.join()
    assert count().debug_get_from_remote(0) == 20_001


def test_a_client_of_disco_keeps_to_the_window_of_bytes_with_the_largest_commands(
    controller, connect, tokens
):
    """Five of them, of 30 MiB each, while its rank stands still: they come one after the other."""
    session = connect(controller.address, token_file=tokens.of("alice"))
    length = session.get_global_func("numpy.size")
    session.sync_all()
    pid = session._core.transport.welcome.ranks[0].pid
    os.kill(pid, signal.SIGSTOP)
    values = []

    def issue():
        values.extend(length(bytes(30 * MIB)) for _ in range(5))

    thread = threading.Thread(target=issue)
    thread.start()
    try:
        while len(values) < 1:
            thread.join(0.01)
        thread.join(0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    thread.join()
    assert [value.debug_get_from_remote(0) for value in values] == [1] * 5


@pytest.mark.timeout(180)
def test_a_program_learns_that_its_client_ignored_the_window(
    controller, connect, tokens, monkeypatch, quiet
):
    """By an error of its own, in words, from whichever call is next."""
    monkeypatch.setattr(SentLog, "_fits", lambda _log, _batch: True)
    session = connect(controller.address, token_file=tokens.of("alice"))
    session._core.log.window.commands = 1 << 30
    add = session.get_global_func("numpy.add")
    session.sync_all()
    os.kill(session._core.transport.welcome.ranks[0].pid, signal.SIGSTOP)

    def issue():
        for _ in range(200_000):
            add(2, 3)
        session.sync_all()

    with pytest.raises(errors.WindowExceeded, match=r"window of 65,536 commands.*has to wait"):
        issue()


@pytest.fixture
def wide(daemons, tokens):
    """A controller with four nodes for one session, and one for somebody else."""
    started = daemons.controller("--auth-token-file", tokens.path)
    for at in range(5):
        own = ("--slots", "1", "--name", f"n{at}", "--auth-token-file", tokens.of("pool"))
        daemons.worker(started.address, *own)
    return started


def test_replies_that_a_client_does_not_read_are_bounded_for_all_nodes_together(
    wide, connect, tokens, eventually
):
    """Of 200 MiB from four nodes 64 wait in the controller; read late, none of them is missing."""
    process = psutil.Process(wide.process.pid)
    with (
        served(connect(wide.address, token_file=tokens.of("bob"))) as quiet,
        CarelessClient(wide, tokens.tokens["alice"], num_workers=4) as client,
    ):
        before = process.memory_info().rss
        client.issue(nbytes=MIB, action=Action.DEBUG_SET_REGISTER, reg=2)
        client.issue(50, action=Action.DEBUG_GET_FROM_REMOTE, reg=2)
        line = ReloadingChannel(wide.address, Credentials.read(token_file=tokens.of("alice")))
        session = f"{client.ready.session:016x}"

        def answered():
            found = ask_for_inspection(line, session, stacks=False, flights=False)
            return [rank.finished and rank.finished.seq for rank in found.ranks] == [51] * 4

        eventually(answered, 60.0, "all answers")
        line.close()
        assert quiet.get_global_func("numpy.add")(1, 1).debug_get_from_remote(0) == 2
        assert process.memory_info().rss - before < 130 * MIB
        numbers, nbytes = client.read_replies(51)
        assert numbers == {worker: list(range(1, 52)) for worker in range(4)}
        assert nbytes > 195 * MIB
