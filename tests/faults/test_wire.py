"""What strangers, broken and malicious peers send: rows 15 to 19 of the matrix."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import connect, errors
from disco_client.pb import commands_pb2, controller_pb2, node_pb2
from disco_client.transport.channel import target
from disco_client.transport.grpc_options import SERVER_OPTIONS
from disco_client.wire.codec import (
    PROTOCOL,
    Action,
    EncodedValue,
    EnvelopeKind,
    decode_value,
    envelope,
    envelopes_in,
)

OPEN = "/disco.v1.SessionService/Open"
LIST = "/disco.v1.SessionService/List"
ENOUGH_S = 5.0
"""What is asked of a controller that others trouble; on an idle machine it is a few ms."""

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture
def channel(shared_node):
    """A bare channel to the controller."""
    with grpc.insecure_channel(target(shared_node.address), options=UNLIMITED) as raw:
        yield raw


@pytest.fixture(scope="module")
def one_session(shared_node):
    """A session that all tests of the file share, because none may harm it."""
    session = connect(shared_node.address, num_workers=1, logs=False)
    with session:
        session.import_python_module("disco_test_functions")
        yield session


@pytest.fixture
def others(one_session):
    """A session of somebody else, which has to work afterwards as before."""
    one_session.sync_all()
    yield one_session
    one_session.sync_all()


def serves(address):
    """Asks a controller for its lists, over a connection of its own; the seconds it took."""
    with grpc.insecure_channel(target(address), options=UNLIMITED) as raw:
        began = time.monotonic()
        raw.unary_unary(LIST)(b"", timeout=ENOUGH_S, wait_for_ready=True)
        return time.monotonic() - began


def refusal(call):
    """The status and the text with which a call ends."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    return raised.value.code(), raised.value.details()


def create(protocol=PROTOCOL, **fields):
    """An encoded request for a session."""
    wish = {"num_workers": 1, "num_groups": 1, "timeout_s": 10, "version": "0", **fields}
    message = controller_pb2.CreateSession(protocol=protocol, **wish)
    return envelope(EnvelopeKind.CREATE, message.SerializeToString())


# Row 15: too large -----------------------------------------------------------------------


def test_a_message_beyond_the_limit_ends_its_own_stream_only(channel, others):
    """Row 15: 65 MiB are refused as RESOURCE_EXHAUSTED, and the others go on."""
    code, text = refusal(channel.stream_stream(OPEN)(iter([bytes(65 << 20)])))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in text
    others.sync_all()


def test_metadata_beyond_the_limit_is_refused(channel, others):
    """Row 15: a header of 20 KB, as RESOURCE_EXHAUSTED."""
    call = channel.unary_unary(LIST)
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", metadata=[("x-large", "x" * 20_000)], timeout=10)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_an_error_text_of_a_megabyte_arrives_shortened(one_session):
    """Row 15: its beginning and its end are there, and the session works on."""
    session = one_session
    session.import_python_module("disco_test_functions")
    session.get_global_func("tests.raise_text")("huge")
    with pytest.raises(errors.RemoteException) as raised:
        session.sync_all()
    assert len(str(raised.value)) < 100_000
    assert "xxx" in str(raised.value)
    session.sync_all()


# Row 16: strangers -----------------------------------------------------------------------


@contextlib.contextmanager
def strangers(address, count, say=b""):
    """Bare connections that say something, perhaps, and then nothing."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection((host, int(port)), 5)))
            if say:
                opened[-1].sendall(say)
        yield opened


@pytest.mark.parametrize(
    "say",
    [
        b"",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(range(256)),
        b"GET / HTTP/1.1\r\nHost: disco\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200,
    ],
    ids=["silent", "tls", "http1", "half-a-preface", "garbage-frames"],
)
def test_strangers_keep_nobody_waiting(shared_node, others, say):
    """Row 16: 500 connections that say nothing, or nothing sensible; others are served."""
    with strangers(shared_node.address, 500, say):
        assert serves(shared_node.address) < ENOUGH_S
        others.sync_all()


def test_a_slow_stranger_keeps_nobody_waiting(shared_node, others):
    """Row 16: one that sends its request byte by byte is alone with that."""
    with strangers(shared_node.address, 1) as (slow,):
        for byte in b"PRI * HTTP/2.0\r\n":
            slow.sendall(bytes([byte]))
            assert serves(shared_node.address) < ENOUGH_S
    others.sync_all()


def closed_at_once(sock):
    """Whether the other end has closed a connection without a word."""
    sock.settimeout(ENOUGH_S)
    return sock.recv(1) == b""


def test_connections_beyond_the_cap_are_closed_at_once(daemons, eventually):
    """Row 16: those that were there first work on; when strangers leave there is room again."""
    controller = daemons.controller("--max-connections", "8")
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1, logs=False) as session:
        with strangers(controller.address, 20) as opened:
            assert all(closed_at_once(sock) for sock in opened[8:])
            with pytest.raises(errors.ConnectionFailed, match="no controller answers"):
                connect(controller.address, num_workers=1, timeout=0.5)
            session.sync_all()

        def room():
            with contextlib.suppress(grpc.RpcError):
                return serves(controller.address)

        eventually(room, what="room for a newcomer")


def test_sessions_beyond_the_cap_are_refused(daemons):
    """Row 16: with what to do; the one that is there works on."""
    controller = daemons.controller("--max-sessions", "1")
    daemons.worker(controller.address, "--slots", "2")
    with connect(controller.address, num_workers=1, logs=False) as session:
        with pytest.raises(errors.NoSlots, match=r"has 1 session,.*--max-sessions"):
            connect(controller.address, num_workers=1)
        session.sync_all()


@pytest.mark.parametrize("say", [b"", b"PRI * HT"], ids=["silent", "slow"])
def test_who_does_not_begin_to_speak_is_sent_away(say):
    """Row 16: after ten seconds, here a fraction of that; slow and silent ones alike."""
    name = "grpc.server_handshake_timeout_ms"
    assert dict(SERVER_OPTIONS)[name] == 10_000
    options = [(key, 200 if key == name else value) for key, value in SERVER_OPTIONS]
    server = grpc.server(futures.ThreadPoolExecutor(1), options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with strangers(f"127.0.0.1:{port}", 3, say) as opened:
            for sock in opened:
                sock.settimeout(ENOUGH_S)
                while sock.recv(1024):  # its settings come first
                    pass
    finally:
        server.stop(None)


# Row 17: malformed -----------------------------------------------------------------------


def test_what_is_no_message_is_refused_without_a_traceback(channel, others):
    """Row 17: INVALID_ARGUMENT in our words; an unknown method is UNIMPLEMENTED."""
    code, text = refusal(channel.stream_stream(OPEN)(iter([b"\xff\xff\xff"])))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "expected a disco.v1 message")
    code, _ = refusal(channel.stream_stream("/disco.v1.SessionService/Nothing")(iter([b""])))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert others is not None


@pytest.mark.parametrize(
    ("first", "kind", "words"),
    [
        (create(protocol=99), EnvelopeKind.REFUSED, ["speaks protocol", "protocol 99"]),
        (create(num_workers=0), EnvelopeKind.ENDED, ["num_workers from 1"]),
        (create(num_groups=7), EnvelopeKind.ENDED, ["num_groups to divide"]),
        (create(timeout_s=-1.0), EnvelopeKind.ENDED, ["a timeout from 0"]),
        (
            envelope(EnvelopeKind.BATCH),
            EnvelopeKind.ENDED,
            ["expected a request to create a session first"],
        ),
        (envelope(0), EnvelopeKind.ENDED, ["expected a request to create a session first"]),
        (envelope(EnvelopeKind.ATTACH), EnvelopeKind.REFUSED, ["speaks protocol"]),
    ],
    ids=["newer", "no-workers", "groups", "timeout", "batch-first", "empty", "empty-attach"],
)
def test_a_wrong_first_message_is_refused_with_its_reason(channel, others, first, kind, words):
    """Row 17: a newer protocol, a wish that makes no sense, another message."""
    call = channel.stream_stream(OPEN)(iter([first]))
    ((_, received),) = itertools.chain.from_iterable(map(envelopes_in, call))
    assert received.kind == kind
    message = node_pb2.Refused if kind is EnvelopeKind.REFUSED else controller_pb2.SessionEnded
    text = message.FromString(received.payload).message
    assert all(word in text for word in words), text
    assert others is not None


def talk(channel, make):
    """Opens a session by hand, and sends what a function makes of its id; yields what comes."""
    ready = threading.Event()
    session = []

    def say():
        yield create()
        if ready.wait(20):
            yield make(session[0])
        ready.clear()
        ready.wait(20)

    came = map(envelopes_in, channel.stream_stream(OPEN)(say()))
    for _, received in itertools.chain.from_iterable(came):
        if received.kind == EnvelopeKind.READY:
            session.append(received.session)
            ready.set()
        yield received
    ready.set()


def test_commands_for_another_session_are_refused(channel, others):
    """Row 17: who has a stream may not speak for the session of another one."""
    theirs = int(others.session_id, 16)

    def steal(_mine):
        return envelope(EnvelopeKind.BATCH, session=theirs, first_seq=1, last_seq=1)

    with pytest.raises(grpc.RpcError) as raised:
        list(talk(channel, steal))
    assert "of this stream's session" in raised.value.details()
    others.sync_all()


BROKEN_COLUMN = commands_pb2.Batch(calls=[0, 1, 1, 99, 4]).SerializeToString()


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", BROKEN_COLUMN], ids=["bytes", "column"])
def test_a_batch_that_cannot_be_read_ends_its_own_session(channel, others, payload):
    """Row 17: the worker says what it could not read; the node and its others live on."""

    def nonsense(session):
        return envelope(EnvelopeKind.BATCH, payload, session=session, first_seq=1, last_seq=1)

    *_, last = talk(channel, nonsense)
    assert last.kind == EnvelopeKind.ENDED
    ended = controller_pb2.SessionEnded.FromString(last.payload)
    assert ended.reason == controller_pb2.END_REASON_RANK_LOST
    assert re.search("EncodingError|DecodeError", "\n".join(ended.output))
    others.sync_all()


def test_an_unknown_action_is_an_error_of_its_command(one_session):
    """Row 17: as from a newer client; the session goes on."""
    session = one_session
    session._core.log.issue(Action.RUN_PROGRAM, reg=0)
    with pytest.raises(errors.RemoteError):
        session.sync_all()
    session._core.log.issue(77, reg=0)
    with pytest.raises(errors.BadArgument, match="an action this worker knows, got number 77"):
        session.sync_all()
    session.sync_all()


# Row 18: shapes --------------------------------------------------------------------------

DIMS = st.lists(st.integers(0, (1 << 63) - 1) | st.integers(0, 4), max_size=4)


@settings(max_examples=300)
@given(
    shape=DIMS,
    dtype=st.sampled_from(["float32", "int8", "object", "O", "V8", "U4", "nonsense", "", "m8[s]"]),
    data=st.binary(max_size=64),
)
def test_no_shape_makes_a_decoder_allocate(shape, dtype, data):
    """Row 18: overflowing or not of the data's size: refused, and typed."""
    value = EncodedValue()
    value.array.shape.extend(shape)
    value.array.dtype = dtype
    value.array.inline = data
    try:
        array = decode_value(value)
    except errors.DiscoError:
        return
    assert array.nbytes == len(data)
    assert list(array.shape) == shape


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1 << 40, 1 << 40), "float32"), ((2,), "object"), ((1 << 50,), "int8")],
    ids=["overflow", "object", "petabyte"],
)
def test_an_impossible_array_is_refused_on_the_worker_too(one_session, shape, dtype):
    """Row 18: whatever a client lets through; the session goes on, the worker too."""
    session = one_session

    def fill(command):
        command.args.add().shape.dims.extend(shape)
        command.args.add().dtype = dtype
        command.args.add().none.SetInParent()
        return 0

    empty = session.get_global_func("runtime.disco.empty")
    session._core.log.issue(Action.CALL_PACKED, fill, func=empty.reg_id, reg=int)
    with pytest.raises(errors.RemoteError):
        session.sync_all()
    session.sync_all()


def test_an_upload_of_another_size_is_refused(one_session):
    """Row 18: what comes for a command is not what the command says."""
    session = one_session

    def fill(command):
        array = command.args.add().array
        array.shape.extend([1000, 1000])
        array.dtype = "float64"
        array.ticket = session._core.take_ticket()
        command.args.add().bool = True
        ticket.append(array.ticket)
        return 0

    ticket = []
    session._core.log.issue(Action.COPY_TO_WORKER0, fill, reg=int, workers=(0,))
    session._core.transport.upload(ticket[0], 0, memoryview(np.zeros(16).view("u1")))
    with pytest.raises(errors.RemoteError, match="expected 8000000 bytes"):
        session.sync_all()
    session.sync_all()


# Row 19: allow-lists ----------------------------------------------------------------------

CANARY = "import pathlib, sys\npathlib.Path(__file__).with_suffix('.sang').touch()\n"


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.exec",
        "subprocess.Popen",
        "numpy.__loader__.get_code",
        "pickle.loads",
    ],
)
def test_a_function_outside_the_allow_list_is_refused(one_session, name):
    """Row 19: NotAllowed, or not found where it hides behind underscores; nothing ran."""
    session = one_session
    with pytest.raises((errors.NotAllowed, errors.FunctionNotFound)):
        session.get_global_func(name).debug_get_from_remote(0)
    session.sync_all()


def test_a_module_outside_the_allow_list_is_not_even_imported(daemons, tmp_path):
    """Row 19: the import itself would run its code; the canary does not sing."""
    (tmp_path / "disco_canary.py").write_text(CANARY)
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1", PYTHONPATH=str(tmp_path))
    with connect(controller.address, num_workers=1, logs=False) as session:
        session.import_python_module("disco_canary")
        with pytest.raises(errors.NotAllowed, match="disco_canary"):
            session.sync_all()
        with pytest.raises(errors.FunctionNotFound, match="'disco_canary' is not on this worker's"):
            session.get_global_func("disco_canary.anything").debug_get_from_remote(0)
    assert not (tmp_path / "disco_canary.sang").exists()
    # It would sing where it is allowed.
    subprocess.run([sys.executable, str(tmp_path / "disco_canary.py")], check=True)
    assert (tmp_path / "disco_canary.sang").exists()


def test_pickled_bytes_stay_bytes(one_session):
    """Row 19: nothing on the wire is executable; what looks like a pickle arrives as it is."""
    pickled = b"cos\nsystem\n(S'touch /tmp/disco-pickle'\ntR."
    session = one_session
    session.import_python_module("disco_test_functions")
    echoed = session.get_global_func("tests.echo")(pickled)
    assert echoed.debug_get_from_remote(0) == pickled
