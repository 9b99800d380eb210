"""Daemons are safe as they are started: for other machines only where somebody says how."""

from __future__ import annotations

import socket

import numpy as np
import psutil
import pytest

import disco_client
from disco_client import errors


def elsewhere():
    """An address of this machine that others could reach."""
    for addresses in psutil.net_if_addrs().values():
        for each in addresses:
            if each.family is socket.AF_INET and not each.address.startswith("127."):
                return each.address
    pytest.skip("this machine has no address besides loopback")


def listening(daemon):
    """The addresses at which a daemon and all its children listen."""
    found = set()
    for process in (psutil.Process(daemon.process.pid), *daemon.family()):
        for each in process.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN:
                found.add(each.laddr.ip.removeprefix("::ffff:"))
    return found


def test_without_being_told_daemons_listen_on_loopback_alone(daemons, connect):
    """Neither they nor their ranks have a door for other machines."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "2")
    session = connect(controller.address, num_workers=2)
    session.broadcast(np.arange(4.0))  # MPI's ranks listen for each other
    session.sync_all()
    assert listening(controller) == {"127.0.0.1"}
    assert listening(worker) <= {"127.0.0.1"}


@pytest.mark.parametrize(
    ("guards", "missing"),
    [
        ((), "--tls-cert and --tls-key, and --auth-token-file or --require-client-cert"),
        (("tls",), "expected --auth-token-file or --require-client-cert"),
        (("tokens",), "expected --tls-cert and --tls-key"),
    ],
)
def test_an_open_door_is_refused(daemons, pki, tokens, guards, missing):
    """With the exit code 2 and a line that says what is missing."""
    flags = pki.flags("controller") if "tls" in guards else []
    flags += ["--auth-token-file", str(tokens.path)] if "tokens" in guards else []
    daemon = daemons.controller("--listen", "0.0.0.0:0", *flags, ready=False)
    assert daemon.wait() == 2
    (line,) = daemon.stderr.splitlines()
    assert missing in line
    assert "--insecure" in line


def test_a_door_with_both_is_opened(daemons, pki, tokens):
    """TLS and tokens are enough for other machines."""
    daemon = daemons.controller(
        *("--listen", "0.0.0.0:0", "--auth-token-file", tokens.path, *pki.flags("controller"))
    )
    assert "--insecure" not in daemon.stderr


def test_insecure_is_possible_and_says_so_at_each_start(daemons, connect):
    """All of it works over another address, and both daemons warn."""
    controller = daemons.controller("--listen", f"{elsewhere()}:0", "--insecure")
    worker = daemons.worker(controller.address, "--insecure", "--slots", "1")
    connect(controller.address).sync_all()
    for daemon in (controller, worker):
        assert "WARNING" in daemon.stderr
        assert "can run code on this cluster" in daemon.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "whoever answers there can run code here; expected --tls-ca"),
        (("--auth-token-file", "TOKEN"), "a token is sent over TLS or on this machine only"),
    ],
)
def test_a_worker_daemon_dials_no_stranger(daemons, tokens, options, told):
    """A controller on another machine has to show who it is; no token goes there in clear."""
    options = [str(tokens.of("pool")) if word == "TOKEN" else word for word in options]
    daemon = daemons.worker("203.0.113.7:7600", *options, ready=False)
    assert daemon.wait() == 2
    assert told in daemon.stderr


def test_a_client_sends_no_token_in_clear(tokens):
    """It is refused before anything is sent."""
    with pytest.raises(errors.ConfigError, match="over TLS or on this machine only"):
        disco_client.connect("203.0.113.7:7600", num_workers=1, token=tokens.tokens["alice"])


def test_without_certificates_a_far_node_opens_no_door(daemons, pki, tokens, connect):
    """Its arrays go through the controller, which is encrypted."""
    here = elsewhere()
    pki.issue("controller", "here", hosts=(here,))
    controller = daemons.controller(
        *("--listen", f"{here}:0", "--auth-token-file", tokens.path, *pki.flags("here"))
    )
    options = ("--tls-ca", pki.ca, "--auth-token-file", tokens.of("pool"), "--slots", "1")
    worker = daemons.worker(controller.address, *options)
    session = connect(controller.address, tls_ca=pki.ca, token_file=tokens.of("alice"))
    assert session.broadcast(np.arange(300_000)).numpy()[-1] == 299_999
    assert "arrays through the controller" in worker.stderr
    assert not {ip for ip in listening(worker) if not ip.startswith("127.")}


def test_a_program_s_own_controller_is_guarded_as_a_daemon_is(pki, tokens):
    """SocketSession refuses an open door, and says what its nodes need."""
    with pytest.raises(errors.ConfigError, match=r"host: 0\.0\.0\.0.*or --insecure"):
        disco_client.SocketSession(2, 1, 1, "0.0.0.0", 0)
    files = pki.files("controller")
    with pytest.raises(errors.NoSlots, match="--tls-ca FILE --auth-token-file FILE"):
        disco_client.SocketSession(
            2, 1, 1, "localhost", 0, timeout=0.1, auth_token_file=tokens.path, **files
        )
