"""Those who are let in and misbehave, over mutual TLS: refused, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import ssl

import grpc
import numpy as np
import pytest

import disco_client
from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.admin import ask_for_sessions
from disco_client.transport.channel import ReloadingChannel, target
from disco_client.transport.credentials import Credentials
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope

OPEN = "/disco.v1.SessionService/Open"
WISH = controller_pb2.CreateSession(protocol=PROTOCOL, num_workers=1, num_groups=1, timeout_s=10)
CREATE = envelope(EnvelopeKind.CREATE, WISH.SerializeToString())


@pytest.fixture(scope="module")
def controller(shared_daemons, pki):
    """A controller that asks for certificates, and takes three sessions of a client."""
    started = shared_daemons.controller(
        *pki.flags("controller"), "--require-client-cert", "--max-client-sessions", "3"
    )
    shared_daemons.worker(
        started.address,
        *("--slots", "4", "--max-array-mib", "1"),
        *pki.flags("worker"),
    )
    return started


@pytest.fixture(scope="module")
def bystander(controller, pki):
    """Somebody else's session."""
    with disco_client.connect(
        controller.address, num_workers=1, timeout=30, logs=False, **pki.files("client-bob")
    ) as session:
        yield session


@pytest.fixture(autouse=True)
def nobody_notices(controller, bystander):
    """After each test the daemon is the same process, and the other session works."""
    yield
    assert bystander.get_global_func("numpy.add")(2, 3).debug_get_from_remote(0) == 5
    assert controller.process.poll() is None
    assert "handler failed" not in controller.stderr


@pytest.fixture
def channel(controller, pki):
    """The connection of a client with a certificate, to send what no client would."""
    secrets = Credentials.read(**pki.files("client-alice")).secrets()
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(target(controller.address), secrets, options) as made:
        yield made


def outcome(channel, messages):
    """The status and the words with which the stream of a session ends."""
    with pytest.raises(grpc.RpcError) as failed:
        list(channel.stream_stream(OPEN)(iter(messages), timeout=30))
    return failed.value.code(), failed.value.details()


@pytest.mark.parametrize(
    "messages",
    [[b"\xff\xff\xff"], [CREATE[:-3]], [b"GET / HTTP/1.1\r\n\r\n"], [CREATE, b"\xff\xff\xff"]],
    ids=["no-message", "truncated", "another-protocol", "in-a-session"],
)
def test_malformed_and_truncated_messages_get_a_status(channel, messages):
    """INVALID_ARGUMENT in our own words, also where a session had begun well."""
    expected = grpc.StatusCode.INVALID_ARGUMENT, "expected a disco.v1 message"
    assert outcome(channel, messages) == expected


def test_an_oversized_message_is_refused(channel):
    """65 MiB where 64 are taken, before anybody decodes them."""
    code, words = outcome(channel, [bytes(65 << 20)])
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in words


def test_an_oversized_array_is_refused(controller, pki, connect):
    """With the limit and its setting, and the session works on."""
    session = connect(controller.address, **pki.files("client-alice"))
    with pytest.raises((errors.DiscoError, OSError), match="--max-array-mib"):
        session.copy_to_worker_0(np.ones((1 << 17) + 1))
    with pytest.raises(errors.RemoteException, match="--max-array-mib"):
        session.sync_all()  # what waited for it on the worker failed too
    assert session.copy_to_worker_0(np.ones(1 << 10)).numpy().sum() == 1 << 10


def test_a_client_does_not_flood_the_controller_with_sessions(
    controller, bystander, pki, connect, eventually
):
    """The fourth of one certificate is refused with what to do; another's is not."""
    alice = pki.files("client-alice")
    line = ReloadingChannel(controller.address, Credentials.read(**alice))
    eventually(  # sessions of other tests may still be ending
        lambda: [name for _, name in ask_for_sessions(line)] == [bystander.name]
    )
    line.close()
    for _ in range(3):
        connect(controller.address, **alice)
    with pytest.raises(errors.NoSlots, match=r"has 3 sessions.*--max-client-sessions"):
        connect(controller.address, **alice)
    with pytest.raises(errors.NoSlots, match="4 slots on 1 node"):  # it may wait for one
        connect(controller.address, timeout=2.0, **pki.files("client"))


def test_a_flood_of_messages_ends_its_own_stream_alone(channel):
    """Ten thousand that belong to no session: the first is answered, and that is the end."""
    flood = iter([envelope(EnvelopeKind.BATCH)] * 10_000)
    (answer,) = channel.stream_stream(OPEN)(flood, timeout=30)
    assert b"expected a request to create a session first" in answer


def test_a_flood_of_strangers_keeps_nobody_waiting(controller, pki, connect):
    """Two hundred without a certificate: silent ones, and ones that begin to shake hands."""
    host, _, port = controller.address.rpartition(":")
    context = ssl.create_default_context(cafile=str(pki.ca))
    with contextlib.ExitStack() as stack:
        for number in range(200):
            opened = stack.enter_context(socket.create_connection((host, int(port)), 10))
            if number % 2:
                half = context.wrap_bio(
                    ssl.MemoryBIO(), hello := ssl.MemoryBIO(), server_hostname=host
                )
                with contextlib.suppress(ssl.SSLWantReadError):
                    half.do_handshake()
                opened.sendall(hello.read())
        connect(controller.address, **pki.files("client-alice")).sync_all()
