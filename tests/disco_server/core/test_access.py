"""Who may do what: tokens, certificates, roles."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_server.core.access import (
    EVERYBODY,
    METHODS,
    Identity,
    Role,
    accepted,
    certificate_identity,
    read_tokens,
)
from disco_server.security import CERTIFICATE_PREFIX

TOKEN = "0123456789abcdef"


def test_a_file_of_tokens_is_read_line_by_line():
    """With comments; a name may have two tokens while one of them is replaced."""
    text = f"# people\n\nclient alice {TOKEN}\n client  alice  {TOKEN}2 \nworker pool {TOKEN}3\n"
    tokens = accepted(read_tokens(text, "file"))
    assert tokens.find(TOKEN) == tokens.find(f"{TOKEN}2")
    assert tokens.find(TOKEN) == Identity(Role.CLIENT, "alice", "token")
    assert tokens.find(f"{TOKEN}3") == Identity(Role.WORKER, "pool", "token")
    assert tokens.find(TOKEN[:-1]) is tokens.find("") is None
    assert TOKEN not in repr(tokens)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "found none"),
        (TOKEN, "line 1: expected ROLE NAME TOKEN, got 1 words"),
        (f"boss alice {TOKEN}", "expected a role of client, worker, observer, admin"),
        (f"anybody alice {TOKEN}", "expected a role of"),
        (f"client a/b {TOKEN}", "expected a name of letters"),
        (f"client a\x1b[2J {TOKEN}", "line 1: expected a name of letters"),
        (f"client a\u202eb {TOKEN}", "line 1: expected a name of letters"),
        ("client alice short", "got one of 5"),
        ("client alice " + "\u00e4" * 20, "ASCII"),
        (f"client alice {TOKEN}\nadmin alice {TOKEN}2", "line 2: 'alice' has another role"),
        (f"client alice {TOKEN}\nclient bob {TOKEN}", "line 2: the same token"),
    ],
)
def test_a_malformed_file_is_refused_without_its_tokens(text, told):
    """The line is named, and what stands there as a token is not repeated."""
    with pytest.raises(ConfigError, match=told) as refused:
        read_tokens(text, "file")
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("who", "node", "told"),
    [
        (Identity(Role.ANYBODY), "n0", None),
        (Identity(Role.WORKER, "", "certificate"), "n0", None),
        (Identity(Role.WORKER, "n0", "certificate"), "n0", None),
        (Identity(Role.WORKER, "n1", "certificate"), "n0", "is that of node 'n1', and not of 'n0'"),
        ("n1", "n1", None),
        ("n1", "elsewhere", None),
        ("n1", "alice", None),
        ("n1", "n0", "is that of 'n1'; 'n0' has one of its own"),
    ],
)
def test_a_worker_registers_no_node_that_is_another_one_s(who, node, told):
    """A certificate is good for its name alone, a token for all that have none of their own."""
    if isinstance(who, str):
        names = {"n0": TOKEN, "n1": f"{TOKEN}1"}
        text = "".join(f"worker {name} {token}\n" for name, token in names.items())
        who = accepted(read_tokens(f"{text}client alice {TOKEN}2\n", "file")).find(names[who])
    refused = who.refuses_node(node)
    assert refused is None if told is None else told in refused


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["disco://client/alice"], Identity(Role.CLIENT, "alice", "certificate")),
        (["https://x", "disco://worker"], Identity(Role.WORKER, "", "certificate")),
        (["disco://admin/root/x"], Identity(Role.ADMIN, "root/x", "certificate")),
        (["disco://controller"], None),
        (["disco://client/a\x1b[2J"], None),
        (
            ["disco://worker/a\u202eb", "disco://client/alice"],
            Identity(Role.CLIENT, "alice", "certificate"),
        ),
        (["disco://anybody/x"], None),
        (["Disco://client/alice"], None),
        (["x-disco://client/alice"], None),
        ([], None),
    ],
)
def test_a_certificate_says_a_role_by_its_uri(names, found):
    """One that says none, or another's, is nobody's."""
    assert certificate_identity(names, CERTIFICATE_PREFIX) == found


def test_a_session_is_its_owner_s_and_an_administrator_s():
    """Whoever showed himself in another way is somebody else, whatever his name."""
    alice = Identity(Role.CLIENT, "alice", "token")
    made = alice.principal
    assert alice.owns(made)
    assert Identity(Role.ADMIN, "root", "token").owns(made)
    assert not Identity(Role.CLIENT, "alice", "certificate").owns(made)
    assert not Identity(Role.CLIENT, "bob", "token").owns(made)
    assert not Identity(Role.WORKER, "alice", "token").owns(made)
    assert not Identity(Role.OBSERVER, "alice", "token").owns(made)


def test_where_nobody_is_asked_everybody_may_use_everything():
    """As on a socket that one user alone can enter."""
    assert EVERYBODY.owns("")
    assert EVERYBODY.owns("token:alice")


def test_no_method_is_open_besides_health():
    """All others want a role; only workers speak for nodes, and none of them as a client."""
    free = {method for method, roles in METHODS.items() if roles is None}
    assert all(method.startswith("/grpc.health.v1.Health/") for method in free)
    for method, roles in METHODS.items():
        service = method.split("/")[1]
        if service == "disco.v1.NodeService":
            assert roles == {Role.WORKER}
        elif service.startswith("disco."):
            assert Role.WORKER not in roles
