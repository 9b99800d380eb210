"""The port for frames of a guarded controller: as closed as its other one."""

from __future__ import annotations

import socket
import ssl

import grpc
import pytest

import disco_client
from disco_client.pb import controller_pb2
from disco_client.transport import carriers
from disco_client.transport.carriers import permit_request
from disco_client.transport.channel import target
from disco_client.transport.credentials import Credentials
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope, envelopes_in
from disco_client.wire.framing import FrameCutter, frame

ADMIT = "/disco.v1.{}/Admit"
LIMIT_S = 20.0


@pytest.fixture(scope="module")
def carrier():
    """Frames alone: these tests are about their port."""
    return "frames"


@pytest.fixture(scope="module")
def controller(shared_daemons, pki):
    """A controller that asks for certificates, with a node of two slots."""
    started = shared_daemons.controller(
        *pki.flags("controller"), "--require-client-cert", "--audit-log", "audit"
    )
    shared_daemons.worker(started.address, "--slots", "2", *pki.flags("worker"))
    return started


def refused(controller):
    """What the audit log says of refusals at the port for frames."""
    lines = (controller.folder / "audit").read_text().splitlines()
    return [line for line in lines if '"what": "frames"' in line or '"what":"frames"' in line]


def admitted(controller, pki, first, who="client", service="SessionService"):
    """The secret of one connection."""
    secrets = Credentials.read(**pki.files(who)).secrets()
    with grpc.secure_channel(target(controller.address), secrets) as channel:
        raw = channel.unary_unary(ADMIT.format(service))(
            permit_request(first).SerializeToString(), timeout=LIMIT_S
        )
    return controller_pb2.Permit.FromString(raw).secret


def test_all_that_comes_at_once_is_read(controller, pki):
    """More than a record of TLS holds, which no poll of the socket tells of."""
    with disco_client.connect(controller.address, num_workers=2, **pki.files("client")) as session:
        assert session._core.transport.carrier == "frames"
        full = session.get_global_func("numpy.full")
        full((1,), 0).numpy()  # from now on this thread reads
        asked = [full((1500,), float(number)).future() for number in range(100)]
        for number, answer in enumerate(asked):
            assert answer.result()[-1] == number


def encrypted(controller, pki, who="client"):
    """A connection to the port for frames."""
    context = Credentials.read(**pki.files(who)).context()
    raw = socket.create_connection(("127.0.0.1", controller.frames), LIMIT_S)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


def answer(sock, count=1):
    """So many messages that come, or as many as there are until the end."""
    cutter, came = FrameCutter(), []
    while len(came) < count:
        try:
            data = sock.recv(1 << 16)
        except ConnectionResetError:
            break
        if not data:
            break
        came += [raw for raw in cutter.feed(data) if raw]
    return came


def create(name):
    wish = controller_pb2.CreateSession(
        protocol=PROTOCOL, num_workers=1, num_groups=1, timeout_s=10, name=name
    )
    return envelope(EnvelopeKind.CREATE, wish.SerializeToString())


def test_sessions_and_nodes_of_a_guarded_cluster_use_it(controller, pki, connect):
    """Over mutual TLS, and the session's owner is the one of the certificate."""
    session = connect(controller.address, **pki.files("client"))
    session.sync_all()
    assert session._core.transport.carrier == "frames"


def test_a_secret_opens_what_its_owner_asked_for(controller, pki):
    """By hand: one connection, one session."""
    first = create("by-hand")
    secret = admitted(controller, pki, first)
    with encrypted(controller, pki) as sock:
        sock.sendall(frame(secret))
        assert sock.recv(4) == frame(b"")
        sock.sendall(frame(first))
        (raw,) = answer(sock)
        ((_, received),) = envelopes_in(raw)
        assert received.kind == EnvelopeKind.READY


def test_a_stolen_secret_is_worth_nothing(controller, pki):
    """Used once it is gone; before that it opens what its owner asked for, and nothing else."""
    before = len(refused(controller))
    mine, theirs = create("mine"), create("theirs")
    secret = admitted(controller, pki, mine, "client-alice")
    with encrypted(controller, pki, "client-bob") as sock:
        sock.sendall(frame(secret))
        assert sock.recv(4) == frame(b"")
        sock.sendall(frame(theirs))
        assert answer(sock) == []
    with encrypted(controller, pki, "client-bob") as sock:
        sock.sendall(frame(secret) + frame(mine))
        assert answer(sock) == []
    said = refused(controller)[before:]
    assert len(said) == 2
    assert "not the one that it was admitted for" in said[0]
    assert "client alice" in said[0]
    assert "unknown, used or too old" in said[1]
    assert secret.hex() not in controller.stderr + "".join(said)


def test_who_may_not_open_a_stream_gets_no_secret_for_it(controller, pki):
    """The roles are those of the streams."""
    for who, service in (
        ("worker", "SessionService"),
        ("observer", "SessionService"),
        ("client", "NodeService"),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            admitted(controller, pki, b"x", who, service)
        assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("who", ["nobody", "stranger", "plain"])
def test_who_shows_no_good_certificate_is_not_listened_to(controller, pki, evil, who):
    """The handshake is the one of the other port, whatever secret would follow."""
    secret = admitted(controller, pki, create("x"))
    raw = socket.create_connection(("127.0.0.1", controller.frames), LIMIT_S)
    raw.settimeout(LIMIT_S)
    with raw:
        if who == "plain":
            raw.sendall(frame(secret))
            assert raw.recv(1) in (b"", b"\x15")  # an alert of TLS
            return
        context = ssl.create_default_context(cafile=str(pki.ca))
        if who == "stranger":
            files = evil.files("client")
            context.load_cert_chain(files["tls_cert"], files["tls_key"])
        with pytest.raises(OSError, match=r"alert|reset|closed"):
            speak(context, raw, secret)


def speak(context, raw, secret):
    """Shows a secret over TLS, and waits for an answer; raises what the connection does."""
    with context.wrap_socket(raw, server_hostname="127.0.0.1") as sock:
        sock.sendall(frame(secret))
        if not sock.recv(1):
            msg = "closed"
            raise ConnectionResetError(msg)


def test_a_client_gives_its_secret_to_the_right_controller_alone(
    daemons, pki, evil, connect, monkeypatch
):
    """Whoever answers at the port without its certificate gets none, and gRPC serves."""
    controller = daemons.controller("--frames", "off", *pki.flags("controller"))
    daemons.worker(controller.address, "--slots", "1", *pki.flags("worker"))
    other = daemons.controller(*evil.flags("controller"))
    given = []
    told = controller_pb2.Permit(secret=b"x" * 40, port=other.frames)
    monkeypatch.setattr(carriers, "ask", lambda *_, **__: told)
    monkeypatch.setattr(carriers._TlsLink, "send", lambda _self, data: given.append(data))
    session = connect(controller.address, **pki.files("client"))
    session.sync_all()
    assert session._core.transport.carrier == "grpc"
    assert given == []


def test_a_session_of_another_owner_is_denied_in_the_same_words(controller, pki, connect):
    """Whatever carries the stream: attaching to it is an error of its own kind."""
    session = connect(controller.address, name="hers", **pki.files("client-alice"))
    session.detach()
    with pytest.raises(disco_client.errors.AccessDenied, match="belongs to another owner"):
        disco_client.attach("hers", address=controller.address, **pki.files("client-bob"))
    disco_client.attach("hers", address=controller.address, **pki.files("client-alice")).shutdown()
