"""Connections by TLS and mutual TLS: who is refused, and what he is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import disco_client
from disco_client import errors


@pytest.fixture(scope="module")
def controller(shared_daemons, pki):
    """A controller that lets in who shows a certificate, with a node of two slots."""
    started = shared_daemons.controller("--require-client-cert", *pki.flags("controller"))
    options = ("--slots", "2", "--array-listen", "127.0.0.1:0")
    shared_daemons.worker(started.address, *options, "--require-client-cert", *pki.flags("worker"))
    return started


def cli(controller, *arguments):
    command = [sys.executable, "-m", "disco_server.cli.main", *arguments]
    return subprocess.run(
        [*command, "--address", controller.address], capture_output=True, text=True, check=False
    )


def test_a_session_goes_through_encrypted_lines_from_end_to_end(controller, pki, connect):
    """Commands, and arrays by the node's own endpoint, which wants a certificate as well."""
    session = connect(controller.address, num_workers=2, **pki.files("client"))
    array = np.arange(300_000.0)
    assert (session.broadcast(array).numpy(1) == array).all()
    endpoints = session._core.transport._arrays._direct
    assert endpoints
    assert None not in endpoints.values()


@pytest.mark.parametrize(
    ("who", "told"),
    [
        ("nobody", "wants a client certificate, and none was given"),
        ("expired", "refuses the client certificate"),
        ("evil", "refuses the client certificate"),
        ("plain", "speaks TLS, and this program does not; give tls_ca"),
    ],
)
def test_who_shows_no_good_certificate_is_told_so_at_once(controller, pki, evil, who, told):
    """A typed error says what is missing; nobody waits for a controller that is there."""
    options = {
        "nobody": {"tls_ca": pki.ca},
        "expired": pki.files(pki.issue("client/late", days=-1)),
        "evil": {**evil.files("client"), "tls_ca": pki.ca},
        "plain": {},
    }[who]
    with pytest.raises(errors.AccessDenied, match=told):
        disco_client.connect(controller.address, num_workers=1, timeout=50, **options)


@pytest.mark.parametrize(
    ("flaw", "told"),
    [
        ("evil", "unable to get local issuer certificate"),
        ("expired", "certificate has expired"),
        ("elsewhere", "not valid for '127.0.0.1'"),
        ("plain", "does not speak TLS; start it with --tls-cert"),
    ],
)
def test_a_controller_that_is_not_the_right_one_is_refused_at_once(daemons, pki, evil, flaw, told):
    """By a client, which says why, and by a worker daemon, which logs it and goes on trying."""
    flags = {
        "evil": lambda: evil.flags("controller"),
        "expired": lambda: pki.flags(pki.issue("controller", "old", hosts=("127.0.0.1",), days=-1)),
        "elsewhere": lambda: pki.flags(pki.issue("controller", "far", hosts=("elsewhere",))),
        "plain": list,
    }[flaw]()
    controller = daemons.controller(*flags)
    with pytest.raises(errors.AccessDenied, match=told):
        disco_client.connect(controller.address, num_workers=1, timeout=50, tls_ca=pki.ca)


def test_a_worker_daemon_says_why_it_is_not_let_in(controller, daemons, evil, pki, eventually):
    """Its log names the certificate; it goes on trying, because that may be replaced."""
    flags = evil.flags("worker")
    flags[flags.index("--tls-ca") + 1] = str(pki.ca)
    worker = daemons.worker(controller.address, *flags, ready=False)
    eventually(lambda: "refuses the client certificate" in worker.stderr, what=worker.stderr)
    assert worker.process.poll() is None


def test_a_role_may_do_what_is_its_own_alone(controller, pki):
    """A worker's certificate opens no session, and an observer's neither."""
    for role in ("worker", "observer"):
        with pytest.raises(errors.AccessDenied, match=f"{role} may not call"):
            disco_client.connect(controller.address, num_workers=1, **pki.files(role))


def test_a_certificate_without_a_role_is_worth_nothing(controller, pki):
    """The authority signs for other purposes too; the error says what was expected."""
    with pytest.raises(errors.AccessDenied, match=r"names no role.*disco://client/NAME"):
        disco_client.connect(
            controller.address, num_workers=1, **pki.files(pki.issue("guest/somebody"))
        )


def test_a_node_s_certificate_is_good_for_its_name_alone(controller, daemons, pki, eventually):
    """One that was stolen does not take the place of another node."""
    stolen = pki.flags(pki.issue("worker/node-7"))
    worker = daemons.worker(controller.address, "--name", "node-8", *stolen, ready=False)
    eventually(lambda: "is that of node 'node-7'" in worker.stderr, what=worker.stderr)
    daemons.worker(controller.address, "--name", "node-7", *stolen)


def test_a_session_belongs_to_who_made_it(controller, pki, connect):
    """Another client's certificate does not attach or look into it; an administrator's does."""
    alice, bob = pki.files("client-alice"), pki.files("client-bob")
    session = connect(controller.address, name="of-alice", **alice)
    session.publish("x", session.empty((2,), "float32"))
    session.detach()
    with pytest.raises(errors.AccessDenied, match="belongs to another owner"):
        disco_client.attach("of-alice", address=controller.address, **bob)
    looked = cli(controller, "doctor", "--session", "of-alice", *pki.flags("client-bob"))
    assert (looked.returncode, looked.stdout) == (4, "")
    assert "belongs to another owner" in looked.stderr
    looked = cli(controller, "doctor", "--session", "of-alice", *pki.flags("admin"))
    assert "session 'of-alice'" in looked.stdout
    with disco_client.attach("of-alice", address=controller.address, **alice) as again:
        assert again.list_published() == ["x"]
    looked = cli(controller, "trace", "of-alice", "-o", "-", *pki.flags("client-bob"))
    assert (looked.returncode, looked.stdout) == (4, "")
    assert "belongs to another owner" in looked.stderr


def test_a_session_that_is_replaced_shows_the_same_certificate(controller, pki, connect):
    """With recover="replay" the next one is opened as the first one was."""
    session = connect(controller.address, recover="replay", **pki.files("client-alice"))
    array = session.broadcast(np.arange(4.0))
    session.sync_all()
    os.kill(session.workers[0].pid, signal.SIGKILL)
    assert array.numpy().tolist() == [0, 1, 2, 3]


def test_status_works_with_a_certificate_and_says_so_without(controller, pki):
    """The command line takes what connect() does, and fails as it does."""
    shown = cli(controller, "status", "--json", *pki.flags("observer"))
    assert shown.returncode == 0, shown.stderr
    refused = cli(controller, "status", "--tls-ca", str(pki.ca))
    assert refused.returncode == 4
    assert "wants a client certificate" in refused.stderr
