"""Tokens over TLS: who is let in, what he may do, and whose a session is."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest
from click.testing import CliRunner

import disco_client
from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.admin import ask_for_overview
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.credentials import Credentials
from disco_server.cli.main import main

SESSIONS = "/disco.v1.SessionService/"


@pytest.fixture(scope="module")
def controller(shared_daemons, pki, tokens):
    """A controller that asks for tokens over TLS, with a node of three slots."""
    options = ("--auth-token-file", tokens.path, *pki.flags("controller"))
    started = shared_daemons.controller(*options)
    shared_daemons.worker(
        started.address,
        *("--slots", "3", "--tls-ca", pki.ca),
        *("--auth-token-file", tokens.of("pool")),
    )
    return started


@pytest.fixture
def shown(pki, tokens):
    """The arguments of connect() for who shows a token."""

    def arguments(name):
        return {"tls_ca": pki.ca, "token_file": tokens.of(name)}

    return arguments


@pytest.fixture
def dial(controller, shown):
    """A line to the controller, to call what a client would not."""
    opened = []

    def one(name):
        opened.append(ReloadingChannel(controller.address, Credentials.read(**shown(name))))
        return opened[-1]

    yield one
    for line in opened:
        line.close()


def test_only_an_administrator_drains_a_node(controller, shown, eventually):
    """Others are told whom it is for; the name of who did it is in lists and in the log."""

    def disco(name, *arguments):
        given = shown(name)
        options = ("--tls-ca", given["tls_ca"], "--token-file", given["token_file"])
        return CliRunner().invoke(
            main, [*map(str, (*arguments, "--address", controller.address, *options))]
        )

    for name in ("alice", "eye"):
        shown_to = disco(name, "drain", "n")
        assert shown_to.exit_code == 4
        assert f"{name} may not call Drain: it is for admin" in shown_to.stderr
    (node,) = json.loads(disco("alice", "status", "--json").stdout)["nodes"]
    done = disco("root", "drain", node["name"], "--reason", "new disk", "--json")
    (drained,) = json.loads(done.stdout)["nodes"]
    assert (drained["state"], drained["drained"]) == ("draining", "root: new disk")
    assert "DRAINING (root: new disk)" in disco("alice", "status").stdout
    assert disco("root", "drain", "--undo", node["name"]).exit_code == 0
    eventually(lambda: "node taken back" in controller.stderr, what="the audit log")
    log = controller.stderr
    assert "node drained" in log


def refused(call, *arguments):
    """The status of a call that is refused."""
    with pytest.raises(grpc.RpcError) as failed:
        call(*arguments, timeout=20)
    return failed.value.code()


def test_a_client_with_its_token_works(controller, shown, tokens, connect, pki):
    """From a file, or given as it is; arrays pass as well."""
    session = connect(controller.address, **shown("alice"))
    assert session.broadcast(np.arange(300_000)).numpy()[-1] == 299_999
    connect(controller.address, tls_ca=pki.ca, token=tokens.tokens["bob"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "asks for a token, and none came; give token_file"),
        ({"token": "x" * 32}, "does not know the token"),
    ],
)
def test_without_the_right_token_nobody_comes_in(controller, pki, options, told):
    """What was expected is said at once, and the token is not repeated."""
    with pytest.raises(errors.AccessDenied, match=told) as failed:
        disco_client.connect(
            controller.address, num_workers=1, timeout=50, tls_ca=pki.ca, **options
        )
    assert "x" * 32 not in str(failed.value)


@pytest.mark.parametrize(("name", "role"), [("pool", "worker pool"), ("eye", "observer eye")])
def test_a_role_may_do_what_is_its_own_alone(controller, shown, name, role):
    """Neither a worker nor an observer opens sessions."""
    with pytest.raises(errors.AccessDenied, match=f"{role} may not call"):
        disco_client.connect(controller.address, num_workers=1, **shown(name))


def test_a_client_does_not_speak_as_a_worker(dial):
    """It registers no node, whose stream alone leads to the rendezvous of a session."""
    line = dial("alice")
    register = line.stream_stream("/disco.v1.NodeService/Register")
    assert refused(lambda **how: list(register(iter([b""]), **how))) is _DENIED
    admit = line.unary_unary("/disco.v1.NodeService/Admit")
    assert refused(admit, b"") is _DENIED


_DENIED = grpc.StatusCode.PERMISSION_DENIED


def test_nobody_else_uses_a_session_even_with_its_key(controller, shown, connect, dial):
    """Attach, inspect, fetch, bring and close are its owner's; an administrator may."""
    session = connect(controller.address, name="alice's", **shown("alice"))
    arrays = session._core.transport._arrays
    head = controller_pb2.Transfer(session=arrays._session, transfer_key=arrays._key, ticket=1)
    close = controller_pb2.CloseRequest(session=arrays._session, transfer_key=arrays._key)
    look = controller_pb2.InspectRequest(name="alice's", timeout_s=5.0)
    line = dial("bob")
    with pytest.raises(errors.AccessDenied, match="belongs to another owner"):
        disco_client.attach("alice's", address=controller.address, **shown("bob"))
    inspect = line.unary_unary(SESSIONS + "Inspect")
    assert refused(inspect, look.SerializeToString()) is _DENIED
    named = controller_pb2.CloseRequest(name="alice's").SerializeToString()
    assert refused(line.unary_unary(SESSIONS + "Close"), named) is _DENIED
    interrupt = controller_pb2.InterruptRequest(name="alice's").SerializeToString()
    assert refused(line.unary_unary(SESSIONS + "Interrupt"), interrupt) is _DENIED
    logs = line.unary_stream(SESSIONS + "Logs")
    said = controller_pb2.LogsRequest(name="alice's").SerializeToString()
    assert refused(lambda **how: list(logs(said, **how))) is _DENIED
    assert refused(line.unary_unary(SESSIONS + "Close"), close.SerializeToString()) is _DENIED
    download = line.unary_stream("/disco.v1.ArrayService/Download")
    assert refused(lambda **how: list(download(head.SerializeToString(), **how))) is _DENIED
    upload = line.stream_unary("/disco.v1.ArrayService/Upload")
    chunk = controller_pb2.ArrayChunk(transfer=head).SerializeToString()
    assert refused(upload, iter([chunk])) is _DENIED
    session.sync_all()  # it did not notice

    root = dial("root")
    found = root.unary_unary(
        SESSIONS + "Inspect", response_deserializer=controller_pb2.InspectResult.FromString
    )(look.SerializeToString(), timeout=20)
    assert found.num_workers == 1
    interrupted = root.unary_unary(
        SESSIONS + "Interrupt", response_deserializer=controller_pb2.InterruptResult.FromString
    )(interrupt, timeout=20)
    assert interrupted.name == "alice's"
    close.transfer_key = b""
    root.unary_unary(SESSIONS + "Close")(close.SerializeToString(), timeout=20)
    with pytest.raises(errors.SessionLost, match="closed on request"):
        session.sync_all()


def test_a_name_leads_to_one_s_own_session_first(controller, shown, connect):
    """Somebody else's newer session of the same name is not in the way."""
    mine = connect(controller.address, name="work", **shown("alice"))
    mine.detach()
    theirs = connect(controller.address, name="work", **shown("bob"))
    with disco_client.attach("work", address=controller.address, **shown("alice")) as again:
        assert again.session_id == mine.session_id != theirs.session_id


def test_what_has_ended_is_not_everybody_s_either(controller, shown, connect, dial):
    """The records that nodes keep of a session are shown to its owner alone."""
    connect(controller.address, name="gone", **shown("alice")).shutdown()
    look = controller_pb2.InspectRequest(name="gone", timeout_s=5.0).SerializeToString()
    assert refused(dial("bob").unary_unary(SESSIONS + "Inspect"), look) is _DENIED
    dial("alice").unary_unary(SESSIONS + "Inspect")(look, timeout=20)


def test_lists_tell_others_no_details(controller, shown, connect, dial):
    """Another client sees who holds slots, and not where; an observer sees where too."""
    connect(controller.address, name="listed", **shown("alice"))

    def places(name):
        ask = dial(name).unary_unary(
            SESSIONS + "List", response_deserializer=controller_pb2.ListResult.FromString
        )
        (listed,) = [s for s in ask(b"", timeout=20).sessions if s.name == "listed"]
        (viewed,) = [s for s in ask_for_overview(dial(name)).sessions if s.name == "listed"]
        assert viewed.yours == (name in ("alice", "root"))
        assert len(viewed.ranks) == len(listed.ranks)
        assert any(rank.memory_bytes for rank in viewed.ranks) == viewed.yours
        assert listed.owner.startswith("alice (")
        assert not [rank for rank in listed.ranks if rank.array_address]
        return [rank.worker for rank in listed.ranks]

    assert [places(name) for name in ("alice", "bob", "eye", "root")] == [[0], [], [0], [0]]


def test_commands_are_refused_as_programs_are(controller, shown, connect, pki, tokens):
    """With the exit code of that; an administrator may do what an owner may."""
    session = connect(controller.address, name="watched", **shown("alice"))

    def disco(name, *command):
        files = ["--tls-ca", str(pki.ca), "--token-file", str(tokens.of(name))]
        return CliRunner().invoke(main, [*command, "--address", controller.address, *files])

    assert disco("alice", "logs", "watched").exit_code == 0
    for command in ("logs", "stop", "trace"):
        refused = disco("bob", command, "watched")
        assert (refused.exit_code, refused.stdout) == (4, "")
        assert "belongs to another owner" in refused.stderr
        assert disco("eye", command, "watched").exit_code == 4
    (seen,) = json.loads(disco("bob", "sessions", "--json").output)
    assert (seen["name"], seen["yours"], seen["ranks"]) == ("watched", False, [])
    assert disco("root", "stop", "watched").exit_code == 0
    with pytest.raises(errors.SessionLost, match="closed on request of admin root"):
        session.sync_all()


def test_tokens_may_be_replaced_while_it_runs(controller, pki, tokens):
    """A new line counts from the next call on; a file that is malformed changes nothing."""
    token = tokens.add("client", "carol")
    disco_client.connect(
        controller.address, num_workers=1, logs=False, tls_ca=pki.ca, token=token
    ).shutdown()
    whole = tokens.path.read_text()
    tokens.path.write_text("client carol short\n")
    disco_client.connect(
        controller.address, num_workers=1, logs=False, tls_ca=pki.ca, token=token
    ).shutdown()
    assert "the tokens before serve on" in controller.stderr
    tokens.path.write_text("\n".join(whole.splitlines()[:-1]) + "\n")
    with pytest.raises(errors.AccessDenied, match="does not know the token"):
        disco_client.connect(controller.address, num_workers=1, tls_ca=pki.ca, token=token)


def test_a_worker_s_token_is_good_for_no_name_with_a_token_of_its_own(
    daemons, pki, own_tokens, eventually
):
    """Not while that node is away either; names without a token are anybody's who has one."""
    for name in ("n0", "n1"):
        own_tokens.add("worker", name)
    options = ("--auth-token-file", own_tokens.path, *pki.flags("controller"))
    controller = daemons.controller(*options)

    def worker(node, token, **how):
        flags = ("--tls-ca", pki.ca, "--auth-token-file", own_tokens.of(token))
        return daemons.worker(controller.address, "--name", node, *flags, **how)

    refused = worker("n0", "n1", ready=False)
    eventually(lambda: "that of 'n1'; 'n0' has one of its own" in refused.stderr, what="a refusal")
    eventually(lambda: "node refused" in controller.stderr, what="the audit log")
    for name in ("n0", "n1", "n2"):
        worker(name, "n0" if name == "n0" else "n1")


def test_health_is_for_everybody(controller, pki):
    """Whoever watches over a daemon has no token; all else wants one."""
    line = ReloadingChannel(controller.address, Credentials.read(tls_ca=pki.ca))
    try:
        assert line.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\x08\x01"
        reflection = line.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        code = refused(lambda **how: list(reflection(iter([]), **how)))
        assert code is grpc.StatusCode.UNAUTHENTICATED
    finally:
        line.close()
